"""Makes tests/golden/ltx/voice.json and voice.safetensors: videos with sounds in the voice of a reference, made by
ComfyUI 0.33.0 through its nodes. It needs torchaudio; running the tests needs neither that nor this script.

    python tests/reference/make_ltx_voice.py COMFYUI_TREE tests/golden/ltx

Weights and inputs are by the formula of tests/golden/README.md section 1, texts as in make_ltx_guides.py. The reference
is `input:voice/NAME` (scale 1, offset 0) at 16000 samples a second, which LTXVReferenceAudio encodes with the
autoencoder `ltxaudio-a`. A case has `tokens`, what the conditioning gets of it, and `#video`, `#sound`, what
SamplerCustomAdvanced makes of zeros. `steps` has, for every call of the network, how many rows of sound it got of each
text, apart from those of the reference.
"""

import gzip
import json
import os
import sys
import tempfile

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(
    tree, "--force-fp32", "--fp32-vae", "--use-pytorch-cross-attention", "--disable-all-custom-nodes", sound=True
)
import comfy.sd
import folder_paths
import torch
from comfy_extras import nodes_custom_sampler as custom
from comfy_extras import nodes_lt as lt
from comfy_extras.nodes_lt_audio import LTXVAudioVAELoader
from safetensors.torch import save_file

FILES = {
    **json.load(gzip.open(f"{out}/weights.json.gz")), **json.load(gzip.open(f"{out}/weights_audio.json.gz"))
}  # fmt: skip
SIGMAS = [0.95, 0.7, 0.4, 0.0]
# network, channels and samples of the reference, CFG (0: BasicGuider), scale, start and end of identity guidance, and
# whether the first row of the sound is given
RUNS = {
    "guided": ("ltx-a", (2, 8192), 3.0, 3.0, 0.0, 1.0, False),
    "early": ("ltx-b", (1, 20480), 1.0, 2.0, 0.0, 0.8, False),
    "basic": ("ltx-b", (2, 12288), 0, 1.5, 0.6, 1.0, False),
    "plain": ("ltx-a", (2, 4096), 3.0, 0.0, 0.0, 1.0, True),
}


def loaded(model):
    """Return the tensors and the metadata of a model's file."""
    declared = FILES[model]
    sd = {k: fill(f"{model}/{k}", tuple(s), scale, offset) for k, s, _, scale, offset in declared["tensors"]}
    return sd, {"config": json.dumps(declared["config"])}


cases, tensors = {}, {}
with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
    sd, metadata = loaded("ltxaudio-a")
    save_file(sd, f"{folder}/sound.safetensors", metadata)
    folder_paths.add_model_folder_path("checkpoints", folder)
    sound_vae = LTXVAudioVAELoader.execute("sound.safetensors").args[0]
    for name, (model, (channels, samples), cfg, scale, start, end, begun) in RUNS.items():
        sd, metadata = loaded(model)
        network = comfy.sd.load_diffusion_model_state_dict(sd, metadata=metadata)
        width = {"ltx-a": 80, "ltx-b": 128}[model]
        sides = [
            [[given(f"guides/{model}/{side}", (1, rows, width)), {"unprocessed_ltxav_embeds": True}]]
            for side, rows in (("positive", 6), ("negative", 4))
        ]
        wave = fill(f"input:voice/{name}", (1, channels, samples), 1, 0)
        network, *sides = lt.LTXVReferenceAudio.execute(
            network, *sides, {"waveform": wave, "sample_rate": 16000}, sound_vae, scale, start, end
        ).args
        tokens = sides[0][0][1]["ref_audio"]["tokens"]
        sides = list(lt.LTXVConditioning.execute(*sides, 24.0).args)
        video = lt.EmptyLTXVLatentVideo.execute(64, 96, 9, 1).args[0]
        sound = {"samples": torch.zeros(1, 8, 9, 16)}
        if begun:
            sound["samples"] = given(f"voice/{name}/sound", (1, 8, 9, 16))
            sound["noise_mask"] = torch.ones(1, 1, 9, 16)
            sound["noise_mask"][:, :, :1] = 0.25
            video["noise_mask"] = torch.ones(1, 1, 2, 1, 1)
        joined = lt.LTXVConcatAVLatent.execute(video, sound).args[0]
        if cfg:
            guider = custom.CFGGuider.execute(network, *sides, cfg).args[0]
        else:
            guider = custom.BasicGuider.execute(network, sides[0]).args[0]
        steps = []
        net = network.model.diffusion_model
        process = net._process_input

        def counted(x, *args, process=process, steps=steps, **kwargs):
            made = process(x, *args, **kwargs)
            steps.append([made[2].get("ref_audio_seq_len", 0), made[0][1].shape[0]])
            return made

        net._process_input = counted
        done = custom.SamplerCustomAdvanced.execute(
            custom.RandomNoise.execute(7).args[0], guider, custom.KSamplerSelect.execute("euler").args[0],
            torch.tensor(SIGMAS), joined,
        ).args[0]  # fmt: skip
        video, sound = lt.LTXVSeparateAVLatent.execute(done).args
        cases[name] = {
            "model": model, "channels": channels, "samples": samples, "cfg": cfg, "scale": scale, "start": start,
            "end": end, "begun": begun, "sigmas": SIGMAS, "width": width, "tokens": list(tokens.shape), "steps": steps,
        }  # fmt: skip
        tensors[name + "#tokens"] = tokens.contiguous()
        tensors[name + "#video"] = video["samples"].contiguous()
        tensors[name + "#sound"] = sound["samples"].contiguous()
        print(name, list(tokens.shape), steps, [v["samples"].square().mean().sqrt() for v in (video, sound)])
with open(f"{out}/voice.json", "w") as f:
    f.write("{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in cases.items()) + "\n}\n")
save_file(tensors, f"{out}/voice.safetensors")
os.chmod(f"{out}/voice.safetensors", 0o644)
