"""Makes tests/golden/ltx/upscale.* and weights_upscale.json: latents that networks of LTX-2's kind enlarge in ComfyUI
0.33.0. Running the tests does not need this script.

    python tests/reference/make_ltx_upscale.py COMFYUI_TREE tests/golden/ltx

Weights and inputs are by the formula of tests/golden/README.md section 1: latents are `input:MODEL/latent/TxYxX`. Each
is enlarged by LTXVLatentUpsampler with the autoencoder `ltxvae-a`, of which only the statistics matter. Only every
fifth value of a result is stored.
"""

import json
import math
import os
import sys
import tempfile

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(tree, "--force-fp32", "--fp32-vae", "--use-pytorch-cross-attention", "--disable-all-custom-nodes")
import comfy.sd
import folder_paths
import torch
from comfy.ldm.lightricks.latent_upsampler import LatentUpsampler
from comfy_extras.nodes_hunyuan import LatentUpscaleModelLoader
from comfy_extras.nodes_lt_upsampler import LTXVLatentUpsampler
from safetensors.torch import save_file

COMMON = {"_class_name": "LatentUpsampler",
          "in_channels": 128, "mid_channels": 32, "num_blocks_per_stage": 1, "dims": 3,
          "spatial_upsample": True, "temporal_upsample": False, "spatial_scale": 2.0,
          "rational_resampler": False}  # fmt: skip
MODELS = {
    "ltxup-space": {**COMMON, "num_blocks_per_stage": 2},
    "ltxup-ratio2": {**COMMON, "rational_resampler": True},
    "ltxup-ratio1.5": {**COMMON, "rational_resampler": True, "spatial_scale": 1.5},
    "ltxup-ratio0.75": {**COMMON, "rational_resampler": True, "spatial_scale": 0.75},
    "ltxup-time": {**COMMON, "spatial_upsample": False, "temporal_upsample": True},
    "ltxup-both": {**COMMON, "temporal_upsample": True},
}  # fmt: skip
CASES = [
    ("ltxup-space", (1, 2, 3)), ("ltxup-space", (3, 3, 2)), ("ltxup-ratio2", (2, 3, 2)), ("ltxup-ratio1.5", (2, 3, 4)),
    ("ltxup-ratio0.75", (1, 5, 4)), ("ltxup-time", (1, 2, 2)), ("ltxup-time", (3, 2, 3)), ("ltxup-both", (2, 2, 3)),
]  # fmt: skip


def rule(key, shape):
    if key.endswith("blur_down.kernel"):
        return "kept", 0.0, 0.0
    if key.endswith("bias"):
        return "bias", 0.4, 0.0
    if len(shape) <= 1:
        return "norm", 0.4, 1.0
    return "matrix", 2 * math.sqrt(3 / math.prod(shape[1:])), 0.0


declared, tensors, cases = {}, {}, {}
with torch.inference_mode():
    wide = json.load(open(f"{out}/weights_vae.json"))["ltxvae-a"]
    sd = {k: fill(f"ltxvae-a/{k}", tuple(s), scale, offset) for k, s, _, scale, offset in wide["tensors"]}
    vae = comfy.sd.VAE(sd=sd, metadata={"config": json.dumps(wide["config"])})
    folder = tempfile.mkdtemp()
    folder_paths.add_model_folder_path("latent_upscale_models", folder)
    for model, config in MODELS.items():
        net = LatentUpsampler.from_config(config, operations=torch.nn)
        rules = [[k, list(v.shape), *rule(k, v.shape)] for k, v in sorted(net.state_dict().items())]
        sd = {k: fill(f"{model}/{k}", tuple(s), scale, offset) for k, s, kind, scale, offset in rules if kind != "kept"}
        declared[model] = {
            "class": "LatentUpsampler", "config": config, "tensors": [r for r in rules if r[2] != "kept"],
        }  # fmt: skip
        kept = {k: v for k, v in net.state_dict().items() if k not in sd}
        save_file({**sd, **kept}, f"{folder}/{model}.safetensors", {"config": json.dumps(config)})
        loaded = LatentUpscaleModelLoader.execute(f"{model}.safetensors").args[0]
        for name, shape in CASES:
            if name != model:
                continue
            size = "x".join(map(str, shape))
            key = f"{model}/{size}"
            latent = {"samples": given(f"{model}/latent/{size}", (1, 128, *shape)), "noise_mask": torch.ones(1)}
            got = LTXVLatentUpsampler.execute(latent, loaded, vae).args[0]
            assert "noise_mask" not in got
            got = got["samples"]
            cases[key] = {"shape": list(got.shape), "rms": got.square().mean().sqrt().item()}
            tensors[key] = got.float().flatten()[::5].contiguous()
            print(key, cases[key])
json.dump(cases, open(f"{out}/upscale.json", "w"), separators=(",", ":"))
json.dump(declared, open(f"{out}/weights_upscale.json", "w"), separators=(",", ":"))
save_file(tensors, f"{out}/upscale.safetensors")
os.chmod(f"{out}/upscale.safetensors", 0o644)
