"""NATS: requests on patchbay.v1.<verb>, replies on an inbox. nats-py is asynchronous, so it runs in a thread of its
own.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import json
import pathlib
import queue
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlparse

from .chunks import Chunks
from .errors import ConnectionLostError, NotAllowedError
from .frames import Queue, wait
from .wire import BULK, pack, unpack

if TYPE_CHECKING:
    from nats.aio.msg import Msg

ROOT = "patchbay.v1."
_T = TypeVar("_T")
_HEADERS = {"Content-Type": "application/msgpack", "Patchbay-Accept": "stream"}


def inbox_of(url: str, options: dict[str, Any]) -> str:
    """Return the subject below which a user may listen to replies: with the rights of docs/security.md that of its name
    or public key.
    """
    user = ""
    if options.get("nkeys_seed") or options.get("nkeys_seed_str"):
        import nkeys

        seed = options.get("nkeys_seed_str") or pathlib.Path(options["nkeys_seed"]).read_text(encoding="ascii").strip()
        user = nkeys.from_seed(seed.encode()).public_key.decode()
    elif isinstance(options.get("user_credentials"), str):
        token = re.search(
            r"([\w-]+)\.([\w-]+)\.([\w-]+)", pathlib.Path(options["user_credentials"]).read_text(encoding="ascii")
        )
        if token:
            user = json.loads(base64.urlsafe_b64decode(token[2] + "=="))["sub"]
    else:
        at = urlparse(url.partition(",")[0])
        user = options.get("user") or (at.username or "" if at.password else "")
    return f"_INBOX.{user}" if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", user) else "_INBOX"


def check_url(url: str) -> None:
    """Refuse a URL, or a list of them, that cannot be read. A special character in a password is why most cannot, and
    what it cuts off stands where an error would show the host or the port.
    """
    for one in url.split(","):
        try:
            at = urlparse(one if "://" in one else f"nats://{one}")
            wrong = not at.hostname or at.port == 0 or "@" in at.path + at.params + at.query + at.fragment
        except ValueError:
            wrong = True
        if wrong:
            raise ValueError(
                f"the NATS server's address ...@{url.rpartition('@')[2]} is no URL: want nats://HOST:PORT or "
                "nats://USER:PASSWORD@HOST:PORT, with special characters of the password written as in %2F for /"
            )


class NATSTransport:
    """A connection to a NATS server. Requests of several threads may overlap."""

    def __init__(self, url: str, **options: Any) -> None:  # noqa: ANN401
        """Connect; options are those of nats.connect (user_credentials, tls, inbox_prefix ...)."""
        try:
            import nats
        except ImportError as err:
            raise ImportError("NATS needs the package nats-py: pip install patchbay-client[nats]") from err
        self.sent = 0
        self._state = threading.Lock()
        self._waiting: dict[str, tuple[str, str, Queue]] = {}  # inbox, subject and replies by inbox
        self._ended = False  # the loop takes no more work
        self._works: set[concurrent.futures.Future[Any]] = set()  # what somebody waits for
        self._leaving: set[asyncio.Task[None]] = set()  # the loop itself does not keep its tasks
        check_url(url)
        options = {"connect_timeout": 3, "allow_reconnect": True, "max_reconnect_attempts": 3, **options}
        options.setdefault("inbox_prefix", inbox_of(url, options))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="patchbay nats", daemon=True)
        self._thread.start()
        connecting = nats.connect(
            url, name="patchbay python client", error_cb=self._fault, disconnected_cb=self._gone, **options
        )
        try:
            self._nc = self._do(asyncio.wait_for(connecting, options["connect_timeout"] + 2))
        except Exception as err:
            self._stop()
            raise ConnectionLostError(f"no NATS server at {url.rpartition('@')[2]}: {str(err) or 'no answer'}") from err
        self._chunks = Chunks(self._nc)

    @property
    def lost(self) -> bool:
        """Tell whether the connection has ended for good."""
        return self._ended or bool(self._nc.is_closed)

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run work in the loop and wait for it. Another thread may close the connection meanwhile: what it finds is
        cancelled, what comes later refused.
        """
        with self._state:
            task = None if self._ended else asyncio.run_coroutine_threadsafe(work, self._loop)
            if task is not None:
                self._works.add(task)
        if task is None:
            work.close()
            raise ConnectionLostError("the NATS connection was closed")
        try:
            return task.result()
        except concurrent.futures.CancelledError:
            raise ConnectionLostError("the NATS connection was closed") from None
        finally:
            with self._state:
                self._works.discard(task)

    async def _fault(self, err: Exception) -> None:
        """End the requests that the server does not allow: it answers those with an error of the connection."""
        text = str(err).lower()  # as nats-py has it already
        if "permissions violation" not in text:
            return
        for inbox, subject, replies in list(self._waiting.values()):
            if f'"{subject.lower()}"' in text or f'"{inbox.lower()}"' in text:
                replies.put(NotAllowedError(f"the NATS server does not allow this user to use {subject}: {text}"))

    async def _gone(self) -> None:
        """Tell everybody who waits that replies may be lost."""
        for _, _, replies in list(self._waiting.values()):
            replies.put(ConnectionLostError("the NATS connection was lost"))

    def tell(self, verb: str, job: str) -> None:
        """Send a request about a job whose reply nobody waits for."""
        with contextlib.suppress(Exception):
            self._do(self._nc.publish(f"{ROOT}{verb}.{job}", b"", headers=_HEADERS))

    def ask(
        self,
        verb: str,
        body: dict[str, Any],
        job: str = "",
        timeout: float | None = None,
        tick: Callable[[], None] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Send a request and yield its replies."""
        if self._nc.is_closed:
            raise ConnectionLostError("the NATS connection was closed")
        offers: list[dict[str, Any]] = []
        data = self._packed(body, offers)
        stream = verb in ("run", "sample") or bool(body.get("follow") or body.get("outputs"))
        replies: Queue = queue.SimpleQueue()
        inbox, subject = self._nc.new_inbox(), ROOT + verb + (f".{job}" if job else "")
        self._waiting[inbox] = (inbox, subject, replies)

        async def got(msg: Msg) -> None:
            replies.put(msg)

        async def send() -> Any:  # noqa: ANN401
            if offers:
                await self._chunks.listen()
            sub = await self._nc.subscribe(inbox, cb=got, pending_msgs_limit=-1, pending_bytes_limit=-1)
            await self._nc.publish(subject, data, reply=inbox, headers=_HEADERS)
            return sub

        try:
            sub = self._do(send())
        except BaseException as err:
            self._forget(inbox, offers)
            if isinstance(err, Exception) and self._nc.is_closed:
                raise ConnectionLostError("the NATS connection was closed") from err
            raise
        self.sent += len(data) + sum(int(ref["bytes"]) for ref in offers)
        return self._replies(sub, inbox, replies, stream, timeout, tick, offers)

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
        raise ValueError(
            f"the request has more than the {limit} bytes that the server takes, without its arrays and files"
        )

    def _withdraw(self, offers: list[dict[str, Any]]) -> None:
        for ref in offers:
            self._chunks.withdraw(ref)
        offers.clear()

    def _forget(self, inbox: str, offers: list[dict[str, Any]]) -> None:
        """End a request. It takes no lock and waits for nothing: the garbage collector, which closes an iterator that
        was left, may call it in any thread at any place, in the loop and below a lock too.
        """
        self._waiting.pop(inbox, None)
        self._withdraw(offers)

    def _pull(self, ref: dict[str, Any]) -> memoryview:
        if ref["kind"] != "stream":
            raise ValueError(f"a reference of kind {ref['kind']}, which was not asked for")
        return self._do(self._chunks.pull(ref))

    def _replies(
        self,
        sub: Any,  # noqa: ANN401
        inbox: str,
        replies: Queue,
        stream: bool,
        timeout: float | None,
        tick: Callable[[], None] | None,
        offers: list[dict[str, Any]],
    ) -> Iterator[dict[str, Any]]:
        try:
            while True:
                msg = wait(replies, timeout, tick)
                if (msg.headers or {}).get("Status") == "503":
                    raise ConnectionLostError("the NATS server has no patchbay service: is a daemon running?")
                if not msg.data:
                    return
                yield unpack(msg.data, self._pull)
                if not stream:
                    return
        finally:
            self._forget(inbox, offers)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._leave, sub)

    def _leave(self, sub: Any) -> None:  # noqa: ANN401
        """End a subscription. Runs in the loop."""

        async def leave() -> None:
            with contextlib.suppress(Exception):
                await sub.unsubscribe()

        task = self._loop.create_task(leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def give_up(self) -> None:
        """Close a connection that is broken: what waits on it has been told, and the next one is made at once."""
        if not self._nc.is_connected:
            self.close()

    def close(self) -> None:
        """Close the connection; whoever waits is told."""
        with contextlib.suppress(Exception):
            if not self._nc.is_closed:
                self._do(asyncio.wait_for(self._nc.close(), 5))
        with contextlib.suppress(ConnectionLostError):  # another thread is closing it
            self._do(self._gone())
        self._stop()

    def _stop(self) -> None:
        async def end() -> None:
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for t in tasks:
                t.cancel()
            await asyncio.wait(tasks, timeout=2) if tasks else None

        with self._state:
            if self._ended:
                return
            self._ended = True
            ending = asyncio.run_coroutine_threadsafe(end(), self._loop)
        with contextlib.suppress(Exception):
            ending.result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        with self._state:
            left = list(self._works)
        for work in left:  # it has not ended when it was cancelled, and now it cannot: whoever waits must not either
            work.cancel()
        if not self._thread.is_alive():
            self._loop.close()
