"""Random files of real names and widths, and the ComfyUI whose modules say what they are: what families.py draws with.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import pathlib
import sys
from typing import Any

LAYERS = 3
# not scaled by their rows
TABLES = ("embed_tokens", "shared", "token_embedding", "position_embedding", "relative_attention_bias", "_embeddings",
    "positional_encoding", "register_tokens")
Flow = dict[str, dict[str, Any]]  # a graph in the API form


def shortened(config: dict[str, Any]) -> dict[str, Any]:
    """Return an encoder's configuration with few layers; CLIP-G is known by its number of them."""
    if config["hidden_size" if "hidden_size" in config else "d_model"] == 1280:
        return config
    return {**config, **{n: LAYERS for n in ("num_layers", "num_hidden_layers") if n in config}}


class Writer:
    """Writes files of random values: torch's generator of one seed, matrices scaled by their rows, norms about one."""

    def __init__(self, base: pathlib.Path, torch: Any) -> None:  # noqa: ANN401
        self.base, self.torch = base, torch
        self.random = torch.Generator().manual_seed(1)

    def halves(self, shapes: dict[str, Any]) -> dict[str, Any]:
        """Return values in f16, made some rows at a time: tables of a language model are 2 GB in f32."""
        out = {}
        for name, like in shapes.items():
            if len(like.shape) < 2 or name.endswith("gamma"):
                t = 0.1 * self.torch.randn(like.shape, generator=self.random)
                kind = name.rpartition(".")[2]
                out[name] = (t.abs() if kind == "running_var" else t + (kind in ("weight", "scale", "gamma"))).half()
                continue
            t = self.torch.empty(like.shape, dtype=self.torch.float16)
            factor = 1.0 if any(part in name for part in TABLES) else 0.8 / math.sqrt(t[0].numel())
            for at in range(0, len(t), 4096):
                t[at : at + 4096] = factor * self.torch.randn(t[at : at + 4096].shape, generator=self.random)
            out[name] = t
        return out

    def values(self, shapes: dict[str, Any]) -> dict[str, Any]:
        out = {}
        for name, like in shapes.items():
            t = self.torch.randn(like.shape, generator=self.random)
            if len(like.shape) < 2:
                t = 0.1 * t + (1.0 if name.endswith("weight") else 0.0)
            elif not any(part in name for part in TABLES):
                t = 0.8 * t / math.sqrt(t[0].numel())
            if "pos_embed" in name:
                t = self.torch.clamp(t, -2, 2)
            out[name] = t
        return out

    def file(self, name: str, tensors: dict[str, Any], dtype: str = "float16") -> None:
        from safetensors.torch import save_file

        path = self.base / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = getattr(self.torch, dtype)
        save_file({k: (v.to(kind) if v.is_floating_point() else v).contiguous() for k, v in tensors.items()}, path)


class ComfyUI:
    """ComfyUI's modules, with encoders of few layers."""

    def __init__(self, tree: pathlib.Path, base: pathlib.Path) -> None:
        sys.path.insert(0, str(tree))
        sys.argv = ["main.py", "--cpu", "--base-directory", str(base)]
        options = importlib.import_module("comfy.options")
        options.enable_args_parsing()
        args = importlib.import_module("comfy.cli_args").args
        args.fp32_unet = args.fp32_vae = args.fp32_text_enc = True
        import torch

        self.torch = torch
        self.ops = importlib.import_module("comfy.ops").disable_weight_init
        self.clip = importlib.import_module("comfy.sd1_clip")
        full = self.clip.SDClipModel.__init__
        self.language: dict[str, int] = {}  # what differs in the language model of a set

        def short(model: Any, *a: Any, textmodel_json_config: Any = None, **k: Any) -> None:  # noqa: ANN401
            if textmodel_json_config == {}:
                full(model, *a, textmodel_json_config=self.language, **k)
                return
            path = textmodel_json_config or str(tree / "comfy" / "sd1_clip_config.json")
            config = path if isinstance(path, dict) else json.loads(pathlib.Path(path).read_text())
            if "model_options" in k and textmodel_json_config is None:
                k["model_options"] = {**k["model_options"], "model_name": k["model_options"].get("model_name",
                    "clip_l")}
            full(model, *a, textmodel_json_config=shortened(config), **k)

        self.clip.SDClipModel.__init__ = short
        sd = importlib.import_module("comfy.sd")
        detect = sd.detect_te_model

        def longer(tensors: dict[str, Any]) -> Any:  # noqa: ANN401
            """Know T5 by its first layer: ComfyUI looks at a late one."""
            t5 = "encoder.block.{}.layer.1.DenseReluDense.wi_1.weight"
            return detect({**tensors, t5.format(23): tensors[t5.format(0)]} if t5.format(0) in tensors else tensors)

        sd.detect_te_model = longer
        self.tree = tree
        self.nodes = importlib.import_module("nodes")
        # nodes_post_processing and nodes_latent import each other, in this order
        for extra in ("sd3", "controlnet", "hunyuan", "pixart", "flux", "edit_model", "model_advanced", "mask", "cond",
                "post_processing", "latent", "qwen"):
            module = importlib.import_module(f"comfy_extras.nodes_{extra}")
            for value in list(vars(module).values()):
                if hasattr(value, "GET_SCHEMA") and hasattr(value,
                        "define_schema") and value.__module__ == module.__name__ and value.__bases__[
                            0].__name__ == "ComfyNode":
                    self.nodes.NODE_CLASS_MAPPINGS[value.GET_SCHEMA().node_id] = value
            self.nodes.NODE_CLASS_MAPPINGS.update(getattr(module, "NODE_CLASS_MAPPINGS", {}))

    def shapes(self, make: Any) -> dict[str, Any]:  # noqa: ANN401
        return dict(make().state_dict())

    def draw(self, flow: Flow) -> Any:  # noqa: ANN401
        """Run a graph and return the decoded pictures as an array [B, H, W, 3 or 4]."""
        done: dict[str, Any] = {}

        def value(v: Any) -> Any:  # noqa: ANN401
            return run(v[0])[v[1]] if isinstance(v, list) else v

        def run(name: str) -> Any:  # noqa: ANN401
            if name not in done:
                kind = self.nodes.NODE_CLASS_MAPPINGS[flow[name]["class_type"]]
                inputs = {k: value(v) for k, v in flow[name]["inputs"].items()}
                if hasattr(kind, "GET_SCHEMA"):
                    done[name] = kind.execute(**inputs).result
                else:
                    done[name] = getattr(kind(), kind.FUNCTION)(**inputs)
            return done[name]

        with self.torch.inference_mode():
            picture = run("decode")[0].numpy()
        done.clear()
        importlib.import_module("comfy.model_management").unload_all_models()
        gc.collect()
        return picture

    def keep(self, kind: str) -> None:
        """Keep weights in f16 or f32; ComfyUI computes in f32 on this device."""
        args = importlib.import_module("comfy.cli_args").args
        args.fp32_unet = args.fp32_text_enc = kind == "f32"
        args.fp16_unet = args.fp16_text_enc = kind == "f16"
