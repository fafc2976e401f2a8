"""Makes tests/golden/ltx/cache.*: runs of LTX-2 whose model has EasyCache or LazyCache, in ComfyUI 0.33.0. Running the
tests does not need this script.

    python tests/reference/make_ltx_cache.py COMFYUI_TREE tests/golden/ltx

Weights and inputs are by the formula of tests/golden/README.md section 1. A run has the fields of e2e.json, and those
of its cache; `#video` and `#audio` are the results, `evaluated` tells for every step whether the network was asked.
The network is handed a copy of what it reads, as the cast to a type of 16 bits makes one (make_easycache.py).
"""

import gzip
import json
import os
import sys

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(tree, "--force-fp32", "--fp32-vae", "--use-pytorch-cross-attention", "--disable-all-custom-nodes")
import comfy.nested_tensor
import comfy.sd
import torch
from comfy_extras import nodes_custom_sampler as custom
from comfy_extras import nodes_lt as lt
from comfy_extras.nodes_easycache import EasyCacheNode, LazyCacheNode
from safetensors.torch import save_file

FILES = json.load(gzip.open(f"{out}/weights.json.gz"))
WIDTHS = {"ltx-a": 80, "ltx-b": 128}
CACHES = {"easy": EasyCacheNode, "lazy": LazyCacheNode}
FLOW = [1.0, 0.97, 0.93, 0.88, 0.82, 0.75, 0.67, 0.58, 0.48, 0.37, 0.25, 0.12, 0.0]
# cache, network, frames, rows and columns of the video, cfg, sampler, reuse_threshold, start_percent, end_percent
RUNS = {
    "easy": ("easy", "ltx-a", (17, 9, 10), 3.0, "euler", 1.2, 0.1, 0.95),
    "lazy": ("lazy", "ltx-a", (17, 9, 10), 3.0, "euler", 1.2, 0.1, 0.95),
    "easy-one-entry": ("easy", "ltx-b", (25, 3, 9), 1.0, "dpmpp_2m", 1.6, 0.15, 0.9),
    "lazy-one-entry": ("lazy", "ltx-b", (25, 3, 9), 1.0, "dpmpp_2m", 0.9, 0.15, 0.9),
}
cases, tensors = {}, {}
with torch.inference_mode():
    for name, (cache, model, (length, y, x), cfg, sampler, threshold, start, end) in RUNS.items():
        declared = FILES[model]
        sd = {k: fill(f"{model}/{k}", tuple(s), scale, offset) for k, s, _, scale, offset in declared["tensors"]}
        network = comfy.sd.load_diffusion_model_state_dict(sd, metadata={"config": json.dumps(declared["config"])})
        sampling = network.model.model_sampling
        sampling.calculate_input = lambda sigma, noise: noise.clone()
        calls, inner = [], network.model.diffusion_model._forward

        def counted(*args, calls=calls, inner=inner, **kwargs):
            calls.append(float(args[5]["sigmas"][0]))
            return inner(*args, **kwargs)

        network.model.diffusion_model._forward = counted
        cached = CACHES[cache].execute(network, threshold, start, end, False).args[0]
        sides, entries = [], {}
        for side, rows in (("positive", 9), ("negative", 5)):
            text = f"cache/{model}/{side}"
            sides.append([[given(text, (1, rows, WIDTHS[model])), {"unprocessed_ltxav_embeds": True}]])
            entries[side] = {
                "context": f"input:{text}", "shape": [1, rows, WIDTHS[model]], "unprocessed_ltxav_embeds": True,
            }  # fmt: skip
        sides = lt.LTXVConditioning.execute(*sides, 24.0).args
        video = lt.EmptyLTXVLatentVideo.execute(32 * x, 32 * y, length, 1).args[0]
        sound = {"samples": torch.zeros(1, 8, round(length / 24 * 25), 16)}
        joined = lt.LTXVConcatAVLatent.execute(video, sound).args[0]
        done = custom.SamplerCustomAdvanced.execute(
            custom.RandomNoise.execute(5).args[0], custom.CFGGuider.execute(cached, *sides, cfg).args[0],
            custom.KSamplerSelect.execute(sampler).args[0], torch.tensor(FLOW), joined,
        ).args[0]  # fmt: skip
        video, sound = lt.LTXVSeparateAVLatent.execute(done).args
        tensors[name + "#video"] = video["samples"].contiguous()
        tensors[name + "#audio"] = sound["samples"].contiguous()
        cases[name] = {
            "model": model, "nodes": f"EmptyLTXVLatentVideo {32 * x} {32 * y} {length} 1", "sigmas": FLOW, "cfg": cfg,
            "sampler": sampler, "seed": 5, "frame_rate": 24, "cache": cache, "reuse_threshold": threshold,
            "start_percent": start, "end_percent": end, **entries,
            "evaluated": [any(abs(c - s) < 1e-6 for c in calls) for s in FLOW[:-1]],
        }  # fmt: skip
        print(name, cases[name]["evaluated"], len(calls), video["samples"].square().mean().sqrt())
with open(f"{out}/cache.json", "w") as f:
    f.write("{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in cases.items()) + "\n}\n")
save_file(tensors, f"{out}/cache.safetensors")
os.chmod(f"{out}/cache.safetensors", 0o644)
