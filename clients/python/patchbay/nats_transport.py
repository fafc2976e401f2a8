"""NATS: requests on patchbay.v1.<verb>, replies on an inbox. nats-py is asynchronous, so it runs in a thread of its own."""

from __future__ import annotations

import asyncio
import hashlib
import queue
import threading
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from .chunks import Chunks
from .errors import ConnectionLostError
from .wire import BULK, pack, unpack

if TYPE_CHECKING:
    from nats.aio.msg import Msg

ROOT = "patchbay.v1."
_T = TypeVar("_T")
_HEADERS = {"Content-Type": "application/msgpack", "Patchbay-Accept": "stream"}
BUCKET = "patchbay-blobs"


class NATSTransport:
    """A connection to a NATS server. Requests of several threads may overlap."""

    def __init__(self, url: str, **options: Any) -> None:  # noqa: ANN401
        """Connect; options are those of nats.connect (user_credentials, tls, inbox_prefix ...)."""
        try:
            import nats
        except ImportError as err:
            raise ImportError("NATS needs the package nats-py: pip install patchbay[nats]") from err
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="patchbay nats", daemon=True)
        self._thread.start()
        options.setdefault("connect_timeout", 3)
        options.setdefault("allow_reconnect", True)
        options.setdefault("max_reconnect_attempts", 3)
        try:
            self._nc = self._do(asyncio.wait_for(nats.connect(url, name="patchbay python client", **options), options["connect_timeout"] + 2))
        except Exception as err:
            self._stop()
            raise ConnectionLostError(f"no NATS server at {url.rpartition('@')[2]}: {err or 'no answer'}") from err
        self._chunks = Chunks(self._nc)

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def ask(self, verb: str, body: dict[str, Any], job: str = "", timeout: float | None = None) -> Iterator[dict[str, Any]]:
        """Send a request and yield its replies."""
        offers: list[dict[str, Any]] = []
        data = self._packed(body, offers)
        stream = verb in ("run", "sample") or bool(body.get("follow") or body.get("outputs"))
        replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        inbox = self._nc.new_inbox()

        async def got(msg: Msg) -> None:
            replies.put(msg)

        async def send() -> Any:  # noqa: ANN401
            if offers:
                await self._chunks.listen()
            sub = await self._nc.subscribe(inbox, cb=got, pending_msgs_limit=-1, pending_bytes_limit=-1)
            subject = ROOT + verb + (f".{job}" if job else "")
            await self._nc.publish(subject, data, reply=inbox, headers=_HEADERS)
            return sub

        return self._replies(self._do(send()), replies, stream, timeout, offers)

    def _packed(self, body: dict[str, Any], offers: list[dict[str, Any]]) -> bytes:
        limit = self._nc.max_payload - 1024

        def put(data: Any) -> dict[str, Any]:  # noqa: ANN401
            offers.append(self._chunks.offer(data))
            return offers[-1]

        for least in (min(BULK, limit // 2), 16 << 10):  # many that are small: those go beside the message too
            parts = pack(body, put, least) if body else []
            if sum(len(p) for p in parts) <= limit:
                return b"".join(parts)
            self._withdraw(offers)
        raise ValueError(f"the request has more than the {limit} bytes that the server takes, without its arrays and files")

    def _withdraw(self, offers: list[dict[str, Any]]) -> None:
        for ref in offers:
            self._chunks.withdraw(ref)
        offers.clear()

    def upload(self, name: str, data: bytes | memoryview) -> dict[str, Any]:
        """Put bytes into the object store and return the reference to them, for a request to come; they are kept for a day."""

        async def put() -> Any:  # noqa: ANN401
            store = await self._nc.jetstream().object_store(BUCKET)
            return await store.put(name, bytes(data))

        self._do(put())
        return {"kind": "object", "bytes": len(data), "name": name, "sha256": hashlib.sha256(data).hexdigest()}

    def _pull(self, ref: dict[str, Any]) -> memoryview:
        if ref["kind"] != "stream":
            raise ValueError(f"a reference of kind {ref['kind']}, which was not asked for")
        return self._do(self._chunks.pull(ref))

    def _replies(
        self,
        sub: Any,  # noqa: ANN401
        replies: queue.SimpleQueue[Any],
        stream: bool,
        timeout: float | None,
        offers: list[dict[str, Any]],
    ) -> Iterator[dict[str, Any]]:
        try:
            while True:
                msg = self._next(replies, timeout)
                if (msg.headers or {}).get("Status") == "503":
                    raise ConnectionLostError("the NATS server has no patchbay service: is a daemon running?")
                if not msg.data:
                    return
                yield unpack(msg.data, self._pull)
                if not stream:
                    return
        finally:
            self._withdraw(offers)
            if not self._nc.is_closed:
                self._do(sub.unsubscribe())

    def _next(self, replies: queue.SimpleQueue[Any], timeout: float | None) -> Any:  # noqa: ANN401
        waited = 0.0
        while timeout is None or waited < timeout:
            try:
                return replies.get(timeout=0.5 if timeout is None else min(0.5, timeout - waited))
            except queue.Empty:
                waited += 0.5
                if self._nc.is_closed:
                    raise ConnectionLostError("the NATS connection was closed") from None
        raise TimeoutError(f"no reply within {timeout} s")

    def close(self) -> None:
        """Close the connection."""
        if not self._nc.is_closed:
            self._do(self._nc.close())
        self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()
