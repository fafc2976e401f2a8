"""Makes tests/golden/pictures.json. Running the tests does not need this script.

Made with Python 3.11, torch 2.15.0, kornia 0.9.0, spandrel 0.4.2 and the tree of ComfyUI 0.33.0, whose nodes Canny,
UpscaleModelLoader, ImageUpscaleWithModel and CLIPTextEncodeLumina2 are imported and run as they are, on a processor
with one thread:
    python tests/reference/make_pictures.py COMFYUI_TREE tests/golden

Pictures are drawn by picture() below or, "noise", by the formula of tests/golden/README.md section 1 (name
"input:picture", scale 1, offset 0.5); weights by the same formula with the scale and offset that are listed. Edges are
bits, first pixel first, in base64, made with roots that are rounded to the nearest; "mkl" is how many pixels are others
with the roots of torch on this processor. Of upscaled pictures every step-th value is kept, and the first two sides say
what is left of a batch of pictures. "tile" is the side of tiles where it is not the node's 512: what it falls to when
memory is short.
"""

import base64
import json
import os
import sys
import tempfile

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
sys.argv = ["x", "--cpu"]
sys.path.insert(0, tree)
import comfy.options

comfy.options.enable_args_parsing()
import numpy as np
import torch
import comfy.utils
import folder_paths
from comfy_extras.nodes_canny import Canny
from comfy_extras.nodes_lumina2 import CLIPTextEncodeLumina2
from comfy_extras.nodes_upscale_model import ImageUpscaleWithModel, UpscaleModelLoader
from safetensors.torch import save_file

torch.set_num_threads(1)
torch.set_grad_enabled(False)


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


def picture(kind, b, y, x):
    if kind == "noise":
        return torch.from_numpy(fill("input:picture", b * y * x * 3, 1, 0.5).reshape(b, y, x, 3))
    i, r, q, c = np.meshgrid(np.arange(b), np.arange(y), np.arange(x), np.arange(3), indexing="ij")
    v = (7 * q + 3 * r + 40 * c + 90 * i) % 256  # ramps that break off
    v = np.where(9 * ((q - x // 2) ** 2 + (r - y // 2) ** 2) < min(y, x) ** 2, 255 - (q + r) % 64, v)  # a disc
    v = np.where(r % 17 == 5, 20 * c, v)  # lines
    v = np.where(q == r, 255, v)
    return torch.from_numpy((v / 255).astype(np.float32))


class Rounded:
    """torch, whose roots are the nearest f32. Those of the processor's library (MKL) are beside it for one value in
    six, which decides between neighbours whose gradients are equal but for the last bit; a GPU's are not.
    """

    sqrt = staticmethod(lambda t: t.double().sqrt().float())

    def __getattr__(self, name):
        return getattr(torch, name)


edges = []
for kind, b, y, x, low, high in (
    ("shapes", 1, 3, 3, 0.4, 0.8), ("shapes", 1, 9, 13, 0.4, 0.8), ("shapes", 2, 64, 48, 0.4, 0.8),
    ("shapes", 2, 37, 53, 0.1, 0.2),
    ("shapes", 1, 257, 300, 0.05, 0.99), ("shapes", 1, 300, 257, 0.5, 0.5), ("noise", 2, 31, 45, 0.4, 0.8),
    ("noise", 1, 270, 260, 0.7, 0.9),
):
    plain = Canny.execute(picture(kind, b, y, x), low, high).result[0]
    sys.modules["kornia.filters.canny"].torch = Rounded()
    got = Canny.execute(picture(kind, b, y, x), low, high).result[0]
    sys.modules["kornia.filters.canny"].torch = torch
    others = int((got != plain)[..., 0].sum())
    print(kind, (b, y, x), low, high, "white", int(got[..., 0].sum()), "other pixels with MKL's roots", others)
    assert got.shape == (b, y, x, 3) and set(got.unique().tolist()) <= {0.0, 1.0} and (got[..., 0] == got[..., 2]).all()
    bits = np.packbits(got[..., 0].numpy().astype(bool).reshape(-1))
    edges.append({"picture": kind, "shape": [b, y, x], "low": low, "high": high, "white": int(got[..., 0].sum()),
        "mkl": others, "edges": base64.b64encode(bits).decode()})


def rrdb(form, nf, blocks, ups, nc):
    """Names and shapes of an RRDBNet in the form of ESRGAN ("old"), BSRGAN ("trunk") or Real-ESRGAN ("new")."""
    names = {"old": ("model.0", "model.1.sub.{}.RDB{}.conv{}.0", f"model.1.sub.{blocks}",
        *[f"model.{3 * (i + 1)}" for i in range(ups)],
                     f"model.{3 * ups + 2}", f"model.{3 * ups + 4}"),
             "trunk": ("conv_first", "RRDB_trunk.{}.RDB{}.conv{}", "trunk_conv",
                 *[f"upconv{i + 1}" for i in range(ups)], "HRconv", "conv_last"),
             "new": ("conv_first", "body.{}.rdb{}.conv{}", "conv_body", *[f"conv_up{i + 1}" for i in range(ups)],
                 "conv_hr", "conv_last")}[form]
    convs = [(names[0], nf, nc)]
    for i in range(blocks):
        for d in range(3):
            convs += [(names[1].format(i, d + 1, k + 1), 32 if k < 4 else nf, nf + 32 * k) for k in range(5)]
    convs += [(n, nf, nf) for n in names[2:-1]] + [(names[-1], 3, nf)]
    return convs, {}


def compact(nf, convs, scale):
    """Names and shapes of an SRVGGNetCompact."""
    layers = [("body.0", nf, 3)] + [(f"body.{2 * i + 2}", nf, nf)
        for i in range(convs)] + [(f"body.{2 * convs + 2}", 3 * scale**2, nf)]
    return layers, {f"body.{2 * i + 1}.weight": [nf] for i in range(convs + 1)}


MODELS = {
    "old-x4": rrdb("old", 8, 2, 2, 3), "old-x1": rrdb("old", 8, 1, 0, 3), "trunk-x4": rrdb("trunk", 8, 1, 2, 3),
    "new-x4": rrdb("new", 12, 2, 2, 3),
    "new-x2": rrdb("new", 8, 2, 2, 12), "compact-x4": compact(8, 3, 4), "compact-x2": compact(12, 1, 2),
    "old-x2": rrdb("old", 8, 1, 1, 3),
}
folder = tempfile.mkdtemp()
folder_paths.add_model_folder_path("upscale_models", folder)
models, weights = {}, {}
for name, (convs, vectors) in MODELS.items():
    tensors = []
    for key, n, c in convs:
        last = key == convs[-1][0]
        tensors += [[key + ".weight", [n, c, 3, 3], 2 * (3 / (9 * c)) ** 0.5 * (0.25 if last else 1), 0],
            [key + ".bias", [n], 0.1 if last else 0.4, 0.5 if last and not vectors else 0]]
    tensors += [[key, shape, 0.5, 0.1] for key, shape in vectors.items()]
    weights[name] = {k: torch.from_numpy(fill(f"upscale/{name}/{k}", int(np.prod(s)), a, o).reshape(s)) for k, s, a,
        o in tensors}
    save_file(weights[name], os.path.join(folder, name + ".safetensors"))
    models[name] = [list(t) for t in tensors]

upscaled = []
for name, kind, b, y, x, tile in (
    ("old-x4", "shapes", 2, 12, 9, 512), ("old-x1", "noise", 1, 7, 16, 512), ("trunk-x4", "shapes", 1, 10, 11, 512),
    ("new-x4", "noise", 1, 9, 14, 512),
    ("new-x2", "shapes", 2, 13, 11, 512), ("new-x2", "noise", 1, 1, 2, 512), ("compact-x4", "shapes", 1, 17, 10, 512),
    ("compact-x2", "noise", 2, 8, 5, 512),
    ("compact-x2", "shapes", 1, 40, 1003, 512), ("old-x2", "shapes", 1, 530, 24, 512),
    ("new-x2", "shapes", 1, 131, 24, 128), ("compact-x4", "shapes", 1, 240, 230, 128),
):
    model = UpscaleModelLoader.execute(name + ".safetensors").result[0]
    im = picture(kind, b, y, x)
    if tile == 512:
        got = ImageUpscaleWithModel.execute(model, im).result[0]
    else:
        got = comfy.utils.tiled_scale(im.movedim(-1, -3), lambda a: model(a.float()), tile_x=tile, tile_y=tile,
            overlap=32, upscale_amount=model.scale)
        got = got.movedim(-3, -1).clamp(0, 1)
    flat = got.reshape(-1)
    step = max(1, flat.numel() // 900) | 1
    cut = float(((flat == 0) | (flat == 1)).float().mean())
    assert cut < 0.35 and float(flat.std()) > 0.02, (name, cut, float(flat.std()))
    upscaled.append({"model": name, "scale": model.scale, "picture": kind, "shape": [b, y, x], "tile": tile,
        "size": list(got.shape), "step": step,
                     "values": [float(str(v)) for v in flat[::step].numpy()]})
    print(name, kind, (b, y, x), list(got.shape), "cut", round(cut, 3), "std", round(float(flat.std()), 3))

class Words:
    """Stands for a text encoder: keeps what it was asked to tokenize."""

    def tokenize(self, text):
        prompts.append({"system": system, "user": "a red fox, (sharp:1.2)", "text": text})

    def encode_from_tokens_scheduled(self, tokens):
        return []


prompts = []
for system in CLIPTextEncodeLumina2.SYSTEM_PROMPT:
    CLIPTextEncodeLumina2.execute(Words(), "a red fox, (sharp:1.2)", system)

with open(os.path.join(out, "pictures.json"), "w") as f:
    json.dump({"comfyui": "0.33.0", "edges": edges, "models": models, "upscaled": upscaled, "prompts": prompts}, f,
        separators=(",", ":"))
