"""Shared memory: arrays that go over a unix socket as the descriptor of a sealed memfd, without a copy."""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_FDS = 16
_SEALS = 0x0002 | 0x0004  # F_SEAL_SHRINK, F_SEAL_GROW
_ADD_SEALS, _GET_SEALS = 1033, 1034


class Span:
    """Where the memory of a region lies, without keeping it."""

    def __init__(self, fd: int, data: npt.NDArray[np.uint8]) -> None:
        """Take the descriptor of the memory and an array of all of it."""
        self.fd, self.size = fd, data.nbytes
        self.start = int(data.__array_interface__["data"][0])
        self._data = weakref.ref(data)

    def alive(self) -> bool:
        """Tell whether an array in the memory is left."""
        return self._data() is not None

    def offset(self, a: npt.NDArray[Any]) -> int | None:
        """Tell where in the memory an array lies; None if it does not."""
        at = int(a.__array_interface__["data"][0]) - self.start
        return at if at >= 0 and at + a.nbytes <= self.size and self.alive() else None


class Region:
    """Memory of n bytes that the other side can map: a memfd that cannot shrink under its reader. It lives as long as
    the array or a view of it.
    """

    def __init__(self, size: int) -> None:
        """Make a region; its bytes are zero."""
        self.fd = os.memfd_create("patchbay", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, _ADD_SEALS, _SEALS)
            self.bytes = np.frombuffer(mmap.mmap(self.fd, size), np.uint8)
        except BaseException:
            os.close(self.fd)
            raise
        self.size = size
        weakref.finalize(self.bytes, os.close, self.fd)

    def span(self) -> Span:
        """Return where the memory lies."""
        return Span(self.fd, self.bytes)


def opened(fd: int) -> memoryview:
    """Map a descriptor of the other side to be read, and close it. What is mapped lives as long as a view of it."""
    try:
        size = os.fstat(fd).st_size
        try:
            seals = fcntl.fcntl(fd, _GET_SEALS)
        except OSError as err:
            raise ValueError("a descriptor that is no memfd") from err
        if not seals & 0x0002 or size == 0:
            raise ValueError("a memfd that may shrink, or is empty")
        return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ))
    finally:
        os.close(fd)


class Cargo:
    """What goes beside one frame: regions that its arrays lie in, and one for the others."""

    def __init__(self, known: Sequence[Span], pool: list[Region]) -> None:
        """Take the memory that arrays may lie in, and the regions that may be filled."""
        self.known, self.pool = known, pool
        self.bytes = 0
        self.fds: list[int] = []
        self.own: list[Region] = []

    def put(self, data: npt.NDArray[np.uint8]) -> dict[str, Any] | None:
        """Return the reference to bytes; None if there is no room beside the frame."""
        for r in self.known:
            at = r.offset(data)
            if at is not None:
                return self._ref(r, at, data.nbytes)
        region = next((r for r in self.pool if data.nbytes <= r.size <= 4 * data.nbytes), None)
        if region is not None:
            self.pool.remove(region)
        elif len(self.fds) < MAX_FDS - 1:
            region = Region(-(-data.nbytes // 4096) * 4096)
        else:
            return None
        self.own.append(region)
        region.bytes[: data.nbytes] = data
        return self._ref(region, 0, data.nbytes)

    def _ref(self, r: Region | Span, at: int, size: int) -> dict[str, Any] | None:
        if r.fd not in self.fds:
            if len(self.fds) == MAX_FDS:
                return None
            self.fds.append(r.fd)
        self.bytes += size
        return {"kind": "shm", "bytes": size, "fd": self.fds.index(r.fd), "offset": at}


class Stream:
    """A unix socket as a stream of frames with descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        """Take a connected socket."""
        self.sock = sock
        self._fds: list[int] = []

    def readinto(self, buffer: memoryview, /) -> int:
        """Read what is there, and keep the descriptors that come with it."""
        n, ancillary, flags, _ = self.sock.recvmsg_into(
            [buffer], socket.CMSG_SPACE(4 * MAX_FDS), getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        )
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self._fds += fds
        if flags & socket.MSG_CTRUNC:
            raise ValueError(f"a frame brought more than {MAX_FDS} descriptors")
        return n

    def taken(self) -> list[int]:
        """Return the descriptors of the frame that was just read."""
        out, self._fds = self._fds, []
        return out

    def send(self, parts: Sequence[bytes | memoryview], fds: Sequence[int]) -> None:
        """Send a frame; the descriptors go with its first byte."""
        if fds:
            socket.send_fds(self.sock, [parts[0]], list(fds))
            parts = parts[1:]
        for p in parts:
            self.sock.sendall(p)

    def close(self) -> None:
        """Close the descriptors that nobody took."""
        for fd in self.taken():
            os.close(fd)
