"""Makes tests/golden/wan/encode_tiled.safetensors: clips that VAEEncodeTiled of ComfyUI 0.33.0 encodes. Running the
tests does not need this script.

    python tests/reference/make_clip_tiles.py COMFYUI_TREE tests/golden/wan

Weights and inputs are by the formula of tests/golden/README.md section 1: pictures have scale 1 and offset 0.5. Names
are MODEL/TxYxX/tile_size-overlap-temporal_size-temporal_overlap, inputs `input:` and that name.
"""

import json
import os
import sys

import comfytree
from comfytree import fill

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(tree, "--force-fp32", "--fp32-vae", "--use-pytorch-cross-attention", "--disable-all-custom-nodes")
import nodes
import comfy.ldm.wan.vae2_2
import comfy.sd
import torch
from safetensors.torch import save_file

# The 5B model's autoencoder has fixed widths there; the tiny one has others.
wide = comfy.ldm.wan.vae2_2.WanVAE.__init__
comfy.ldm.wan.vae2_2.WanVAE.__init__ = lambda self, **kw: wide(self, **{**kw, "dim": 6, "dec_dim": 8})

CASES = [
    ("wan21vae-a", (19, 100, 72), (64, 32, 12, 4)),
    ("wan21vae-a", (5, 64, 136), (64, 0, 64, 8)),
    ("wan22vae-a", (13, 64, 96), (64, 32, 8, 4)),
]  # fmt: skip

weights, loaded, tensors = json.load(open(f"{out}/weights_vae.json")), {}, {}
with torch.inference_mode():
    for model, shape, tiles in CASES:
        if model not in loaded:
            loaded[model] = comfy.sd.VAE(
                sd={k: fill(f"{model}/{k}", tuple(s), scale, offset)
                    for k, s, _, scale, offset in weights[model]["tensors"]}
            )
        key = "/".join([model, "x".join(map(str, shape)), "-".join(map(str, tiles))])
        pixels = fill("input:" + key, (*shape, 3), 1, 0.5)
        latent = nodes.VAEEncodeTiled().encode(loaded[model], pixels, *tiles)[0]["samples"]
        tensors[key] = latent.float().contiguous()
        print(key, list(tensors[key].shape))
save_file(tensors, f"{out}/encode_tiled.safetensors")
os.chmod(f"{out}/encode_tiled.safetensors", 0o644)
