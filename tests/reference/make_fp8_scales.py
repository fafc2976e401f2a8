#!/usr/bin/env python3
"""Records products with fp8 matrices that have a scale for each row, each block of 128 x 128, or each 128 inputs of a
row, by arithmetic in float64: tests/golden/modern33/fp8_scales.json. Running the tests does not need this script.

Made with torch 2.15.0, which widens the codes:
    python tests/reference/make_fp8_scales.py tests/golden

Codes are bytes by a formula (code below), scales and inputs are the formula of tests/golden/README.md section 1.
"""

import json
import sys

import torch
from comfytree import fill

ROWS = 3
CASES = {  # name: type of the codes, rows and columns, shape of the scales, name of their tensor
    "rows": ("float8_e4m3fn", 40, 256, (40, 1), "weight_scale"),
    "rows of e5m2": ("float8_e5m2", 24, 64, (24,), "weight_scale"),
    "rows, older": ("float8_e4m3fn", 17, 48, (17, 1), "scale_weight"),
    "rows that do not stay": ("float8_e4m3fn", 9, 30, (9, 1), "weight_scale"),
    "blocks": ("float8_e4m3fn", 300, 384, (3, 3), "weight_scale_inv"),
    "blocks of a width that ends inside one": ("float8_e4m3fn", 140, 200, (2, 2), "weight_scale_inv"),
    "groups of inputs": ("float8_e4m3fn", 50, 256, (50, 2), "weight_scale"),
}


def code(n, kind):
    """Return n bytes that are finite numbers of a type."""
    i = torch.arange(n)
    b = (i * 89 + i // 11) % 256
    infinite = (b & 0x7F) >= (0x7F if kind == "float8_e4m3fn" else 0x7C)
    return torch.where(infinite, 0x30, b).to(torch.uint8)


def product(name, kind, n, k, shape):
    w = code(n * k, kind).view(getattr(torch, kind)).to(torch.float64).reshape(n, k)
    scale = fill(f"fp8_scales/{name}/scale", shape, 0.02, 0.03).double().reshape(shape[0], -1)
    by = scale.repeat_interleave(1 if shape[0] == n else 128, 0)[:n]
    by = by.repeat_interleave(128 if by.shape[1] > 1 else k, 1)[:, :k]
    x = fill(f"fp8_scales/{name}/x", (ROWS, k), 2, 0).double()
    return (x @ (w * by).T).flatten().tolist()


out = {
    name: {"type": c[0], "shape": c[1:3], "scale": c[3], "tensor": c[4],
           "y": [float(f"{v:.8g}") for v in product(name, *c[:4])]}
    for name, c in CASES.items()
}
with open(sys.argv[1] + "/modern33/fp8_scales.json", "w") as f:
    json.dump(out, f, separators=(",", ":"))
    f.write("\n")
