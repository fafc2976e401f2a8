"""Client of Patchbay: run ComfyUI workflows, single nodes and samplers on a daemon or a worker.

``Client.spawn`` talks to a worker of one's own over its stdin and stdout, ``Client.socket`` to a daemon on this machine, ``Client.nats`` to daemons
behind a NATS server. All three speak the protocol of docs/protocol.md and have the same methods.
"""

from .client import Client, ExecResult, File, RunResult, SampleResult
from .errors import ConnectionLostError, PatchbayError
from .wire import Handle

__all__ = [
    "Client",
    "ConnectionLostError",
    "ExecResult",
    "File",
    "Handle",
    "PatchbayError",
    "RunResult",
    "SampleResult",
]
