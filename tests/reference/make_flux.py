"""Writes flux.json and flux.safetensors of tests/golden/modern33: FLUX.1 with control LoRAs, and with Redux whose
strength is a bias. Running the tests does not need this script.

Made with Python 3.11, torch 2.15.0, numpy 2.4.6 and the tree of ComfyUI 0.33.0, whose network, nodes and LoRA code are
imported and run as they are:
    python tests/reference/make_flux.py COMFYUI_TREE tests/golden

Weights, inputs and LoRA files are by the formula of tests/golden/README.md section 1; the network is kontext-a of
tests/golden/modern.
"""

import json
import math
import os
import sys

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), sys.argv[2]
comfytree.start(tree, "--fp32-unet", "--use-split-cross-attention")  # torch attention takes no bias of f16 beside f32
import nodes
import comfy.model_patcher
import comfy.sd
import comfy.supported_models
import torch
from safetensors.torch import save_file

MODEL = json.load(open(f"{out}/modern/weights.json"))["kontext-a"]
REDUX = json.load(open(f"{out}/modern/weights_control.json"))["redux-a"]
RANK = 4


def network():
    m = comfy.supported_models.Flux(dict(MODEL["config"])).get_model({}, "", device="cpu")
    own = m.diffusion_model.state_dict()
    state = {k: fill(f"kontext-a/{k}", s, scale, offset) for k, s, _, scale, offset in MODEL["tensors"]}
    m.diffusion_model.load_state_dict({k if k in own else k.replace("norm.scale", "norm.weight"): v for k,
        v in state.items()})
    return comfy.model_patcher.ModelPatcher(m, torch.device("cpu"), torch.device("cpu"))


def control_lora():
    """List the tensors of a file like flux1-canny-dev-lora: a pair and a bias for every linear layer, all norms, a
    wider img_in.
    """
    listed = []
    for key, shape, *_ in MODEL["tensors"]:
        module = key.removesuffix(".weight")
        if key.endswith("_norm.scale"):
            listed.append([key, shape, 0.4, 1.0])
        elif len(shape) == 2:
            columns = 2 * shape[1] if module == "img_in" else shape[1]
            listed.append([module + ".lora_A.weight", [RANK, columns], 2 * math.sqrt(3 / columns), 0.0])
            listed.append([module + ".lora_B.weight", [shape[0], RANK], 0.8, 0.0])
            listed.append([module + ".lora_B.bias", [shape[0]], 0.4, 0.0])
    return listed


def plain_lora():
    """List the tensors of a file without anything special, of which one adds to img_in."""
    listed = []
    for key, shape, *_ in MODEL["tensors"]:
        module = key.removesuffix(".weight")
        if module in ("img_in", "double_blocks.1.img_attn.qkv", "single_blocks.0.linear1"):
            listed.append([f"diffusion_model.{module}.lora_A.weight", [RANK, shape[1]], 2 * math.sqrt(3 / shape[1]),
                0.0])
            listed.append([f"diffusion_model.{module}.lora_B.weight", [shape[0], RANK], 0.8, 0.0])
    return listed


FILES = {"canny": control_lora(), "depth": control_lora(), "style": plain_lora()}
RUNS = {
    "canny": dict(loras=[["canny", 0.85]], seed=31, steps=4, cfg=2.0, sampler="euler", scheduler="simple",
        shape=[1, 16, 7, 10], image=[1, 16, 7, 10]),
    "style-canny-b2": dict(loras=[["style", 0.7], ["canny", 1.0]], seed=32, steps=3, cfg=1.0, sampler="dpmpp_2m",
        scheduler="beta", shape=[2, 16, 9, 6], image=[1, 16, 8, 8]),
    "canny-depth-nothing": dict(loras=[["canny", 0.6], ["depth", -0.5]], seed=33, steps=3, cfg=1.0, sampler="euler",
        scheduler="simple", shape=[1, 16, 8, 6], image=None),
    "canny-0": dict(loras=[["canny", 0.0]], seed=34, steps=3, cfg=1.0, sampler="euler", scheduler="simple",
        shape=[1, 16, 8, 6], image=[1, 16, 8, 6]),
    "bias-0.3-twice": dict(redux=[[0.3, "attn_bias"], [2.5, "attn_bias"]], seed=41, steps=4, cfg=1.0, sampler="euler",
        scheduler="simple", shape=[1, 16, 7, 10]),
    "bias-then-multiply": dict(redux=[[0.4, "attn_bias"], [0.7, "multiply"]], seed=42, steps=3, cfg=2.0,
        sampler="euler", scheduler="simple", shape=[2, 16, 8, 6]),
    "multiply-then-bias": dict(redux=[[0.7, "multiply"], [1.8, "attn_bias"]], seed=43, steps=3, cfg=1.0,
        sampler="euler", scheduler="simple", shape=[1, 16, 8, 6]),
}  # fmt: skip


class Style:
    """StyleModel with recorded weights: what StyleModelApply asks."""

    def get_cond(self, seen):
        w = {k: fill(f"redux-a/{k}", s, scale, offset) for k, s, _, scale, offset in REDUX["tensors"]}
        f = torch.nn.functional
        return f.linear(f.silu(f.linear(seen, w["redux_up.weight"], w["redux_up.bias"])), w["redux_down.weight"],
            w["redux_down.bias"])


def entry(tag, run):
    keys = {"pooled_output": given(f"e2e/kontext-a/{tag}/pooled", [1, 32])}
    if run.get("image"):
        keys["concat_latent_image"] = given("flux/image", run["image"])
    return [[given(f"e2e/kontext-a/{tag}/context", [1, 13, 40]), keys]]


tensors, record = {}, {"loras": FILES, "runs": {}}
for name, run in RUNS.items():
    p = network()
    for file, strength in run.get("loras", ()):
        p, _ = comfy.sd.load_lora_for_models(p, None, {k: fill(f"{file}/{k}", s, scale, offset) for k, s, scale,
            offset in FILES[file]}, strength, 0)
    positive, negative = entry("pos", run), entry("neg", run)
    for i, (strength, kind) in enumerate(run.get("redux", ())):
        seen = given(f"redux-a/last_hidden_state/{i}", [1, 9, 28])
        positive = nodes.StyleModelApply().apply_stylemodel(positive, Style(), seen, strength, kind)[0]
    latent = {"samples": torch.zeros(run["shape"])}
    got = nodes.KSampler().sample(p, run["seed"], run["steps"], run["cfg"], run["sampler"], run["scheduler"], positive,
        negative, latent, 1.0)[0]["samples"]
    tensors[name] = got.float().contiguous()
    record["runs"][name] = run | {"rms": got.float().pow(2).mean().sqrt().item()}
    print(name, "rms %.4f" % record["runs"][name]["rms"])
os.makedirs(f"{out}/modern33", exist_ok=True)
with open(f"{out}/modern33/flux.json", "w") as f:
    part = lambda d: "{\n" + ",\n".join(json.dumps(k) + ": " + json.dumps(v) for k, v in d.items()) + "\n}"
    f.write("{\n" + ",\n".join(json.dumps(k) + ": " + part(v) for k, v in record.items()) + "\n}\n")
save_file(tensors, f"{out}/modern33/flux.safetensors")
os.chmod(f"{out}/modern33/flux.safetensors", 0o644)
