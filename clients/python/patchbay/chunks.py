"""Payloads over NATS in chunks with credits, both ways (docs/protocol.md, Payloads). Runs in the event loop of a
connection.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import ConnectionLostError

try:
    import msgpack
except ImportError:
    from . import plain_msgpack as msgpack

if TYPE_CHECKING:
    from nats.aio.client import Client as NATS
    from nats.aio.msg import Msg

CHUNK = 256 << 10  # allocations of more than this cost the sender twice the time
WINDOW = 16
HEAD = struct.Struct(">IIQ")


class Chunks:
    """Offers arrays under subjects of its own, and pulls what others offer."""

    def __init__(self, nc: NATS, silence: float = 10.0) -> None:
        """Take a connection; silence is how long the other side may say nothing, in seconds."""
        self._nc, self._silence = nc, silence
        self._base = nc.new_inbox()
        self._offers: dict[str, memoryview] = {}
        self._credits: dict[str, asyncio.Queue[int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._names = 0
        self._listening = False

    def offer(self, data: npt.NDArray[np.uint8]) -> dict[str, Any]:
        """Offer bytes until they are withdrawn, and return the reference to them."""
        self._names += 1
        name = f"{self._base.rpartition('.')[2]}-{self._names}"
        self._offers[name] = data.data
        return {"kind": "stream", "bytes": data.nbytes, "subject": f"{self._base}.get", "id": name}

    def withdraw(self, ref: dict[str, Any]) -> None:
        """End an offer."""
        self._offers.pop(ref["id"], None)

    async def listen(self) -> None:
        """Answer pulls from now on."""
        if not self._listening:
            self._listening = True
            await self._nc.subscribe(f"{self._base}.get", cb=self._get)
            await self._nc.subscribe(f"{self._base}.ack.*", cb=self._ack)

    async def _get(self, msg: Msg) -> None:
        want = msgpack.unpackb(msg.data)
        data = self._offers.get(want.get("id"))
        if data is None or not want.get("chunk", 0) >= 4096 or not 1 <= want.get("window", 0) <= 1024:
            await self._nc.publish(msg.reply, b"", headers={"Patchbay-Error": "nothing is offered under that id"})
            return
        task = asyncio.create_task(
            self._send(data, min(want["chunk"], CHUNK, self._nc.max_payload - 1024), want["window"], msg.reply)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ack(self, msg: Msg) -> None:
        queue = self._credits.get(msg.subject.rpartition(".")[2])
        if queue is not None and len(msg.data) == 4:
            queue.put_nowait(int.from_bytes(msg.data, "big"))

    async def _send(self, data: memoryview, size: int, window: int, to: str) -> None:
        self._names += 1
        name, queue = str(self._names), asyncio.Queue[int]()
        self._credits[name] = queue
        sent = taken = 0
        count = -(-len(data) // size)
        try:
            while taken < count:
                if sent < count and sent - taken < window:
                    piece = data[sent * size : (sent + 1) * size]
                    await self._nc.publish(
                        to,
                        b"".join((HEAD.pack(sent, zlib.crc32(piece), sent * size), piece)),
                        reply=f"{self._base}.ack.{name}",
                    )
                    sent += 1
                    # nats-py writes now: of several messages it would make one first, a copy of all
                    await asyncio.sleep(0)
                else:
                    credit = await asyncio.wait_for(queue.get(), self._silence)
                    if not taken <= credit <= sent:
                        return
                    taken = credit
        except (asyncio.TimeoutError, ConnectionError):
            return  # who pulls has gone
        finally:
            del self._credits[name]

    async def pull(self, ref: dict[str, Any]) -> memoryview:
        """Return the bytes that a reference means."""
        out = np.empty(int(ref["bytes"]), np.uint8)
        have = number = 0
        size = min(CHUNK, self._nc.max_payload - 1024)
        sub = await self._nc.subscribe(self._nc.new_inbox(), pending_msgs_limit=-1, pending_bytes_limit=-1)
        try:
            await self._nc.publish(
                ref["subject"], msgpack.packb({"id": ref["id"], "chunk": size, "window": WINDOW}), reply=sub.subject
            )
            while have < out.nbytes:
                try:
                    msg = await sub.next_msg(timeout=self._silence)
                except asyncio.TimeoutError:
                    raise ConnectionLostError(
                        f"payload {ref['id']}: no chunk for {self._silence} s after {have} of {out.nbytes} bytes"
                    ) from None
                headers = msg.headers or {}
                if headers.get("Status") == "503" or "Patchbay-Error" in headers:
                    raise ConnectionLostError(
                        f"payload {ref['id']}: {headers.get('Patchbay-Error', 'its sender is gone')}"
                    )
                if len(msg.data) <= HEAD.size:
                    raise ValueError(f"payload {ref['id']}: a chunk of {len(msg.data)} bytes")
                got, crc, at = HEAD.unpack_from(msg.data)
                piece = memoryview(msg.data)[HEAD.size :]
                if got != number or at != have or len(piece) > min(size, out.nbytes - have) or zlib.crc32(piece) != crc:
                    raise ValueError(
                        f"payload {ref['id']}: chunk {number} is missing, damaged or too long (number {got}, offset "
                        f"{at}, {len(piece)} bytes)"
                    )
                out[have : have + len(piece)] = np.frombuffer(piece, np.uint8)
                have, number = have + len(piece), number + 1
                if number % (WINDOW // 4) == 0 or have == out.nbytes:
                    await self._nc.publish(msg.reply, number.to_bytes(4, "big"))
        finally:
            await sub.unsubscribe()
        return out.data
