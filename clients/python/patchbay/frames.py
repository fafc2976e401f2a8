"""Frames: a length of four bytes, big-endian, then one msgpack map. Over a unix socket, or the stdin and stdout of a
worker.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Protocol, cast

from .errors import ConnectionLostError
from .shm import Cargo, Region, Span, Stream, opened
from .wire import MAX_FRAME, pack, unpack


class Transport(Protocol):
    """What carries requests and replies."""

    sent: int
    """Bytes of requests so far, with what goes beside them."""

    @property
    def lost(self) -> bool:
        """Tell whether the connection has ended."""
        ...

    def ask(
        self,
        verb: str,
        body: dict[str, Any],
        job: str = "",
        timeout: float | None = None,
        tick: Callable[[], None] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Send a request and yield its replies; timeout bounds the wait for each, in seconds.

        tick is called before every reply and about every 50 ms while there is none; what it raises ends the waiting.
        """
        ...

    def tell(self, verb: str, job: str) -> None:
        """Send a request about a job whose reply nobody waits for."""
        ...

    def close(self) -> None:
        """End the connection. Runs tied to it are cancelled."""
        ...


POOL = 4
"""Regions that a connection keeps for the next arrays."""

TICK = 0.05
"""Seconds between two looks at whether to go on waiting."""

Queue = queue.SimpleQueue[Any]


def wait(replies: Queue, timeout: float | None, tick: Callable[[], None] | None) -> Any:  # noqa: ANN401
    """Return the next reply, or raise what was put in place of one."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        if tick:
            tick()
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError(f"no reply within {timeout} s")
        try:
            reply = replies.get(timeout=left if not tick else min(TICK, TICK if left is None else left))
        except queue.Empty:
            continue
        if isinstance(reply, Exception):
            raise reply
        return reply


class Reader(Protocol):
    """A stream without a buffer that replies are read from."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read what is there into buffer; 0 at the end."""
        ...

    def close(self) -> None:
        """Close the stream."""
        ...


class Writer(Protocol):
    """A stream with a buffer that requests are written to."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Write all of data."""
        ...

    def flush(self) -> None:
        """Send what is in the buffer."""
        ...

    def close(self) -> None:
        """Close the stream."""
        ...


class FrameTransport:
    """A byte stream. Requests of several threads may overlap."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        """Take a stream to read replies from and one to write requests to; both are closed with the transport."""
        self._reader, self._writer = reader, writer
        self._lock = threading.Lock()
        self._state = threading.Lock()
        self._tags = itertools.count(1)
        self._waiting: dict[int, Queue] = {}
        self._lost: Exception | None = None
        self._stream = reader if isinstance(reader, Stream) else None
        self._pool: list[Region] = []
        self._shared: list[Span] = []
        self.sent = 0
        self._thread = threading.Thread(target=self._read, name="patchbay frames", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Tell whether the stream has ended."""
        return self._lost is not None

    def tell(self, verb: str, job: str) -> None:
        """Send a request about a job; its reply is passed over."""
        with contextlib.suppress(OSError):
            self._send(pack({"op": verb, "tag": next(self._tags), "job": job}))

    def ask(
        self,
        verb: str,
        body: dict[str, Any],
        job: str = "",
        timeout: float | None = None,
        tick: Callable[[], None] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Send a request and yield its replies without op, tag and end."""
        tag = next(self._tags)
        replies: Queue = queue.SimpleQueue()
        with self._state:
            if self._lost is not None:
                raise ConnectionLostError(str(self._lost))
            self._waiting[tag] = replies
        message = {"op": verb, "tag": tag, **body}
        if job:
            message["job"] = job
        cargo: Cargo | None = None
        try:
            if self._stream:
                message["accept"] = ["shm"]
                with self._state:
                    free, self._pool = self._pool, []
                    self._shared = [s for s in self._shared if s.alive()]
                    cargo = Cargo(list(self._shared), free)
            try:
                self._send(pack(message, cargo.put if cargo else None), cargo.fds if cargo else ())
                self.sent += cargo.bytes if cargo else 0
            finally:
                if cargo:
                    self._give_back(cargo.pool)
        except OSError as err:
            self._drop(tag)
            raise ConnectionLostError(f"send request: {err}") from err
        except BaseException:
            self._drop(tag)
            raise
        # What a job refers to may be needed after its receipt; what one node or one sampler does not after the last
        # reply.
        return self._replies(tag, replies, timeout, tick, cargo.own if cargo and verb in ("exec", "sample") else [])

    def _give_back(self, regions: list[Region]) -> None:
        with self._state:
            self._pool = (regions + self._pool)[:POOL]

    def share(self, region: Region) -> bool:
        """Send arrays that lie in the region without a copy from now on; False if the stream takes no descriptors."""
        if self._stream:
            self._shared.append(region.span())
        return self._stream is not None

    def inherit(self, other: FrameTransport) -> None:
        """Go on with the shared memory of a connection that was lost."""
        with self._state:
            self._shared = other._shared

    def _send(self, parts: list[bytes | memoryview], fds: Sequence[int] = ()) -> None:
        size = sum(len(p) for p in parts)
        if size > MAX_FRAME:
            raise ValueError(f"the request has {size} bytes, a frame may have {MAX_FRAME}")
        with self._lock:
            self.sent += 4 + size
            if self._stream:
                head = struct.pack(">I", size)
                self._stream.send([head, *parts] if fds else [head + bytes(parts[0]), *parts[1:]], fds)
                return
            self._writer.write(struct.pack(">I", size))
            for p in parts:
                self._writer.write(p)
            self._writer.flush()

    def _replies(
        self, tag: int, replies: Queue, timeout: float | None, tick: Callable[[], None] | None, own: list[Region]
    ) -> Iterator[dict[str, Any]]:
        try:
            while True:
                reply = wait(replies, timeout, tick)
                end = bool(reply.pop("end", False))
                reply.pop("op", None)
                reply.pop("tag", None)
                if end:
                    self._give_back(own)
                if reply or not end:
                    yield reply
                if end:
                    return
        finally:
            self._drop(tag)

    def _drop(self, tag: int) -> None:
        # No lock: the garbage collector, which closes an iterator that was left, may call this below one.
        self._waiting.pop(tag, None)

    def _read(self) -> None:
        try:
            while True:
                head = self._exactly(4)
                size = struct.unpack(">I", head)[0]
                if size > MAX_FRAME:
                    raise ValueError(f"a frame of {size} bytes; does the other side print to its stdout?")
                body = self._exactly(size)
                reply = self._decode(body, self._stream.taken() if self._stream else [])
                tag = reply.get("tag")
                if tag is None and "error" in reply:
                    raise ValueError(str(reply["error"].get("message")))
                with self._state:
                    waiting = self._waiting.get(tag) if isinstance(tag, int) else None
                if waiting is not None:
                    waiting.put(reply)
        except Exception as err:  # noqa: BLE001 - whatever it is, everybody who waits must be told
            with self._state:
                self._lost = err
                waiting_now = list(self._waiting.values())
            for w in waiting_now:
                w.put(ConnectionLostError(str(err)))

    def _decode(self, body: bytearray, fds: list[int]) -> dict[str, Any]:
        maps = [opened(fd) for fd in fds]

        def get(ref: dict[str, Any]) -> memoryview:
            at, n = int(ref.get("offset", 0)), int(ref["bytes"])
            view = maps[int(ref.get("fd", 0))][at : at + n]
            if len(view) != n:
                raise ValueError(f"a reference to {n} bytes at {at} past the end of its memory")
            return view

        return unpack(body, get)

    def _exactly(self, n: int) -> bytearray:
        out = bytearray(n)
        view, have = memoryview(out), 0
        while have < n:
            got = self._reader.readinto(view[have:])
            if not got:
                raise EOFError("the connection was closed by the other side")
            have += got
        return out

    def close(self) -> None:
        """Close both streams and wait for the reading thread."""
        with contextlib.suppress(OSError):
            self._writer.close()
        self._thread.join(timeout=5)
        with contextlib.suppress(OSError):
            self._reader.close()


class SocketTransport(FrameTransport):
    """The unix socket of a daemon."""

    def __init__(self, path: str) -> None:
        """Connect to a socket file."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as err:
            self._socket.close()
            raise ConnectionLostError(f"no daemon at {path}: {err}") from err
        super().__init__(Stream(self._socket), cast(Writer, self._socket.makefile("wb", buffering=0)))

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        super().close()
        self._socket.close()


class WorkerTransport(FrameTransport):
    """The stdin and stdout of a worker process that is started here and ends with the transport."""

    def __init__(self, command: Sequence[str], stderr: int | BinaryIO | None = None) -> None:
        """Start a command, such as ["patchbay", "worker", "--models", "models"]."""
        self._socket, theirs = socket.socketpair()  # not pipes: it carries descriptors too
        try:
            with theirs:
                self.process = subprocess.Popen(
                    list(command), stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=stderr
                )
        except BaseException:
            self._socket.close()
            raise
        super().__init__(Stream(self._socket), cast(Writer, self._socket.makefile("wb", buffering=0)))

    def close(self) -> None:
        """Close the worker's stdin, which ends it, and wait for that."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        super().close()
        self._socket.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
