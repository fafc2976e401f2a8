"""The part of msgpack that the client uses, in plain Python, for hosts that do not have the package. Large values are
not copied more often than there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

Hook = Callable[[dict[str, Any]], Any]
ExtHook = Callable[[int, bytes], Any]


class Packer:
    """Collects values as msgpack."""

    def __init__(self, **_: object) -> None:
        """Start empty; the options of the package's Packer are those that this one has."""
        self._out = bytearray()

    def getbuffer(self) -> memoryview:
        """Return what was packed."""
        return memoryview(bytes(self._out))

    def bytes(self) -> bytes:
        """Return what was packed."""
        return bytes(self._out)

    def reset(self) -> None:
        """Start anew."""
        self._out = bytearray()

    def pack_map_header(self, n: int) -> None:
        """Begin a map of n pairs."""
        self._head(n, 0x80, 16, (0xDE, 0xDF))

    def pack_array_header(self, n: int) -> None:
        """Begin a list of n values."""
        self._head(n, 0x90, 16, (0xDC, 0xDD))

    def _head(self, n: int, short: int, limit: int, wide: tuple[int, int]) -> None:
        if n < limit:
            self._out.append(short | n)
        else:
            self._out += struct.pack(">BH", wide[0], n) if n < 1 << 16 else struct.pack(">BI", wide[1], n)

    def pack(self, v: Any) -> None:  # noqa: ANN401
        """Add a value."""
        if v is None:
            self._out.append(0xC0)
        elif isinstance(v, bool):
            self._out.append(0xC3 if v else 0xC2)
        elif isinstance(v, int):
            self._int(v)
        elif isinstance(v, float):
            self._out += struct.pack(">Bd", 0xCB, v)
        elif isinstance(v, str):
            raw = v.encode()
            if 32 <= len(raw) < 256:
                self._out += bytes((0xD9, len(raw)))
            else:
                self._head(len(raw), 0xA0, 32, (0xDA, 0xDB))
            self._out += raw
        elif isinstance(v, (bytes, bytearray, memoryview)):
            n = len(v)
            self._out += (
                struct.pack(">BB", 0xC4, n)
                if n < 1 << 8
                else struct.pack(">BH", 0xC5, n)
                if n < 1 << 16
                else struct.pack(">BI", 0xC6, n)
            )
            self._out += v
        elif isinstance(v, dict):
            self.pack_map_header(len(v))
            for k, e in v.items():
                self.pack(k)
                self.pack(e)
        elif isinstance(v, (list, tuple)):
            self.pack_array_header(len(v))
            for e in v:
                self.pack(e)
        else:
            raise TypeError(f"a {type(v).__name__} has no form in msgpack")

    def _int(self, v: int) -> None:
        if -32 <= v < 128:
            self._out += struct.pack(">b", v) if v < 0 else bytes((v,))
            return
        kinds = (
            ((0xCC, "B"), (0xCD, "H"), (0xCE, "I"), (0xCF, "Q"))
            if v >= 0
            else ((0xD0, "b"), (0xD1, "h"), (0xD2, "i"), (0xD3, "q"))
        )
        for code, form in kinds:
            size = 8 * struct.calcsize(form)
            if v < 1 << size if v >= 0 else v >= -(1 << size - 1):
                self._out += struct.pack(">B" + form, code, v)
                return
        raise OverflowError(f"{v} has more than 64 bits")


def packb(v: Any, **_: object) -> bytes:  # noqa: ANN401
    """Return a value as msgpack."""
    p = Packer()
    p.pack(v)
    return p.bytes()


def unpackb(
    body: bytes | bytearray | memoryview, ext_hook: ExtHook | None = None, object_hook: Hook | None = None, **_: object
) -> Any:  # noqa: ANN401
    """Return the value in body. Limits of lengths are those of body itself."""
    r = _Reader(memoryview(body), ext_hook, object_hook)
    v = r.value()
    if r.at != len(r.data):
        raise ValueError(f"{len(r.data) - r.at} bytes behind the value")
    return v


_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_LENGTHS = {0: ">B", 1: ">H", 2: ">I"}


class _Reader:
    def __init__(self, data: memoryview, ext_hook: ExtHook | None, object_hook: Hook | None) -> None:
        self.data, self.at = data, 0
        self._ext, self._object = ext_hook, object_hook

    def _take(self, n: int) -> memoryview:
        if self.at + n > len(self.data):
            raise ValueError("the message ends in the middle of a value")
        self.at += n
        return self.data[self.at - n : self.at]

    def _number(self, form: str) -> Any:  # noqa: ANN401
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def value(self) -> Any:  # noqa: ANN401
        c = self._take(1)[0]
        if c < 0x80 or c >= 0xE0:
            return c if c < 0x80 else c - 256
        if c < 0xC0:
            n = c & (0x1F if c >= 0xA0 else 0x0F)
            return str(self._take(n), "utf-8") if c >= 0xA0 else self._map(n) if c < 0x90 else self._list(n)
        if c in _NUMBERS:
            return self._number(_NUMBERS[c])
        if c in (0xC0, 0xC2, 0xC3):
            return None if c == 0xC0 else c == 0xC3
        if 0xC4 <= c <= 0xC6:
            return bytes(self._take(self._number(_LENGTHS[c - 0xC4])))
        if 0xD9 <= c <= 0xDB:
            return str(self._take(self._number(_LENGTHS[c - 0xD9])), "utf-8")
        if 0xC7 <= c <= 0xC9 or 0xD4 <= c <= 0xD8:
            n = self._number(_LENGTHS[c - 0xC7]) if c <= 0xC9 else 1 << (c - 0xD4)
            return self._extension(n)
        if c in (0xDC, 0xDD, 0xDE, 0xDF):
            n = self._number(_LENGTHS[1 + (c & 1)])
            return self._list(n) if c < 0xDE else self._map(n)
        raise ValueError(f"the byte {c:#x} begins no value")

    def _extension(self, n: int) -> Any:  # noqa: ANN401
        code = self._number(">b")
        data = bytes(self._take(n))
        if self._ext is None:
            raise ValueError(f"extension type {code} is not known")
        return self._ext(code, data)

    def _list(self, n: int) -> list[Any]:
        return [self.value() for _ in range(n)]

    def _map(self, n: int) -> Any:  # noqa: ANN401
        out = {}
        for _ in range(n):
            key = self.value()
            out[key] = self.value()
        return self._object(out) if self._object else out
