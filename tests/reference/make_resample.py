"""Makes tests/golden/nodes/resample.safetensors. Running the tests does not need this script.

Made with Python 3.11, torch 2.15.0 (CPU capability AVX512), Pillow 12.3.0, numpy 2.4.6, scipy 1.17.1, safetensors
0.8.0, ComfyUI 0.8.0; the results of FeatherMask by 0.33.0:
    python3 -m venv v && v/bin/pip install torch "pillow<13" numpy scipy safetensors
    v/bin/python tests/reference/make_resample.py COMFYUI_TREE tests/golden/nodes

common_upscale, bislerp, lanczos, GrowMask and FeatherMask are taken out of the ComfyUI tree and run as they are. Every
case is a dictionary in the metadata entry "cases"; tensor "in.N" [B, C, Y, X] is its input, "out.N" its result (of
lanczos: times 255). "layout" is the memory order in which torch saw the input ("first", "last"); results that depend on
it occur once for each.
"""

import ast
import json
import os
import sys
import types

import numpy as np
import PIL
import scipy.ndimage
import torch
from PIL import Image
from safetensors.torch import save_file

tree, out = sys.argv[1:]


def take(path, names, space):
    source = open(os.path.join(tree, path)).read()
    body = [n for n in ast.parse(source).body if getattr(n, "name", None) in names]
    exec(compile(ast.Module(body, []), path, "exec"), space)
    return space


comfy = take("comfy/utils.py", {"bislerp", "lanczos", "common_upscale"}, {"torch": torch, "np": np, "Image": Image})
io = types.SimpleNamespace(ComfyNode=object, NodeOutput=lambda x: x, Schema=None)
masks = take("comfy_extras/nodes_mask.py", {"GrowMask", "FeatherMask"},
    {"torch": torch, "np": np, "scipy": scipy, "IO": io})

gen = torch.Generator().manual_seed(7)
tensors, cases, inputs = {}, [], {}


def add(case, x, y):
    case["n"] = len(cases)
    key = x.numpy().tobytes()
    case["in"] = inputs.setdefault(key, f"in.{case['n']}")
    tensors[case["in"]] = x.contiguous()
    if case.get("method") == "lanczos":  # results are 8-bit levels / 255
        levels = (y * 255).round()
        assert torch.equal(levels / 255, y)
        y = levels.to(torch.uint8)
    tensors[f"out.{case['n']}"] = y.contiguous().clone()
    cases.append(case)


def upscale(x, width, height, method, crop="disabled", layout="first"):
    seen = x.contiguous(memory_format=torch.channels_last) if layout == "last" else x.contiguous()
    y = comfy["common_upscale"](seen, width, height, method, crop)
    add({"op": "upscale", "method": method, "crop": crop, "layout": layout, "width": width, "height": height}, x, y)


def latent(b, c, y, x):
    return torch.randn(b, c, y, x, generator=gen)


def picture(b, c, y, x):  # a little outside [0, 1] to be clipped
    return torch.rand(b, c, y, x, generator=gen) * 1.1 - 0.05


SIZES = [  # b, c, y, x, new y, new x
    (2, 3, 5, 4, 9, 7),
    (1, 4, 8, 8, 12, 12),
    (1, 16, 5, 9, 5, 9),
    (1, 4, 1, 1, 3, 4),
    (1, 3, 1, 8, 5, 1),
    (1, 3, 33, 20, 7, 11),
    (2, 4, 12, 10, 6, 5),
    (1, 3, 10, 10, 10, 17),
    (1, 1, 9, 9, 4, 21),
    (1, 2, 6, 11, 14, 5),
    (1, 1, 6, 90, 4, 130),
    (1, 4, 2, 37, 1, 131),
]
for b, c, y, x, h, w in SIZES:
    lat, pic = latent(b, c, y, x), picture(b, c, y, x)
    for method in ("nearest-exact", "bilinear", "bicubic", "area", "bislerp"):
        upscale(lat, w, h, method)
    if 2 <= c <= 4:  # ComfyUI cannot make a picture of other channel counts
        upscale(pic, w, h, "lanczos")
    if c == 4:
        for method in ("nearest-exact", "bilinear", "bicubic", "area"):
            upscale(lat, w, h, method, layout="last")
for b, c, y, x, h, w in ((2, 3, 9, 17, 8, 8), (1, 3, 17, 9, 8, 8), (1, 4, 10, 30, 7, 5), (1, 3, 7, 12, 6, 7),
        (1, 3, 8, 6, 16, 12)):
    pic = picture(b, c, y, x)
    for method in ("nearest-exact", "bilinear", "bicubic", "area", "lanczos", "bislerp"):
        upscale(pic, w, h, method, crop="center")

# Vectors without direction, equal, opposite and nearly so.
x = latent(1, 4, 4, 6)
x[0, :, 1, 2] = 0
x[0, :, 2, 3] = x[0, :, 2, 2]
x[0, :, 3, 3] = -2 * x[0, :, 3, 2]
x[0, :, 0, 1] = x[0, :, 0, 0] * 1.5 + 1e-3
upscale(x, 11, 9, "bislerp")
# A smooth latent, as real ones are.
ramp = torch.linspace(0, 1, 8)
upscale(torch.stack([torch.sin(3 * ramp[:, None] + k + 2 * ramp[None]) for k in range(16)])[None], 12, 12, "bislerp")

# Lengths at which the two implementations of torch choose different nearest pixels.
found = 0
for n in range(1, 140):
    for m in range(128, 700):
        if found == 2:
            break
        x = torch.arange(n, dtype=torch.float32).reshape(1, 1, 1, n).expand(1, 4, 1, n).contiguous()
        a, b = (torch.nn.functional.interpolate(x.contiguous(memory_format=f), size=(1, m), mode="nearest-exact")
            for f in (torch.contiguous_format, torch.channels_last))
        if not torch.equal(a, b):
            found += 1
            upscale(x, m, 1, "nearest-exact", layout="first")
            upscale(x, m, 1, "nearest-exact", layout="last")

# 8-bit values through long filters: a large reduction and a large enlargement.
upscale(picture(1, 3, 60, 20), 7, 4, "lanczos")
upscale(picture(1, 4, 5, 4), 41, 27, "lanczos")

mask = torch.rand(2, 5, 7, generator=gen)
blob = torch.zeros(1, 8, 9)
blob[0, 4, 5] = 1
for m in (mask, blob, mask[:, :1, :], mask[:, :, :1]):
    for expand in (0, 1, 3, -1, -2, 40, -40):
        for tapered in (True, False):
            y = masks["GrowMask"].execute(m, expand, tapered)
            add({"op": "grow", "expand": expand, "tapered": tapered}, m, y)
    for edges in ((0, 0, 0, 0), (4, 0, 0, 0), (0, 3, 0, 0), (0, 0, 5, 0), (0, 0, 0, 2), (3, 2, 4, 1),
            (100, 100, 100, 100)):
        y = masks["FeatherMask"].execute(m, *edges)
        add({"op": "feather", "edges": edges}, m, y)

versions = {"torch": torch.__version__, "pillow": PIL.__version__, "numpy": np.__version__,
    "cpu": torch.backends.cpu.get_cpu_capability()}
path = os.path.join(out, "resample.safetensors")
save_file(tensors, path, {"cases": json.dumps(cases), "versions": json.dumps(versions)})
print(len(cases), "cases", found, "boundary lengths", os.path.getsize(path), "bytes", versions)
