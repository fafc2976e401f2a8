"""Values on the wire: msgpack with tensors as extension type 1 and handles as maps."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

EXT_TENSOR = 1
MAX_FRAME = 256 << 20

_NAMES = {"<f4": "f32", "<f2": "f16", "<i8": "i64", "|u1": "u8"}
_DTYPES = {"f32": "<f4", "f16": "<f2", "i64": "<i8", "u8": "|u1"}

Array = npt.NDArray[Any]


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


def _head(arr: Array) -> bytes:
    """Return the payload of a tensor's extension up to its data."""
    name = _NAMES.get(arr.dtype.newbyteorder("<").str)
    if name is None:
        raise TypeError(f"a tensor of dtype {arr.dtype}: float32, float16, int64 and uint8 can be sent")
    out: bytes = b"\x83" + msgpack.packb("dtype") + msgpack.packb(name)
    out += msgpack.packb("shape") + msgpack.packb([int(n) for n in arr.shape])
    out += msgpack.packb("data") + b"\xc6" + struct.pack(">I", arr.nbytes)
    return out


def pack(value: Any) -> list[bytes | memoryview]:  # noqa: ANN401
    """Encode a message. The parts after each other are the bytes; the data of large arrays is not copied."""
    parts: list[bytes | memoryview] = []
    packer = msgpack.Packer(use_bin_type=True, autoreset=False)

    def flush() -> None:
        if packer.getbuffer().nbytes:
            parts.append(packer.bytes())
            packer.reset()

    def put(v: Any) -> None:  # noqa: ANN401
        if isinstance(v, np.ndarray):
            if v.dtype == np.float64 or v.dtype == np.bool_:
                v = v.astype(np.float32)
            arr = np.ascontiguousarray(v.astype(v.dtype.newbyteorder("<"), copy=False)).reshape(v.shape)
            head = _head(arr)
            flush()
            parts.append(struct.pack(">BIb", 0xC9, len(head) + arr.nbytes, EXT_TENSOR) + head)
            if arr.nbytes:
                parts.append(arr.reshape(-1).view(np.uint8).data)
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


def unpack(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Decode a message: tensors become arrays, and handles become Handle."""
    value = msgpack.unpackb(body, ext_hook=_ext, object_hook=_handle, strict_map_key=False, raw=False, max_bin_len=MAX_FRAME, max_ext_len=MAX_FRAME)
    if not isinstance(value, dict):
        raise ValueError(f"a message is one map, got {type(value).__name__}")
    return value


def _handle(m: dict[str, Any]) -> Any:  # noqa: ANN401
    if "$handle" in m:
        return Handle(str(m["$handle"]), str(m.get("type", "")), float(m.get("expires", 0)) / 1000)
    return m


def _ext(code: int, data: bytes) -> Any:  # noqa: ANN401
    if code != EXT_TENSOR:
        raise ValueError(f"extension type {code} is not known")
    t = msgpack.unpackb(data, raw=False, max_bin_len=MAX_FRAME)
    shape = [int(n) for n in t["shape"]]
    if t["dtype"] == "bf16":
        wide = np.frombuffer(t["data"], "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(shape)
    return np.frombuffer(t["data"], _DTYPES[t["dtype"]]).reshape(shape)
