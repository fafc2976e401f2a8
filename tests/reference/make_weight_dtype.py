#!/usr/bin/env python3
"""Records what ComfyUI's loader makes of a tiny FLUX with each weight_dtype, as type and SHA-256 of the bytes of every
tensor: tests/golden/modern33/weight_dtype.json. Running the tests does not need this script.

Made with torch 2.15.0 and the tree of ComfyUI 0.33.0:
    python tests/reference/make_weight_dtype.py COMFYUI_TREE tests/golden

Weights are those of flux-a of tests/golden/weights.json, rounded to bf16 and f16 before, as files of users are.
"""

import hashlib
import json
import sys

import comfytree

tree, out_folder = sys.argv[1:]
comfytree.start(tree, "--disable-all-custom-nodes")
import comfy.sd  # noqa: E402
import torch  # noqa: E402

MODEL = json.load(open(out_folder + "/weights.json"))["flux-a"]
out = {}
for stored in (torch.bfloat16, torch.float16):
    for name in ("float8_e4m3fn", "float8_e5m2"):
        file = {k: comfytree.fill("flux-a/" + k, n, scale, offset).to(stored)
                for k, n, _, scale, offset in MODEL["tensors"]}
        model = comfy.sd.load_diffusion_model_state_dict(file, {"dtype": getattr(torch, name)})
        rows = {}
        for key, v in model.model.diffusion_model.state_dict().items():
            data = v.contiguous().view(torch.uint8).numpy().tobytes()
            rows[key] = [str(v.dtype).removeprefix("torch."), hashlib.sha256(data).hexdigest()[:16]]
        out[f"{str(stored).removeprefix('torch.')} {name}"] = rows
with open(out_folder + "/modern33/weight_dtype.json", "w") as f:
    json.dump(out, f, indent=0)
    f.write("\n")
