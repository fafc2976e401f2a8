"""What the scripts beside it share that run a tree of ComfyUI: how it is started on a processor, and the formula of
tests/golden/README.md section 1.

Arguments of ComfyUI are read where it is imported: call start first, then import comfy.
"""

import importlib.machinery
import math
import os
import sys
from unittest.mock import MagicMock

import numpy as np
import torch


def start(tree, *flags, vision=True, sound=False):
    """Have the ComfyUI of a tree run on the processor as flags say, without torchaudio and torchvision unless they are
    used.
    """
    sys.argv = ["x", "--cpu", *flags]
    sys.path.insert(0, os.path.abspath(tree))
    unused = [] if sound else ["torchaudio", "torchaudio.transforms", "torchaudio.functional"]
    if not vision:
        unused += ["torchvision", "torchvision.transforms", "torchvision.models"]
    for m in unused:
        sys.modules[m] = MagicMock()
        sys.modules[m].__spec__ = importlib.machinery.ModuleSpec(m, None)
    import comfy.options

    comfy.options.enable_args_parsing()
    import utils.extra_config  # noqa: F401
    import nodes  # noqa: F401

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


def fill(name, shape, scale, offset):
    """Return offset + scale * v as float32, v in [-1/2, 1/2) by the hash of a name."""
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & (2**64 - 1)
    with np.errstate(over="ignore"):
        z = np.uint64(h) + np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    v = ((z >> np.uint64(40)).astype(np.int64) - 2**23).astype(np.float64) / 2**24
    return torch.from_numpy((offset + scale * v).astype(np.float32).reshape(shape))


def given(name, shape):
    """Return an input of the deviation 1."""
    return fill("input:" + name, shape, 2 * math.sqrt(3.0), 0)
