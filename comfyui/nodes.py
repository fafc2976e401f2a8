"""The nodes. They are of the first form, which every version of ComfyUI loads (docs/adr)."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any, ClassVar

import comfy.model_management as mm
import comfy.sd
import comfy.utils
import folder_paths
import numpy as np
import torch
from comfy.comfy_types import IO
from PIL import Image

import nodes as stock

from .client import CancelledError, RefusedError
from .client.client import Client
from .daemon import CONNECTIONS, address_of, explain
from .message import array
from .offload import install
from .proxy import KEY, build, build_patch, source_of
from .status import LAST, tell

WHERE = "Leave it empty: Settings > Patchbay or PATCHBAY_DAEMON names the daemon; no other address is accepted"
DAEMON = ("STRING", {"default": "", "tooltip": WHERE})
PLAN = (
    "PATCHBAY_PLAN",
    {
        "tooltip": "How to split the work; without it what is predicted to be fastest on all devices, with one "
        "device's picture"
    },
)


def loaded(folder: str, name: str, daemon: str, plan: str) -> Any:
    """Return the proxy MODEL of a file in one of ComfyUI's folders."""
    address_of(daemon)
    patcher = install(build(folder_paths.get_full_path_or_raise(folder, name), name))
    patcher.set_attachments(KEY, replace(source_of(patcher), daemon=daemon, plan=plan))
    return patcher


def counted(client: Client) -> dict[str, Any]:
    """Return what the daemon counts, or the devices of a worker, which counts nothing."""
    try:
        return dict(client.stats())
    except RefusedError:
        return {"devices": client.devices()}


def asked(daemon: str, request: Any) -> Any:
    """Return what request(client) returns; errors are said so that a node can show them."""
    address = address_of(daemon)
    try:
        return request(CONNECTIONS.get(address))
    except CancelledError:
        mm.throw_exception_if_processing_interrupted()
        raise
    except Exception as err:  # noqa: BLE001 - whatever it is, it is put into words
        raise explain(err, address) from err


def checked(name: str, folder: str, daemon: str) -> bool | str:
    """Say before the queue runs that a file is not in a folder, or that no daemon is there. ComfyUI leaves the first to
    whoever asks for the name.
    """
    if folder and name not in folder_paths.get_filename_list(folder):
        return f"there is no file {name} in {folder}"
    return CONNECTIONS.check(daemon) or True


class LoadDiffusionModel:
    """In place of Load Diffusion Model: samplers, guiders, LoRA and previews stay as they are, the network runs on
    Patchbay's devices.
    """

    FUNCTION = "load"
    RETURN_TYPES = ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "unet_name": (folder_paths.get_filename_list("diffusion_models"),),
                "weight_dtype": (["default"],),
            },
            "optional": {"daemon": DAEMON, "plan": PLAN},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, unet_name: str, daemon: str = "") -> bool | str:
        return checked(unet_name, "diffusion_models", daemon)

    def load(self, unet_name: str, weight_dtype: str = "default", daemon: str = "", plan: str = "") -> tuple[Any]:
        return (loaded("diffusion_models", unet_name, daemon, plan),)


class LoadCheckpoint:
    """In place of Load Checkpoint: the MODEL runs on Patchbay's devices, CLIP and VAE are ComfyUI's own."""

    FUNCTION = "load"
    RETURN_TYPES = ("MODEL", "CLIP", "VAE")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {"ckpt_name": (folder_paths.get_filename_list("checkpoints"),)},
            "optional": {"daemon": DAEMON, "plan": PLAN},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, ckpt_name: str, daemon: str = "") -> bool | str:
        return checked(ckpt_name, "checkpoints", daemon)

    def load(self, ckpt_name: str, daemon: str = "", plan: str = "") -> tuple[Any, Any, Any]:
        model = loaded("checkpoints", ckpt_name, daemon, plan)
        path = folder_paths.get_full_path_or_raise("checkpoints", ckpt_name)
        folders = folder_paths.get_folder_paths("embeddings")
        _, clip, vae = comfy.sd.load_checkpoint_guess_config(
            path, output_vae=True, output_clip=True, output_model=False, embedding_directory=folders
        )[:3]
        return model, clip, vae


class LoadModelPatch:
    """In place of Load Model Patch, for Qwen-Image's DiffSynth ControlNets and USO behind Patchbay's loaders: the
    layers run on Patchbay's devices.
    """

    FUNCTION = "load"
    RETURN_TYPES = ("MODEL_PATCH",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"name": (folder_paths.get_filename_list("model_patches"),)}}

    def load(self, name: str) -> tuple[Any]:
        return (build_patch(folder_paths.get_full_path_or_raise("model_patches", name), name),)


class Plan:
    """How to split one picture over the daemon's devices, and what a run will take."""

    FUNCTION = "make"
    RETURN_TYPES = ("PATCHBAY_PLAN",)
    DEGREES: ClassVar = {
        "cfg": "groups for the two prompts of CFG",
        "pipe": "stages of blocks (PipeFusion)",
        "ring": "ranks that pass keys and values around",
        "ulysses": "ranks that exchange heads for tokens",
        "tensor": "ranks that split heads and columns",
    }

    NETS = ("model_patches", "controlnet")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        degree = {"default": 1, "min": 1, "max": 64}
        size = {"default": 1024, "min": 64, "max": 16384, "step": 8}
        files = dict.fromkeys(
            n for folder in ("diffusion_models", "checkpoints") for n in folder_paths.get_filename_list(folder)
        )
        return {
            "required": {
                "mode": (
                    ["auto", "degrees"],
                    {"tooltip": "auto: the fastest on all of the daemon's devices; degrees: as below"},
                )
            },
            "optional": {
                **{k: ("INT", {**degree, "tooltip": text}) for k, text in cls.DEGREES.items()},
                "warmup": (
                    "INT",
                    {
                        "default": 1,
                        "min": 0,
                        "max": 1000,
                        "tooltip": "with pipe: evaluations at the start that are exact",
                    },
                ),
                "more": (
                    "STRING",
                    {"default": "", "tooltip": "further keys, as in gather=2,shard=on; with auto also ranks=4"},
                ),
                "predict": (
                    ["none", *files],
                    {"tooltip": "a model, whose time and memory for the picture below are shown here"},
                ),
                "width": ("INT", size),
                "height": ("INT", size),
                "batch": ("INT", {"default": 1, "min": 1, "max": 4096}),
                "steps": ("INT", {"default": 20, "min": 1, "max": 10000}),
                "daemon": DAEMON,
                **{
                    f: (
                        ["none", *folder_paths.get_filename_list(f)],
                        {"tooltip": "a net that the daemon runs beside it, counted as well"},
                    )
                    for f in cls.NETS
                },
            },
        }

    def make(
        self, mode: str, warmup: int = 1, more: str = "", predict: str = "none", daemon: str = "", **k: Any
    ) -> dict[str, Any]:
        parts = [p.strip() for p in more.split(",") if p.strip()]
        if mode == "degrees":
            given = [f"{d}={k[d]}" for d in self.DEGREES if k.get(d, 1) > 1] + [f"warmup={warmup}"] * (
                k.get("pipe", 1) > 1
            )
            plan = ",".join([*given, *parts]) or "ranks=1"
        else:
            every = "" if "ranks=" in more else asked(daemon, lambda c: c.every_device())
            plan = ",".join([every] * bool(every) + parts)
        if predict == "none":
            return {"result": (plan,)}
        size = (k.get("width", 1024), k.get("height", 1024))
        nets = [k[f] for f in self.NETS if k.get(f, "none") != "none"]
        f = asked(
            daemon,
            lambda c: c.forecast(
                predict, *size, nets=nets, plan=plan, batch=k.get("batch", 1), steps=k.get("steps", 20)
            ),
        )
        free = f" of {f['free_bytes'] / 2**30:.1f}" if f["free_bytes"] else ""
        text = f"{f['plan']} on {f['device']}: {f['seconds']:.3g} s, {1000 * f['step_seconds']:.3g} ms a step"
        text += f", {f['bytes'] / 2**30:.3g}{free} GiB a device"
        if f.get("streamed"):
            text += (
                f"; {f['streamed']} of {f['streamed'] + f['resident']} blocks come from host memory, "
                f"{f['step_bytes'] / 2**30:.3g} GiB a step: {f['slowdown']:.2g} x the time of all on the device"
            )
        tell("Predicted: " + text)
        return {"ui": {"text": [text]}, "result": (plan,)}


class VAEDecode:
    """VAE Decode on the daemon's devices."""

    FUNCTION = "decode"
    RETURN_TYPES = ("IMAGE",)

    @classmethod
    def VALIDATE_INPUTS(cls, vae_name: str, daemon: str = "") -> bool | str:
        return checked(vae_name, "vae", daemon)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {"samples": ("LATENT",), "vae_name": (folder_paths.get_filename_list("vae"),)},
            "optional": {"daemon": DAEMON, "plan": PLAN},
        }

    def decode(self, samples: dict[str, Any], vae_name: str, daemon: str = "", plan: str = "") -> tuple[torch.Tensor]:
        def request(client: Client) -> torch.Tensor:
            (vae,) = client.exec("VAELoader", {"vae_name": vae_name}).outputs
            (image,) = client.exec(
                "VAEDecode", {"samples": {"samples": array(samples["samples"])}, "vae": vae}, plan=plan
            ).outputs
            return torch.from_numpy(image.copy())

        return (asked(daemon, request),)


class CLIPTextEncode:
    """CLIP Text Encode with encoders that are on the daemon's devices."""

    FUNCTION = "encode"
    RETURN_TYPES = ("CONDITIONING",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        names = folder_paths.get_filename_list("text_encoders")
        loaders = (stock.CLIPLoader, stock.DualCLIPLoader)
        return {
            "required": {
                "text": ("STRING", {"multiline": True, "dynamicPrompts": True}),
                "clip_name1": (names,),
                "clip_name2": (["none", *names],),
                "type": (
                    list(dict.fromkeys(t for loader in loaders for t in loader.INPUT_TYPES()["required"]["type"][0])),
                ),
            },
            "optional": {"daemon": DAEMON},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, clip_name1: str, daemon: str = "") -> bool | str:
        return checked(clip_name1, "text_encoders", daemon)

    def encode(self, text: str, clip_name1: str, clip_name2: str, type: str, daemon: str = "") -> tuple[list[Any]]:
        def request(client: Client) -> list[Any]:
            if clip_name2 == "none":
                (clip,) = client.exec("CLIPLoader", {"clip_name": clip_name1, "type": type}).outputs
            else:
                (clip,) = client.exec(
                    "DualCLIPLoader", {"clip_name1": clip_name1, "clip_name2": clip_name2, "type": type}
                ).outputs
            (conditioning,) = client.exec("CLIPTextEncode", {"text": text, "clip": clip}).outputs
            return [[tensors(states), tensors(extra)] for states, extra in conditioning]

        return (asked(daemon, request),)


def tensors(v: Any) -> Any:
    """Return a value with torch tensors in place of arrays."""
    if isinstance(v, np.ndarray):
        return torch.from_numpy(v.copy())
    if isinstance(v, dict):
        return {k: tensors(e) for k, e in v.items()}
    return [tensors(e) for e in v] if isinstance(v, list) else v


class RunWorkflow:
    """A whole workflow on the daemon, as one node."""

    FUNCTION = "run"
    RETURN_TYPES = ("IMAGE",)
    OUTPUT_IS_LIST = (True,)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        text = {"multiline": True, "default": "{}", "tooltip": "a workflow as Workflow > Export (API) writes it"}
        return {"required": {"workflow": ("STRING", text)}, "optional": {"daemon": DAEMON, "plan": PLAN}}

    @classmethod
    def VALIDATE_INPUTS(cls, workflow: str, daemon: str = "") -> bool | str:
        try:
            graph = json.loads(workflow)
        except ValueError as err:
            return f"the workflow is no JSON: {err}"
        if not isinstance(graph, dict) or not all(isinstance(n, dict) and "class_type" in n for n in graph.values()):
            return "the workflow is not in API format: Workflow > Export (API) in the editor writes that"
        return checked("", "", daemon)

    def run(self, workflow: str, daemon: str = "", plan: str = "") -> tuple[list[torch.Tensor]]:
        bar: dict[str, Any] = {}

        def event(e: dict[str, Any]) -> None:
            data = e.get("data") or {}
            if e.get("type") == "progress" and data.get("max"):
                if bar.get("max") != data["max"]:
                    bar.update(max=data["max"], bar=comfy.utils.ProgressBar(data["max"]))
                bar["bar"].update_absolute(data["value"], data["max"])

        graph = json.loads(workflow)
        done = asked(
            daemon,
            lambda c: c.run(
                graph, on_event=event, stop=mm.processing_interrupted, patience=0.1, **({"plan": plan} if plan else {})
            ),
        )
        out = []
        for file in done.files:
            if file.ref.get("kind") == "images":
                picture = np.asarray(Image.open(io.BytesIO(file.data)).convert("RGB"), np.float32) / 255
                out.append(torch.from_numpy(picture)[None])
        if not out:
            raise RuntimeError("Patchbay: the workflow made no picture")
        return (out,)


class Status:
    """What the daemon has and does."""

    FUNCTION = "status"
    RETURN_TYPES = ("STRING",)
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"optional": {"after": (IO.ANY, {}), "daemon": DAEMON}}

    @classmethod
    def IS_CHANGED(cls, **_: Any) -> float:
        return float("nan")  # unequal to itself: asked anew every time

    def status(self, after: Any = None, daemon: str = "") -> dict[str, Any]:
        s = asked(daemon, counted)
        workers = (
            ", ".join(f"{w.get('name')} {'busy' if w.get('job') else 'idle'}" for w in s.get("workers") or [])
            or "one, this program"
        )
        first = f"daemon {s.get('daemon', '?')} {s.get('version', '')}, devices {', '.join(s.get('devices') or ['?'])}"
        text = "\n".join(
            (
                first,
                f"workers: {workers}",
                f"queued {s.get('queued', 0)}, running {s.get('running', 0)}",
                f"last run: {LAST.text}",
            )
        )
        return {"ui": {"text": [text]}, "result": (text,)}


NODES: dict[str, tuple[str, type]] = {
    "PatchbayUNETLoader": ("Load Diffusion Model (Patchbay)", LoadDiffusionModel),
    "PatchbayCheckpointLoader": ("Load Checkpoint (Patchbay)", LoadCheckpoint),
    "PatchbayModelPatchLoader": ("Load Model Patch (Patchbay)", LoadModelPatch),
    "PatchbayPlan": ("Patchbay Plan", Plan),
    "PatchbayVAEDecode": ("VAE Decode (Patchbay)", VAEDecode),
    "PatchbayCLIPTextEncode": ("CLIP Text Encode (Patchbay)", CLIPTextEncode),
    "PatchbayRun": ("Run on Patchbay", RunWorkflow),
    "PatchbayStatus": ("Patchbay Status", Status),
}
