"""One evaluation of the network at the daemon, for loops that stay in ComfyUI: samplers and guiders that the daemon
does not know.

A run of one step from sigma to 0 is an evaluation: its x0 is what the network says. Weights, adapters and conditionings
stay at the daemon between them.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import comfy.model_base as mb
import numpy as np
import torch

from .checks import model_patches, network_options
from .daemon import address_of
from .message import CannotSendError, adapters, array, encoded, latent, plain, sampling_of
from .proxy import StyleProxy, source_of
from .run import sample

ATTRIBUTE = "patchbay_session"
INFORMING = frozenset(("denoise_mask", "latent_shapes"))


class Session:
    """What the requests of one run have in common."""

    def __init__(self, patcher: Any) -> None:
        """Look at a proxy; raise CannotSendError for a patch or a model sampling that the message cannot carry."""
        source = source_of(patcher)
        sampling = patcher.get_model_object("model_sampling")
        own = patcher.object_patches_backup.get("model_sampling", patcher.model.model_sampling)
        self.address = address_of(source.daemon)
        self.model: dict[str, Any] = {
            "model": source.file,
            "fingerprint": source.fingerprint,
            "patches": adapters(patcher.patches),
            "sampling": sampling_of(sampling, own),
            "plan": source.plan,
        }
        self.patches = model_patches(patcher.model_options.get("transformer_options", {}))
        self.flow = "CONST" in self.model["sampling"]["bases"]
        self.calls = 0
        self.metrics: dict[str, Any] = {}

    def nets(self, x: torch.Tensor) -> list[dict[str, Any]]:
        """Return the model patches for a latent.

        A DiffSynth ControlNet is asked for a block that there is not, upon which it brings its hint to the latent's
        size. USO has the states of an encoder.
        """
        out = []
        for patch in self.patches:
            source, style = source_of(patch.model_patch), type(patch.model_patch.model) is StyleProxy
            if not style:
                patch({"x": x, "img": torch.zeros(1, 1), "block_index": -1})
            pictures = patch.encoded_image.shape[1 if style else 0]
            if pictures != 1:
                raise CannotSendError(f"{source.file} following {pictures} pictures")
            strength = 1.0 if style else float(patch.strength)
            out.append(
                {
                    "file": source.file,
                    "fingerprint": source.fingerprint,
                    "hint": plain(patch.encoded_image),
                    "strength": strength,
                }
            )
        return out

    def predict(
        self, x: torch.Tensor, sigma: float, values: dict[str, Any], control: list[dict[str, Any]]
    ) -> torch.Tensor:
        """Return the denoised x [B, C, Y, X] of rows that have one sigma and one conditioning, whose values have batch
        1.
        """
        if sigma <= 0:
            raise RuntimeError(f"Patchbay: an evaluation at sigma {sigma:g}")
        plain = latent(x)
        still = np.zeros_like(plain)
        noise, start = (plain / np.float32(sigma), still) if self.flow else (still, plain)
        body = {
            **self.model,
            "sampler": "euler",
            "sigmas": np.array([sigma, 0], np.float32),
            "noise": noise,
            "latent": start,
            "want_x0": True,
        }
        entry = encoded(values) | {"control": control}
        result = sample(self.address, {"id": uuid.uuid4().hex, **body, "positive": [entry], "nets": self.nets(x)})
        if result.x0 is None:
            raise RuntimeError("Patchbay: the daemon sent no prediction")
        self.calls += 1
        self.metrics = result.metrics
        if not self.model["plan"] or "ranks=" in self.model["plan"]:  # chosen once
            self.model["plan"] = str(result.metrics["plan"]).replace("one rank", "data=1")
        return torch.from_numpy(result.x0.copy()).reshape(x.shape).to(x.device)


def one_evaluation(
    executor: Any,
    x: torch.Tensor,
    t: Any,
    c_concat: Any = None,
    c_crossattn: Any = None,
    control: Any = None,
    transformer_options: Any = None,
    **values: Any,
) -> torch.Tensor:
    """Do what ``model.apply_model`` does: x and sigma in, the denoised x out. The network that is asked is the
    daemon's, never the empty one here.
    """
    bad = network_options(transformer_options or {})
    if bad:
        raise RuntimeError(
            f"Patchbay cannot run this: {'; '.join(bad)}. Take it out of the workflow, or use ComfyUI's own loader"
        )
    try:
        session = getattr(executor.class_obj, ATTRIBUTE, None) or Session(executor.class_obj.current_patcher)
        given = {
            k: v
            for k, v in {"c_crossattn": c_crossattn, "c_concat": c_concat, **values}.items()
            if v is not None and k not in INFORMING
        }
        add = partial(added, control or {}, executor.class_obj)
        return torch.cat(
            [
                session.predict(x[a:b], float(t[a]), {k: row(v, a) for k, v in given.items()}, add(slice(a, b)))
                for a, b in stretches(t, given)
            ]
        )
    except CannotSendError as err:
        raise RuntimeError(
            f"Patchbay cannot run this: {err}. Take it out of the workflow, or use ComfyUI's own loader"
        ) from err


def added(control: dict[str, Any], model: Any, rows: slice) -> list[dict[str, Any]]:
    """Return what control nets give for rows of the batch, each tensor with the blocks that ComfyUI's network of this
    kind adds it behind.
    """
    if control and not isinstance(model, (mb.Flux, mb.SD3, getattr(mb, "QwenImage", mb.SD3))):
        raise CannotSendError(f"ControlNet on {type(model).__name__}")
    size, out = model.model_config.unet_config, dict[int, dict[str, Any]]()
    double, first = (
        size.get("depth", size.get("num_layers")),
        control.get("output" if isinstance(model, mb.SD3) else "input") or (),
    )
    for block, t in [
        *enumerate(first[:double]),
        *enumerate((control.get("output") or ())[: size.get("depth_single_blocks", 0)], double or 0),
    ]:
        if t is not None:
            out.setdefault(id(t), {"blocks": [], "rows": array(t[rows] if t.shape[0] > 1 else t)})["blocks"].append(
                block
            )
    return list(out.values())


def row(v: Any, a: int) -> Any:
    """Return row a of a value, or of those in a list; what is no tensor is that of all rows."""
    return [row(e, a) for e in v] if isinstance(v, list) else v[a : a + 1] if torch.is_tensor(v) else v


def stretches(t: torch.Tensor, values: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the stretches [a, b) of a batch whose rows have one sigma and one conditioning."""
    parts = [(k, e) for k, v in values.items() for e in (v if isinstance(v, list) else [v]) if torch.is_tensor(e)]
    for key, v in parts:
        if v.ndim == 0 or v.shape[0] != t.shape[0]:
            raise CannotSendError(f"conditioning value {key}")
    starts = [0]
    for i in range(1, t.shape[0]):
        a = starts[-1]
        if t[i] != t[a] or any(not torch.equal(v[i], v[a]) for _, v in parts):
            starts.append(i)
    return list(zip(starts, [*starts[1:], t.shape[0]], strict=True))
