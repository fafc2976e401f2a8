"""The wrapper around ComfyUI's sampling loop: a run goes to the daemon whole, or one evaluation at a time, or is
refused.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable
from typing import Any

import comfy.model_management as mm
import torch
from comfy.patcher_extension import WrappersMP

from .checks import is_dual, judge
from .client import Progress, RefusedError
from .daemon import setting
from .evaluate import ATTRIBUTE, Session, one_evaluation
from .message import CannotSendError, entry_of, floats, latent, sampler_of, seed_of
from .proxy import KEY
from .run import sample
from .status import LAST, tell

log = logging.getLogger("patchbay")

QUIET = frozenset(
    ("euler", "ddim", "heun", "heunpp2", "dpm_2", "lms", "dpmpp_2m", "ipndm", "ipndm_v", "deis", "res_multistep")
)
QUIET |= {"gradient_estimation", "uni_pc", "uni_pc_bh2", "exp_heun_2_x0"}
"""Samplers that draw no noise of their own."""


def install(patcher: Any) -> Any:
    """Put the wrappers on a proxy and return it."""
    patcher.add_wrapper_with_key(WrappersMP.SAMPLER_SAMPLE, KEY, whole_loop)
    patcher.add_wrapper_with_key(WrappersMP.APPLY_MODEL, KEY, one_evaluation)
    return patcher


def whole_loop(
    executor: Any,
    guider: Any,
    sigmas: torch.Tensor,
    extra_args: dict[str, Any],
    callback: Callable[..., None] | None,
    noise: torch.Tensor,
    latent_image: torch.Tensor | None = None,
    denoise_mask: torch.Tensor | None = None,
    disable_pbar: bool = False,
    *more: Any,
    **named: Any,
) -> torch.Tensor:
    """Do what ``sampler.sample`` does: noise in, the denoised latent in model space out."""
    if more or named:
        what = ", ".join(named) or "one more argument"
        raise RuntimeError(
            f"Patchbay: this ComfyUI hands samplers something unknown ({what}): a newer release of the node is needed"
        )
    verdict = judge(guider, extra_args["model_options"])
    verdict.evaluate += [
        f"sampler argument {k}" for k in extra_args if k not in ("model_options", "seed", "denoise_mask")
    ]
    try:
        session = Session(guider.model_patcher)
    except CannotSendError as err:
        verdict.refuse.append(str(err))
    if verdict.refuse:
        raise RuntimeError(
            f"Patchbay cannot run this: {'; '.join(verdict.refuse)}. Take it out of the workflow, or use ComfyUI's own "
            f"loader"
        )
    if not verdict.evaluate:
        try:
            body = whole(executor.class_obj, guider, sigmas, extra_args, noise, latent_image, denoise_mask) | {
                "cache": verdict.cache,
                "cfg_norm": verdict.norm,
            }
            return send_whole(session, body, len(sigmas) - 1, callback, noise)
        except CannotSendError as err:
            verdict.evaluate.append(str(err))
    why = "; ".join(verdict.evaluate)
    if verdict.cache and verdict.cache["rule"] == "easy":
        raise RuntimeError(
            f"Patchbay cannot run this: EasyCache together with {why}. Take one of them out of the workflow, or use "
            f"LazyCache"
        )
    log.info("Patchbay: the sampling loop stays in ComfyUI and sends every evaluation, because of %s", why)
    tell(f"Patchbay: one evaluation at a time ({why})")
    make_room()
    setattr(guider.model_patcher.model, ATTRIBUTE, session)
    try:
        out = executor(guider, sigmas, extra_args, callback, noise, latent_image, denoise_mask, disable_pbar)
    finally:
        delattr(guider.model_patcher.model, ATTRIBUTE)
    LAST.note(f"{session.calls} evaluations, one at a time", session.metrics)
    return out


def make_room() -> None:
    """Give up what ComfyUI's own models take of its device, if the settings say that the daemon shares it. Proxies are
    on no device.
    """
    device = mm.get_torch_device()
    if (os.environ.get("PATCHBAY_UNLOAD") or setting("Unload")).lower() in ("1", "true") and not mm.is_device_cpu(
        device
    ):
        mm.free_memory(1e30, device)
        mm.soft_empty_cache()


def whole(
    sampler: Any,
    guider: Any,
    sigmas: torch.Tensor,
    extra_args: dict[str, Any],
    noise: torch.Tensor,
    start: torch.Tensor | None,
    mask: torch.Tensor | None,
) -> dict[str, Any]:
    """Return the arguments of Client.sample that a run has beside those of its model, or raise CannotSendError."""
    name, options, own_noise = sampler_of(sampler)
    scale = float(getattr(guider.model_patcher.get_model_object("model_sampling"), "noise_scale", 1.0))
    if scale != 1.0 and (own_noise or name not in QUIET):
        raise CannotSendError(f"noise_scale {scale:g} with the sampler {name}, which draws noise")
    if extra_args.get("seed") is None:
        raise CannotSendError("a run without a seed")
    frames = noise.shape[2] if noise.ndim == 5 else 1
    conds = {k: [entry_of(c, frames) for c in v] for k, v in guider.conds.items() if v is not None}
    middle = conds.pop("middle", []) if is_dual(guider) else None
    if set(conds) - {"negative"} != {"positive"}:
        raise CannotSendError(f"conditionings {', '.join(sorted(conds))}")
    return {
        "sampler": name,
        "options": options,
        "mask_noise_from_seed": own_noise,
        "sigmas": floats(sigmas),
        "noise": latent(noise) if scale == 1.0 else latent(noise * scale),  # also what a mask is blended with
        "latent": latent(torch.zeros_like(noise) if start is None else start),
        "mask": None if mask is None else latent(mask),
        "seed": int(extra_args["seed"]) if name in QUIET else seed_of(int(extra_args["seed"]), name),
        "cfg": float(guider.cfg if middle is None else guider.cfg1) if "negative" in conds else 1.0,
        "dual": None if middle is None else {"middle": middle, "cfg2": float(guider.cfg2), "nested": guider.nested},
        "cfg1_shortcut": not extra_args["model_options"].get("disable_cfg1_optimization", False),
        "positive": conds["positive"],
        "negative": conds.get("negative"),
        "preview": "latent",
    }


def send_whole(
    session: Session, body: dict[str, Any], steps: int, callback: Callable[..., None] | None, noise: torch.Tensor
) -> torch.Tensor:
    """Run it at the daemon and return the latent, like the noise. Steps go to ComfyUI's callback, which shows them and
    raises when the run is stopped.
    """

    def shaped(x: Any) -> torch.Tensor:
        return torch.from_numpy(x.copy()).reshape(-1, *noise.shape[1:]).to(noise.device)

    def step(p: Progress) -> None:
        if callback is not None and "x0" in p:
            callback(p["i"] - 1, shaped(p["x0"]), None, steps)

    body["nets"] = session.nets(noise)
    make_room()
    try:
        result = sample(session.address, {"id": uuid.uuid4().hex, **session.model, **body}, step)
    except RuntimeError as err:
        cause = err.__cause__
        if isinstance(cause, RefusedError) and cause.input.startswith("sampler"):  # nothing has begun
            raise CannotSendError(str(cause)) from err
        raise
    LAST.note(body["sampler"], result.metrics)
    return shaped(result.x)
