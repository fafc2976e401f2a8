"""Makes the files of engine/gguf/testdata. Running the tests does not need this script.

Made with Python 3.11, gguf 0.19.0, numpy 2.4.6, safetensors 0.8.0:
    python3 -m venv v && v/bin/pip install gguf==0.19.0 numpy==2.4.6 safetensors==0.8.0
    v/bin/python tests/reference/make_gguf.py engine/gguf/testdata

types.gguf     one tensor [3, 512] for every type that the reader widens, alignment 64. Types with a quantiser in
gguf.quants hold quantised
               normal numbers; the K types, which have none, hold random bytes with factors that are ordinary f16
               numbers in rows 0 and 1 and any bit pattern (NaN, infinity, subnormal) in row 2.
types.safetensors  the same tensors widened to f32 by gguf.quants.dequantize: the judge.
metadata.gguf  a value of every metadata type, arrays, an array of arrays, and a tensor with comfy.gguf.orig_shape.
Default alignment.
"""

import os
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from safetensors.numpy import save_file

out = sys.argv[1]
rng = np.random.default_rng(20240611)

# Where the f16 factors of a K block are.
FACTORS = {Q.Q2_K: (80, 82), Q.Q3_K: (108,), Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,)}


def k_blocks(kind, rows, columns):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    b = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    for at in FACTORS[kind]:
        factor = (rng.standard_normal((rows, columns // block)) / 50).astype(np.float16)
        b[:-1, :, at : at + 2] = factor[:-1, :, None].view(np.uint8)
    return b.reshape(rows, -1)


def types():
    w = gguf.GGUFWriter(os.path.join(out, "types.gguf"), "patchbay-test")
    w.add_custom_alignment(64)
    want = {}
    for kind in (Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K):
        if kind in FACTORS:
            raw = k_blocks(kind, 3, 512)
        else:
            x = rng.standard_normal((3, 512)).astype(np.float32)
            x[1, 32:64] = 0  # a block of zeros
            raw = gguf.quants.quantize(x, kind)
        name = kind.name.lower()
        w.add_tensor(name, raw, raw_dtype=kind)
        with np.errstate(all="ignore"):
            want[name] = np.ascontiguousarray(gguf.quants.dequantize(raw, kind), dtype=np.float32)
    w.add_tensor("odd", np.arange(5, dtype=np.float32))
    want["odd"] = np.arange(5, dtype=np.float32)
    for dtype in (np.int8, np.int16, np.int32, np.int64, np.float64):
        x = np.array([[1, -2, 3], [100, -100, 0]], dtype=dtype)
        w.add_tensor(x.dtype.name, x)
        want[x.dtype.name] = x.astype(np.float32)
    finish(w)
    save_file(want, os.path.join(out, "types.safetensors"))


def metadata():
    w = gguf.GGUFWriter(os.path.join(out, "metadata.gguf"), "flux")
    w.add_uint8("t.u8", 200)
    w.add_int8("t.i8", -100)
    w.add_uint16("t.u16", 60000)
    w.add_int16("t.i16", -30000)
    w.add_uint32("t.u32", 4000000000)
    w.add_int32("t.i32", -2000000000)
    w.add_uint64("t.u64", 1 << 63)
    w.add_int64("t.i64", -(1 << 62))
    w.add_float32("t.f32", 0.1)
    w.add_float64("t.f64", 0.1)
    w.add_bool("t.yes", True)
    w.add_bool("t.no", False)
    w.add_string("t.text", "gr\u00fc\u00dfe")
    w.add_array("t.texts", ["a", "", "\u2581the"])
    w.add_array("t.ints", [1, -2, 3])
    w.add_array("t.floats", [0.5, -1.5])
    w.add_array("t.bools", [True, False])
    w.add_array("t.nested", [[1, 2], [3]])
    w.add_array("comfy.gguf.orig_shape.conv", [8, 2, 2, 8])
    w.add_tensor("conv", gguf.quants.quantize(rng.standard_normal((1, 256)).astype(np.float32), Q.Q8_0),
        raw_dtype=Q.Q8_0)
    finish(w)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


types()
metadata()
for name in sorted(os.listdir(out)):
    print(name, os.path.getsize(os.path.join(out, name)))
