"""Client of Patchbay: run ComfyUI workflows, single nodes and samplers on a daemon or a worker.

``Client.spawn`` talks to a worker of one's own over its stdin and stdout, ``Client.socket`` to a daemon on this
machine, ``Client.nats`` to daemons behind a NATS server; ``AsyncClient`` is the same for asyncio. All three speak the
protocol of docs/protocol.md and have the same methods.
"""

from .aio import AsyncClient
from .client import Client
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
from .results import ExecResult, File, RunResult
from .sampling import Change, LoRA, Progress, SampleResult, Sampling
from .wire import BF16, Handle

__version__ = "0.2.0"

__all__ = [
    "BF16",
    "AsyncClient",
    "BusyError",
    "CancelledError",
    "Change",
    "Client",
    "ConnectionLostError",
    "ExecResult",
    "File",
    "Handle",
    "LoRA",
    "NotAllowedError",
    "OutOfMemoryError",
    "PatchbayError",
    "Progress",
    "RefusedError",
    "RunResult",
    "SampleResult",
    "Sampling",
    "WorkerLostError",
    "__version__",
]
