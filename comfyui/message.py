"""What ComfyUI hands to a sampler, as the fields of Patchbay's ``sample`` message."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import comfy.k_diffusion.sampling
import comfy.samplers
import numpy as np
import torch

from .client import BF16, Change, LoRA
from .client.sampling import Tensor


class CannotSendError(Exception):
    """Something that the message has no field for; the text names it."""


def array(t: torch.Tensor) -> Tensor:
    """Return a tensor in its own width; fp8 as float16, which holds every value of it, and other numbers as float32 or
    int64.
    """
    t = t.detach().to("cpu")
    if t.dtype == torch.bfloat16:
        return BF16(t.contiguous().view(torch.int16).numpy().view(np.uint16))
    if "float8" in str(t.dtype):
        t = t.to(torch.float16)
    elif t.dtype == torch.float64:
        t = t.to(torch.float32)
    elif not t.is_floating_point() and t.dtype != torch.uint8:
        t = t.to(torch.int64)
    return t.contiguous().numpy()


def floats(t: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as float32."""
    return np.asarray(t.detach().to("cpu", torch.float32).contiguous().numpy())


def latent(t: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a latent [B, C, Y, X], or [B, C, T, Y, X] as models with frames have it, as float32; one of one frame has
    no axis for it.
    """
    if t.ndim == 5 and t.shape[2] == 1:
        t = t.squeeze(2)
    if t.ndim not in (4, 5):
        raise CannotSendError(f"a latent of shape {list(t.shape)}")
    return floats(t)


def sampler_of(sampler: object) -> tuple[str, dict[str, Any], bool]:
    """Return the name that KSampler has for a sampler, its options, and whether it makes mask noise of its own.

    A sampler is known by its function, which must be the one of ComfyUI's module: an extension may bring another of the
    same name.
    """
    if type(sampler) is not comfy.samplers.KSAMPLER:
        raise CannotSendError(f"sampler {type(sampler).__name__}")
    function = sampler.sampler_function
    module, name = getattr(function, "__module__", ""), getattr(function, "__name__", type(function).__name__)
    home = sys.modules.get(module)
    local = {"dpm_fast_function": "dpm_fast", "dpm_adaptive_function": "dpm_adaptive"}
    if (
        module == "comfy.samplers"
        and getattr(function, "__qualname__", "") == f"ksampler.<locals>.{name}"
        and name in local
    ):
        known = local[name]
    elif (
        module in ("comfy.k_diffusion.sampling", "comfy.extra_samplers.uni_pc")
        and getattr(home, name, None) is function
    ):
        known = {"sample_unipc": "uni_pc", "sample_unipc_bh2": "uni_pc_bh2"}.get(name, name.removeprefix("sample_"))
    else:
        raise CannotSendError(f"sampler {module}.{name}")
    options = dict(sampler.extra_options)
    for key, value in options.items():
        if not isinstance(value, (bool, int, float, str)):
            raise CannotSendError(f"option {key} of sampler {known}")
    if options.get("s_churn"):
        raise CannotSendError(f"option s_churn of sampler {known}: its noise goes on where the node's ended")
    inpaint = dict(sampler.inpaint_options)
    own_noise = bool(inpaint.pop("random", False))
    if inpaint:
        raise CannotSendError(f"inpaint option {next(iter(inpaint))} of sampler {known}")
    return known, options, own_noise


def seed_of(seed: int, sampler: str) -> int:
    """Return the seed that makes the daemon draw what this ComfyUI would draw on the CPU.

    The noise of a step has the seed + 1 there, as in ComfyUI since 0.3.66 or so; older ones take the seed. Brownian
    noise has the seed in both.
    """
    if sampler.startswith("dpmpp") and "_sde" in sampler:
        return seed
    like = torch.zeros(1, 1, 4, 4)
    drawn = comfy.k_diffusion.sampling.default_noise_sampler(like, seed=5)(torch.tensor(1.0), torch.tensor(0.5))
    for more in (1, 0):
        if torch.equal(drawn, torch.randn(like.shape, generator=torch.Generator().manual_seed(5 + more))):
            return (seed + more - 1) % 2**64
    raise CannotSendError(f"sampler {sampler}, whose noise this ComfyUI draws in a way of its own")


def sampling_of(sampling: Any, own: Any) -> dict[str, Any]:
    """Return the message's ``sampling``. own is the sampling that the model was built with.

    Flow models are described by their shift; the table of another one must be the model's own, as the message cannot
    carry it.
    """
    kind = type(sampling)
    bases = (
        [c.__name__ for c in kind.__bases__]
        if kind.__name__ in ("ModelSampling", "ModelSamplingAdvanced")
        else [kind.__name__]
    )
    out: dict[str, Any] = {"bases": bases}
    if "CONST" not in bases:
        table = getattr(own, "sigmas", None)
        if table is None or table.shape != sampling.sigmas.shape or not torch.equal(table, sampling.sigmas):
            raise CannotSendError("a model sampling with a table of sigmas of its own")
        return out
    out |= {k: float(getattr(sampling, k)) for k in ("shift", "multiplier") if hasattr(sampling, k)}
    return out


def entry_of(cond: Mapping[str, Any], frames: int) -> dict[str, Any]:
    """Return one conditioning entry for a latent of so many frames: the encoded values, and where and when it counts.
    The raw values beside them are not read by the network.
    """
    out = encoded({k: v.cond for k, v in cond["model_conds"].items() if v is not None and v.cond is not None})
    for key in ("timestep_start", "timestep_end", "strength", "mask_strength"):
        if cond.get(key) is not None:
            out[key] = float(cond[key])
    if cond.get("area") is not None:
        out["area"] = [int(v) for v in cond["area"]]
        if len(out["area"]) != 4:
            raise CannotSendError(f"an area of {len(out['area']) // 2} dimensions")
    if cond.get("mask") is not None:
        mask = cond["mask"]
        if mask.ndim == 4 and mask.shape[1] == 1:  # one for all frames, which the daemon has below each other
            mask = mask[:, 0].repeat(1, frames, 1)
        out["mask"] = floats(mask)
    return out


def encoded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of extra_conds as an entry. Which of them there are, the daemon knows. Z-Image's number of
    tokens says nothing if it is the text's.
    """
    out: dict[str, Any] = {"model_conds": {}}
    for key, value in values.items():
        if key == "ref_latents":
            out["references"] = [plain(v) for v in value]
        elif key == "ref_latents_method":
            out["references_method"] = str(value)
        elif key == "image_slots":
            out["references_slots"] = [int(v) for v in value]
        elif key == "attention_mask" and torch.is_tensor(value) and value.ndim == 3:
            out["biases"] = biases(value, values["c_crossattn"].shape[1])
        elif torch.is_tensor(value):
            # ComfyUI has repeated what is one for all pictures of the batch
            if key == "c_concat" and value.shape[0] > 1:
                if not torch.equal(value, value[:1].expand_as(value)):
                    raise CannotSendError("concatenated latents that differ between the pictures of a batch")
                value = value[:1]
            out["model_conds"][key] = plain(value)
        elif key != "num_tokens" or value != values["c_crossattn"].shape[1]:
            raise CannotSendError(f"conditioning value {key}")
    return out


def biases(mask: torch.Tensor, tokens: int) -> list[dict[str, Any]]:
    """Return what StyleModelApply's attn_bias has put into a mask [1, L, L] of text, which comes first, and picture.

    Tokens of the picture add it to their scores with a range of the text, and so do those of the text in front of the
    range.
    """
    seen = mask[0].detach().to("cpu", torch.float32)
    built, out = torch.zeros_like(seen), list[dict[str, Any]]()
    # of the ranges that columns are in: its own rows have none
    starts = (seen[:tokens, :tokens] == 0).int().argmax(0).tolist()
    for t, (start, value) in enumerate(zip(starts, seen[-1, :tokens].tolist(), strict=True)):
        if value and out and start == out[-1]["start"] and value == out[-1]["value"] and t == out[-1]["end"]:
            out[-1]["end"] = t + 1
        elif value:
            out.append({"start": t, "end": t + 1, "value": value})
    for b in out:
        built[: b["start"], b["start"] : b["end"]] = built[tokens:, b["start"] : b["end"]] = b["value"]
    if mask.shape[0] != 1 or not torch.equal(built, seen):
        raise CannotSendError(
            "an attention mask that is not of StyleModelApply, or of its strength 0, which makes no numbers"
        )
    return out


def plain(t: torch.Tensor) -> Tensor:
    """Return a tensor whose axis of frames, if it has one, has one frame and goes."""
    return array(t.squeeze(2) if t.ndim == 5 else t)


def adapters(patches: Mapping[str, Iterable[tuple[Any, ...]]]) -> list[LoRA | Change]:
    """Return the patches that LoRA nodes have put on a model; what is no low-rank pair, nor a bias or norm beside them,
    is named in an error.
    """
    out: list[LoRA | Change] = []
    for key, entries in patches.items():
        for strength, value, of_weight, offset, function in entries:
            kind = getattr(value, "name", None) or (
                value[0] if isinstance(value, tuple) and value and isinstance(value[0], str) else "difference"
            )
            small = kind in ("diff", "set") and len(value[1]) == 1 and value[1][0].ndim == 1
            if kind != "lora" and not small:
                raise CannotSendError(f"weight patch of kind {kind} on {key}")
            if of_weight != 1.0 or function is not None or (offset is not None and (small or int(offset[0]) != 0)):
                raise CannotSendError(f"LoRA that scales the weight, or adds by a function or to columns of {key}")
            if small:
                out.append(Change(key, array(value[1][0]), float(strength), kind == "set"))
                continue
            up, down, alpha, mid, dora, reshape = (*value.weights, None)[:6]
            reshape = None if reshape == [up.shape[0], down.shape[1]] else reshape  # the daemon sees that from down
            for part, what in ((mid, "a middle matrix"), (dora, "a DoRA scale"), (reshape, "another shape")):
                if part is not None:
                    raise CannotSendError(f"LoRA with {what} on {key}")
            rows = None if offset is None else (int(offset[1]), int(offset[2]))
            out.append(
                LoRA(
                    key,
                    array(down.flatten(1)),
                    array(up.flatten(1)),
                    None if alpha is None else float(alpha),
                    float(strength),
                    rows,
                )
            )
    return out
