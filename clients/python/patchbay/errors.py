"""Errors of the client."""

from __future__ import annotations

from typing import Any


class PatchbayError(Exception):
    """An error that the daemon or worker answered with. The classes below are for those that callers treat differently.

    ``code``, ``status`` and ``retryable`` are those of docs/protocol.md; ``input`` names the field at fault, ``node``
    and ``class_type`` the node; ``node_errors`` is ComfyUI's map of them; ``retry_after`` is in seconds, 0 where
    nothing was said; ``body`` is the whole error map; ``files`` are the files (``File``) that a failed or cancelled job
    had made, where it was followed with its outputs.
    """

    def __init__(self, body: dict[str, Any], node_errors: dict[str, Any] | None = None) -> None:
        """Take the value of "error" of a reply, and that of "node_errors" beside it."""
        self.body = body
        self.files: list[Any] = []
        self.code: str = str(body.get("code", "internal"))
        self.status: int = int(body.get("status", 500))
        self.type: str = str(body.get("type", ""))
        self.retryable: bool = bool(body.get("retryable", False))
        self.retry_after: float = float(body.get("retry_after_ms", 0)) / 1000
        self.input: str = str(body.get("input", ""))
        self.node: str = str(body.get("node", ""))
        self.class_type: str = str(body.get("class_type", ""))
        self.extra: dict[str, Any] = dict(body.get("extra_info") or {})
        self.node_errors: dict[str, Any] = dict(node_errors or {})
        text = str(body.get("message", ""))
        if body.get("details"):
            text += f": {body['details']}"
        super().__init__("\n".join([f"{self.code}: {text}", *_reasons(self.node_errors, self.extra)]))


def _reasons(node_errors: dict[str, Any], extra: dict[str, Any]) -> list[str]:
    """Return a line for every fault of a node, and for every class that is not there."""
    out = []
    for node, found in node_errors.items():
        if isinstance(found, dict):
            for e in found.get("errors") or []:
                out.append(
                    f"  node {node} ({found.get('class_type')}): {e.get('message')}: {e.get('details')}".removesuffix(
                        ": "
                    )
                )
    classes = extra.get("unknown_classes")
    if isinstance(classes, dict):
        out += [f"  not here: {name} (node {', '.join(map(str, nodes))})" for name, nodes in classes.items()]
    return out


class CancelledError(PatchbayError):
    """The job or run was cancelled."""


class RefusedError(PatchbayError):
    """The request is wrong, or names what is not there: the same request will be refused again."""


class BusyError(PatchbayError):
    """The daemon cannot take the request now: a full queue, no worker, a shutdown. ``retry_after`` says when to try
    again.
    """


class WorkerLostError(PatchbayError):
    """The worker died or hung while it ran the request."""


class OutOfMemoryError(PatchbayError):
    """Memory ran out."""


def error_of(reply: dict[str, Any]) -> PatchbayError:
    """Return the error of a reply, or of the last event of a job, as the class for its code."""
    body = reply.get("error") or {"code": reply.get("type", "internal"), "message": "it was not said why"}
    code, status = str(body.get("code", "internal")), int(body.get("status", 500))
    kind = {"cancelled": CancelledError, "worker_lost": WorkerLostError, "out_of_memory": OutOfMemoryError}.get(
        code, PatchbayError
    )
    if code in ("queue_full", "no_capacity", "draining"):
        kind = BusyError
    elif kind is PatchbayError and 400 <= status < 500 and not body.get("retryable"):
        kind = RefusedError
    return kind(body, reply.get("node_errors") or body.get("node_errors"))


class ConnectionLostError(ConnectionError):
    """The other side went away, or nobody answers."""


class NotAllowedError(PermissionError):
    """The NATS server does not allow this user what was tried (docs/security.md)."""
