"""Writes tests/golden/refiner: the refiner of SDXL. Running the tests does not need this script.

Made with Python 3.11, torch 2.15.0, numpy 2.4.6, transformers 4.57.3 and the tree of ComfyUI 0.33.0, whose network,
nodes and encoder are imported and run as they are:
    python tests/reference/make_refiner.py COMFYUI_TREE tests/golden
    python tests/reference/planes.py tests/golden/refiner/*.safetensors

Weights and inputs are by the formula of tests/golden/README.md section 1. The base network is sdxl-a of
tests/golden/sdxl, the encoder its sdxl-clip-g-a. Released sizes are those that ComfyUI detects in a network of its own
without weights.
"""

import gzip
import json
import math
import os
import sys

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), sys.argv[2]
comfytree.start(tree, "--fp32-unet", "--fp32-text-enc", "--use-pytorch-cross-attention")
import nodes
import comfy.model_detection
import comfy.model_patcher
import comfy.ops
import comfy.sd1_clip
import comfy.sdxl_clip
import comfy.supported_models
import comfy.utils
import torch
from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
from safetensors.torch import save_file

COMMON = {
    "image_size": 32, "in_channels": 4, "out_channels": 4, "use_spatial_transformer": True, "legacy": False,
    "num_classes": "sequential", "use_linear_in_transformer": True, "use_temporal_attention": False,
    "num_res_blocks": [2, 2, 2, 2], "channel_mult": [1, 2, 4, 4],
}  # fmt: skip
TINY = COMMON | {
    "adm_in_channels": 24 + 5 * 256, "num_head_channels": 16, "model_channels": 32, "context_dim": 40,
    "transformer_depth": [0, 0, 2, 2, 1, 1, 0, 0], "transformer_depth_output": [0, 0, 0, 2, 2, 2, 1, 1, 1, 0, 0, 0],
    "transformer_depth_middle": 2,
}  # fmt: skip
RELEASED = COMMON | {
    "adm_in_channels": 2560, "num_head_channels": 64, "model_channels": 384, "context_dim": 1280,
    "transformer_depth": [0, 0, 4, 4, 4, 4, 0, 0], "transformer_depth_output": [0, 0, 0, 4, 4, 4, 4, 4, 4, 0, 0, 0],
    "transformer_depth_middle": 4,
}  # fmt: skip
# latent, timesteps, rows of text, and what the network is told
CASES = {
    "8x12": ([1, 4, 8, 12], [180.0], 77, [1024, 768, 0, 0, 6.0]),
    "9x13-b2": ([2, 4, 9, 13], [999.0, 3.0], 77, [512, 640, 16, 8, 2.5]),
    "7x5-154": ([1, 4, 7, 5], [250.25], 154, [1024, 1024, 0, 0, 6.75]),
}
TOLD = ("height", "width", "crop_h", "crop_w", "aesthetic_score")
SHOWN = {"width": 1024, "height": 832, "aesthetic_score": 6.75}
RUNS = {
    "defaults": dict(width=96, height=64, steps=6, cfg=7.0, sampler="euler", scheduler="normal", seed=21, denoise=1.0,
        told={}, what="CLIPTextEncode: sizes from the latent, score 6 and for the negative prompt 2.5"),
    "node": dict(width=104, height=72, steps=5, cfg=5.0, sampler="dpmpp_2m", scheduler="karras", seed=22, denoise=1.0,
        told={"positive": SHOWN, "negative": SHOWN | {"aesthetic_score": 2.0}},
        what="CLIPTextEncodeSDXLRefiner, odd cells"),
    "img2img-denoise-0.25": dict(width=64, height=80, steps=4, cfg=4.0, sampler="euler", scheduler="normal", seed=23,
        denoise=0.25, told={"positive": SHOWN | {"crop_w": 8, "crop_h": 96}},
        what="start latent in VAE space, a crop, the negative prompt without a score"),
    "base-then-refiner": dict(width=96, height=64, steps=10, cfg=8.0, sampler="dpmpp_2m", scheduler="normal", seed=3,
        base_steps=8, told={}, what="sdxl-a leaves noise at step 8 (KSamplerAdvanced), the refiner goes on"),
}  # fmt: skip
TEXTS = ["a cat", "", "a (red:1.3) fox, ((very)) [old]", "word " * 90]
FILES = {f: {} for f in ("models", "weights", "e2e", "text")}
TENSORS = {f: {} for f in ("models", "e2e", "text")}
CPU = torch.device("cpu")


def rms(t):
    return t.float().pow(2).mean().sqrt().item()


def rule(key, shape):
    if key.endswith("bias") and len(shape) == 1:
        return "bias", 0.4, 0.0
    if len(shape) <= 1:
        return "norm", 0.2, 1.0
    return "matrix", 2 * math.sqrt(3.0 / math.prod(shape[1:])), 0.0


def network(name, kind, config, listed=None):
    """Return a network with the weights of the formula. Without a list they are listed."""
    model = getattr(comfy.supported_models, kind)(dict(config))
    model.unet_config |= config  # heads that are not 64 wide
    m = model.get_model({}, "", device="cpu")
    if listed is None:
        listed = [[k, list(t.shape), *rule(k, t.shape)] for k, t in sorted(m.diffusion_model.state_dict().items())]
        FILES["weights"][name] = {"class": type(m.diffusion_model).__name__, "config": config, "tensors": listed}
    m.diffusion_model.load_state_dict(
        {k: fill(f"{name}/{k}", tuple(s), scale, offset) for k, s, _, scale, offset in listed}
    )
    return m


def forwards(name, m):
    net = m.diffusion_model
    for i, (case, (shape, timesteps, rows, told)) in enumerate(CASES.items()):
        case, n = f"{name}/{case}", shape[0]
        y = m.encode_adm(pooled_output=given(case + "/pooled", [n, 24]), device=CPU, **dict(zip(TOLD, told)))
        hooks = []
        for where in (f"{p}.{k}" for p in ("input_blocks", "output_blocks") for k in range(12)) if i == 0 else ():
            for k, layer in enumerate(net.get_submodule(where)):
                label = f"{case}#{where}.{k}"
                hooks.append(layer.register_forward_hook(lambda _, __, got, label=label: TENSORS["models"].update(
                    {label: got.clone().contiguous()})))
        got = net(given(case + "/x", shape), torch.tensor(timesteps), context=given(case + "/context", [n, rows, 40]),
            y=y)
        for h in hooks:
            h.remove()
        TENSORS["models"][case] = got.contiguous()
        FILES["models"][case] = {"x": shape, "timesteps": timesteps, "context": [n, rows, 40], "pooled": [n, 24],
            "height_width_croph_cropw_score": told, "rms": rms(got)}
        print(case, "rms %.4f" % rms(got))


def sensitivity(m):
    """Say which tensors do not move the output when they are zero."""
    net = m.diffusion_model
    run = lambda: net(given("s/x", (1, 4, 8, 8)), torch.tensor([500.0]), context=given("s/c", (1, 5, 40)),
        y=given("s/y", (1, TINY["adm_in_channels"])))
    want = run()
    for key, p in net.state_dict().items():
        kept = p.clone()
        p.zero_()
        moved = rms(run() - want) / rms(want)
        p.copy_(kept)
        if moved < 1e-3:
            print(key, "moves the output by only %.2g" % moved)


def sides(model, told):
    """Return the two conditionings of a network."""
    return [[[given(f"e2ex/{model}/{tag}/context", (1, 77, 40)), {"pooled_output": given(f"e2ex/{model}/{tag}/pooled",
        (1, 24))} | told.get(side, {})]] for side, tag in (("positive", "pos"), ("negative", "neg"))]


def sample(key, refiner, base, *, width, height, steps, cfg, sampler, scheduler, seed, told, what, denoise=1.0,
        base_steps=None):
    patcher = lambda m: comfy.model_patcher.ModelPatcher(m, CPU, CPU)
    shape = [1, 4, height // 8, width // 8]
    latent = "zeros" if denoise == 1 else "input:e2ex/refiner-a/start"
    start = {"samples": torch.zeros(shape) if denoise == 1 else given("e2ex/refiner-a/start", shape)}
    positive, negative = sides("refiner-a", told)
    if base_steps is None:
        got = nodes.KSampler().sample(patcher(refiner), seed, steps, cfg, sampler, scheduler, positive, negative,
            start, denoise)[0]["samples"]
    else:
        run = lambda m, noise, begin, end, left, at: nodes.KSamplerAdvanced().sample(patcher(m), noise, seed, steps,
            cfg, sampler, scheduler, *sides(m.recorded, {}), at, begin, end, left)[0]
        half = run(base, "enable", 0, base_steps, "enable", start)
        TENSORS["e2e"][key + "#base"] = half["samples"].contiguous()
        got = run(refiner, "disable", base_steps, 10000, "disable", half)["samples"]

    def side(tag, told):
        out = {"context": f"input:e2ex/refiner-a/{tag}/context", "shape": [1, 77, 40], "pooled": [1, 24]}
        if told:
            size = [told["width"], told["height"]]
            crop = [told.get("crop_w", 0), told.get("crop_h", 0)]
            out |= {"width_height_cropw_croph_targetw_targeth": size + crop + size, "score": told["aesthetic_score"]}
        return out

    FILES["e2e"][key] = {
        "model": "refiner-a", "latent": latent, "nodes": "KSampler" if base_steps is None else "KSamplerAdvanced",
        "width": width, "height": height, "steps": steps, "cfg": cfg, "sampler": sampler, "scheduler": scheduler,
        "denoise": denoise, "seed": seed, "positive": side("pos", told.get("positive")),
        "negative": side("neg", told.get("negative")), "what": what, "output_shape": list(got.shape), "rms": rms(got),
    } | ({"base": "sdxl-a", "base_steps": base_steps} if base_steps else {})  # fmt: skip
    TENSORS["e2e"][key] = got.float().contiguous()
    print(key, "rms %.4f" % rms(got))


def texts():
    """Record what the refiner's encoder makes of prompts."""
    recorded = json.load(open(f"{out}/sdxl/weights_text.json"))["sdxl-clip-g-a"]
    init = comfy.sd1_clip.SDClipModel.__init__
    comfy.sd1_clip.SDClipModel.__init__ = lambda m, *a, **k: init(m, *a, **k | {
        "textmodel_json_config": recorded["config"] | {"num_hidden_layers": 4}})
    model = comfy.sdxl_clip.SDXLRefinerClipModel(device="cpu", dtype=torch.float32)
    comfy.sd1_clip.SDClipModel.__init__ = init
    own = model.clip_g.transformer
    own.load_state_dict({k: fill(f"sdxl-clip-g-a/{k}", tuple(s), scale, offset) for k, s, _, scale,
        offset in recorded["tensors"]})
    tokens = comfy.sdxl_clip.SDXLTokenizer()
    for i, text in enumerate(TEXTS):
        pairs = tokens.tokenize_with_weights(text)
        cond, pooled = model.encode_token_weights(pairs)[:2]
        key = f"refiner/{i}"
        TENSORS["text"][key + "#cond"], TENSORS["text"][key + "#pooled"] = cond.contiguous(), pooled.contiguous()
        FILES["text"][key] = {"text": text, "ids": [[int(t[0]) for t in chunk] for chunk in pairs["g"]],
            "weights": [[float(t[1]) for t in chunk] for chunk in pairs["g"]], "cond": list(cond.shape),
            "pooled": list(pooled.shape), "rms": rms(cond)}
        print(key, "rms %.4f" % rms(cond))


def released():
    """Record the sizes of the released network, as ComfyUI detects them, and its names in files of diffusers."""
    net = UNetModel(**RELEASED, operations=comfy.ops.disable_weight_init, device="meta", dtype=torch.float32)
    state = {"model.diffusion_model." + k: v for k, v in net.state_dict().items()}
    config = comfy.model_detection.model_config_from_unet(state, "model.diffusion_model.")
    FILES["models"]["released"] = {"class": type(config).__name__, "parameters": sum(p.numel()
        for p in net.parameters()), "tensors": {k: list(v.shape) for k, v in sorted(net.state_dict().items())}}
    print(type(config).__name__, FILES["models"]["released"]["parameters"])


refiner = network("refiner-a", "SDXLRefiner", TINY)
refiner.recorded = "refiner-a"
BASE = json.load(gzip.open(f"{out}/sdxl/weights.json.gz"))["sdxl-a"]
base = network("sdxl-a", "SDXL", BASE["config"], BASE["tensors"])
base.recorded = "sdxl-a"
forwards("refiner-a", refiner)
sensitivity(refiner)
for key, run in RUNS.items():
    sample("refiner/" + key, refiner, base, **run)
own = set(refiner.diffusion_model.state_dict())
names = sorted(comfy.utils.unet_to_diffusers(TINY).items())
FILES["models"]["diffusers_to_original/refiner-a"] = {k: v for k, v in names if isinstance(v, str) and v in own}
released()
texts()
os.makedirs(f"{out}/refiner", exist_ok=True)
for f, cases in FILES.items():
    lines = ("{" + ",\n".join(json.dumps(k) + ": " + json.dumps(v) for k, v in cases.items()) + "}\n").encode()
    packed = f in ("models", "weights")
    with open(f"{out}/refiner/{f}.json" + ".gz" * packed, "wb") as file:
        file.write(gzip.compress(lines, 9, mtime=0) if packed else lines)
for f, tensors in TENSORS.items():
    save_file(tensors, f"{out}/refiner/{f}.safetensors")
    os.chmod(f"{out}/refiner/{f}.safetensors", 0o644)
