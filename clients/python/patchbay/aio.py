"""The client for asyncio: the methods of ``Client`` as coroutines."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, BinaryIO, Concatenate, ParamSpec, TypeVar

from .client import Client

P = ParamSpec("P")
R = TypeVar("R")

CALLS = 64
"""Calls of one client that are under way at once; others wait."""

_CALLBACKS = ("on_event", "on_preview", "on_progress")


def _twin(
    method: Callable[Concatenate[Client, P], R], stops: bool = False
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]]:
    """Return a coroutine that runs a method in a thread and its callbacks in the loop. With stops, a task that is
    cancelled cancels the job.
    """

    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        loop, given_up = asyncio.get_running_loop(), threading.Event()
        more: dict[str, Any] = dict(kwargs)
        for name in _CALLBACKS:
            if more.get(name):
                more[name] = functools.partial(loop.call_soon_threadsafe, more[name])
        if stops:
            asked = more.get("stop")
            more["stop"] = lambda: given_up.is_set() or bool(asked and asked())
        try:
            return await loop.run_in_executor(self._pool, functools.partial(method, self.sync, *args, **more))
        except asyncio.CancelledError:
            given_up.set()
            raise

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class AsyncClient:
    """A connection to a daemon or a worker for asyncio, with the methods of ``Client``.

    Callbacks run in the event loop. A task that waits for ``run`` or ``sample`` and is cancelled cancels the job.
    """

    def __init__(self, client: Client) -> None:
        """Take a client, which is closed with this one; ``sync`` is that client."""
        self.sync = client
        self._pool = ThreadPoolExecutor(CALLS, "patchbay")

    @classmethod
    async def socket(cls, path: str | None = None) -> AsyncClient:
        """Connect to the unix socket of a daemon."""
        return cls(await asyncio.to_thread(Client.socket, path))

    @classmethod
    async def spawn(
        cls, command: Sequence[str] = ("patchbay", "worker"), stderr: int | BinaryIO | None = None
    ) -> AsyncClient:
        """Start a worker and talk to it over its stdin and stdout; it ends with the client."""
        return cls(await asyncio.to_thread(Client.spawn, command, stderr))

    @classmethod
    async def nats(cls, url: str | None = None, **options: Any) -> AsyncClient:  # noqa: ANN401
        """Connect to a NATS server; options are those of nats.connect."""
        return cls(await asyncio.to_thread(functools.partial(Client.nats, url, **options)))

    async def __aenter__(self) -> AsyncClient:
        """Return self."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self.close()

    async def close(self) -> None:
        """Close the connection. Whoever waits for a reply gets ConnectionLostError."""
        await asyncio.to_thread(self.sync.close)
        self._pool.shutdown(wait=False)

    run = _twin(Client.run, stops=True)
    sample = _twin(Client.sample, stops=True)
    follow = _twin(Client.follow)
    submit = _twin(Client.submit)
    status = _twin(Client.status)
    cancel = _twin(Client.cancel)
    retry = _twin(Client.retry)
    jobs = _twin(Client.jobs)
    stats = _twin(Client.stats)
    describe = _twin(Client.describe)
    version = _twin(Client.version)
    models = _twin(Client.models)
    exec = _twin(Client.exec)
    load = _twin(Client.load)
    forecast = _twin(Client.forecast)
    free = _twin(Client.free)
