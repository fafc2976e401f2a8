"""What the verbs return."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Message = dict[str, Any]


def shown(value: Any, room: int = 60) -> str:  # noqa: ANN401
    """Return a short text of a value: arrays by shape, bytes by length, long texts cut."""
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {list(value.shape)}>"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{k!r}: {shown(v, 20)}" for k, v in list(value.items())[:4])
            + (", ..." if len(value) > 4 else "")
            + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(shown(v, 20) for v in value[:4]) + (", ..." if len(value) > 4 else "") + "]"
    text = repr(value)
    return text if len(text) <= room else text[: room - 3] + "..."


@dataclass(repr=False)
class File:
    """One file that a job made. ``ref`` has node, kind, filename, width, height and more."""

    ref: Message
    data: bytes

    def __repr__(self) -> str:
        """Return name, size and node."""
        size = f" {self.ref['width']}x{self.ref['height']}" if self.ref.get("width") else ""
        name = self.ref.get("filename") or self.ref.get("prefix", "")
        return f"<File {name!r}{size} of node {self.ref.get('node')}, {len(self.data)} bytes>"

    @property
    def image(self) -> Any:  # noqa: ANN401
        """Return the picture: a PIL.Image where Pillow is installed, otherwise an array [Y, X, C] of uint8."""
        try:
            from PIL import Image
        except ImportError:
            return pixels(self.data)
        picture = Image.open(io.BytesIO(self.data))
        picture.load()
        return picture


@dataclass(repr=False)
class RunResult:
    """How a job ended: its terminal event and its files."""

    job: str
    event: Message
    files: list[File] = field(default_factory=list)

    def __repr__(self) -> str:
        """Return job, end and files."""
        return f"<RunResult {self.job} {self.event.get('type')}: {self.files!r}>"

    @property
    def reused(self) -> str:
        """Return the job that computed the files, where this one asked for reuse and was answered from it; otherwise an
        empty text.
        """
        return str(self.event.get("data", {}).get("reused", ""))

    @property
    def images(self) -> list[Any]:
        """Return the pictures among the files, see ``File.image``; those of PreviewImage only where there are no
        others.
        """
        pictures = [f for f in self.files if f.ref.get("kind", "images") == "images"]
        return [f.image for f in [f for f in pictures if f.ref.get("type") != "temp"] or pictures]


@dataclass(repr=False)
class ExecResult:
    """What one node gave: arrays, handles, numbers and texts by slot."""

    outputs: list[Any]
    files: list[File]
    timings: Message
    warnings: list[str]

    def __repr__(self) -> str:
        """Return the outputs, arrays by their shapes."""
        files = f", {self.files!r}" if self.files else ""
        warnings = f", warnings {self.warnings!r}" if self.warnings else ""
        return f"<ExecResult {shown(self.outputs)}{files}{warnings}>"


def pixels(png: bytes) -> Array:
    """Return a PNG of 8 bits a channel, not interlaced, as an array [Y, X, C]; what SaveImage writes is one."""
    if png[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError("the file is no PNG: install Pillow to read it")
    at, data, head = 8, b"", b""
    while at < len(png):
        (size,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        body = png[at + 8 : at + 8 + size]
        head, data, at = (body if kind == b"IHDR" else head), (data + body if kind == b"IDAT" else data), at + 12 + size
    x, y, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", head)
    channels = {0: 1, 2: 3, 4: 2, 6: 4}.get(colour)
    if depth != 8 or interlaced or channels is None:
        raise ValueError(f"a PNG of {depth} bits and colour type {colour}: install Pillow to read it")
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(y, 1 + x * channels)
    out = np.zeros((y + 1, x, channels), np.uint8)  # a row of zeros above the first
    for i, row in enumerate(rows):
        line, above = row[1:].reshape(x, channels), out[i]
        if row[0] == 0:
            out[i + 1] = line
        elif row[0] == 1:
            out[i + 1] = np.cumsum(line, axis=0, dtype=np.uint8)
        elif row[0] == 2:
            out[i + 1] = line + above
        else:
            out[i + 1] = _predicted(int(row[0]), line, above)
    return out[1:]


def _predicted(kind: int, line: Array, above: Array) -> Array:
    """Undo the filters that look at the pixel to the left: average (3) and Paeth (4)."""
    out, left, corner = np.empty_like(line), np.zeros(line.shape[1], np.int32), np.zeros(line.shape[1], np.int32)
    for i, (value, up) in enumerate(zip(line.astype(np.int32), above.astype(np.int32), strict=True)):
        if kind == 3:
            guess = (left + up) // 2
        else:
            a, b, c = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
            guess = np.where((a <= b) & (a <= c), left, np.where(b <= c, up, corner))
        left, corner = (value + guess) & 255, up
        out[i] = left
    return out
