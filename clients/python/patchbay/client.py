"""The verbs of a daemon or worker as methods."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .errors import ConnectionLostError, PatchbayError
from .frames import FrameTransport, SocketTransport, Transport, WorkerTransport
from .nats_transport import NATSTransport
from .shm import Region
from .wire import Handle

Array = npt.NDArray[Any]
Message = dict[str, Any]
TERMINAL = ("execution_success", "execution_error", "execution_interrupted", "expired")


@dataclass
class File:
    """One file that a job made. ``ref`` has node, kind, filename, width, height and more."""

    ref: Message
    data: bytes


@dataclass
class RunResult:
    """How a job ended: its terminal event and its files."""

    job: str
    event: Message
    files: list[File] = field(default_factory=list)


@dataclass
class ExecResult:
    """What one node gave: arrays, handles, numbers and texts by slot."""

    outputs: list[Any]
    files: list[File]
    timings: Message
    warnings: list[str]


@dataclass
class SampleResult:
    """The end of a sampling run. ``x`` is [B, C, Y, X] float32 in model space."""

    x: Array
    x0: Array | None
    evals: int
    metrics: Message


def default_socket() -> str:
    """Return where the daemon listens: $PATCHBAY_SOCKET, or patchbay.sock in $XDG_RUNTIME_DIR or in the daemon's home."""
    path = os.environ.get("PATCHBAY_SOCKET")
    if path:
        return path
    folder = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("PATCHBAY_HOME")
    return os.path.join(folder or os.path.expanduser("~/.local/share/patchbay"), "patchbay.sock")


class Client:
    """A connection to a daemon or a worker. Closing it cancels the runs and samples that are tied to it."""

    def __init__(self, transport: Transport, timeout: float | None = None) -> None:
        """Take a transport; timeout bounds the wait for every single reply, in seconds."""
        self.transport = transport
        self.timeout = timeout

    @classmethod
    def socket(cls, path: str | None = None) -> Client:
        """Connect to the unix socket of a daemon."""
        return cls(SocketTransport(path or default_socket()))

    @classmethod
    def spawn(cls, command: Sequence[str] = ("patchbay", "worker"), stderr: int | BinaryIO | None = None) -> Client:
        """Start a worker and talk to it over its stdin and stdout; it ends with the client."""
        return cls(WorkerTransport(command, stderr))

    @classmethod
    def nats(cls, url: str | None = None, **options: Any) -> Client:  # noqa: ANN401
        """Connect to a NATS server; options are those of nats.connect."""
        return cls(NATSTransport(url or os.environ.get("PATCHBAY_NATS_URL") or "nats://127.0.0.1:4222", **options))

    def __enter__(self) -> Client:
        """Return self."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.transport.close()

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> Array:
        """Return an array in shared memory where the connection has that (the unix socket, a spawned worker): it is sent without a copy.

        It must not be written to while a request with it is answered.
        """
        kind = np.dtype(dtype)
        size = int(np.prod(shape)) * kind.itemsize
        if isinstance(self.transport, FrameTransport) and size > 0:
            region = Region(size)
            if self.transport.share(region):
                return region.bytes[:size].view(kind).reshape(shape)
        return np.zeros(shape, kind)

    def upload(self, name: str, data: bytes) -> Message:
        """Put a file into the object store of a NATS server. What is returned may stand in inputs of run and submit in place of the bytes, for a day."""
        if not isinstance(self.transport, NATSTransport):
            raise TypeError("upload goes over NATS: other connections take the bytes themselves")
        return {"$bytes": self.transport.upload(name, data)}

    def _ask(self, verb: str, body: Message, job: str = "") -> Iterator[Message]:
        for reply in self.transport.ask(verb, body, job, self.timeout):
            if "type" not in reply and "error" in reply:
                raise PatchbayError(reply["error"])
            yield reply

    def _one(self, verb: str, body: Message | None = None, job: str = "") -> Message:
        for reply in self._ask(verb, body or {}, job):
            return reply
        raise ConnectionLostError("the request was answered with nothing")

    def run(
        self,
        workflow: Mapping[str, Any],
        on_event: Callable[[Message], None] | None = None,
        on_preview: Callable[[str, bytes], None] | None = None,
        **fields: Any,  # noqa: ANN401
    ) -> RunResult:
        """Run a workflow in API format and return its files. fields are those of the table in docs/protocol.md: id, inputs, plan ...

        A job that failed or was cancelled raises PatchbayError.
        """
        body = {"workflow": dict(workflow), "preview": on_preview is not None, **fields}
        return self._collect(self._ask("run", body), on_event, on_preview)

    def follow(self, job: str, on_event: Callable[[Message], None] | None = None, outputs: bool = True) -> RunResult:
        """Follow a job until it ends, from its first event on."""
        return self._collect(self._ask("status", {"job": job, "follow": True, "outputs": outputs}, job), on_event, None)

    def _collect(
        self,
        replies: Iterator[Message],
        on_event: Callable[[Message], None] | None,
        on_preview: Callable[[str, bytes], None] | None,
    ) -> RunResult:
        out = RunResult("", {})
        for m in replies:
            kind = m.get("type")
            if kind in ("accepted", "record"):
                out.job = m["job"]
            elif kind == "output":
                if m.get("error"):
                    raise PatchbayError(m["error"])
                out.files.append(File(m["ref"], m.get("data", b"")))
            elif kind == "chunk":
                out.files[m["output"]].data += m["data"]
            elif kind == "preview":
                if on_preview:
                    on_preview(m.get("node", ""), m["data"])
            elif kind != "heartbeat":
                if on_event:
                    on_event(m)
                if kind in TERMINAL:
                    out.event = m
        if not out.event:
            raise ConnectionLostError(f"job {out.job} did not say how it ended")
        if out.event["type"] != "execution_success":
            raise PatchbayError(out.event.get("error") or {"code": out.event["type"], "message": f"job {out.job} ended"})
        return out

    def submit(self, workflow: Mapping[str, Any], **fields: Any) -> Message:  # noqa: ANN401
        """Queue a workflow and return the receipt. The same id and workflow again give the same job."""
        return self._one("submit", {"workflow": dict(workflow), **fields})

    def status(self, job: str) -> Message:
        """Return the record of a job."""
        return self._one("status", {}, job)

    def cancel(self, job: str) -> bool:
        """Cancel a job or a sample; False if it had ended."""
        return bool(self._one("cancel", {}, job)["cancelled"])

    def describe(self, name: str | None = None) -> Message:
        """Return ComfyUI's object_info of one class, or of all."""
        return dict(self._one("describe", {"class": name} if name else {})["object_info"])

    def models(self) -> dict[str, list[str]]:
        """Return the model files by folder."""
        return dict(self._one("models")["models"])

    def exec(
        self,
        class_type: str,
        inputs: Mapping[str, Any] | None = None,
        want: Sequence[int] | None = None,
        lease: float = 0.0,
        plan: str = "",
        files: Mapping[str, bytes] | None = None,
    ) -> ExecResult:
        """Run one node. Inputs are numbers, texts, arrays, handles, and lists and maps of them; want names output slots; lease is in seconds."""
        body: Message = {"class_type": class_type, "inputs": dict(inputs or {})}
        if want is not None:
            body["want"] = list(want)
        if lease:
            body["lease_ms"] = int(lease * 1000)
        if plan:
            body["plan"] = plan
        if files:
            body["files"] = dict(files)
        m = self._one("exec", body)
        made = [File(f["ref"], f["data"]) for f in m.get("files") or []]
        return ExecResult(m["outputs"], made, m.get("timings") or {}, m.get("warnings") or [])

    def sample(
        self,
        model: str,
        sampler: str,
        sigmas: Array,
        latent: Array,
        positive: Sequence[Message],
        negative: Sequence[Message] | None = None,
        *,
        noise: Array | None = None,
        mask: Array | None = None,
        seed: int = 0,
        cfg: float = 1.0,
        options: Mapping[str, Any] | None = None,
        fingerprint: str = "",
        sampling: Message | None = None,
        preview: str = "none",
        want_x0: bool = False,
        plan: str = "",
        id: str = "",  # noqa: A002 - the name of the field
        on_progress: Callable[[Message], None] | None = None,
    ) -> SampleResult:
        """Run one sampler on arrays; positive and negative are entries {"model_conds": {"c_crossattn": array, ...}, ...} as in docs/protocol.md."""
        conds: Message = {"positive": [_entry(e) for e in positive]}
        if negative is not None:
            conds["negative"] = [_entry(e) for e in negative]
        body: Message = {
            "model": {"file": model, "fingerprint": fingerprint},
            "sampler": {"name": sampler, "options": dict(options or {})},
            "sigmas": np.asarray(sigmas, np.float32),
            "latent": np.asarray(latent, np.float32),
            "seed": seed,
            "cfg": float(cfg),
            "conds": conds,
            "preview": preview,
            "want_x0": want_x0,
        }
        optional = {"noise": noise, "mask": mask, "sampling": sampling, "plan": plan or None, "id": id or None}
        body |= {k: v for k, v in optional.items() if v is not None}
        for m in self._ask("sample", body):
            kind = m["type"]
            if kind == "progress" and on_progress:
                on_progress(m)
            elif kind in ("error", "cancelled"):
                raise PatchbayError(m["error"])
            elif kind == "done":
                return SampleResult(m["x"], m.get("x0"), int(m.get("evals", 0)), m.get("metrics") or {})
        raise ConnectionLostError("the run did not say how it ended")

    def load(self, model: str, fingerprint: str = "", plan: str = "") -> int:
        """Make the weights of a model resident and return their bytes."""
        body: Message = {"model": {"file": model, "fingerprint": fingerprint}, "plan": plan}
        return int(self._one("load", body)["bytes"])

    def free(self, handles: Sequence[Handle] = (), models: Sequence[str] = ()) -> Message:
        """Give up handles and models; with none named, everything that is cached. Return {"freed", "bytes"}."""
        body: Message = {}
        if handles:
            body["handles"] = [h.id for h in handles]
        if models:
            body["models"] = list(models)
        return self._one("free", body)


def _entry(e: Message) -> Message:
    """Return an entry whose model_conds are arrays."""
    out = dict(e)
    out["model_conds"] = {k: np.asarray(v) for k, v in e["model_conds"].items()}
    return out
