"""A MODEL without weights: ComfyUI's own model object on the meta device, made from the header of a file."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any

import comfy.latent_formats
import comfy.model_detection
import comfy.model_patcher
import comfy.utils
import torch

KEY = "patchbay"
"""Name of this package's attachment and wrappers on a patcher."""

CPU = torch.device("cpu")
MAX_HEADER = 100 << 20
QUANTIZED = (
    ".comfy_quant",
    ".weight_scale",
    ".weight_scale_2",
    ".input_scale",
    ".scale_weight",
    ".scale_input",
    ".pre_quant_scale",
)
"""Keys beside packed weights. ComfyUI would build layers without a weight for them, and drop every LoRA on those."""

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Which file a proxy stands for, and how it is run."""

    file: str
    fingerprint: str
    daemon: str = ""
    plan: str = ""


class ProxyPatcher(comfy.model_patcher.ModelPatcher):
    """A patcher that records patches and never loads a weight. Its constructor is ModelPatcher's, as clones are made by
    it.
    """

    def add_patches(self, patches: dict[Any, Any], *args: Any, **named: Any) -> Any:
        """Record them. What a control LoRA widens is wider on the meta device too: the model's extra_conds go by it."""
        for key, value in patches.items():
            shape = value.weights[5:6] if getattr(value, "name", "") == "lora" else ()
            if shape and shape[0]:
                self.add_object_patch(
                    key, torch.nn.Parameter(torch.empty(shape[0], device="meta"), requires_grad=False)
                )
        return super().add_patches(patches, *args, **named)

    def load(self, device_to: Any = None, *_: Any, force_patch_weights: bool = False, **__: Any) -> None:
        """Note that the patches are in force: the daemon adds them. Only what saves a model forces them into its
        weights.
        """
        if force_patch_weights:
            self.state_dict_for_saving()
        self.model.current_weight_patches_uuid = self.patches_uuid
        self.model.device = device_to

    def unpatch_model(self, device_to: Any = None, unpatch_weights: bool = True) -> None:
        """Put object patches back; there is nothing else."""
        for key in list(self.object_patches_backup):
            comfy.utils.set_attr(self.model, key, self.object_patches_backup.pop(key))
        self.model.current_weight_patches_uuid = None

    def partially_unload(self, *_: Any, **__: Any) -> int:
        """Free nothing."""
        return 0

    def state_dict_for_saving(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Refuse: the weights are on Patchbay's devices."""
        raise RuntimeError(
            "Patchbay: this model has no weights here and cannot be saved; use the node Load Diffusion Model to save "
            "one"
        )

    model_state_dict_for_saving = state_dict_for_saving


def read_header(path: str) -> tuple[dict[str, Any], str]:
    """Return the JSON header of a safetensors file and its SHA-256 in hex."""
    with open(path, "rb") as f:
        first = f.read(8)
        size = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
        raw = f.read(size) if 2 <= size <= MAX_HEADER else b""
    if len(raw) < 2 or len(raw) != size:
        raise ValueError(f"Patchbay: {path} is no safetensors file; it reads .safetensors and .sft here")
    header = json.loads(raw)
    if not isinstance(header, dict):
        raise ValueError(f"Patchbay: the header of {path} is not a map")
    return header, hashlib.sha256(raw).hexdigest()


def shapes_of(header: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of a header on the meta device, without what quantisation put beside the weights."""
    out = {}
    for key, info in header.items():
        if key == "__metadata__" or key == "scaled_fp8" or key.endswith((".scaled_fp8", *QUANTIZED)):
            continue
        dtype = getattr(torch, DTYPES.get(info["dtype"], ""), torch.uint8)
        out[key] = torch.empty(info["shape"], dtype=dtype, device="meta")
    return out


def told(header: dict[str, Any], found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """Return what the metadata of a file of FLUX's family says of heads and axes, and of scale and shift of its
    latents, as that of Patchbay's demo does: the shapes of tensors do not tell, and ComfyUI takes FLUX.1's.
    """
    try:
        config = json.loads((header.get("__metadata__") or {}).get("config") or "{}")
        heads, axes = int(config["num_heads"]), [int(n) for n in config["axes_dim"]]
        scales = [k for k in ("scale_factor", "shift_factor") if f"latent_{k}" in config]
        latent = {k: float(config[f"latent_{k}"]) for k in scales}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}, {}
    if heads < 1 or sum(axes) * heads != found.get("hidden_size") or len(axes) != len(found.get("axes_dim", ())):
        return {}, {}
    return {"num_heads": heads, "axes_dim": axes}, latent


def build(path: str, name: str, disable_dynamic: bool = False) -> ProxyPatcher:
    """Make the MODEL of a file; name is what the daemon calls it. Only the header is read. Which families can run, the
    daemon knows.

    disable_dynamic is what ComfyUI's multi-GPU nodes say when they make a second one; a proxy is never dynamic.
    """
    header, fingerprint = read_header(path)
    shapes = shapes_of(header)
    prefix = comfy.model_detection.unet_prefix_from_state_dict(shapes)
    inside = comfy.utils.state_dict_prefix_replace(shapes, {prefix: ""}, filter_keys=True)
    shapes = inside or shapes
    config = comfy.model_detection.model_config_from_unet(shapes, "")
    if config is None:
        shapes = comfy.model_detection.convert_diffusers_mmdit(shapes, "") or {}
        config = comfy.model_detection.model_config_from_unet(shapes, "") if shapes else None
    if config is None:
        raise RuntimeError(f"Patchbay: {name} is no diffusion model that this ComfyUI knows")
    said, latent = told(header, config.unet_config)
    config.unet_config.update(said)
    config.set_inference_dtype(torch.float32, None)
    model = config.get_model(shapes, "", device=torch.device("meta"))
    vars(model.latent_format).update(latent)
    # On the CPU the planner evicts nothing for it, and noise, latents and conditionings come where they are sent from.
    patcher = ProxyPatcher(model, load_device=CPU, offload_device=CPU, size=1)
    patcher.set_attachments(KEY, Source(name, fingerprint))
    if hasattr(patcher, "cached_patcher_init"):
        patcher.cached_patcher_init = (build, (path, name))
    return patcher


ASTRAY = "Patchbay: a model patch of its loader is for a MODEL of its loader; use Load Model Patch with ComfyUI's own"


class PatchProxy(torch.nn.Module):
    """As much of a DiffSynth ControlNet as ComfyUI's node asks for before a run: its hint stays a latent, in model
    space.
    """

    def __init__(self, masks: int) -> None:
        super().__init__()
        self.additional_in_dim = masks

    def process_input_latent_image(self, hint: torch.Tensor) -> torch.Tensor:
        """Return it with the latent, but not the mask, in model space."""
        return torch.cat([comfy.latent_formats.Wan21().process_in(hint[:, :16]), hint[:, 16:]], 1)

    def control_block(self, img: torch.Tensor, hint: torch.Tensor, block: int) -> torch.Tensor:
        """Return zeros for block -1, which is asked so that the hint gets a latent's size; of others nothing is known
        here.
        """
        if block >= 0:
            raise RuntimeError(ASTRAY)
        return torch.zeros_like(img)


class StyleProxy(torch.nn.Module):
    """A projector of USO, which ComfyUI's node asks for nothing before a run."""

    def forward(self, *_: Any) -> Any:
        """Refuse what the network of a MODEL of ComfyUI's own would ask for."""
        raise RuntimeError(ASTRAY)


def build_patch(path: str, name: str) -> Any:
    """Make the MODEL_PATCH of a file, of which only the header is read."""
    header, fingerprint = read_header(path)
    model: torch.nn.Module
    if "controlnet_blocks.0.y_rms.weight" in header:
        model = PatchProxy(header["img_in.weight"]["shape"][1] - 64)
    elif "feature_embedder.mid_layer_norm.bias" in header:
        model = StyleProxy()
    else:
        raise RuntimeError(
            f"Patchbay: {name} is no DiffSynth ControlNet of Qwen-Image and no USO; use ComfyUI's own loaders for the "
            f"model and this patch"
        )
    patcher = comfy.model_patcher.ModelPatcher(model, load_device=CPU, offload_device=CPU, size=1)
    patcher.set_attachments(KEY, Source(name, fingerprint))
    return patcher


def source_of(patcher: Any) -> Source:
    """Return what a proxy stands for."""
    found = patcher.get_attachment(KEY)
    if not isinstance(found, Source):
        raise RuntimeError("Patchbay: this MODEL does not come from a Patchbay loader")
    return found
