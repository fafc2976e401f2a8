"""The message of ``sample``: adapters, conditioning entries, and tensors that are sent once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from .wire import BF16, Named

Array = npt.NDArray[Any]
Message = dict[str, Any]
Tensor = Array | BF16 | Named
"""What may stand where a tensor is wanted. ``Named`` is hashed once, arrays at every call."""

ONCE = 16 << 10
"""Bytes from which tensors of conditionings and adapters are sent by their hash."""

MOST = 1 << 16
"""Hashes that are remembered as known to the worker."""


@dataclass(frozen=True, eq=False)
class LoRA:
    """A low-rank adapter of one weight: ``strength * alpha / R * up @ down`` is added to it, for this run only.

    ``key`` is ComfyUI's name of the weight, as in ``diffusion_model.double_blocks.0.img_attn.qkv.weight``; ``down`` is
    [R, K], ``up`` [N, R]; ``alpha`` is R where it is None; ``rows`` = (first, count) adds to these rows of the weight
    only, as for one of the matrices that a fused one was made of.
    """

    key: str
    down: Tensor
    up: Tensor
    alpha: float | None = None
    strength: float = 1.0
    rows: tuple[int, int] | None = None

    def message(self) -> Message:
        """Return the adapter as the protocol has it."""
        tensors: Message = {"up": self.up, "down": self.down}
        if self.alpha is not None:
            tensors["alpha"] = float(self.alpha)
        out: Message = {"key": self.key, "adapter": "lora", "strength": float(self.strength), "tensors": tensors}
        if self.rows is not None:
            out["offset"] = [0, int(self.rows[0]), int(self.rows[1])]
        return out


@dataclass(frozen=True, eq=False)
class Change:
    """What an adapter does to a small tensor, for this run only: ``strength * value`` is added to a bias, or a norm
    becomes ``value`` (``sets``).
    """

    key: str
    value: Tensor
    strength: float = 1.0
    sets: bool = False

    def message(self) -> Message:
        """Return the change as the protocol has it."""
        return {
            "key": self.key,
            "adapter": "set" if self.sets else "diff",
            "strength": float(self.strength),
            "tensors": {"value": self.value},
        }


class Progress(TypedDict, total=False):
    """What ``on_progress`` gets after every step."""

    i: int
    """The step, 1 to n."""
    n: int
    sigma: float
    x0: Array
    """With preview "latent": the estimate of the first item, [1, C, Y, X]; with the last step the whole batch."""
    jpeg: bytes
    """With preview "jpeg": a picture, at most 5 times a second."""


@dataclass(repr=False)
class SampleResult:
    """The end of a sampling run. ``x`` is [B, C, Y, X] float32 in model space."""

    x: Array
    x0: Array | None
    evals: int
    metrics: Message

    def __repr__(self) -> str:
        """Return shapes and the number of evaluations."""
        return f"<SampleResult {list(self.x.shape)} after {self.evals} evaluations>"


@dataclass(frozen=True)
class Sampling:
    """The model sampling of the host: ComfyUI's class names, and what they were given."""

    bases: Sequence[str]
    shift: float | None = None
    multiplier: float | None = None

    def message(self) -> Message:
        """Return it as the protocol has it."""
        out: Message = {"bases": list(self.bases)}
        out |= {k: float(v) for k, v in (("shift", self.shift), ("multiplier", self.multiplier)) if v is not None}
        return out


def entry(e: Mapping[str, Any]) -> Message:
    """Return a conditioning entry whose tensors are arrays, those that are large by their hash."""
    out = dict(e)
    out["model_conds"] = {k: once(v) for k, v in e["model_conds"].items() if v is not None}
    if out.get("mask") is not None:
        out["mask"] = once(out["mask"])
    if out.get("references"):
        out["references"] = [once(r) for r in out["references"]]
    return out


def adapter(p: LoRA | Change) -> Message:
    """Return an adapter with its large tensors by their hash."""
    return (replace(p, up=once(p.up), down=once(p.down)) if isinstance(p, LoRA) else p).message()


def once(v: Tensor | Sequence[Any]) -> Tensor:
    """Return a tensor that is sent by its hash if it is large."""
    if isinstance(v, Named):
        return v
    t = v if isinstance(v, BF16) else np.asarray(v)
    return Named.of(t) if t.nbytes >= ONCE else t


def named(v: Any) -> Iterable[Named]:  # noqa: ANN401
    """Yield the tensors in a message that have a hash."""
    if isinstance(v, Named):
        yield v
    elif isinstance(v, dict):
        for e in v.values():
            yield from named(e)
    elif isinstance(v, list):
        for e in v:
            yield from named(e)


class Known:
    """The hashes of the tensors that the worker has been sent. It may drop some and says so (missing_tensors)."""

    def __init__(self) -> None:
        """Make an empty set."""
        self._lock = threading.Lock()
        self._hashes: dict[str, None] = {}

    def light(self, v: Any) -> Any:  # noqa: ANN401
        """Return a message without the data of what is known."""
        if isinstance(v, Named):
            return replace(v, whole=False) if v.hash in self._hashes else v
        if isinstance(v, dict):
            return {k: self.light(e) for k, e in v.items()}
        return [self.light(e) for e in v] if isinstance(v, list) else v

    def add(self, hashes: Iterable[str]) -> None:
        """Note what was sent with its data and taken."""
        with self._lock:
            self._hashes |= dict.fromkeys(hashes)
            while len(self._hashes) > MOST:
                del self._hashes[next(iter(self._hashes))]

    def remove(self, hashes: Iterable[str]) -> None:
        """Note what is not there any more."""
        with self._lock:
            for h in hashes:
                self._hashes.pop(h, None)

    def clear(self) -> None:
        """Forget everything: there is another worker."""
        with self._lock:
            self._hashes = {}


Stop = Callable[[], bool]
"""Asked about every 50 ms whether a run is to end."""
