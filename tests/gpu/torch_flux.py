"""Times a step of FLUX's geometry in torch, eager and compiled, with random weights: torch_flux.py [SIZE] [STEPS].
The same products, attention, norms and gates as a step of FLUX.1-dev, 19 double and 38 single blocks in bf16, 512 text
tokens; no guidance, no sampler. With DEVICE=cpu and BLOCKS=1,1 it runs anywhere, to show that it does."""
import os
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("NOT RUN: torch is not here")
    sys.exit(77)

device = os.environ.get("DEVICE", "cuda")
if device == "cuda" and not torch.cuda.is_available():
    print("NOT RUN: torch finds no GPU")
    sys.exit(77)
size, steps = int((sys.argv[1:] or ["1024"])[0]), int((sys.argv[2:] or ["5"])[0])
double, single = (int(n) for n in os.environ.get("BLOCKS", "19,38").split(","))
E, H, D, TEXT = 3072, 24, 128, 512
IMAGE = (size // 16) ** 2
options = {"device": device, "dtype": torch.bfloat16}
linear = lambda n, k: (torch.randn(n, k, **options) * k**-0.5, torch.zeros(n, **options))


def heads(qkv, scale, turn):
    q, k, v = qkv.view(1, -1, 3, H, D).permute(2, 0, 3, 1, 4)
    out = []
    for t, s in ((q, scale[0]), (k, scale[1])):
        a, b = F.rms_norm(t, (D,), s).float().unflatten(-1, (-1, 2)).unbind(-1)
        out.append(torch.stack((a * turn[0] - b * turn[1], a * turn[1] + b * turn[0]), -1).flatten(3).to(t.dtype))
    return *out, v


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, -1, E)


def shifted(x, shift, scale):
    return F.layer_norm(x, (E,), eps=1e-6) * (1 + scale) + shift


class Stream:
    def __init__(self):
        self.qkv, self.proj, self.up, self.down = linear(3 * E, E), linear(E, E), linear(4 * E, E), linear(E, 4 * E)
        self.scale = torch.ones(2, D, **options)
        self.mod = torch.randn(6, 1, E, **options) * 0.1

    def after(self, x, a):
        m = self.mod
        x = x + m[2] * F.linear(a, *self.proj)
        return x + m[5] * F.linear(F.gelu(F.linear(shifted(x, m[3], m[4]), *self.up), approximate="tanh"), *self.down)


def double_block(b, x, text, turn):
    t, i = b
    parts = [heads(F.linear(shifted(y, s.mod[0], s.mod[1]), *s.qkv), s.scale, r)
             for s, y, r in ((t, text, turn[..., :TEXT, :]), (i, x, turn[..., TEXT:, :]))]
    a = attend(*(torch.cat(p, 2) for p in zip(*parts)))
    return i.after(x, a[:, TEXT:]), t.after(text, a[:, :TEXT])


def single_block(b, x, turn):
    first, second, scale, m = b
    h = F.linear(shifted(x, m[0], m[1]), *first)
    a = attend(*heads(h[..., : 3 * E].contiguous(), scale, turn))
    return x + m[2] * F.linear(torch.cat((a, F.gelu(h[..., 3 * E :], approximate="tanh")), -1), *second)


doubles = [(Stream(), Stream()) for _ in range(double)]
singles = [(linear(7 * E, E), linear(E, 5 * E), torch.ones(2, D, **options), torch.randn(3, 1, E, **options) * 0.1)
    for _ in range(single)]
angle = torch.rand(1, 1, TEXT + IMAGE, D // 2, device=device)
turn = torch.stack((angle.cos(), angle.sin()))


def step(x, text):
    for b in doubles:
        x, text = double_block(b, x, text, turn)
    y = torch.cat((text, x), 1)
    for b in singles:
        y = single_block(b, y, turn)
    return y[:, TEXT:]


def clocked(name, call):
    x, text = torch.randn(1, IMAGE, E, **options), torch.randn(1, TEXT, E, **options)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for _ in range(steps + 2):
        wait()
        start = time.perf_counter()
        out = call(x, text)
        wait()
        times.append(time.perf_counter() - start)
    assert out.isfinite().all()
    print("flux %dx%d %s: %.1f ms/step" % (size, size, name, sorted(times[2:])[steps // 2] * 1e3), flush=True)


print("torch", torch.__version__, torch.cuda.get_device_name(0) if device == "cuda" else "cpu")
with torch.no_grad():
    clocked("eager", step)
    # One compiled block of each kind serves all: minutes less than compiling the whole.
    double_block, single_block = torch.compile(double_block), torch.compile(single_block)
    clocked("compiled", step)
    if device == "cuda":
        print("memory %.0f MB" % (torch.cuda.max_memory_allocated() / 1e6))
