"""Makes tests/golden/wan/clip_vision.* and weights_clip_vision.json: what picture encoders of CLIP see, and videos of
Wan 2.1 that begin and end with what they see, in ComfyUI 0.33.0. Running the tests does not need this script.

    python tests/reference/make_clip_vision.py COMFYUI_TREE tests/golden/wan

Weights and inputs are by the formula of tests/golden/README.md section 1; pictures are `input:clip_vision/NAME` (scale
1, offset 0.5). `ENCODER/CASE` are the states after the last layer, `#penultimate` those before it; `NETWORK/ROWS` is
what a network makes of states. Runs go through CLIPVisionEncode, WanImageToVideo or WanFirstLastFrameToVideo with the
autoencoder wan21vae-a, and KSampler.
"""

import json
import math
import os
import sys

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(tree, "--force-fp32", "--fp32-vae", "--fp32-text-enc", "--use-pytorch-cross-attention",
    "--disable-all-custom-nodes")
import nodes

import comfy.clip_vision
import comfy.sd
import torch
from comfy_extras import nodes_wan
from safetensors.torch import save_file

SMALL = {"num_hidden_layers": 2, "intermediate_size": 24, "image_size": 28}


def released(name):
    """Return the configuration of a release, as wide but with few small layers."""
    return json.load(open(f"{tree}/comfy/clip_vision_config_{name}.json")) | SMALL


ENCODERS = {
    "clipvision-a": released("h") | {"hidden_size": 40, "num_attention_heads": 2, "num_hidden_layers": 4,
        "intermediate_size": 72, "image_size": 56},
    "clipvision-b": released("vitl") | {"hidden_size": 28, "num_attention_heads": 2, "num_hidden_layers": 3,
        "intermediate_size": 52, "image_size": 42},
    "clipvision-l": released("vitl"),
    "clipvision-h": released("h"),  # as wide as Wan reads
    "clipvision-g": released("g"),
}
# pictures, crop
SEEN = {
    "same": ((1, 56, 56, 3), "center"),
    "seen": ((1, 42, 42, 3), "center"),
    "two-wider": ((2, 61, 131, 3), "center"),
    "squeezed": ((1, 31, 90, 3), "none"),
    "smaller-alpha": ((1, 30, 20, 4), "center"),
}
# network, node, pictures by input; the encoder sees those of clip_*
RUNS = {
    "i2v": ("wan-i2v21-a", "WanImageToVideo", {"start_image": (1, 40, 72, 3), "clip_vision_output": (1, 28, 28, 3)}),
    "i2v-first-of-two": ("wan-i2v21-a", "WanImageToVideo", {"clip_vision_output": (2, 28, 28, 3)}),
    "flf": ("wan-flf21-a", "WanFirstLastFrameToVideo", {"start_image": (1, 48, 64, 3), "end_image": (1, 40, 40, 3),
        "clip_vision_start_image": (1, 28, 28, 3), "clip_vision_end_image": (1, 44, 37, 3)}),
    "flf-end-only": ("wan-flf21-a", "WanFirstLastFrameToVideo", {"end_image": (1, 48, 64, 3),
        "clip_vision_end_image": (1, 28, 28, 3)}),
}


def listed(key, shape):
    """Return a row of weights_clip_vision.json."""
    if "class_embedding" in key or "position_embedding" in key or "emb_pos" in key:
        return [key, shape, "table", 1.0, 0.0]
    if key.endswith("bias"):
        return [key, shape, "bias", 0.4, 0.0]
    if len(shape) == 1:
        return [key, shape, "norm", 0.2, 1.0]
    return [key, shape, "matrix", 2 * math.sqrt(3.0 / math.prod(shape[1:])), 0.0]


def state(model, tensors):
    return {key: fill(f"{model}/{key}", tuple(shape), scale, offset) for key, shape, _, scale, offset in tensors}


def picture(name, shape):
    return fill("input:clip_vision/" + name, shape, 1, 0.5)


WEIGHTS, CASES, TENSORS = {}, {}, {}


def keep(key, got, **case):
    TENSORS[key] = got.float().contiguous()
    if case:
        CASES[key] = case | {"output_shape": list(got.shape), "rms": got.float().pow(2).mean().sqrt().item()}
        print(key, CASES[key]["output_shape"], CASES[key]["rms"])


with torch.inference_mode():
    eyes = {}
    for name, config in ENCODERS.items():
        eyes[name] = comfy.clip_vision.ClipVisionModel(config)
        tensors = [listed(k, list(t.shape)) for k, t in sorted(eyes[name].model.state_dict().items())]
        WEIGHTS[name] = {"class": "CLIPVisionModelProjection", "config": {k: config[k] for k in ("hidden_act",
            "image_size", "num_attention_heads")}, "tensors": tensors}
        missing, unexpected = eyes[name].load_sd(state(name, tensors))
        assert not missing and not unexpected
    for name in ("clipvision-a", "clipvision-b"):
        for case, (shape, crop) in SEEN.items():
            seen = nodes.CLIPVisionEncode().encode(eyes[name], picture(case, shape), crop)[0]
            keep(f"{name}/{case}", seen.last_hidden_state, image=list(shape), crop=crop)
            keep(f"{name}/{case}#penultimate", seen.penultimate_hidden_states)
    for name in ("clipvision-l", "clipvision-h", "clipvision-g"):
        seen = nodes.CLIPVisionEncode().encode(eyes[name], picture("small", (1, 28, 28, 3)), "none")[0]
        keep(f"{name}/small", seen.last_hidden_state, image=[1, 28, 28, 3], crop="none")
        keep(f"{name}/small#penultimate", seen.penultimate_hidden_states)

    recorded = json.load(open(f"{out}/weights.json"))["wan-i2v21-a"]
    position = listed("img_emb.emb_pos", [1, 10, 1280])
    WEIGHTS["wan-flf21-a"] = recorded | {"tensors": [*recorded["tensors"], position]}
    vae_tensors = json.load(open(f"{out}/weights_vae.json"))["wan21vae-a"]["tensors"]
    vae = comfy.sd.VAE(sd=state("wan21vae-a", vae_tensors))
    for name, (model, node, inputs) in RUNS.items():
        tensors = recorded["tensors"] if model == "wan-i2v21-a" else WEIGHTS[model]["tensors"]
        network = comfy.sd.load_diffusion_model_state_dict(state(model, tensors))
        sides = [[[given(f"clip_vision/{name}/{side}", (1, 11, 4096)), {}]] for side in ("positive", "negative")]
        args = {}
        for field, shape in inputs.items():
            args[field] = picture(f"{name}/{field}", shape)
            if field.startswith("clip_"):
                args[field] = nodes.CLIPVisionEncode().encode(eyes["clipvision-h"], args[field], "center")[0]
        for rows in (5, 10):
            fed = given(f"clip_vision/{model}/{rows}", (1, rows, 1280))
            keep(f"{model}/{rows}", network.model.diffusion_model.img_emb(fed), states=[1, rows, 1280])
        made = getattr(nodes_wan, node).execute(*sides, vae=vae, width=64, height=48, length=5, batch_size=1, **args)
        positive, negative, latent = made.args
        got = nodes.KSampler().sample(network, 5, 3, 4.0, "euler", "simple", positive, negative, latent, 1.0)[0]
        keep(name, got["samples"], model=model, node=node, inputs={k: list(v) for k, v in inputs.items()}, seed=5,
            steps=3, cfg=4.0, context=[1, 11, 4096])

for file, what in {"clip_vision": CASES, "weights_clip_vision": WEIGHTS}.items():
    with open(f"{out}/{file}.json", "w") as f:
        f.write("{" + ",\n".join(json.dumps(k) + ":" + json.dumps(v, separators=(",", ":")) for k, v in what.items())
            + "}\n")
save_file(TENSORS, f"{out}/clip_vision.safetensors")
os.chmod(f"{out}/clip_vision.safetensors", 0o644)
