"""Times torch and Patchbay's CPU kernels alternately on the same shapes, and prints medians and their ratio.

    python3 -m venv venv && venv/bin/pip install torch numpy
    venv/bin/python tests/reference/bench_torch.py [--runs 5] [--cases flux-256,t5-256] [--dtypes f32,bf16]

Run it in the repository's root; it builds ./tests/reference/sidebyside with Go. Never a need of `make test`. Inside the
time: flux-N is one evaluation of FLUX.1 with 2 double and 4 single blocks (3072 wide, 24 heads, 256 text tokens,
picture N x N), embedders, modulation and last layer included; t5-N is one T5-XXL encoder layer on N tokens; conv-N is a
residual block of each resolution of a VAE decoder for an N x N picture, vae-N the whole decoder of FLUX's autoencoder.
Outside: making weights, the first run of each side. torch runs in inference mode, channels_last for convolutions,
scaled_dot_product_attention for attention. Both sides have all processors. The last column is the ratio of processor
time (torch's includes what its waiting threads spend): where other programs take their share of the machine, as the
load average tells, it says more than the clock.
"""
import argparse
import os
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F


def noise(*shape, dtype, scale=0.02):
    return (torch.rand(*shape) * 2 * scale - scale).to(dtype)


class Linear:
    def __init__(self, n, k, dtype, bias=True):
        self.w, self.b = noise(n, k, dtype=dtype), noise(n, dtype=dtype) if bias else None

    def __call__(self, x):
        return F.linear(x, self.w, self.b)


def rotate(x, cos, sin):
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


class Flux:
    """One evaluation of the shrunk FLUX.1; the formulas are those of models/flux."""

    E, H, MLP = 3072, 24, 12288

    def __init__(self, dtype, size):
        e, m, self.dtype = self.E, self.MLP, dtype
        lin = lambda n, k: Linear(n, k, dtype)
        self.img_in, self.txt_in = lin(e, 64), lin(e, 4096)
        self.embed = [(lin(e, 256), lin(e, e)), (lin(e, 768), lin(e, e)), (lin(e, 256), lin(e, e))]
        self.double = [[(lin(6 * e, e), lin(3 * e, e), lin(e, e), lin(m, e), lin(e, m)) for _ in range(2)]
            for _ in range(2)]
        self.single = [(lin(3 * e, e), lin(3 * e + m, e), lin(e, e + m)) for _ in range(4)]
        self.last = (lin(2 * e, e), lin(64, e))
        self.scale = noise(e // self.H, dtype=dtype, scale=1)
        tokens = (size // 16) ** 2
        self.x, self.text = noise(1, tokens, 64, dtype=dtype, scale=1), noise(1, 256, 4096, dtype=dtype, scale=1)
        self.vectors = [noise(1, 256, dtype=dtype, scale=1), noise(1, 768, dtype=dtype, scale=1),
            noise(1, 256, dtype=dtype, scale=1)]
        angle = torch.rand(256 + tokens, e // self.H // 2)
        self.cos, self.sin = angle.cos(), angle.sin()

    def norm(self, x, shift, scale):
        return F.layer_norm(x, (self.E,), eps=1e-6) * (1 + scale) + shift

    def heads(self, qkv):
        q, k, v = qkv.unflatten(-1, (3, self.H, -1)).permute(2, 0, 3, 1, 4)
        d = q.shape[-1]
        return F.rms_norm(q, (d,), self.scale, 1e-6), F.rms_norm(k, (d,), self.scale, 1e-6), v

    def attend(self, q, k, v):
        q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def __call__(self):
        vec = sum(b(F.silu(a(v))) for (a, b), v in zip(self.embed, self.vectors))
        vec = F.silu(vec)
        img, txt = self.img_in(self.x), self.txt_in(self.text)
        lt = txt.shape[1]
        for block in self.double:
            streams = [txt, img]
            mods = [s[0](vec)[:, None].chunk(6, -1) for s in block]
            parts = [self.heads(s[1](self.norm(x, m[0], m[1]))) for s, m, x in zip(block, mods, streams)]
            out = self.attend(*(torch.cat(p, 2) for p in zip(*parts)))
            for i, (s, m) in enumerate(zip(block, mods)):
                x = streams[i] + m[2] * s[2](out[:, :lt] if i == 0 else out[:, lt:])
                streams[i] = x + m[5] * s[4](F.gelu(s[3](self.norm(x, m[3], m[4])), approximate="tanh"))
            txt, img = streams
        x = torch.cat((txt, img), 1)
        for mod, first, second in self.single:
            shift, scale, gate = mod(vec)[:, None].chunk(3, -1)
            qkv, mlp = first(self.norm(x, shift, scale)).split((3 * self.E, self.MLP), -1)
            out = self.attend(*self.heads(qkv))
            x = x + gate * second(torch.cat((out, F.gelu(mlp, approximate="tanh")), -1))
        shift, scale = self.last[0](vec)[:, None].chunk(2, -1)
        return self.last[1](self.norm(x[:, lt:], shift, scale))


class T5:
    def __init__(self, dtype, tokens):
        e, f = 4096, 10240
        self.qkvo = [Linear(e, e, dtype, False) for _ in range(4)]
        self.gate, self.up, self.down = Linear(f, e, dtype, False), Linear(f, e, dtype, False), Linear(e, f, dtype,
            False)
        self.x, self.one = noise(1, tokens, e, dtype=dtype, scale=1), noise(e, dtype=dtype, scale=1)
        self.bias = noise(1, 64, tokens, tokens, dtype=dtype, scale=1)

    def __call__(self):
        h = F.rms_norm(self.x, (4096,), self.one, 1e-6)
        q, k, v = (w(h).unflatten(-1, (64, 64)).transpose(1, 2) for w in self.qkvo[:3])
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias, scale=1.0).transpose(1, 2).flatten(2)
        h = self.x + self.qkvo[3](a)
        n = F.rms_norm(h, (4096,), self.one, 1e-6)
        return h + self.down(F.gelu(self.gate(n), approximate="tanh") * self.up(n))


class Conv:
    def __init__(self, dtype, size):
        last = torch.channels_last
        self.blocks = []
        for i, c in enumerate((512, 512, 256, 128)):
            n = size >> (3 - i)
            self.blocks.append((noise(1, c, n, n, dtype=dtype, scale=1).to(memory_format=last),
                                noise(c, c, 3, 3, dtype=dtype).to(memory_format=last), noise(c, dtype=dtype, scale=1)))

    def __call__(self):
        for x, w, v in self.blocks:
            y = F.conv2d(F.silu(F.group_norm(x, 32, v, v, 1e-6)), w, padding=1)
            y = x + F.conv2d(F.silu(F.group_norm(y, 32, v, v, 1e-6)), w, padding=1)
        return y


class Decoder:
    """The whole decoder of FLUX's autoencoder; the formulas are those of models/vae."""

    def __init__(self, dtype, size):
        self.dtype = dtype
        last = torch.channels_last
        conv = lambda n, k, s: (noise(n, k, s, s, dtype=dtype).to(memory_format=last), noise(n, dtype=dtype))
        norm = lambda c: (noise(c, dtype=dtype), noise(c, dtype=dtype))
        block = lambda i, o: (norm(i), conv(o, i, 3), norm(o), conv(o, o, 3), conv(o, i, 1) if i != o else None)
        self.first, self.before, self.after = conv(512, 16, 3), block(512, 512), block(512, 512)
        self.attention = (norm(512), [conv(512, 512, 1) for _ in range(4)])
        self.up, at = [], 512
        for level, c in ((3, 512), (2, 512), (1, 256), (0, 128)):
            self.up.append(([block(at if i == 0 else c, c) for i in range(3)], conv(c, c, 3) if level else None))
            at = c
        self.norm, self.last = norm(128), conv(3, 128, 3)
        self.z = noise(1, 16, size // 8, size // 8, dtype=dtype, scale=1).to(memory_format=last)

    def normed(self, x, n):
        return F.group_norm(x, 32, *n, 1e-6)

    def block(self, x, b):
        h = F.conv2d(F.silu(self.normed(x, b[0])), *b[1], padding=1)
        h = F.conv2d(F.silu(self.normed(h, b[2])), *b[3], padding=1)
        return (F.conv2d(x, *b[4]) if b[4] else x) + h

    def __call__(self):
        x = self.block(F.conv2d(self.z, *self.first, padding=1), self.before)
        n, (q, k, v, out) = self.attention
        h = self.normed(x, n)
        rows = lambda t: t.flatten(2).transpose(1, 2)[:, None]
        a = F.scaled_dot_product_attention(*(rows(F.conv2d(h, *w)) for w in (q, k, v)))
        x = x + F.conv2d(a[:, 0].transpose(1, 2).unflatten(2, x.shape[2:]).to(memory_format=torch.channels_last), *out)
        x = self.block(x, self.after)
        for blocks, conv in self.up:
            for b in blocks:
                x = self.block(x, b)
            if conv:
                x = F.conv2d(F.interpolate(x, scale_factor=2.0, mode="nearest"), *conv, padding=1)
        return F.conv2d(F.silu(self.normed(x, self.norm)), *self.last, padding=1)


class Ours:
    """The Go side: one line in, seconds and processor seconds of one run out."""

    def __init__(self):
        subprocess.run(["go", "build", "-o", "bin/sidebyside", "./tests/reference/sidebyside"], check=True)
        self.p = subprocess.Popen(["bin/sidebyside"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.p.stdout.readline().strip()

    def run(self, line):
        self.p.stdin.write(line + "\n")
        self.p.stdin.flush()
        answer = self.p.stdout.readline()
        if not answer:
            raise SystemExit("the Go side ended: see its message above")
        return tuple(map(float, answer.split()))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--cases", default="t5-256,conv-512,vae-512,flux-256,flux-512")
    p.add_argument("--dtypes", default="f32,bf16")
    o = p.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    ours = Ours()
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; ours: {ours.about}; load average "
        f"{os.getloadavg()}")
    print(
        f"{'case':10} {'type':5} {'torch s':>9} {'ours s':>9} {'torch/ours':>10} {'paired':>8} {'by cpu':>8}  runs, "
        f"load average")
    for case in o.cases.split(","):
        name, size = case.split("-")
        for dtype in o.dtypes.split(","):
            d = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
            with torch.inference_mode():
                net = {"flux": Flux, "t5": T5, "conv": Conv, "vae": Decoder}[name](d, int(size))
                net()
                theirs, mine = [], []
                for i in range(o.runs):  # alternately, and each side goes first every other time
                    for torch_now in ((True, False), (False, True))[i % 2]:
                        if torch_now:
                            began, spent = time.perf_counter(), time.process_time()
                            net()
                            theirs.append((time.perf_counter() - began, time.process_time() - spent))
                        else:
                            mine.append(ours.run(f"{name} {dtype} {size}"))
            (a, a_cpu), (b, b_cpu) = (map(statistics.median, zip(*side)) for side in (theirs, mine))
            paired = statistics.median(x[0] / y[0] for x, y in zip(theirs, mine))
            print(
                f"{case:10} {dtype:5} {a:9.3f} {b:9.3f} {a / b:10.2f} {paired:8.2f} {a_cpu / b_cpu:8.2f}  {o.runs}, "
                f"{os.getloadavg()[0]:.1f}",
                  flush=True)
            del net


if __name__ == "__main__":
    main()
