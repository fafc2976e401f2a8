"""Errors of the client."""

from __future__ import annotations

from typing import Any


class PatchbayError(Exception):
    """An error that the daemon or worker answered with.

    ``code``, ``status`` and ``retryable`` are those of the table in docs/protocol.md; ``input`` names the field at fault, ``node`` the node; ``body`` is
    the whole error map.
    """

    def __init__(self, body: dict[str, Any]) -> None:
        """Take the value of "error" of a reply."""
        self.body = body
        self.code: str = str(body.get("code", "internal"))
        self.status: int = int(body.get("status", 500))
        self.retryable: bool = bool(body.get("retryable", False))
        self.input: str = str(body.get("input", ""))
        self.node: str = str(body.get("node", ""))
        text = str(body.get("message", ""))
        if body.get("details"):
            text += f": {body['details']}"
        super().__init__(f"{self.code}: {text}")


class ConnectionLostError(ConnectionError):
    """The other side went away, or nobody answers."""
