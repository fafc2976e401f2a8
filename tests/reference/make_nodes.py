"""Makes tests/golden/nodes/classes.safetensors. Running the tests does not need this script.

Made with Python 3.11, torch 2.9.1, numpy 2.4.6, scipy 1.17.1, Pillow 12.3.0 and the other requirements of ComfyUI
0.8.0, whose node classes are imported and run as they are (FeatherMask's result is 0.33.0's):
    python3 -m venv v && v/bin/pip install -r COMFYUI_TREE/requirements.txt "pillow<13"
    v/bin/python tests/reference/make_nodes.py COMFYUI_TREE tests/golden/nodes

The file's metadata holds two JSON texts. "object_info" has the /object_info entries of classes that
tests/golden/server/object_info.json lacks, made by the server's own rule, without tooltips and descriptions. "cases" is
a list of {class, inputs, outputs}: numbers and text as they are, tensors as {"tensor": name}, a LATENT as {"samples",
"noise_mask", "batch_index"}, a CONDITIONING as a list of {"context", key: value}. {"vae": n} is an autoencoder that
covers n x n pixels with one value; its encode gives back the pixels that it was handed, [B, Y, X, C]. {"vae": "vae-kl"}
is the real class with the weights of tests/golden/weights_text_vae.json.
"""

import asyncio
import json
import os
import sys

import numpy as np

tree, out = os.path.abspath(sys.argv[1]), sys.argv[2]
here = os.path.dirname(os.path.abspath(__file__))
sys.argv = ["x", "--cpu", "--fp32-vae"]
sys.path.insert(0, tree)
import comfy.options

comfy.options.enable_args_parsing()
import utils.extra_config  # before nodes, which puts another module of that name in the way
import nodes
import comfy.sd
import comfy_extras.nodes_post_processing  # before nodes_latent, which imports it in turn
import torch
from comfy_api.internal import _ComfyNodeInternal
from safetensors.torch import save_file

for m in ("custom_sampler", "mask", "primitive", "post_processing", "images", "differential_diffusion",
        "model_advanced", "flux"):
    if not asyncio.run(nodes.load_custom_node(f"{tree}/comfy_extras/nodes_{m}.py", module_parent="comfy_extras")):
        sys.exit(f"cannot import nodes_{m}")
CLASSES = nodes.NODE_CLASS_MAPPINGS

# Entries.
INFO = """SamplerCustom FlipSigmas SetFirstSigma LaplaceScheduler SDTurboScheduler SamplerDPMPP_2M_SDE
SamplerDPMAdaptative SamplerSEEDS2 DualCFGGuider ConditioningAverage ConditioningSetAreaPercentage ConditioningSetMask
SetLatentNoiseMask LatentUpscaleBy LatentComposite LatentCrop RepeatLatentBatch LatentFromBatch ImageScaleBy
ImageScaleToTotalPixels ImageBatch ImageBlend FeatherMask PrimitiveFloat PrimitiveStringMultiline PrimitiveBoolean
ConditioningSetTimestepRange VAEDecode SaveLatent""".split()


def entry(name):  # server.py, node_info
    c = CLASSES[name]
    if issubclass(c, _ComfyNodeInternal):
        info = c.GET_NODE_INFO_V1()
        info.pop("output_tooltips", None)
        return info
    types = c.INPUT_TYPES()
    info = {
        "input": types,
        "input_order": {k: list(v) for k, v in types.items()},
        "output": c.RETURN_TYPES,
        "output_is_list": getattr(c, "OUTPUT_IS_LIST", [False] * len(c.RETURN_TYPES)),
        "output_name": getattr(c, "RETURN_NAMES", c.RETURN_TYPES),
        "name": name,
        "display_name": nodes.NODE_DISPLAY_NAME_MAPPINGS.get(name, name),
        "python_module": getattr(c, "RELATIVE_PYTHON_MODULE", "nodes"),
        "category": getattr(c, "CATEGORY", "sd"),
        "output_node": getattr(c, "OUTPUT_NODE", False) is True,
    }
    for key, value in (("deprecated", getattr(c, "DEPRECATED", False)),
            ("experimental", getattr(c, "EXPERIMENTAL", False))):
        if value:
            info[key] = True
    return info


def plain(v):
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items() if k not in ("tooltip", "description")}
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    return v


object_info = {n: plain(entry(n)) for n in INFO}

# Cases.
gen = torch.Generator().manual_seed(11)
tensors, cases, known = {}, [], {}


def store(t):
    t = t.detach().to(torch.float32).contiguous()
    key = (tuple(t.shape), t.numpy().tobytes())
    if key not in known:
        known[key] = f"t{len(known)}"
        tensors[known[key]] = t.clone()
    return {"tensor": known[key]}


class Encoder:
    """Stands for an autoencoder: encode gives back the pixels that it would have encoded."""

    def __init__(self, n):
        self.downscale_ratio = n

    def encode(self, pixels):
        n = self.downscale_ratio  # comfy.sd.VAE.vae_encode_crop_pixels
        y, x = pixels.shape[1] // n * n, pixels.shape[2] // n * n
        top, left = pixels.shape[1] % n // 2, pixels.shape[2] % n // 2
        return pixels[:, top : top + y, left : left + x, :]


def describe(v):
    if isinstance(v, torch.Tensor):
        return store(v)
    if isinstance(v, Encoder):
        return {"vae": v.downscale_ratio}
    if isinstance(v, comfy.sd.VAE):
        return {"vae": "vae-kl"}
    if isinstance(v, dict):
        return {k: describe(x) for k, x in v.items()}
    if isinstance(v, list) and v and isinstance(v[0], (list, tuple)) and isinstance(v[0][0], torch.Tensor):
        return [{"context": describe(t), **{k: describe(x) for k, x in d.items()}} for t, d in v]
    if isinstance(v, (list, tuple)):
        return [describe(x) for x in v]
    return v


def case(name, **inputs):
    c = CLASSES[name]
    described = describe(inputs)
    if issubclass(c, _ComfyNodeInternal):
        result = c.execute(**inputs).result
    else:
        result = getattr(c(), c.FUNCTION)(**inputs)
    assert describe(inputs) == described, name  # no node changes what it is given
    cases.append({"class": name, "inputs": described, "outputs": [describe(r) for r in result]})


def rand(*shape):
    return torch.rand(*shape, generator=gen)


def randn(*shape):
    return torch.randn(*shape, generator=gen)


# Latents.
lat, small, many = {"samples": randn(1, 4, 12, 16)}, {"samples": randn(1, 4, 5, 6)}, {"samples": randn(3, 4, 9, 8)}
masked = {**many, "noise_mask": rand(3, 1, 20, 18)}
two = {**many, "noise_mask": rand(2, 1, 20, 18), "batch_index": [4, 1, 2]}
one = {**many, "noise_mask": rand(1, 1, 20, 18), "batch_index": [0, 1, 2]}
for l in (many, masked, two, one):
    for amount in (1, 3):
        case("RepeatLatentBatch", samples=l, amount=amount)
    for start, length in ((0, 1), (1, 2), (2, 5), (60, 1)):
        case("LatentFromBatch", samples=l, batch_index=start, length=length)
for l in (lat, small, masked):
    for m in ("x-axis: vertically", "y-axis: horizontally"):
        case("LatentFlip", samples=l, flip_method=m)
    for r in ("none", "90 degrees", "180 degrees", "270 degrees"):
        case("LatentRotate", samples=l, rotation=r)
    for w, h, x, y in ((64, 64, 0, 0), (64, 72, 24, 16), (512, 512, 8, 8), (96, 64, 4096, 4096), (68, 67, 9, 31)):
        case("LatentCrop", samples=l, width=w, height=h, x=x, y=y)
for method in ("nearest-exact", "bilinear", "area", "bicubic", "bislerp"):
    for w, h, crop in ((0, 0, "disabled"), (0, 200, "disabled"), (88, 0, "center"), (16, 120, "disabled"),
            (136, 72, "center"), (77, 79, "disabled")):
        case("LatentUpscale", samples=lat, upscale_method=method, width=w, height=h, crop=crop)
    for by in (1.5, 0.31, 1.0):
        case("LatentUpscaleBy", samples=masked, upscale_method=method, scale_by=by)
for f in (0.0, 0.3, 1.0):
    case("LatentBlend", samples1=lat, samples2={"samples": randn(1, 4, 12, 16)}, blend_factor=f)
case("LatentBlend", samples1=lat, samples2=small, blend_factor=0.7)
case("LatentBlend", samples1=lat, samples2=many, blend_factor=0.7)
case("LatentBlend", samples1=masked, samples2=lat, blend_factor=0.2)
for x, y, feather in ((0, 0, 0), (40, 24, 0), (40, 24, 16), (8, 8, 24), (0, 16, 24), (96, 64, 32), (16, 0, 64),
        (24, 24, 80), (128, 96, 8), (128, 8, 0)):
    case("LatentComposite", samples_to=lat, samples_from=small, x=x, y=y, feather=feather)
case("LatentComposite", samples_to=masked, samples_from=small, x=16, y=16, feather=16)
case("LatentComposite", samples_to=small, samples_from=lat, x=0, y=0, feather=16)
case("LatentComposite", samples_to=many, samples_from={"samples": randn(3, 4, 4, 3)}, x=8, y=40, feather=8)
case("SetLatentNoiseMask", samples=lat, mask=rand(1, 20, 18))
case("SetLatentNoiseMask", samples=two, mask=rand(3, 4, 5))

# Conditionings.
a = [[randn(1, 5, 8), {"pooled_output": randn(1, 6), "guidance": 2.0}],
    [randn(1, 2, 8), {"pooled_output": randn(1, 6)}], [randn(1, 4, 8), {"pooled_output": None}]]
b = [[randn(1, 3, 8), {"pooled_output": randn(1, 6)}]]
for s in (0.0, 0.3, 1.0):
    case("ConditioningAverage", conditioning_to=a, conditioning_from=b, conditioning_to_strength=s)
case("ConditioningAverage", conditioning_to=b, conditioning_from=a[2:], conditioning_to_strength=0.4)
case("ConditioningConcat", conditioning_to=a, conditioning_from=b)
area, part = {"width": 136, "height": 64, "x": 20, "y": 8, "strength": 0.7}, {"width": 0.5, "height": 0.25, "x": 0.1,
    "y": 0.0, "strength": 2.0}
case("ConditioningSetArea", conditioning=a, **area)
case("ConditioningSetAreaPercentage", conditioning=a, **part)
mask = rand(2, 6, 7)
for kind in ("default", "mask bounds"):
    case("ConditioningSetMask", conditioning=b, mask=mask, strength=0.4, set_cond_area=kind)
case("FluxDisableGuidance", conditioning=a)

# Pictures.
pic, wide, alpha, batch = rand(1, 9, 13, 3), rand(1, 7, 20, 3), rand(1, 9, 13, 4), rand(2, 9, 13, 3)
for method in ("nearest-exact", "bilinear", "area", "bicubic", "lanczos"):
    for w, h, crop in ((0, 0, "disabled"), (0, 20, "disabled"), (21, 0, "center"), (8, 8, "center"),
            (26, 5, "disabled"), (0, 1, "disabled")):
        case("ImageScale", image=pic, upscale_method=method, width=w, height=h, crop=crop)
    case("ImageScaleBy", image=alpha, upscale_method=method, scale_by=1.7)
    case("ImageScaleBy", image=batch, upscale_method=method, scale_by=0.5)
for mp, step in ((0.01, 1), (0.011, 8), (0.012, 64)):
    case("ImageScaleToTotalPixels", image=wide, upscale_method="bilinear", megapixels=mp, resolution_steps=step)
for x, y, w, h in ((0, 0, 13, 9), (3, 2, 4, 5), (10, 8, 100, 100), (500, 500, 2, 2)):
    case("ImageCrop", image=batch, x=x, y=y, width=w, height=h)
for i in (pic, alpha):
    case("ImageInvert", image=i)
for x, y in ((pic, batch), (pic, alpha), (alpha, pic), (pic, wide), (wide, alpha)):
    case("ImageBatch", image1=x, image2=y)
for color in (0, 0xFFFFFF, 0x12AB7F):
    case("EmptyImage", width=3, height=2, batch_size=2, color=color)
for edges in ((0, 0, 0, 0), (8, 0, 0, 0), (0, 3, 5, 0), (2, 4, 6, 8)):
    for feathering in (0, 1, 4, 5):
        case("ImagePadForOutpaint", image=batch, left=edges[0], top=edges[1], right=edges[2], bottom=edges[3],
            feathering=feathering)
case("ImagePadForOutpaint", image=rand(1, 31, 40, 4), left=8, top=0, right=8, bottom=16, feathering=12)
for mode in ("normal", "multiply", "screen", "overlay", "soft_light", "difference"):
    for f in (0.0, 0.35, 1.0):
        case("ImageBlend", image1=pic, image2=rand(1, 9, 13, 3), blend_factor=f, blend_mode=mode)
    case("ImageBlend", image1=pic, image2=alpha, blend_factor=0.6, blend_mode=mode)
    case("ImageBlend", image1=batch, image2=wide, blend_factor=0.6, blend_mode=mode)

for direction in ("right", "down", "left", "up"):
    for match, width, colour in ((True, 0, "white"), (False, 5, "red"), (False, 4, "white")):
        stitch = {"direction": direction, "match_image_size": match, "spacing_width": width, "spacing_color": colour}
        case("ImageStitch", image1=batch, image2=alpha if width == 5 else wide, **stitch)
case("ImageStitch", image1=pic, direction="right", match_image_size=True, spacing_width=0, spacing_color="white")

# Masks.
m = rand(2, 7, 11)
case("SolidMask", value=0.3, width=5, height=4)
case("InvertMask", mask=m)
case("MaskToImage", mask=m)
for k, i in (("red", batch), ("blue", batch), ("green", alpha), ("alpha", alpha)):
    case("ImageToMask", image=i, channel=k)
for expand, tapered in ((0, True), (2, True), (2, False), (-1, False)):
    case("GrowMask", mask=m, expand=expand, tapered_corners=tapered)
case("FeatherMask", mask=m, left=3, top=2, right=4, bottom=1)

# Inpainting: mask sizes that differ from the picture's, sides that are no multiples of 8, batches.
picture, pictures = rand(1, 27, 35, 3), rand(2, 24, 16, 4)
for i, k in ((picture, rand(1, 27, 35)), (picture, rand(1, 10, 50)), (pictures, rand(2, 24, 16)),
        (pictures, rand(1, 12, 8))):
    for n in (1, 8):
        for grow in (0, 1, 5, 6, 64):
            case("VAEEncodeForInpaint", pixels=i, vae=Encoder(n), mask=k, grow_mask_by=grow)
    for keep in (True, False):
        case("InpaintModelConditioning", positive=a, negative=b, vae=Encoder(8), pixels=i, mask=k, noise_mask=keep)

# A real autoencoder.
def formula(name, shape, scale, offset):  # tests/golden/README.md section 1
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = (h ^ b) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(h) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    v = ((z >> np.uint64(40)).astype(np.float64) - 2**23) / 2**24
    return torch.from_numpy((offset + scale * v).astype(np.float32).reshape(shape))


model = json.load(open(os.path.join(here, "../golden/weights_text_vae.json")))["vae-kl"]
weights = {k: formula("vae-kl/" + k, shape, scale, offset) for k, shape, _, scale, offset in model["tensors"]}
vae = comfy.sd.VAE(sd=weights, config={"params": {"ddconfig": model["config"], "embed_dim": 4}})
time = {"temporal_size": 64, "temporal_overlap": 8}
with torch.inference_mode():
    case("VAEDecodeTiled", samples={"samples": randn(1, 4, 10, 14)}, vae=vae, tile_size=64, overlap=64, **time)
    case("VAEDecodeTiled", samples={"samples": randn(2, 4, 3, 9)}, vae=vae, tile_size=64, overlap=8, **time)
    case("VAEEncodeTiled", pixels=rand(1, 51, 83, 3), vae=vae, tile_size=64, overlap=8, **time)
    case("VAEEncodeForInpaint", pixels=rand(1, 35, 29, 3), vae=vae, mask=rand(1, 20, 31), grow_mask_by=6)
    case("InpaintModelConditioning", positive=a, negative=b, vae=vae, pixels=rand(1, 35, 29, 3), mask=rand(1, 20, 31),
        noise_mask=True)

# Literals.
case("PrimitiveInt", value=-7)
case("PrimitiveFloat", value=0.25)
case("PrimitiveString", value="a\nb")
case("PrimitiveStringMultiline", value="")
case("PrimitiveBoolean", value=True)

versions = {"torch": torch.__version__, "numpy": np.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
path = os.path.join(out, "classes.safetensors")
save_file(tensors, path, {"cases": json.dumps(cases), "object_info": json.dumps(object_info),
    "versions": json.dumps(versions)})
print(len(cases), "cases", len(object_info), "entries", os.path.getsize(path), "bytes", versions)
