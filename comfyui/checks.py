"""What stands between a sampling run and the daemon: reasons to keep the loop here, and reasons to refuse.

Nothing that is not known is passed over: it would give another picture without a word.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import comfy.controlnet
import comfy.samplers

from .proxy import KEY, PatchProxy, StyleProxy

RULE = ("__call__", "outer_predict_noise", "predict_noise", "inner_sample", "outer_sample", "sample")
"""Methods that make the rule of a guider. CFGGuider's is in the message, the difference of two predictions times cfg,
or one; so is DualCFGGuider's.
"""

LOOP_WRAPPERS = ("outer_sample", "prepare_sampling", "sampler_sample", "predict_noise", "calc_cond_batch")
"""Wrappers that act around an evaluation, which they may well do when only that goes to the daemon."""

OWN_OPTIONS = frozenset(
    (
        "transformer_options",
        "to_load_options",
        "disable_cfg1_optimization",
        "multigpu_clones",
        "multigpu_options",
        "multigpu_thread_pool",
    )
)
"""Options that are sent or say nothing. ComfyUI's CFG split (multigpu) has nothing to split where one request makes the
whole run.
"""

TOLD = frozenset(("sample_sigmas", "sigmas", "cond_or_uncond", "uuids", "wrappers", "callbacks", "easycache"))
"""Transformer options that inform wrappers and the network's code of the step. They change nothing by themselves."""

HARMLESS = frozenset(
    ("torch.compile", "optimized_attention_override", "torch_compile_kwargs", "prefetch_dynamic_vbars")
)
"""Transformer options, and a wrapper, that say how, not what, to compute."""

OBJECTS = frozenset(("model_sampling", "manual_cast_dtype"))
"""Object patches that are carried by the message, or of no effect on a network that is elsewhere."""

CACHES = {"EasyCacheHolder": ("easy", "easycache"), "LazyCacheHolder": ("lazy", "lazycache")}
"""The caches that ComfyUI's own nodes set: their rule in the message, and what their wrappers go by."""

PATCHES = {"double_block": ("DiffSynthCnetPatch", PatchProxy), "post_input": ("UsoStyleProjectorPatch", StyleProxy)}
"""Where ComfyUI's own nodes put the model patches that are sent, and what those are."""

BEHIND = "sampler_post_cfg_function"


@dataclass
class Verdict:
    """Why a run cannot be sent whole: what the loop here can still do, and what nobody can."""

    evaluate: list[str] = field(default_factory=list)
    refuse: list[str] = field(default_factory=list)
    cache: dict[str, Any] | None = None
    """What EasyCache or LazyCache has set, as the message has it."""
    norm: float | None = None
    """The strength of CFGNorm."""


def judge(guider: Any, model_options: Mapping[str, Any]) -> Verdict:
    """Look at everything that has a say in a run, but for the sampler and the values of conditionings."""
    out = Verdict()
    if any(
        getattr(type(guider), m, None) is not getattr(comfy.samplers.CFGGuider, m, None)
        for m in RULE
        if m != "predict_noise" or not is_dual(guider)
    ):
        out.evaluate.append(f"guider {type(guider).__name__}")
    out.norm = None if is_dual(guider) else norm_of(model_options.get(BEHIND) or ())
    out.evaluate += [
        f"model option {k}"
        for k, v in model_options.items()
        if v and k not in OWN_OPTIONS and (k != BEHIND or out.norm is None)
    ]
    options = model_options.get("transformer_options", {})
    out.cache, known = cache_of(options)
    out.refuse += network_options(options, known)
    for place, by_key in options.get("wrappers", {}).items():
        names = [str(k) for k, v in by_key.items() if v and k not in (KEY, known)]
        if place in LOOP_WRAPPERS:
            out.evaluate += [f"{place} wrapper {n}" for n in names]
    patched(guider.model_patcher, out)
    for name, conds in guider.conds.items():
        for c in conds or ():
            out.refuse += [f"{name} conditioning with {k}" for k in c if k in ("gligen", "hooks") and c[k] is not None]
            out.refuse += [
                f"{name} conditioning with a control net of the kind {k}, which looks into the model"
                for k in foreign_nets(c.get("control"))
            ]
            out.evaluate += [
                f"{name} conditioning with {k}" for k in c if k in ("default", "control") and c[k] is not None
            ]
    if out.evaluate and any(model_options.get(k) for k in ("multigpu_clones",)):
        out.refuse.append("MultiGPU CFG Split together with " + out.evaluate[0])
    return out


def is_dual(guider: Any) -> bool:
    """Report whether it is the guider of ComfyUI's DualCFGGuider."""
    return type(guider).__name__ == "Guider_DualCFG" and is_extra(type(guider), "nodes_custom_sampler.py")


def norm_of(functions: Sequence[Any]) -> float | None:
    """Return the strength of ComfyUI's own CFGNorm if it alone acts behind the guidance."""
    own = (
        len(functions) == 1
        and getattr(functions[0], "__name__", "") == "cfg_norm"
        and is_extra(functions[0], "nodes_cfg.py")
    )
    return float(inspect.getclosurevars(functions[0]).nonlocals["strength"]) if own else None


def is_extra(thing: Any, file: str) -> bool:
    """Report whether a class or function is of that file of ComfyUI's comfy_extras, which are loaded by path."""
    home = getattr(sys.modules.get(thing.__module__), "__file__", None) or ""
    return os.path.realpath(home) == os.path.realpath(
        os.path.join(os.path.dirname(comfy.samplers.__file__), "..", "comfy_extras", file)
    )


def foreign_nets(net: Any) -> list[str]:
    """Name the kinds of control nets in a chain that are not ComfyUI's plain one: they may read weights of the model,
    which has none here.
    """
    return (
        []
        if net is None
        else [type(net).__name__] * (type(net) is not comfy.controlnet.ControlNet)
        + foreign_nets(net.previous_controlnet)
    )


def cache_of(options: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return what EasyCache or LazyCache has set, and what its wrappers go by. One that is not alone, or not ComfyUI's
    own, is judged like all wrappers.
    """
    holder = options.get("easycache")
    rule, key = CACHES.get(type(holder).__name__, ("", ""))
    found = [
        (k, len(w))
        for by_key in options.get("wrappers", {}).values()
        for k, w in by_key.items()
        if k in ("easycache", "lazycache") and w
    ]
    if (
        not rule
        or not is_extra(type(holder), "nodes_easycache.py")
        or set(found) != {(key, 1)}
        or holder.subsample_factor != 8
    ):
        return None, ""
    return {
        "rule": rule,
        "threshold": float(holder.reuse_threshold),
        "start": float(holder.start_percent),
        "end": float(holder.end_percent),
    }, key


def model_patches(options: Mapping[str, Any]) -> list[Any]:
    """Return what ComfyUI's nodes for DiffSynth ControlNets and USO have put there, if nothing else patches the network
    and the files are the daemon's.
    """
    found = [(place, p) for place, patches in (options.get("patches") or {}).items() for p in patches]
    for place, p in found:
        kind, proxy = PATCHES.get(place, ("", None))
        if (
            type(p).__name__ != kind
            or not is_extra(type(p), "nodes_model_patch.py")
            or type(p.model_patch.model) is not proxy
        ):
            return []
    return [p for _, p in found]


def network_options(options: Mapping[str, Any], known: str = "") -> list[str]:
    """Name the transformer options that would change what the network computes, but for the wrappers of a cache that is
    known.
    """
    out = []
    for k, v in options.items():
        if k == "patches" and v and not model_patches(options):
            runs = "Qwen Image DiffSynth ControlNet and USO Style Reference with Load Model Patch (Patchbay)"
            out.append(f"transformer option patches ({next(iter(v))}; what runs is {runs})")
        elif (
            k != "patches"
            and k not in TOLD
            and k not in HARMLESS
            and v is not None
            and (v or not isinstance(v, (dict, list, tuple, set)))
        ):
            # a dict as in patches_replace (dit)
            out.append(
                f"transformer option {k} ({next(iter(v))})" if isinstance(v, dict) else f"transformer option {k}"
            )
    for place, by_key in options.get("wrappers", {}).items():
        if place not in LOOP_WRAPPERS:
            out += [
                f"{place} wrapper {k}" for k, v in by_key.items() if v and k not in (KEY, known) and k not in HARMLESS
            ]
    return out + [f"callback {place}" for place, v in options.get("callbacks", {}).items() if any(v.values())]


def patched(patcher: Any, out: Verdict) -> None:
    """Add what was done to the model itself. Its low-rank patches are looked at when they are sent."""
    injected, wrapped = (
        [str(k) for k, v in (getattr(patcher, a, None) or {}).items() if v]
        for a in ("injections", "weight_wrapper_patches")
    )
    out.refuse += [f"injection {n} (LoRA nodes of the bypass kind do that: use Load LoRA)" for n in injected]
    out.refuse += [f"weight wrapper on {n}" for n in wrapped]
    widened = [n for n, v in patcher.object_patches.items() if n in patcher.patches and getattr(v, "is_meta", False)]
    out.refuse += [f"object patch {n}" for n in patcher.object_patches if n not in OBJECTS and n not in widened]
    out.refuse += ["hook patches"] * bool(getattr(patcher, "hook_patches", None)) + ["hooks"] * bool(
        getattr(patcher, "forced_hooks", None)
    )
    for place, by_key in (getattr(patcher, "callbacks", None) or {}).items():
        out.refuse += [f"callback {place}/{k}" for k, v in by_key.items() if v]
