"""Makes tests/golden/ltx/audio.* and weights_audio.json: sounds that autoencoders of LTX-2's kind decode and encode in
ComfyUI 0.33.0, through its nodes. It needs torchaudio; running the tests needs neither that nor this script.

    python tests/reference/make_ltx_audio.py COMFYUI_TREE tests/golden/ltx

Weights and inputs are by the formula of tests/golden/README.md section 1: latents are `input:MODEL/latent/T`, sounds
`input:MODEL/wave/CHANNELSxSAMPLES` with scale 1 and offset 0; cases end with the samples a second.

a has the vocoder of LTX-2.0, b those of 2.3, of which the second one extends the band, and c a single channel and
activations of another kind, all narrower and shorter.
"""

import json
import math
import os
import sys
import tempfile

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(tree, "--force-fp32", "--fp32-vae", "--disable-all-custom-nodes", sound=True)
import comfy.ldm.lightricks.vae.audio_vae as audio
import folder_paths
from comfy_extras.nodes_audio import VAEDecodeAudio
from comfy_extras.nodes_lt_audio import LTXVAudioVAEDecode, LTXVAudioVAEEncode, LTXVAudioVAELoader, LTXVEmptyLatentAudio
from safetensors.torch import save_file


def autoencoder(channels, blocks, **more):
    return {
        "model": {"params": {"sampling_rate": 16000, "ddconfig": {
            "double_z": True, "mel_bins": 64, "z_channels": 8, "resolution": 256, "downsample_time": False,
            "in_channels": channels, "out_ch": channels, "ch": 8, "ch_mult": [1, 2, 4], "num_res_blocks": blocks,
            "attn_resolutions": [], "dropout": 0.0, "mid_block_add_attention": False, "norm_type": "pixel",
            "causality_axis": "height",
        }}},
        "preprocessing": {"stft": {"filter_length": 1024, "hop_length": 160}}, **more,
    }  # fmt: skip


AMP = {
    "resblock": "AMP1", "activation": "snakebeta", "use_tanh_at_final": False, "use_bias_at_final": False,
    "resblock_kernel_sizes": [3, 7], "resblock_dilation_sizes": [[1, 3, 5], [1, 2, 4]],
}  # fmt: skip
MODELS = {
    "ltxaudio-a": {
        "audio_vae": autoencoder(2, 2),
        "vocoder": {
            "upsample_initial_channel": 64, "upsample_rates": [6, 5, 2, 2, 2],
            "upsample_kernel_sizes": [16, 15, 8, 4, 4],
            "resblock_kernel_sizes": [3, 7, 11], "resblock_dilation_sizes": [[1, 3, 5]] * 3, "stereo": True,
            "resblock": "1",
        },
    },
    "ltxaudio-b": {
        "audio_vae": autoencoder(2, 1),
        "vocoder": {
            "vocoder": {
                **AMP, "upsample_initial_channel": 32, "upsample_rates": [5, 2], "upsample_kernel_sizes": [11, 4],
                "stereo": True,
            },
            "bwe": {
                **AMP, "upsample_initial_channel": 16, "upsample_rates": [4, 3], "upsample_kernel_sizes": [8, 7],
                "stereo": True, "input_sampling_rate": 16000, "output_sampling_rate": 48000, "hop_length": 4,
                "n_fft": 32, "num_mels": 64,
            },
        },
    },
    "ltxaudio-c": {
        "audio_vae": autoencoder(1, 1),
        "vocoder": {
            "resblock": "AMP1", "activation": "snake", "stereo": False, "output_sample_rate": 22050,
            "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]],
            "upsample_initial_channel": 16, "upsample_rates": [3, 2], "upsample_kernel_sizes": [5, 4],
        },
    },
}  # fmt: skip

# model, what, latents or (channels, samples, rate)
CASES = [
    ("ltxaudio-a", "decode", 1), ("ltxaudio-a", "decode", 2), ("ltxaudio-a", "decode", 5),
    ("ltxaudio-a", "encode", (2, 4096, 44100)), ("ltxaudio-a", "encode", (1, 9000, 44100)),
    ("ltxaudio-a", "encode", (3, 9000, 48000)), ("ltxaudio-a", "encode", (2, 3000, 16000)),
    ("ltxaudio-b", "decode", 1), ("ltxaudio-b", "decode", 2), ("ltxaudio-b", "decode", 6),
    ("ltxaudio-b", "encode", (2, 8192, 44100)),
    ("ltxaudio-c", "decode", 1), ("ltxaudio-c", "decode", 4),
]  # fmt: skip


def rule(key, shape):
    if key.endswith(".filter"):
        return "filter", 0.1, 1 / 12
    if ".ups." in key and len(shape) == 3:
        return "matrix", 2 * math.sqrt(3 / (2 * shape[0])), 0.0  # about two taps meet each sample
    if key.endswith(("bias", ".alpha", ".beta")):
        return "bias", 0.1 if key.startswith("vocoder.") and key.endswith("bias") else 0.4, 0.0
    if key.endswith("mean-of-means"):
        return "table", 1.0, 0.0
    if key.endswith("mel_basis"):
        return "table", 0.1, 0.05
    if len(shape) <= 1:
        return "norm", 0.2, 1.0
    if key.endswith("conv_post.weight") and key.count("vocoder.") + key.count("bwe") > 1:
        return "matrix", 0.12 * math.sqrt(3 / math.prod(shape[1:])), 0.0  # few samples are cut off
    return "matrix", 2 * math.sqrt(3 / math.prod(shape[1:])), 0.0


declared, tensors, cases = {}, {}, {}
with tempfile.TemporaryDirectory() as folder:
    folder_paths.add_model_folder_path("checkpoints", folder)
    for model, config in MODELS.items():
        text = json.dumps(config)
        net = audio.AudioVAE({"config": text})
        rows = []
        for k, v in sorted(net.state_dict().items()):
            k = k.replace("autoencoder.", "audio_vae.", 1) if k.startswith("autoencoder.") else k
            rows.append([k, list(v.shape), *rule(k, v.shape)])
        declared[model] = {"class": "AudioVAE (Lightricks)", "config": config, "tensors": rows}
        sd = {k: fill(f"{model}/{k}", tuple(s), scale, offset) for k, s, _, scale, offset in rows}
        sd["model.diffusion_model.other.weight"] = sd[rows[0][0]].clone()
        save_file({k: v.contiguous() for k, v in sd.items()}, f"{folder}/{model}.safetensors", {"config": text})
        vae = LTXVAudioVAELoader.execute(f"{model}.safetensors").result[0]
        for name, kind, size in CASES:
            if name != model:
                continue
            if kind == "decode":
                key = f"{model}/decode/{size}"
                latent = {"samples": given(f"{model}/latent/{size}", (1, 8, size, 16))}
                got = LTXVAudioVAEDecode.execute(latent, vae).result[0]
                level = VAEDecodeAudio.execute(vae, latent).result[0]
                assert level["sample_rate"] == got["sample_rate"], key
                rate, got = got["sample_rate"], got["waveform"]
                other = vae.decode(-latent["samples"]).movedim(-1, 1)
                cases[key] = {"shape": list(got.shape), "rate": rate}
                print(
                    "  rms", got.square().mean().sqrt().item(),
                    "cut off", (got.abs() >= 0.9999).float().mean().item(),
                    "of another latent", ((other - got).abs().mean() / got.abs().mean()).item(),
                    "VAEDecodeAudio", (level["waveform"].abs().sum() / got.abs().sum()).item(),
                )  # fmt: skip
            else:
                channels, n, rate = size
                key = f"{model}/encode/{channels}x{n}x{rate}"
                wave = fill(f"input:{model}/wave/{channels}x{n}", (1, channels, n), 1, 0)
                got = LTXVAudioVAEEncode.execute({"waveform": wave, "sample_rate": rate}, vae).result[0]["samples"]
                cases[key] = {"shape": list(got.shape)}
            print(key, cases[key])
            tensors[key] = got.float().flatten().contiguous()
        for frames, fps in ((97, 25), (121, 24.0), (10, 25), (250, 50)):
            empty = LTXVEmptyLatentAudio.execute(frames, fps, 2, vae).result[0]["samples"]
            cases[f"{model}/empty/{frames}x{fps:g}"] = {"shape": list(empty.shape)}
json.dump(cases, open(f"{out}/audio.json", "w"), separators=(",", ":"))
json.dump(declared, open(f"{out}/weights_audio.json", "w"), separators=(",", ":"))
save_file(tensors, f"{out}/audio.safetensors")
os.chmod(f"{out}/audio.safetensors", 0o644)
