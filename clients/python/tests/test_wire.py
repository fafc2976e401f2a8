from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from patchbay import plain_msgpack
from patchbay.wire import Handle, pack, unpack


def through(value: dict[str, Any]) -> dict[str, Any]:
    return unpack(b"".join(pack(value)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
@pytest.mark.parametrize("shape", [(3,), (2, 0, 4), (1, 2, 3, 4), ()])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    a = np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
    b = through({"a": [a, {"b": a}]})["a"]
    for got in (b[0], b[1]["b"]):
        assert got.dtype == a.dtype and got.shape == a.shape and (got == a).all()


def test_views_and_wide_floats_are_sent_as_what_they_show() -> None:
    a = np.arange(12, dtype=np.float64).reshape(3, 4).T
    got = through({"a": a})["a"]
    assert got.dtype == np.float32 and (got == a).all()
    assert (through({"a": np.arange(4, dtype=">i8")})["a"] == np.arange(4)).all()


def test_bytes_on_the_wire() -> None:
    payload = b"\x83\xa5dtype\xa3f32\xa5shape\x91\x01\xa4data\xc6\x00\x00\x00\x04\x00\x00\x80\x3f"
    want = b"\x81\xa1a\xc9" + len(payload).to_bytes(4, "big") + b"\x01" + payload
    assert b"".join(pack({"a": np.ones(1, np.float32)})) == want


def test_bfloat16_becomes_float32() -> None:
    body = msgpack.packb({"dtype": "bf16", "shape": [2], "data": b"\x80\x3f\x00\xc0"})
    assert list(unpack(msgpack.packb({"a": msgpack.ExtType(1, body)}))["a"]) == [1.0, -2.0]


def test_handles_and_scalars() -> None:
    got = through({"h": Handle("x", "MODEL"), "n": np.int32(3), "seed": 2**64 - 1, "t": (1, None, True, "é", b"\x00")})
    assert got == {"h": Handle("x"), "n": 3, "seed": 2**64 - 1, "t": [1, None, True, "é", b"\x00"]}


def test_what_cannot_be_sent_says_so() -> None:
    with pytest.raises(TypeError, match="complex"):
        pack({"a": np.zeros(1, np.complex64)})
    with pytest.raises(ValueError, match="one map"):
        unpack(b"\x01")


def test_plain_msgpack_is_msgpack() -> None:
    numbers = [s * (2**n + d) for n in range(64) for d in (-1, 0, 1) for s in (1, -1) if s * (2**n + d) >= -(2**63)]
    texts = ["x" * n for n in (0, 1, 31, 32, 255, 256, 65535, 65536)] + ["é\U0001f600"]
    values: list[Any] = [
        None,
        True,
        False,
        0.1,
        -1e300,
        {},
        [],
        *numbers,
        2**64 - 1,
        *texts,
        *(t.encode() for t in texts),
    ]
    values += [[1] * n for n in (15, 16, 65536)] + [
        {str(i): [i, {"a": None}] for i in range(n)} for n in (15, 16, 70000)
    ]
    for v in values:
        body = msgpack.packb(v, use_bin_type=True)
        assert plain_msgpack.packb(v) == body
        assert plain_msgpack.unpackb(body) == v
    for n in (0, 1, 2, 3, 4, 8, 16, 255, 256, 65536):
        body = msgpack.packb(msgpack.ExtType(7, b"e" * n))
        assert plain_msgpack.unpackb(body, ext_hook=lambda code, data: (code, data)) == (7, b"e" * n)
    assert plain_msgpack.unpackb(msgpack.packb(0.5, use_single_float=True)) == 0.5


def test_plain_msgpack_refuses_what_is_cut_or_unknown() -> None:
    for body in (b"", b"\xc4\x05abcd", b"\x92\x01", b"\xc1", b"\x01\x01", b"\xd4\x01a"):
        with pytest.raises(ValueError):
            plain_msgpack.unpackb(body)
    with pytest.raises(TypeError, match="set"):
        plain_msgpack.packb({1, 2})
    with pytest.raises(OverflowError):
        plain_msgpack.packb(2**64)
