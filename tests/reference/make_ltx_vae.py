"""Makes tests/golden/ltx/vae.* and weights_vae.json: videos that autoencoders of LTX-2's kind decode and encode in
ComfyUI 0.33.0. Running the tests does not need this script.

    python tests/reference/make_ltx_vae.py COMFYUI_TREE tests/golden/ltx

Weights and inputs are by the formula of tests/golden/README.md section 1: latents are `input:MODEL/latent/TxYxX`,
pictures `input:MODEL/image/FxYxX` with scale 1 and offset 0.5. Of pictures only every so many-th value is stored
(`every` in the JSON), of a batch in order.

a has the blocks of LTX-2.0, b those of 2.3 and c a causal decoder, narrower and fewer.
"""

import json
import math
import os
import sys

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(tree, "--force-fp32", "--fp32-vae", "--use-pytorch-cross-attention", "--disable-all-custom-nodes")
import comfy.ldm.lightricks.vae.causal_video_autoencoder as chunked
import comfy.sd
import nodes
import torch
from safetensors.torch import save_file

COMMON = {
    "_class_name": "CausalVideoAutoencoder", "dims": 3, "in_channels": 3, "out_channels": 3, "latent_channels": 128,
    "norm_layer": "pixel_norm", "patch_size": 4, "latent_log_var": "uniform", "causal_decoder": False,
    "timestep_conditioning": False, "encoder_base_channels": 8, "decoder_base_channels": 8,
}  # fmt: skip
DOWN = [
    ["res_x", {"num_layers": 1}], ["compress_space_res", {"multiplier": 2}], ["res_x", {"num_layers": 2}],
    ["compress_time_res", {"multiplier": 2}], ["res_x", {"num_layers": 1}], ["compress_all_res", {"multiplier": 2}],
    ["res_x", {"num_layers": 1}], ["compress_all_res", {"multiplier": 2}], ["res_x", {"num_layers": 1}],
]  # fmt: skip
UP = [["res_x", {"num_layers": 2, "inject_noise": False}]]
for _ in range(3):
    UP += [["compress_all", {"residual": True, "multiplier": 2}], ["res_x", {"num_layers": 1, "inject_noise": False}]]
UP3 = [
    ["res_x", {"num_layers": 1}], ["compress_space", {"multiplier": 2}], ["res_x", {"num_layers": 1}],
    ["compress_time", {"multiplier": 2}], ["res_x", {"num_layers": 2}], ["compress_all", {"multiplier": 1}],
    ["res_x", {"num_layers": 1}], ["compress_all", {"multiplier": 2}], ["res_x", {"num_layers": 1}],
]  # fmt: skip
MODELS = {
    "ltxvae-a": {**COMMON, "encoder_blocks": DOWN, "decoder_blocks": UP},
    "ltxvae-b": {
        **COMMON, "encoder_blocks": DOWN[:3] + [["compress_time_res", {"multiplier": 1}]] + DOWN[4:],
        "decoder_blocks": UP3, "spatial_padding_mode": "zeros",
    },
    "ltxvae-c": {
        **COMMON, "encoder_blocks": DOWN, "decoder_blocks": UP[:3] + UP3[1:2] + UP[3:], "patch_size": 2,
        "spatial_padding_mode": "reflect", "latent_log_var": "per_channel", "causal_decoder": True,
    },
}  # fmt: skip
MODELS["ltxvae-c"]["encoder_blocks"] = [["compress_space_res", {"multiplier": 1}]] + DOWN

# name, frames, rows and columns of the input, what the tiled nodes are asked for, every so many values
CASES = [
    ("ltxvae-a", "decode", (1, 2, 2), None, 1),
    ("ltxvae-a", "decode", (2, 2, 3), None, 17),
    ("ltxvae-a", "decode", (4, 3, 2), None, 31),
    ("ltxvae-a", "decode_tiled", (3, 6, 5), (128, 32, 16, 8), 101),
    ("ltxvae-a", "encode", (1, 64, 32), None, 1),
    ("ltxvae-a", "encode", (9, 64, 96), None, 1),
    ("ltxvae-a", "encode", (31, 32, 64), None, 1),
    ("ltxvae-a", "encode_tiled", (17, 128, 100), (64, 32, 16, 8), 1),
    ("ltxvae-b", "decode", (1, 1, 2), None, 1),
    ("ltxvae-b", "decode", (3, 2, 2), None, 31),
    ("ltxvae-b", "encode", (17, 70, 64), None, 1),
    ("ltxvae-c", "decode", (1, 2, 2), None, 1),
    ("ltxvae-c", "decode", (3, 2, 3), None, 31),
    ("ltxvae-c", "encode", (9, 64, 64), None, 1),
]


def rule(key, shape):
    if key.endswith("bias"):
        return "bias", 0.4, 0.0
    if key.endswith("mean-of-means"):
        return "table", 1.0, 0.0
    if len(shape) <= 1:
        return "norm", 0.2, 1.0
    return "matrix", 2 * math.sqrt(3 / math.prod(shape[1:])), 0.0


declared, tensors, cases = {}, {}, {}
with torch.inference_mode():
    for model, config in MODELS.items():
        net = chunked.VideoVAE(config=config)
        declared[model] = {
            "class": "VideoVAE (Lightricks)", "config": {"vae": config},
            "tensors": [[k, list(v.shape), *rule(k, v.shape)] for k, v in sorted(net.state_dict().items())],
        }  # fmt: skip
        sd = {k: fill(f"{model}/{k}", tuple(s), scale, offset) for k, s, _, scale, offset in declared[model]["tensors"]}
        vae = comfy.sd.VAE(sd=sd, metadata={"config": json.dumps({"vae": config})})
        for name, kind, shape, tiles, every in CASES:
            if name != model:
                continue
            size = "x".join(map(str, shape))
            key = f"{model}/{kind}/{size}"
            if kind.startswith("decode"):
                latent = {"samples": given(f"{model}/latent/{size}", (1, 128, *shape))}
                if tiles:
                    got = nodes.VAEDecodeTiled().decode(vae, latent, *tiles)[0]
                else:
                    got = nodes.VAEDecode().decode(vae, latent)[0]
                    raw = vae.first_stage_model.decode(latent["samples"]).movedim(1, -1).reshape(got.shape)
                    assert torch.equal((raw / 2 + 0.5).clamp(0, 1), got), key
                    chunked.get_max_chunk_size, whole = lambda device: 1, chunked.get_max_chunk_size
                    parts = vae.first_stage_model.decode(latent["samples"]).movedim(1, -1).reshape(got.shape)
                    chunked.get_max_chunk_size = whole
                    print("  in chunks", (parts - raw).abs().max().item())
                    got, key = raw, key + "#raw"
            else:
                pixels = fill(f"input:{model}/image/{size}", (*shape, 3), 1, 0.5)
                if tiles:
                    got = nodes.VAEEncodeTiled().encode(vae, pixels, *tiles)[0]["samples"]
                else:
                    got = nodes.VAEEncode().encode(vae, pixels)[0]["samples"]
            cases[key] = {"shape": list(got.shape), "every": every, "rms": got.square().mean().sqrt().item()}
            if tiles:
                cases[key]["tiles"] = list(tiles)
            tensors[key] = got.float().flatten()[::every].contiguous()
            print(key, cases[key])
json.dump(cases, open(f"{out}/vae.json", "w"), separators=(",", ":"))
json.dump(declared, open(f"{out}/weights_vae.json", "w"), separators=(",", ":"))
save_file(tensors, f"{out}/vae.safetensors")
os.chmod(f"{out}/vae.safetensors", 0o644)
