"""Records what ComfyUI 0.33.0 encodes with a head whose heads are wider than a latent, so that neighbors are averaged:
the tensors that differ from those of h3audio-a, by the formula of tests/golden/README.md, and a latent.

python make_wide.py COMFYUI tests/golden/h3/weights_vae.json > wide.json
"""

import json
import math
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])
model_file, argv = sys.argv[2], sys.argv
sys.argv = sys.argv[:1]
from comfy.cli_args import args  # noqa: E402

args.cpu = True
import torch  # noqa: E402
from comfy.ldm.minimax.audio_vae import MiniMaxH3AudioVAE  # noqa: E402


def fill(name, n, scale, offset):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) % (1 << 64)
    with np.errstate(over="ignore"):
        z = np.uint64(h) + np.arange(n, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        u = z ^ (z >> np.uint64(31))
    v = ((u >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float64) / (1 << 24)
    return (offset + scale * v).astype(np.float32)


def rule(name, shape):
    if name.endswith("bias") and len(shape) == 1:
        return 0.4, 0.0
    if len(shape) == 1:
        return 0.2, 1.0
    return 2 * math.sqrt(3 / math.prod(shape[1:])), 0.0


torch.set_num_threads(1)
model = MiniMaxH3AudioVAE(encoder_dim=4, latent_dim=512, decoder_dim=256).float()
small = {k: (s, scale, off) for k, s, _, scale, off in json.load(open(model_file))["h3audio-a"]["tensors"]}
state, listed = model.state_dict(), []
for key, value in state.items():
    shape = list(value.shape)
    if key not in small:
        continue  # filters
    if shape == small[key][0]:
        values = fill("h3audio-a/" + key, math.prod(shape), *small[key][1:])
    else:
        scale, offset = rule(key, shape)
        listed.append([key, shape, scale, offset])
        values = fill("h3audio-wide/" + key, math.prod(shape), scale, offset)
    state[key] = torch.from_numpy(values.reshape(shape))
model.load_state_dict(state)
wave = torch.from_numpy(fill("input:h3audio-wide/wave", 2400, 1, 0).reshape(1, 1, 2400))
with torch.no_grad():
    latent = model.encode(wave)
json.dump({"tensors": listed, "latent": [float(np.format_float_positional(v, unique=True)) for v in
                                         latent.numpy().ravel()]}, sys.stdout)
