"""Makes engine/torchfile/testdata and node/classes/testdata/compact-x2.pth with torch.save. Running the tests does not
need this script.

Made with Python 3.11 and torch 2.15.0:
    python tests/reference/make_torchfile.py .
"""

import json
import os
import sys
from collections import OrderedDict

import torch

root = sys.argv[1]
sys.path.insert(0, os.path.join(root, "tests/reference"))
out = os.path.join(root, "engine/torchfile/testdata")
os.makedirs(out, exist_ok=True)
whole = torch.arange(24.0)
tensors = OrderedDict([
    ("f32", torch.arange(6.0).reshape(2, 3) / 4), ("f16", torch.tensor([0.5, -2.0], dtype=torch.float16)),
    ("bf16", torch.tensor([[1.5]], dtype=torch.bfloat16)),
    ("view", whole[8:20].reshape(3, 4)), ("scalar", torch.tensor(7.0)), ("count", torch.tensor(3)),
    ("parameter", torch.nn.Parameter(torch.tensor([3.0, 4.0]))),
])
torch.save({"params_ema": tensors, "iter": 5, "lr": 0.1, "steps": [1, 2, 70000], "name": None, "done": True},
    os.path.join(out, "training.pth"))
layer = torch.nn.Sequential(torch.nn.Linear(2, 1))
layer[0].weight.data = torch.tensor([[1.0, 2.0]])
layer[0].bias.data = torch.tensor([3.0])
torch.save(layer.state_dict(), os.path.join(out, "module.pth"))
torch.save({"a": torch.arange(6.0).reshape(2, 3).t()}, os.path.join(out, "turned.pth"))
torch.save({"a": torch.arange(6.0)}, os.path.join(out, "old.pth"), _use_new_zipfile_serialization=False)
torch.save({"a": torch.arange(6.0), "b": complex}, os.path.join(out, "class.pth"))

import numpy as np


def fill(name, n, scale, offset):  # tests/golden/README.md section 1
    h = 0xCBF29CE484222325
    for c in name.encode():
        h = (h ^ c) * 0x100000001B3 & (1 << 64) - 1
    z = np.arange(n, dtype=np.uint64) + np.uint64(h) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    u = z ^ (z >> np.uint64(31))
    v = ((u >> np.uint64(40)).astype(np.float64) - (1 << 23)) / (1 << 24)
    return (offset + scale * v).astype(np.float32)


weights = json.load(open(os.path.join(root, "tests/golden/pictures.json")))["models"]["compact-x2"]
state = OrderedDict((k, torch.from_numpy(fill("upscale/compact-x2/" + k, int(np.prod(s)), a, o).reshape(s))) for k, s,
    a, o in weights)
torch.save({"params": state}, os.path.join(root, "node/classes/testdata/compact-x2.pth"))
