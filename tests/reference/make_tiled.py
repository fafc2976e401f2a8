"""Adds pictures encoded and latents decoded in tiles to the files of tests/golden/modern. Running the tests does not
need this script.

Made with torch and the tree of ComfyUI 0.33.0, whose nodes and VAE are imported and run as they are:
    python tests/reference/make_tiled.py COMFYUI_TREE tests/golden/modern

Weights and inputs are by the formula of tests/golden/README.md section 1: latents have the deviation 1, pictures
scale 1 and offset 0.5.
"""

import json
import os
import sys

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(tree, "--force-fp32", "--fp32-vae", "--use-pytorch-cross-attention", "--disable-all-custom-nodes")
import nodes
import comfy.sd
import torch
from safetensors.torch import load_file, save_file

# model, node, shape of the latent or picture, tile_size, overlap
CASES = [
    ("wanvae-a", "VAEEncodeTiled", [1, 100, 145, 3], 64, 32),
    ("wanvae-a", "VAEEncodeTiled", [3, 72, 88, 3], 64, 0),
    ("wanvae-b", "VAEEncodeTiled", [1, 64, 137, 4], 128, 96),
    ("wanvae-a", "VAEDecodeTiled", [2, 16, 1, 9, 13], 64, 64),
    ("wanvae-b", "VAEDecodeTiled", [1, 16, 1, 13, 8], 96, 24),
    ("vae-kl", "VAEEncodeTiled", [1, 72, 100, 3], 64, 0),
]  # fmt: skip

cases, tensors = json.load(open(f"{out}/vae.json")), load_file(f"{out}/vae.safetensors")
weights = json.load(open(f"{out}/weights_vae.json")) | json.load(open(f"{out}/../weights_text_vae.json"))
loaded = {}
MODE = torch.inference_mode()  # as ComfyUI runs its nodes
MODE.__enter__()
for i, (model, node, shape, size, overlap) in enumerate(CASES):
    if model not in loaded:
        state = {
            k: fill(f"{model}/{k}", tuple(s), scale, offset) for k, s, _, scale, offset in weights[model]["tensors"]
        }
        config = {"params": {"ddconfig": weights[model]["config"], "embed_dim": 4}} if model == "vae-kl" else None
        loaded[model] = comfy.sd.VAE(sd=state, config=config)
    key = f"{model}/{node}/{i}"
    if node == "VAEEncodeTiled":
        got = nodes.VAEEncodeTiled().encode(loaded[model], fill("input:" + key, tuple(shape), 1, 0.5), size, overlap)[
            0
        ]["samples"]
    else:
        got = nodes.VAEDecodeTiled().decode(loaded[model], {"samples": given(key, tuple(shape))}, size, overlap)[0]
    cases[key] = {
        "node": node,
        "model": model,
        "input": shape,
        "tile_size": size,
        "overlap": overlap,
        "output": list(got.shape),
    }
    tensors[key] = got.float().clone().contiguous()
    print(key, list(got.shape))
with open(f"{out}/vae.json", "w") as file:
    file.write(
        "{"
        + ",\n".join(
            json.dumps(k) + ": " + json.dumps(v, separators=(",", ": "), ensure_ascii=False) for k, v in cases.items()
        )
        + "}\n"
    )
save_file(tensors, f"{out}/vae.safetensors")
os.chmod(f"{out}/vae.safetensors", 0o644)
