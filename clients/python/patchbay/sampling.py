"""The message of ``sample``: adapters and conditioning entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from .wire import BF16

Array = npt.NDArray[Any]
Message = dict[str, Any]
Tensor = Array | BF16
"""What may stand where a tensor is wanted."""


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
        tensors: Message = {"up": tensor(self.up), "down": tensor(self.down)}
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
            "tensors": {"value": tensor(self.value)},
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
    """Return a conditioning entry whose tensors are arrays."""
    out = dict(e)
    out["model_conds"] = {k: tensor(v) for k, v in e["model_conds"].items() if v is not None}
    if out.get("mask") is not None:
        out["mask"] = tensor(out["mask"])
    if out.get("references"):
        out["references"] = [tensor(r) for r in out["references"]]
    return out


def tensor(v: Tensor | Sequence[Any]) -> Tensor:
    """Return a tensor or lists of numbers as a tensor."""
    return v if isinstance(v, BF16) else np.asarray(v)


Stop = Callable[[], bool]
"""Asked about every 50 ms whether a run is to end."""
