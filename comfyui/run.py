"""One request at the daemon, waited for so that ComfyUI can stop it at any time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import comfy.model_management as mm

from .client import CancelledError, Client, Progress, SampleResult
from .daemon import CONNECTIONS, explain

LOOK = 0.01
"""Seconds between two looks at ComfyUI's stop button."""

GRACE = 0.03
"""Seconds that a stopped run may take to end. Then it is left: the daemon stops in its own time."""

HUNG = 3.0
"""Seconds without an answer to a cancel after which the connection is given up."""


class Request:
    """A ``sample`` request in a thread of its own: even a daemon that takes no bytes any more cannot keep the one who
    waits.
    """

    def __init__(self, address: str, arguments: dict[str, Any]) -> None:
        """Send it."""
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._address, self._arguments = address, arguments
        self._stop = threading.Event()
        self._client: Client | None = None
        self._thread = threading.Thread(target=self._work, name="patchbay sample", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._client = CONNECTIONS.get(self._address)
            self._arguments["plan"] = self._arguments["plan"] or self._client.every_device()
            self.events.put(
                self._client.sample(
                    **self._arguments, on_progress=self.events.put, stop=self._stop.is_set, patience=HUNG
                )
            )
        except Exception as err:  # noqa: BLE001 - it is raised by the one who waits
            self.events.put(err)

    def stop(self) -> None:
        """Cancel it, if it has not ended."""
        if self._stop.is_set() or not self._thread.is_alive():
            return
        self._stop.set()
        later = threading.Timer(HUNG - 0.5, self._give_up)
        later.daemon = True
        later.start()

    def _give_up(self) -> None:
        if self._thread.is_alive() and self._client is not None:
            CONNECTIONS.drop(self._address, self._client)


def sample(
    address: str, arguments: dict[str, Any], on_progress: Callable[[Progress], None] | None = None
) -> SampleResult:
    """Run one ``sample`` request. ComfyUI's stop button and whatever on_progress raises cancel it.

    The exception of the stop button is no Exception in newer versions: nothing here catches it.
    """
    request = Request(address, arguments)
    leave = 0.0
    try:
        while True:
            if not leave and mm.processing_interrupted():
                request.stop()
                leave = time.monotonic() + GRACE
            if leave and time.monotonic() >= leave:
                mm.throw_exception_if_processing_interrupted()
            try:
                event = request.events.get(timeout=LOOK)
            except queue.Empty:
                continue
            if isinstance(event, CancelledError):
                mm.throw_exception_if_processing_interrupted()
                raise RuntimeError("Patchbay: the run was cancelled at the daemon")
            if isinstance(event, Exception):
                if leave:
                    mm.throw_exception_if_processing_interrupted()
                raise explain(event, address) from event
            if isinstance(event, SampleResult):
                return event
            if on_progress is not None and not leave:
                on_progress(event)
    finally:
        request.stop()
