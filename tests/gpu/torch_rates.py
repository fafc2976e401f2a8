"""Rates of torch on the shapes of engine/cuda's benchmarks, for comparison in the same run."""
import sys

try:
    import torch
except ImportError:
    print("NOT RUN: torch is not here")
    sys.exit(77)
if not torch.cuda.is_available():
    print("NOT RUN: torch finds no GPU")
    sys.exit(77)


def median(call, n=20):
    for _ in range(3):
        call()
    times = []
    for _ in range(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        call()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) / 1e3)
    return sorted(times)[n // 2]


print("torch", torch.__version__, torch.cuda.get_device_name(0))
bf16 = {"device": "cuda", "dtype": torch.bfloat16}
for name, m, n, k in [
    ("flux-mlp-up", 4608, 12288, 3072),
    ("flux-mlp-down", 4608, 3072, 12288),
    ("flux-qkv", 4608, 9216, 3072),
    ("flux-single-in", 4608, 21504, 3072),
    ("sd3-qkv", 4429, 4608, 1536),
    ("pixart-mlp-up", 4096, 4608, 1152),
    ("hunyuan-qkv", 4096, 4224, 1408),
]:
    x, w, b = torch.randn(m, k, **bf16), torch.randn(n, k, **bf16), torch.randn(n, **bf16)
    t = median(lambda: torch.nn.functional.linear(x, w, b))
    print("linear %s %.1f us %.1f TFLOP/s" % (name, t * 1e6, 2 * m * n * k / t / 1e12))
for name, l, h, d in [("flux", 4608, 24, 128), ("sd3", 4429, 24, 64), ("pixart", 4096, 16, 72),
        ("hunyuan", 4096, 16, 88)]:
    q, k, v = (torch.randn(1, h, l, d, **bf16) for _ in range(3))
    t = median(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))
    print("attention %s %.1f us %.1f TFLOP/s" % (name, t * 1e6, 4 * l * l * h * d / t / 1e12))
