"""Values on the wire: msgpack with tensors as extension type 1 and handles as maps."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    import msgpack
except ImportError:
    from . import plain_msgpack as msgpack

EXT_TENSOR = 1
MAX_FRAME = 256 << 20

_NAMES = {"<f4": "f32", "<f2": "f16", "<i8": "i64", "|u1": "u8"}
_DTYPES = {"f32": "<f4", "f16": "<f2", "i64": "<i8", "u8": "|u1"}

Array = npt.NDArray[Any]
BULK = 512 << 10
"""Bytes from which an array or a file goes beside its message."""

Put = Callable[[npt.NDArray[np.uint8]], "dict[str, Any] | None"]
Get = Callable[["dict[str, Any]"], "bytes | memoryview"]


@dataclass(frozen=True)
class Handle:
    """A MODEL, CLIP, VAE or another value that stays in the worker."""

    id: str
    type: str = ""
    expires: float = 0.0
    """Unix time in seconds at which it is dropped if it is not used before."""

    @property
    def expired(self) -> bool:
        """Tell whether the lease had run out if nobody used the handle since it was made."""
        return 0.0 < self.expires < time.time()


@dataclass(frozen=True, eq=False)
class BF16:
    """A tensor of bfloat16, which numpy lacks: the upper halves of float32 as uint16, of the tensor's shape."""

    bits: Array

    @property
    def nbytes(self) -> int:
        """Return the size of the data in bytes."""
        return int(self.bits.nbytes)


def _plain(v: Array | BF16) -> tuple[Array, str]:
    """Return a tensor as it goes over the wire: contiguous, little-endian, with the name of its dtype."""
    if isinstance(v, BF16):
        if v.bits.dtype != np.uint16:
            raise TypeError(f"the bits of a bfloat16 tensor are uint16, not {v.bits.dtype}")
        return np.ascontiguousarray(v.bits.astype("<u2", copy=False)).reshape(v.bits.shape), "bf16"
    if v.dtype == np.float64 or v.dtype == np.bool_:
        v = v.astype(np.float32)
    name = _NAMES.get(v.dtype.newbyteorder("<").str)
    if name is None:
        raise TypeError(f"a tensor of dtype {v.dtype}: float32, float16, int64, uint8 and BF16 can be sent")
    return np.ascontiguousarray(v.astype(v.dtype.newbyteorder("<"), copy=False)).reshape(v.shape), name


def _bytes(a: Array) -> npt.NDArray[np.uint8]:
    return a.reshape(-1).view(np.uint8)


def _head(arr: Array, name: str, ref: dict[str, Any] | None) -> bytes:
    """Return the payload of a tensor's extension up to its data."""
    fields: dict[str, Any] = {"dtype": name, "shape": [int(n) for n in arr.shape]}
    if ref:
        fields["ref"] = ref
    body: bytes = msgpack.packb(fields)
    if ref:
        return body
    return b"".join((bytes([body[0] + 1]), body[1:], msgpack.packb("data"), b"\xc6", struct.pack(">I", arr.nbytes)))


def pack(value: Any, beside: Put | None = None, least: int = BULK) -> list[bytes | memoryview]:  # noqa: ANN401
    """Encode a message. The parts after each other are the bytes; the data of large arrays is not copied.

    beside, if there is one, is asked for a reference to arrays and bytes of at least so many bytes.
    """
    parts: list[bytes | memoryview] = []
    packer = msgpack.Packer(use_bin_type=True, autoreset=False)

    def flush() -> None:
        if packer.getbuffer().nbytes:
            parts.append(packer.bytes())
            packer.reset()

    def put(v: Any) -> None:  # noqa: ANN401
        if isinstance(v, (np.ndarray, BF16)):
            arr, name = _plain(v)
            ref = beside(_bytes(arr)) if beside and arr.nbytes >= least else None
            head = _head(arr, name, ref)
            flush()
            inside = arr.nbytes if ref is None else 0
            parts.append(struct.pack(">BIb", 0xC9, len(head) + inside, EXT_TENSOR) + head)
            if inside:
                parts.append(_bytes(arr).data)
        elif isinstance(v, (bytes, bytearray, memoryview)) and beside and len(v) >= least:
            ref = beside(np.frombuffer(v, np.uint8))
            packer.pack({"$bytes": ref} if ref else v)
        elif isinstance(v, Handle):
            packer.pack({"$handle": v.id})
        elif isinstance(v, dict):
            packer.pack_map_header(len(v))
            for k, e in v.items():
                packer.pack(str(k))
                put(e)
        elif isinstance(v, (list, tuple)):
            packer.pack_array_header(len(v))
            for e in v:
                put(e)
        elif isinstance(v, np.generic):
            packer.pack(v.item())
        else:
            packer.pack(v)

    put(value)
    flush()
    return parts


def unpack(body: bytes | bytearray | memoryview, get: Get | None = None) -> dict[str, Any]:
    """Decode a message: tensors become arrays, handles Handle, and get fetches what references mean."""

    def ext(code: int, data: bytes) -> Any:  # noqa: ANN401
        return _ext(code, data, get)

    def hook(m: dict[str, Any]) -> Any:  # noqa: ANN401
        if get and len(m) == 1 and isinstance(m.get("$bytes"), dict):
            return bytes(get(m["$bytes"]))
        return _handle(m)

    value = msgpack.unpackb(
        body,
        ext_hook=ext,
        object_hook=hook,
        strict_map_key=False,
        raw=False,
        max_bin_len=MAX_FRAME,
        max_ext_len=MAX_FRAME,
    )
    if not isinstance(value, dict):
        raise ValueError(f"a message is one map, got {type(value).__name__}")
    return value


def _handle(m: dict[str, Any]) -> Any:  # noqa: ANN401
    if "$handle" in m:
        return Handle(str(m["$handle"]), str(m.get("type", "")), float(m.get("expires", 0)) / 1000)
    return m


def _ext(code: int, data: bytes, get: Get | None) -> Any:  # noqa: ANN401
    if code != EXT_TENSOR:
        raise ValueError(f"extension type {code} is not known")
    t = msgpack.unpackb(data, raw=False, max_bin_len=MAX_FRAME)
    shape = [int(n) for n in t["shape"]]
    if "ref" in t:
        if get is None:
            raise ValueError(f"a tensor that refers to bytes of kind {t['ref'].get('kind')}, which was not asked for")
        t["data"] = get(t["ref"])
    if t["dtype"] == "bf16":
        wide = np.frombuffer(t["data"], "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(shape)
    return np.frombuffer(t["data"], _DTYPES[t["dtype"]]).reshape(shape)
