"""NATS: requests on patchbay.v1.<verb>, replies on an inbox. nats-py is asynchronous, so it runs in a thread of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import ConnectionLostError
from .wire import pack, unpack

if TYPE_CHECKING:
    from nats.aio.msg import Msg

ROOT = "patchbay.v1."
_T = TypeVar("_T")
_HEADERS = {"Content-Type": "application/msgpack"}


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

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def ask(self, verb: str, body: dict[str, Any], job: str = "", timeout: float | None = None) -> Iterator[dict[str, Any]]:
        """Send a request and yield its replies."""
        data = b"".join(pack(body)) if body else b""
        if len(data) + 1024 > self._nc.max_payload:
            raise ValueError(f"the request has {len(data)} bytes, the server takes {self._nc.max_payload}; use the unix socket")
        stream = verb in ("run", "sample") or bool(body.get("follow") or body.get("outputs"))
        replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        inbox = self._nc.new_inbox()

        async def got(msg: Msg) -> None:
            replies.put(msg)

        async def send() -> Any:  # noqa: ANN401
            sub = await self._nc.subscribe(inbox, cb=got, pending_msgs_limit=-1, pending_bytes_limit=-1)
            subject = ROOT + verb + (f".{job}" if job else "")
            await self._nc.publish(subject, data, reply=inbox, headers=_HEADERS)
            return sub

        return self._replies(self._do(send()), replies, stream, timeout)

    def _replies(self, sub: Any, replies: queue.SimpleQueue[Any], stream: bool, timeout: float | None) -> Iterator[dict[str, Any]]:  # noqa: ANN401
        try:
            while True:
                msg = self._next(replies, timeout)
                if (msg.headers or {}).get("Status") == "503":
                    raise ConnectionLostError("the NATS server has no patchbay service: is a daemon running?")
                if not msg.data:
                    return
                yield unpack(msg.data)
                if not stream:
                    return
        finally:
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
