"""The verbs of a daemon or worker as methods."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from .errors import BusyError, CancelledError, ConnectionLostError, error_of
from .frames import FrameTransport, SocketTransport, Transport, WorkerTransport
from .nats_transport import NATSTransport
from .results import ExecResult, File, RunResult
from .sampling import Change, LoRA, Progress, SampleResult, Sampling, Stop, entry, tensor
from .shm import Region
from .wire import Handle

Array = npt.NDArray[Any]
Message = dict[str, Any]
SILENCE = 30.0
"""Seconds after which a stream of replies counts as lost where no timeout is given."""
SLOW = {"submit": 120.0, "exec": 3600.0, "load": 3600.0, "free": 120.0}
"""The same of verbs with one reply, which move files and weights or compute before they answer."""

log = logging.getLogger("patchbay")

TERMINAL = ("execution_success", "execution_error", "execution_interrupted", "expired")


def default_socket() -> str:
    """Return where the daemon listens: $PATCHBAY_SOCKET, patchbay.sock in $XDG_RUNTIME_DIR or in the daemon's home."""
    path = os.environ.get("PATCHBAY_SOCKET")
    if path:
        return path
    folder = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("PATCHBAY_HOME")
    return os.path.join(folder or os.path.expanduser("~/.local/share/patchbay"), "patchbay.sock")


class Client:
    """A connection to a daemon or a worker. Closing it cancels the runs and samples that are tied to it.

    Its methods may be called from several threads. When the connection is lost, what waits for replies gets
    ConnectionLostError, and the next call connects anew (spawns a new worker). ``run`` and ``follow`` do that
    themselves: the job goes on under its id. Nothing else is repeated by itself, as nobody knows how far it came.
    """

    def __init__(
        self, transport: Transport, timeout: float | None = None, dial: Callable[[], Transport] | None = None
    ) -> None:
        """Take a transport, and what makes another one when it is lost; timeout bounds the wait for every single reply,
        in seconds.

        Without a timeout a run, a sample or a job that is followed may be silent for 30 s, since a daemon says
        something every 2 s; so long may a question about jobs, models and classes take too, submit and free two
        minutes, exec and load an hour.
        """
        if isinstance(transport, str):
            raise TypeError("use Client.nats(url), Client.socket(path) or Client.spawn([command, ...])")
        self.timeout = timeout
        self._transport = transport
        self._dial = dial
        self._dialing = threading.Lock()
        self._closed = False
        self._sent = 0  # on connections that were lost

    @classmethod
    def socket(cls, path: str | None = None) -> Client:
        """Connect to the unix socket of a daemon."""
        return cls._of(lambda: SocketTransport(path or default_socket()))

    @classmethod
    def spawn(cls, command: Sequence[str] = ("patchbay", "worker"), stderr: int | BinaryIO | None = None) -> Client:
        """Start a worker and talk to it over its stdin and stdout; it ends with the client. It keeps no jobs: submit,
        status, follow, jobs, retry, models and stats are for a daemon.
        """
        return cls._of(lambda: WorkerTransport(command, stderr))

    @classmethod
    def nats(cls, url: str | None = None, **options: Any) -> Client:  # noqa: ANN401
        """Connect to a NATS server; options are those of nats.connect. Replies come on the inbox that docs/security.md
        gives the user.
        """
        return cls._of(
            lambda: NATSTransport(url or os.environ.get("PATCHBAY_NATS_URL") or "nats://127.0.0.1:4222", **options)
        )

    @classmethod
    def _of(cls, dial: Callable[[], Transport]) -> Client:
        return cls(dial(), dial=dial)

    @property
    def transport(self) -> Transport:
        """Return the connection, a new one if the last was lost."""
        with self._dialing:
            if self._closed:
                raise ConnectionLostError("the client is closed")
            if self._transport.lost and self._dial:
                self._transport.close()
                fresh = self._dial()
                if isinstance(fresh, FrameTransport) and isinstance(self._transport, FrameTransport):
                    fresh.inherit(self._transport)
                self._sent += self._transport.sent
                self._transport = fresh
            return self._transport

    @property
    def bytes_sent(self) -> int:
        """Return how many bytes of requests this client has sent, with what went beside them."""
        return self._sent + self._transport.sent

    def __enter__(self) -> Client:
        """Return self."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection. Whoever waits for a reply gets ConnectionLostError."""
        self._closed = True
        with self._dialing:
            self._transport.close()

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> Array:
        """Return an array in shared memory where the connection has that (the unix socket, a spawned worker): it is
        sent without a copy.

        It must not be written to while a request with it is answered.
        """
        kind = np.dtype(dtype)
        size = int(np.prod(shape)) * kind.itemsize
        transport = self.transport
        if isinstance(transport, FrameTransport) and size > 0:
            region = Region(size)
            if transport.share(region):
                return region.bytes[:size].view(kind).reshape(shape)
        return np.zeros(shape, kind)

    def _ask(self, verb: str, body: Message, job: str = "") -> Iterator[Message]:
        return self._checked(self.transport.ask(verb, body, job, self.timeout or SLOW.get(verb, SILENCE)), {})

    def _stream(
        self, verb: str, body: Message, name: str, job: Message, tick: Callable[[], None] | None
    ) -> Iterator[Message]:
        return self._checked(self.transport.ask(verb, body, name, self.timeout or SILENCE, tick), job)

    def _checked(self, replies: Iterator[Message], job: Message) -> Iterator[Message]:
        for reply in replies:
            if "type" not in reply and "error" in reply:
                job["ended"] = True
                raise error_of(reply)
            yield reply

    @contextmanager
    def _until_end(self, job: Message) -> Iterator[Callable[[], None] | None]:
        """Cancel the job if the block is left before it has ended, and give what looks whether it is to be cancelled;
        None if nothing says so.
        """
        asked: list[float] = []

        def look() -> None:
            stop, name = job.get("stop"), str(job.get("id", ""))
            if asked and time.monotonic() - asked[0] > job["patience"]:
                raise CancelledError(
                    {
                        "code": "cancelled",
                        "status": 499,
                        "message": f"run {name} was cancelled and has not ended within {job['patience']} s",
                    }
                )
            if stop and name and not asked and stop():
                asked.append(time.monotonic())
                self._transport.tell("cancel", name)

        try:
            yield look if job.get("stop") else None
        except BaseException:
            if job.get("id") and not job.get("ended") and not asked and not self._closed:
                self._transport.tell("cancel", job["id"])
            raise

    def _one(self, verb: str, body: Message | None = None, job: str = "") -> Message:
        for reply in self._ask(verb, body or {}, job):
            return reply
        raise ConnectionLostError("the request was answered with nothing")

    def run(
        self,
        /,
        workflow: Mapping[str, Any],
        on_event: Callable[[Message], None] | None = None,
        on_preview: Callable[[str, bytes], None] | None = None,
        stop: Stop | None = None,
        patience: float = 5.0,
        reconnect: float = 60.0,
        **fields: Any,  # noqa: ANN401
    ) -> RunResult:
        """Run a workflow in API format and return its files. fields are those of docs/protocol.md: id, inputs, plan ...

        With reuse=True the files may be those of the last job with the same content; ``reused`` of the result names it.

        When the daemon goes away it is waited for, reconnect seconds at most, and the job is followed under its id;
        then ConnectionLostError. A job that failed raises PatchbayError, one that was cancelled CancelledError. stop is
        asked about every 50 ms; when it is true the job is cancelled, and given up if it has not ended after patience
        seconds. What a callback raises cancels the job too.
        """
        body = {"workflow": _graph(workflow), "preview": on_preview is not None, **fields}
        body.setdefault("id", uuid.uuid4().hex)
        job: Message = {"stop": stop, "patience": patience}
        seen = _Seen(on_event)

        def ask(look: Callable[[], None] | None) -> RunResult:
            if "accepted" not in job:
                return self._collect(self._stream("run", body, "", job, look), job, seen, on_preview)
            self._revive(body["id"])
            again = {"job": body["id"], "follow": True, "outputs": True, "preview": on_preview is not None}
            return self._collect(self._stream("status", again, body["id"], job, look), job, seen, on_preview)

        with self._until_end(job) as look:
            return self._lasting(body["id"], lambda: ask(look), seen, reconnect, look)

    def _revive(self, job: str) -> None:
        """Begin a job anew that was cancelled with its connection: on a socket runs are tied to theirs."""
        record: Message = next(self._checked(self.transport.ask("status", {}, job, self.timeout or SILENCE), {}), {})
        if record.get("tied") and record.get("state") == "cancelled":
            self.retry(job)

    def _lasting(
        self,
        job: str,
        ask: Callable[[], RunResult],
        seen: _Seen,
        reconnect: float,
        look: Callable[[], None] | None = None,
    ) -> RunResult:
        """Ask again while the other side is away. A worker of one's own that has ended knows nothing of its jobs, and a
        timeout of the caller's counts.
        """
        away, heard = 0.0, (0, 0)
        while True:
            try:
                return ask()
            except (ConnectionLostError, TimeoutError, BusyError) as err:
                draining = isinstance(err, BusyError) and err.code == "draining"
                mine = (
                    isinstance(self._transport, WorkerTransport)
                    or isinstance(err, TimeoutError)
                    and self.timeout is not None
                )
                now = time.monotonic()
                if not away or seen.last != heard:
                    away, heard = now, seen.last
                if self._closed or mine or isinstance(err, BusyError) and not draining or now - away >= reconnect:
                    raise
                if now == away:
                    log.warning("%s; waiting up to %s s for a daemon that knows job %s", err, reconnect, job)
            if isinstance(self._transport, NATSTransport):
                self._transport.give_up()
            for _ in range(10):
                if look:
                    look()
                time.sleep(0.05)

    def follow(
        self,
        job: str,
        on_event: Callable[[Message], None] | None = None,
        outputs: bool = True,
        on_preview: Callable[[str, bytes], None] | None = None,
        reconnect: float = 60.0,
    ) -> RunResult:
        """Follow a job until it ends, from its first event on, over the loss of a connection too. Leaving it does not
        cancel the job.
        """
        body = {"job": job, "follow": True, "outputs": outputs, "preview": on_preview is not None}
        seen = _Seen(on_event)
        return self._lasting(
            job,
            lambda: self._collect(self._stream("status", body, job, {}, None), {}, seen, on_preview, outputs),
            seen,
            reconnect,
        )

    def _collect(
        self,
        replies: Iterator[Message],
        job: Message,
        on_event: Callable[[Message], None] | None,
        on_preview: Callable[[str, bytes], None] | None,
        outputs: bool = True,
    ) -> RunResult:
        out = RunResult("", {})
        for m in replies:
            kind = m.get("type")
            if kind in ("accepted", "record"):
                out.job, job["accepted"] = m["job"], True
                if not m.get("duplicate"):  # what somebody else has started is theirs
                    job["id"] = out.job
            elif kind == "output":
                if m.get("error"):
                    raise error_of(m)
                out.files.append(File(m["ref"], m.get("data", b"")))
            elif kind == "preview":
                if on_preview:
                    on_preview(m.get("node", ""), bytes(m["data"]))
            elif kind != "heartbeat":
                job["ended"] = kind in TERMINAL
                if on_event:
                    on_event(m)
                if kind in TERMINAL:
                    out.event = m
        if not out.event:
            raise ConnectionLostError(f"job {out.job} did not say how it ended")
        named = out.event.get("data", {}).get("outputs") or []
        # a network of NATS servers may lose one without a word
        if outputs and named and [f["bytes"] for f in named] != [len(f.data) for f in out.files]:
            raise ConnectionLostError(f"a reply with the files of job {out.job} did not arrive")
        if out.event["type"] != "execution_success":
            failure = error_of(out.event)
            failure.files = out.files
            raise failure
        return out

    def submit(self, /, workflow: Mapping[str, Any], **fields: Any) -> Message:  # noqa: ANN401
        """Queue a workflow and return the receipt. The same id and workflow again give the same job."""
        return self._one("submit", {"workflow": _graph(workflow), **fields})

    def status(self, job: str) -> Message:
        """Return the record of a job."""
        return self._one("status", {}, job)

    def cancel(self, job: str) -> bool:
        """Cancel a job or a sample; False if it had ended."""
        return bool(self._one("cancel", {}, job)["cancelled"])

    def retry(self, job: str) -> str:
        """Run a job once more that failed, was cancelled or has expired, and return its state."""
        return str(self._one("retry", {}, job)["state"])

    def jobs(self, state: str = "", limit: int = 100) -> list[Message]:
        """Return the records of jobs, newest first."""
        return list(self._one("jobs", {"state": state, "limit": limit} if state else {"limit": limit})["jobs"])

    def stats(self) -> Message:
        """Return what the daemon counts (docs/protocol.md)."""
        return self._one("stats")

    def describe(self, name: str | None = None) -> Message:
        """Return ComfyUI's object_info of one class, or of all."""
        return dict(self._one("describe", {"class": name} if name else {})["object_info"])

    def version(self, timeout: float | None = None) -> int:
        """Return the version of the protocol that the other side speaks, within so many seconds."""
        for reply in self._checked(
            self.transport.ask("describe", {"limits": True}, "", timeout or self.timeout or SILENCE), {}
        ):
            return int(reply.get("v", 0))
        raise ConnectionLostError("the request was answered with nothing")

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
        """Run one node. Inputs are numbers, texts, arrays, handles, and lists and maps of them; want names output
        slots; lease is in seconds.
        """
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
        positive: Sequence[Mapping[str, Any]],
        negative: Sequence[Mapping[str, Any]] | None = None,
        *,
        patches: Sequence[LoRA | Change] = (),
        nets: Sequence[Mapping[str, Any]] = (),
        noise: Array | None = None,
        noise_draws: Sequence[int] | None = None,
        mask: Array | None = None,
        seed: int = 0,
        cfg: float = 1.0,
        cfg1_shortcut: bool = True,
        options: Mapping[str, Any] | None = None,
        mask_noise_from_seed: bool = False,
        fingerprint: str = "",
        sampling: Sampling | Message | None = None,
        dual: Mapping[str, Any] | None = None,
        cache: Message | None = None,
        cfg_norm: float | None = None,
        preview: str = "none",
        on_preview: Callable[[str, bytes], None] | None = None,
        want_x0: bool = False,
        plan: str = "",
        id: str = "",  # noqa: A002 - the name of the field
        on_progress: Callable[[Progress], None] | None = None,
        stop: Stop | None = None,
        patience: float = 1.0,
    ) -> SampleResult:
        """Run one sampler on arrays; positive and negative are entries {"model_conds": {"c_crossattn": array, ...},
        ...} as in docs/protocol.md.

        stop is asked about every 50 ms; when it is true the run is cancelled, and given up if it has not ended after
        patience seconds: CancelledError in both cases. ``cancel(id)`` from another thread does the same, and so does
        whatever on_progress raises. dual is {"middle": entries, "cfg2": number, "nested": bool} of DualCFGGuider, cache
        {"rule": "easy" or "lazy", "threshold": 0.2, ...}, cfg_norm the strength of CFGNorm, nets model patches {"file":
        name, "hint": array, "strength": number}. on_preview gets ("", JPEG) as that of run does, and makes preview
        "jpeg".
        """
        out: Message = {"file": model, "fingerprint": fingerprint}
        if patches:
            out["patches"] = [p.message() for p in patches]
        if nets:
            out["nets"] = [{**n, "hint": tensor(n["hint"])} for n in nets]
        conds: Message = {"positive": [entry(e) for e in positive]}
        if negative is not None:
            conds["negative"] = [entry(e) for e in negative]
        if dual is not None:
            dual = {**dual, "middle": [entry(e) for e in dual["middle"]]}
        body: Message = {
            "id": id or uuid.uuid4().hex,
            "model": out,
            "sampler": {"name": sampler, "options": dict(options or {}), "mask_noise_from_seed": mask_noise_from_seed},
            "sigmas": np.asarray(sigmas, np.float32),
            "latent": _floats(latent),
            "seed": seed,
            "cfg": float(cfg),
            "cfg1_shortcut": cfg1_shortcut,
            "conds": conds,
            "preview": "jpeg" if on_preview and preview == "none" else preview,
            "want_x0": want_x0,
        }
        draws = None if noise_draws is None else [int(n) for n in noise_draws]
        sampling = sampling.message() if isinstance(sampling, Sampling) else sampling
        optional = {
            "noise": _floats(noise),
            "noise_draws": draws,
            "mask": _floats(mask),
            "sampling": sampling,
            "dual": dual,
            "cache": cache,
        }
        optional |= {"cfg_norm": cfg_norm, "plan": plan or None}
        body |= {k: v for k, v in optional.items() if v is not None}
        job: Message = {"id": body["id"], "stop": stop, "patience": patience}
        with self._until_end(job) as look:
            return self._sampled(self._stream("sample", body, "", job, look), job, on_progress, on_preview)

    def _sampled(
        self,
        replies: Iterator[Message],
        job: Message,
        on_progress: Callable[[Progress], None] | None,
        on_preview: Callable[[str, bytes], None] | None,
    ) -> SampleResult:
        for m in replies:
            kind = m["type"]
            if kind == "progress" and m.get("jpeg") is not None:
                m["jpeg"] = bytes(m["jpeg"])
                if on_preview:
                    on_preview("", m["jpeg"])
            if kind == "progress" and on_progress:
                on_progress(cast(Progress, m))
            elif kind in ("error", "cancelled"):
                job["ended"] = True
                raise error_of(m)
            elif kind == "done":
                job["ended"] = True
                return SampleResult(m["x"], m.get("x0"), int(m.get("evals", 0)), m.get("metrics") or {})
        raise ConnectionLostError("the run did not say how it ended")

    def load(self, model: str, fingerprint: str = "", plan: str = "") -> int:
        """Make the weights of a model resident and return their bytes."""
        body: Message = {"model": {"file": model, "fingerprint": fingerprint}, "plan": plan}
        return int(self._one("load", body)["bytes"])

    def forecast(
        self,
        model: str,
        width: int,
        height: int,
        *,
        nets: Sequence[str] = (),
        fingerprint: str = "",
        plan: str = "",
        **more: int,
    ) -> Message:
        """Predict time and memory of a run without loading anything; more are batch, steps, text and entries. Return
        {"plan", "seconds", "bytes", ...}.

        nets are files of model patches and control nets that run beside the model, on all entries.
        """
        picture = {"width": width, "height": height, **more}
        body: Message = {
            "model": {"file": model, "fingerprint": fingerprint, "nets": [{"file": n} for n in nets]},
            "plan": plan,
            "forecast": picture,
        }
        return cast(Message, self._one("load", body)["forecast"])

    def devices(self) -> list[str]:
        """Return the places for ranks, by what is there."""
        return list(self._one("describe", {"limits": True}).get("devices") or ())

    def every_device(self) -> str:
        """Return the plan of the daemon's choice on all its devices; empty where it has one."""
        n = len(self.devices())
        return f"ranks={n}" if n > 1 else ""

    def free(self, handles: Sequence[Handle] = (), models: Sequence[str] = ()) -> Message:
        """Give up handles and models; with none named, everything that is cached. Return {"freed", "bytes"}."""
        body: Message = {}
        if handles:
            body["handles"] = [h.id for h in handles]
        if models:
            body["models"] = list(models)
        return self._one("free", body)


def _graph(workflow: Mapping[str, Any]) -> Message:
    """Return a copy of a workflow."""
    if not isinstance(workflow, Mapping):
        raise TypeError(f"a workflow is a dict, as json.load(file) returns it, not {type(workflow).__name__}")
    return dict(workflow)


class _Seen:
    """Gives events on, and none twice when a job is followed anew: the numbers begin again behind the last event that
    was written down.
    """

    def __init__(self, on_event: Callable[[Message], None] | None) -> None:
        self._on_event = on_event
        self.last = (0, 0)
        self._end: tuple[int, int] | None = None

    def __call__(self, event: Message) -> None:
        at = (int(event.get("ts", 0)), int(event.get("seq", 0)))
        ended = event["type"] in TERMINAL
        if at[0] > self.last[0] or at[1] > self.last[1] or ended and at != self._end:  # clocks jump
            self.last, self._end = at, at if ended else self._end
            if self._on_event:
                self._on_event(event)


def _floats(a: Array | None) -> Array | None:
    """Return an array as float32, one of float16 as it is."""
    return a if a is None else np.asarray(a, np.float16 if getattr(a, "dtype", None) == np.float16 else np.float32)
