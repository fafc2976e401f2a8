"""Makes tests/golden/ltx/guides.*: runs of LTX-2 whose video is guided by pictures, and pictures that are compressed as
frames of a video, in ComfyUI 0.33.0. Running the tests does not need this script.

    python tests/reference/make_ltx_guides.py COMFYUI_TREE tests/golden/ltx

Weights and inputs are by the formula of tests/golden/README.md section 1. A run is a list of guides, each of them
pictures `input:guides/NAME/I` (scale 1, offset 0.5), where they begin, their strength, the shape of their mask
(`input:guides/NAME/I/mask`, scale 1.6, offset 0.5, cut to 0..1; null: none) and the factor of an IC-LoRA, that
LTXVAddGuide puts into an empty latent with the autoencoder `ltxvae-a`; `#latent` is what it returns at last (every 3rd
value), `#mask` its mask, `spans` the pictures that the frames of guides stand for, and `#video`, `#sound` what
SamplerCustomAdvanced makes of it with CFGGuider, euler and the network, after LTXVCropGuides. Frames of guides have
noise of their own.
"""

import json
import os
import sys

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(tree, "--force-fp32", "--fp32-vae", "--use-pytorch-cross-attention", "--disable-all-custom-nodes")
import gzip

import comfy.nested_tensor
import comfy.sd
import torch
from comfy_extras import nodes_custom_sampler as custom
from comfy_extras import nodes_lt as lt
from safetensors.torch import save_file

FILES = {**json.load(gzip.open(f"{out}/weights.json.gz")), **json.load(open(f"{out}/weights_vae.json"))}
SIGMAS = [0.9, 0.5, 0.0]
# network, frames, rows and columns of the latent, guides: pictures, rows and columns of them, frame_idx, strength,
# mask, factor
RUNS = {
    "ends": ("ltx-a", (3, 2, 3), [((1, 64, 96), 0, 1.0), ((1, 64, 96), -1, 1.0)]),
    "weaker": ("ltx-a", (3, 2, 3), [((1, 64, 96), -1, 0.7), ((1, 50, 80), 0, 0.4)]),
    "clips": ("ltx-b", (4, 2, 2), [((9, 64, 64), 12, 0.5), ((11, 64, 64), 0, 1.0), ((1, 64, 64), 5, 1.5)]),
    "masked": ("ltx-a", (3, 2, 3), [((1, 64, 96), 0, 1.0, (1, 4, 6)), ((1, 64, 96), -1, 0.7)]),
    "masked-clips": ("ltx-b", (4, 2, 2), [((9, 64, 64), 12, 0.5, (9, 3, 5)), ((9, 64, 64), 0, 1.2, (2, 7, 4)),
        ((1, 64, 64), 5, 1.0, (4, 2, 2))]),
    "masked-long": ("ltx-a", (4, 2, 3), [((17, 64, 96), 0, 1.0, (2, 5, 7)), ((17, 64, 96), 1, 0.9, (1, 1, 1)),
        ((17, 64, 96), 0, 1.0, (8, 2, 3))]),
    "small": ("ltx-a", (3, 2, 4), [((9, 64, 128), 0, 1.0, None, 2)]),
    "small-both": ("ltx-b", (4, 2, 4), [((1, 64, 128), -1, 1.0), ((17, 64, 128), 1, 0.6, (2, 2, 4), 2),
        ((1, 64, 128), 3, 0.5)]),
}  # fmt: skip


def loaded(model):
    """Return the tensors and the metadata of a model's file."""
    declared = FILES[model]
    sd = {k: fill(f"{model}/{k}", tuple(s), scale, offset) for k, s, _, scale, offset in declared["tensors"]}
    return sd, {"config": json.dumps(declared["config"])}


cases, tensors = {}, {}
sd, metadata = loaded("ltxvae-a")
vae = comfy.sd.VAE(sd=sd, metadata=metadata)
with torch.inference_mode():
    for name, (model, (t, y, x), guides) in RUNS.items():
        sd, metadata = loaded(model)
        network = comfy.sd.load_diffusion_model_state_dict(sd, metadata=metadata)
        width = {"ltx-a": 80, "ltx-b": 128}[model]
        sides = [
            [[given(f"guides/{model}/{side}", (1, rows, width)), {"unprocessed_ltxav_embeds": True}]]
            for side, rows in (("positive", 6), ("negative", 4))
        ]
        latent = lt.EmptyLTXVLatentVideo.execute(32 * x, 32 * y, 8 * t - 7, 1).args[0]
        sides = list(lt.LTXVConditioning.execute(*sides, 24.0).args)
        for i, (shape, at, strength, *more) in enumerate(guides):
            pictures = fill(f"input:guides/{name}/{i}", (*shape, 3), 1, 0.5)
            mask = fill(f"input:guides/{name}/{i}/mask", more[0], 1.6, 0.5).clamp(0, 1) if more and more[0] else None
            says = {"reference_downscale_factor": more[1]} if len(more) > 1 else None
            *sides, latent = lt.LTXVAddGuide.execute(*sides, vae, latent, pictures, at, strength, mask, says).args
        coordinates = sides[0][0][1]["keyframe_idxs"][0, 0, :: y * x]
        cases[name] = {
            "model": model, "latent": [t, y, x], "guides": guides, "sigmas": SIGMAS, "width": width,
            "spans": coordinates.tolist(),
        }  # fmt: skip
        tensors[name + "#latent"] = latent["samples"].flatten()[::3].contiguous()
        tensors[name + "#mask"] = latent["noise_mask"][0, 0].flatten().contiguous()
        sound = torch.zeros(1, 8, round((8 * t - 7) / 24 * 25), 16)
        joined = lt.LTXVConcatAVLatent.execute(latent, {"samples": sound}).args[0]
        guider = custom.CFGGuider.execute(network, *sides, 3.0).args[0]
        done = custom.SamplerCustomAdvanced.execute(
            custom.RandomNoise.execute(7).args[0], guider, custom.KSamplerSelect.execute("euler").args[0],
            torch.tensor(SIGMAS), joined,
        ).args[0]  # fmt: skip
        video, sound = lt.LTXVSeparateAVLatent.execute(done).args
        *sides, video = lt.LTXVCropGuides.execute(*sides, video).args
        assert video["samples"].shape[2] == t and sides[0][0][1]["keyframe_idxs"] is None
        tensors[name + "#video"] = video["samples"].contiguous()
        tensors[name + "#sound"] = sound["samples"].contiguous()
        print(name, cases[name]["spans"], tensors[name + "#mask"].tolist(), video["samples"].square().mean().sqrt())
    y, x = 66, 73
    row, column = torch.meshgrid(torch.arange(y), torch.arange(x), indexing="ij")
    picture = torch.stack([column / (x - 1), row / (y - 1), ((row + column) % 40) / 40], dim=-1)
    for crf in (18, 35):
        got = lt.LTXVPreprocess.execute(torch.stack([picture, 1 - picture]), crf).args[0]
        cases[f"compressed/{crf}"] = {"shape": list(got.shape), "every": 11}
        tensors[f"compressed/{crf}"] = got.flatten()[::11].contiguous()
with open(f"{out}/guides.json", "w") as f:
    f.write("{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in cases.items()) + "\n}\n")
save_file(tensors, f"{out}/guides.safetensors")
os.chmod(f"{out}/guides.safetensors", 0o644)
