"""Makes tests/golden/easycache.json and easycache.safetensors. Running the tests does not need this script.

Made with Python 3.11, torch 2.15.0, numpy 2.4.6 and the tree of ComfyUI 0.8.0, whose KSampler, EasyCache and LazyCache
nodes are imported and run as they are:
    python tests/reference/make_easycache.py COMFYUI_TREE tests/golden

The models are those of tests/golden/weights.json with weights and inputs by the formula of tests/golden/README.md
section 1. In float32 the node's += lands in the sampler's own x, because ComfyUI's flow models hand x to the network
without a copy, and a skipped step is wrong; in bfloat16 and float16, as on GPUs, the cast to that type is a copy and
all is well. So FLUX is handed a copy here too. The case "float32" keeps the number without the copy for the record.
"""

import asyncio
import json
import os
import sys

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), sys.argv[2]
comfytree.start(tree, "--fp32-unet", "--use-pytorch-cross-attention", vision=False)
import nodes
import torch
import comfy.model_patcher
import comfy.patcher_extension
import comfy.supported_models
from comfy_extras.nodes_easycache import EasyCacheNode, LazyCacheNode
from safetensors.torch import save_file

WEIGHTS = json.load(open(os.path.join(out, "weights.json")))


def model(name, copy):
    w = WEIGHTS[name]
    c = getattr(comfy.supported_models, w["class"])(dict(w["config"]))
    m = c.get_model({}, "", device="cpu")
    sd = {k: fill(f"{name}/{k}", s, scale, offset) for k, s, _, scale, offset in w["tensors"]}
    m.diffusion_model.load_state_dict(sd, strict=False)
    for k, v in m.diffusion_model.state_dict().items():
        assert k not in sd or torch.equal(v, sd[k]), k
    if copy:
        m.model_sampling.calculate_input = lambda sigma, noise: noise.clone()
    return comfy.model_patcher.ModelPatcher(m, torch.device("cpu"), torch.device("cpu"))


def entry(name, tag, tokens, guidance=None, start=None, end=None):
    w = WEIGHTS[name]["config"]
    base = f"easycache/{name}/{tag}/"
    e = {"tag": tag, "tokens": tokens}
    o = {}
    if name.startswith("flux"):
        width, pooled = w["context_in_dim"], w["vec_in_dim"]
        if guidance is not None:
            o["guidance"] = e["guidance"] = guidance
    elif name.startswith("sd3"):
        width, pooled = w["context_embedder_config"]["params"]["in_features"], w["adm_in_channels"]
    else:
        width, pooled = w["caption_channels"], None
    if pooled:
        o["pooled_output"] = given(base + "pooled", (1, pooled))
    c = [[given(base + "context", (1, tokens, width)), o]]
    if start is not None:
        e["start_percent"], e["end_percent"] = start, end
        o["start_percent"], o["end_percent"] = start, end
    return c, e


CASES, TENSORS = {}, {}


def run(key, node, name, positive, negative, *, shape, sampler="euler", scheduler="simple", steps=12, cfg=1.0, seed=7,
        denoise=1.0, threshold=0.2, start=0.15, end=0.95, latent="zeros", mask=False, float32=False):
    m = model(name, name.startswith("flux") and not float32)
    if node:
        m = node.execute(m, threshold, start, end, True)[0]
    evaluations = []

    def evaluate(executor, *args, **kwargs):
        evaluations.append([])
        return executor(*args, **kwargs)

    network = m.model.diffusion_model
    inner = "_forward" if name.startswith("flux") else "forward"
    original = getattr(network, inner)

    def forward(x, *args, **kwargs):
        options = kwargs.get("transformer_options") or next(a for a in reversed(args) if isinstance(a, dict))
        evaluations[-1].append([x.shape[0], list(options["cond_or_uncond"])])
        return original(x, *args, **kwargs)

    setattr(network, inner, forward)
    # Outermost: a wrapper of the same kind that was there first runs first.
    own = m.wrappers.setdefault(comfy.patcher_extension.WrappersMP.PREDICT_NOISE, {})
    m.wrappers[comfy.patcher_extension.WrappersMP.PREDICT_NOISE] = {"count": [evaluate], **own}
    samples = torch.zeros(shape) if latent == "zeros" else given(latent, shape)
    l = {"samples": samples}
    h, w = shape[2], shape[3]
    if mask:
        pixels = torch.zeros(1, 1, 8 * h, 8 * w)
        pixels[:, :, 2 * h : 6 * h, 8 * w // 3 :] = 1
        l["noise_mask"] = pixels
    result = nodes.KSampler().sample(m, seed, steps, cfg, sampler, scheduler, [c for e in positive for c in e[0]],
        [c for e in negative for c in e[0]], l, denoise)[0]["samples"]
    CASES[key] = {
        "node": {EasyCacheNode: "EasyCache", LazyCacheNode: "LazyCache", None: ""}[node], "model": name,
        "sampler": sampler, "scheduler": scheduler, "steps": steps, "cfg": cfg, "seed": seed, "denoise": denoise,
        "reuse_threshold": threshold, "start_percent": start, "end_percent": end, "latent_shape": list(shape),
        "latent": latent, "mask": mask,
        "positive": [e[1] for e in positive], "negative": [e[1] for e in negative], "evaluations": evaluations,
    }
    TENSORS[key] = result.float().contiguous()
    print(key, "ran", "".join(str(len(e)) for e in evaluations), "rms %.4f" % result.float().pow(2).mean().sqrt())


def plain(v):  # without the words of others
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items() if k not in ("tooltip", "description", "output_tooltips")}
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    return v


EASY, LAZY = EasyCacheNode, LazyCacheNode


def main():
    a = lambda tag, n=13, **k: entry("flux-a", tag, n, guidance=3.5, **k)
    c = lambda tag, n=13, **k: entry("flux-c", tag, n, guidance=3.5, **k)
    s = lambda tag, n=13, **k: entry("sd3-a", tag, n, **k)
    p = lambda tag, n=13, **k: entry("pixart-a", tag, n, **k)
    # FLUX, EasyCache
    for t in (0.2, 0.6, 1.0, 1.5):
        run(f"flux-a/easy/{t}", EASY, "flux-a", [a("pos")], [a("neg")], shape=(1, 16, 16, 24), threshold=t)
    run("flux-a/easy/always", EASY, "flux-a", [a("pos")], [a("neg")], shape=(1, 16, 16, 24), threshold=3.0, start=0.0,
        end=1.0)
    run("flux-a/easy/late", EASY, "flux-a", [a("pos")], [a("neg")], steps=16, shape=(1, 16, 16, 24), threshold=1.5,
        start=0.4, end=0.7)
    run("flux-a/easy/float32", EASY, "flux-a", [a("pos")], [a("neg")], shape=(1, 16, 16, 24), threshold=1.0,
        float32=True)
    run("flux-a/easy/odd-b2", EASY, "flux-a", [a("pos")], [a("neg")], steps=16, shape=(2, 16, 17, 27), threshold=1.0)
    run("flux-a/easy/heun", EASY, "flux-a", [a("pos")], [a("neg")], shape=(1, 16, 16, 24), threshold=0.2,
        sampler="heun")
    run("flux-a/easy/dpmpp_2m-img2img", EASY, "flux-a", [a("pos")], [a("neg")], shape=(1, 16, 16, 24), steps=16,
        threshold=1.0, sampler="dpmpp_2m", scheduler="beta", denoise=0.7, latent="easycache/latent")
    run("flux-a/easy/euler_ancestral-mask", EASY, "flux-a", [a("pos")], [a("neg")], shape=(1, 16, 16, 24), steps=16,
        threshold=1.0, sampler="euler_ancestral", latent="easycache/latent", mask=True)
    run("flux-c/easy/cfg3-batched", EASY, "flux-c", [c("pos")], [c("neg")], steps=16, shape=(1, 16, 16, 24),
        threshold=1.0, cfg=3.0)
    run("flux-c/easy/cfg3-separate-b2", EASY, "flux-c", [c("pos")], [c("neg", 5)], steps=16, shape=(2, 16, 16, 24),
        threshold=1.0, cfg=3.0)
    run("flux-c/easy/combine-lengths", EASY, "flux-c", [c("pos"), c("pos3", 7)], [c("neg", 7)], steps=16,
        shape=(1, 16, 16, 24), threshold=1.0, cfg=3.0)
    run("flux-c/easy/range", EASY, "flux-c", [c("pos", start=0.0, end=0.6), c("pos2", 9)], [c("neg", 9)], steps=16,
        shape=(1, 16, 16, 24), threshold=1.0, cfg=3.0)
    run("flux-c/easy/euler_cfg_pp", EASY, "flux-c", [c("pos")], [c("neg")], steps=16, shape=(1, 16, 16, 24),
        threshold=1.0, cfg=1.6, sampler="euler_cfg_pp")
    # Families whose networks call no wrapper: EasyCache has no effect
    run("sd3-a/easy/no-effect", EASY, "sd3-a", [s("pos")], [s("neg")], shape=(1, 16, 16, 24), threshold=0.2, cfg=4.0)
    # LazyCache, every family
    run("flux-a/lazy/euler", LAZY, "flux-a", [a("pos")], [a("neg")], steps=16, shape=(1, 16, 16, 24), threshold=0.6)
    run("flux-c/lazy/cfg3", LAZY, "flux-c", [c("pos")], [c("neg", 5)], steps=16, shape=(2, 16, 16, 24), threshold=0.6,
        cfg=3.0)
    run("flux-c/lazy/euler_cfg_pp", LAZY, "flux-c", [c("pos")], [c("neg")], steps=16, shape=(1, 16, 16, 24),
        threshold=0.6, cfg=1.6, sampler="euler_cfg_pp")
    run("sd3-a/lazy/cfg4", LAZY, "sd3-a", [s("pos")], [s("neg")], steps=16, shape=(1, 16, 16, 24), threshold=0.6,
        cfg=4.0, scheduler="sgm_uniform")
    run("sd3-a/lazy/mask-odd", LAZY, "sd3-a", [s("pos")], [s("neg")], steps=16, shape=(1, 16, 15, 23), threshold=0.6,
        cfg=4.0, latent="easycache/latent", mask=True)
    run("pixart-a/lazy/dpmpp_2m", LAZY, "pixart-a", [p("pos")], [p("neg")], steps=16, shape=(1, 4, 36, 44),
        threshold=0.6, cfg=4.5, sampler="dpmpp_2m", scheduler="normal")
    asyncio.run(nodes.load_custom_node(f"{tree}/comfy_extras/nodes_easycache.py", module_parent="comfy_extras"))
    info = {n: plain(nodes.NODE_CLASS_MAPPINGS[n].GET_NODE_INFO_V1()) for n in ("EasyCache", "LazyCache")}
    with open(os.path.join(out, "easycache.json"), "w") as f:
        f.write('{"object_info": ' + json.dumps(info) + ',\n"cases": {\n'
            + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in CASES.items()) + "\n}}\n")
    save_file(TENSORS, os.path.join(out, "easycache.safetensors"))


main()
