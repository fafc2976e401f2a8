"""Client of Patchbay: run ComfyUI workflows, single nodes and samplers on a daemon or a worker.

``Client.spawn`` talks to a worker of one's own over its stdin and stdout, ``Client.socket`` to a daemon on this machine, ``Client.nats`` to daemons
behind a NATS server. All three speak the protocol of docs/protocol.md and have the same methods.
"""

from .client import Client, ExecResult, File, RunResult
from .errors import (
    BusyError,
    CancelledError,
    ConnectionLostError,
    NotAllowedError,
    OutOfMemoryError,
    PatchbayError,
    RefusedError,
    WorkerLostError,
)
from .sampling import LoRA, Progress, SampleResult, Sampling
from .wire import BF16, Handle, Named

__all__ = [
    "BF16",
    "BusyError",
    "CancelledError",
    "Client",
    "ConnectionLostError",
    "ExecResult",
    "File",
    "Handle",
    "LoRA",
    "Named",
    "NotAllowedError",
    "OutOfMemoryError",
    "PatchbayError",
    "Progress",
    "RefusedError",
    "RunResult",
    "SampleResult",
    "Sampling",
    "WorkerLostError",
]
