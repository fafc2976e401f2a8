"""Swaps the loaders of ComfyUI's official templates and runs those of the families that are here, as the editor would
send them, with tiny random models.

usage: templates.py COMFYUI --program PATCHBAY --templates FOLDER [--only NAME,...] [--out REPORT.json]
FOLDER has the files of the package comfyui-workflow-templates-json. Of a template that is left what a sampler needs:
texts and encoded pictures are random numbers of the right shape, sizes and steps small. The latents of every sampler
are compared with those of ComfyUI's own loader.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import copy
import json
import os
import pathlib
import re
import sys
import tempfile
from typing import Any

import aiohttp
import numpy as np
from drive import REPO, Rig, apart, fill, write_models
from editor import opened
from graphs import CHANNELS
from PIL import Image
from safetensors.numpy import save_file

sys.path.insert(0, str(REPO / "comfyui"))
import swap  # noqa: E402

Graph = dict[str, dict[str, Any]]
TINY = {
    "flux1-fill": "fill-a", "flux.1-fill": "fill-a", "flux1-canny-dev.": "depth-a", "flux1-depth-dev.": "depth-a",
    "flux1": "flux-c", "flux.1": "flux-c", "sd3": "sd3-a",
    "qwen_image_layered": "qwen-c", "qwen_image": "qwen-a", "z_image": "zimage-a", "flux2": "flux2-a",
    "flux-2": "flux2-b", "krea2": "krea2-a",
}  # fmt: skip
"""Tiny models by the start of the names of a family's files."""

OTHERS = ("qwen_image_2.1",)
"""Starts of names of networks of other forms."""

SAMPLERS = ("KSampler", "KSamplerAdvanced", "SamplerCustom", "SamplerCustomAdvanced")
EDITS = ("TextEncodeQwenImageEdit", "TextEncodeQwenImageEditPlus")
"""Text encoders that also encode the picture to be edited."""

FILES = ("PatchbayUNETLoader", "PatchbayCheckpointLoader", "PatchbayModelPatchLoader", "LoraLoaderModelOnly",
    "LoraLoader", "LoadImage")
FRAMES = ("qwen", "krea2")
LORAS = (*FRAMES, "fill")
STATES = ("same", "not run", "refused", "DIFFERS")


def loaders(workflow: dict[str, Any]) -> list[str]:
    """Return the files that the loaders of a workflow name, which is in the editor's format."""
    out = []
    for field, node in swap.nodes_of(workflow):
        values = node.get("widgets_values")
        if node[field] in swap.SWAPS and values:
            out.append(str(values[0] if isinstance(values, list) else next(iter(values.values()))))
    return out


def tiny_of(file: str) -> str:
    """Return the tiny model that stands for a file; empty if its family is not here."""
    name = file.replace("\\", "/").rsplit("/", 1)[-1].lower()
    return "" if name.startswith(OTHERS) else next((t for start, t in TINY.items() if name.startswith(start)), "")


def inputs_of(info: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the type of every input of a class."""
    spec = info[kind]["input"]
    return {k: v[0] for part in ("required", "optional") for k, v in spec.get(part, {}).items()}


class Cut:
    """A template in API format, cut down to what its samplers need."""

    def __init__(self, graph: Graph, info: dict[str, Any], tiny: str) -> None:
        self.graph, self.info, self.tiny = copy.deepcopy(graph), info, tiny
        self.random = 0

    def conditioning(self, tokens: int) -> dict[str, Any]:
        self.random += 1
        return {"class_type": "TestConditioning", "inputs": {"model": self.tiny, "seed": self.random, "tokens": tokens}}

    def latent(self) -> dict[str, Any]:
        self.random += 1
        side = 8 if self.tiny.startswith("flux2") else 16
        channels = CHANNELS[self.tiny.split("-")[0]]
        inputs = {"channels": channels, "height": side, "width": side, "batch": 1, "seed": self.random,
            "frame": self.tiny.startswith(FRAMES)}
        return {"class_type": "TestLatent", "inputs": inputs}

    def small(self, node: dict[str, Any]) -> None:
        """Make sizes and steps small; models are asked for by their names."""
        primitive = node["class_type"] in ("PrimitiveInt", "PrimitiveNode")
        for key, value in node["inputs"].items():
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                continue
            name, most = key.rsplit(".", 1)[-1], value
            if value >= 256 and (name in ("width", "height", "resolution") or primitive):
                most = 128
            elif primitive and value > 8:
                most = 8
            node["inputs"][key] = max(min(value, {"batch_size": 1, "megapixels": 0.02, "steps": 8}.get(name, most)),
                self.least(node["class_type"], key))

    def least(self, kind: str, key: str) -> float:
        """Return the smallest value of an input of a class."""
        parts = self.info.get(kind, {}).get("input", {})
        spec = {**parts.get("optional", {}), **parts.get("required", {})}.get(key, ())
        return spec[1].get("min", 0) if len(spec) > 1 and isinstance(spec[1], dict) else 0

    def replaced(self, name: str) -> None:
        """Put random numbers in the place of what needs other files, or classes that are no node's."""
        node = self.graph[name]
        kind, values = node["class_type"], node["inputs"]
        types, out = inputs_of(self.info, kind), self.info[kind]["output"]
        linked = {types.get(k) for k, v in values.items() if isinstance(v, list)}
        if "CONDITIONING" in out and linked & {"CLIP", "STYLE_MODEL"}:
            self.graph[name] = self.conditioning(9 if "CLIP" in linked else 20)
            if kind in EDITS and any(k.startswith("image") for k, v in values.items() if isinstance(v, list)):
                self.graph[name + "-text"], self.graph[name + "-picture"] = self.graph[name], self.latent()
                self.graph[name] = {"class_type": "ReferenceLatent",
                    "inputs": {"conditioning": [name + "-text", 0], "latent": [name + "-picture", 0]}}
        elif out == ["LATENT"] and "VAE" in linked:
            self.graph[name] = self.latent()
        elif out == ["IMAGE"] and "VAE" in linked:
            self.graph[name] = {"class_type": "LoadImage", "inputs": {"image": "tiny.png"}}
        elif kind == "VAELoader":
            side = 16 if self.tiny.startswith("flux2") else 8
            self.graph[name] = {"class_type": "TestVAE", "inputs": {"channels": CHANNELS[self.tiny.split("-")[0]],
                "pixels": side, "frame": self.tiny.startswith(FRAMES)}}
        elif kind == "ControlNetLoader":
            inside = "sd3.5_large_controlnet" in str(values["control_net_name"]) or "-Fun-" in str(
                values["control_net_name"])
            self.graph[name] = {"class_type": "TestControlNet",
                "inputs": {"model": self.tiny, "seed": 1, "inside": inside}}
        elif kind == "PatchbayModelPatchLoader":
            self.graph[name] = {
                "class_type": kind, "inputs": {"name": "diffsynth-a.safetensors"}} if self.tiny == "qwen-a" else {
                    "class_type": "TestPatch", "inputs": {}}
        elif kind == "LoraLoader":
            model_only = {k: v for k, v in values.items() if k not in ("clip", "strength_clip")}
            self.graph[name] = {"class_type": "LoraLoaderModelOnly", "inputs": model_only}
        self.small(self.graph[name])

    def needed(self, name: str, seen: dict[str, None]) -> dict[str, None]:
        """Return the nodes that a node needs, with itself."""
        if name not in seen:
            seen[name] = None
            for value in self.graph[name]["inputs"].values():
                if isinstance(value, list) and len(value) == 2 and str(value[0]) in self.graph:
                    self.needed(str(value[0]), seen)
        return seen

    def tinies(self, name: str) -> set[str]:
        """Return the tiny models of the loaders that a node needs."""
        nodes = [self.graph[n]["inputs"] for n in self.needed(name, {}) if self.graph[n]["class_type"] in FILES[:2]]
        return {tiny_of(str(i.get("unet_name") or i.get("ckpt_name"))) for i in nodes}

    def done(self) -> Graph:
        """Return what the samplers of this family's model need. Raise ValueError with what keeps it from running here.
        """
        for name in list(self.graph):
            node = self.graph[name]
            if "class_type" not in node:  # what the editor makes of a class that it does not know
                node["class_type"] = "a class without a name"
            if node["class_type"] in self.info:
                self.replaced(name)
        samplers = [n for n, node in self.graph.items() if node["class_type"] in SAMPLERS]
        if not samplers:
            raise ValueError("has no sampler of ComfyUI's")
        samplers = [n for n in samplers if self.tinies(n) == {self.tiny}]
        if not samplers:
            raise ValueError("the loader feeds no sampler of ComfyUI's alone")
        keep: dict[str, None] = {}
        for name in samplers:
            self.needed(name, keep)
        out = {n: self.graph[n] for n in keep}
        foreign = sorted({n["class_type"] for n in out.values() if n["class_type"] not in self.info})
        if foreign:
            raise ValueError("needs classes that this ComfyUI lacks: " + ", ".join(foreign))
        files = sorted({n["class_type"] for n in out.values() if n["class_type"] not in FILES
            and "Loader" in n["class_type"]})
        if files:
            raise ValueError("needs files of " + ", ".join(files))
        for name in samplers:
            out["save-" + name] = {"class_type": "SaveLatent", "inputs": {"filename_prefix": "x", "samples": [name, 0]}}
        return out


class Templates:
    """The run over all templates."""

    def __init__(self, rig: Rig, info: dict[str, Any]) -> None:
        self.rig, self.info = rig, info
        self.rows: dict[str, dict[str, Any]] = {}

    def provide(self, graph: Graph, tiny: str) -> None:
        """Put tiny files where a graph's loaders look for them."""
        models = self.rig.base / "models"
        for node in graph.values():
            values = node["inputs"]
            for key, source, folder in (
                ("unet_name", models / "diffusion_models" / f"{tiny}.safetensors", "diffusion_models"),
                ("ckpt_name", models / "checkpoints" / f"{tiny}-full.safetensors", "checkpoints"),
                ("lora_name", models / "loras" / (f"tiny-lora-{tiny.split('-')[0]}.safetensors"
                    if tiny.startswith(LORAS) else "tiny-lora.safetensors"), "loras"),
            ):
                if isinstance(values.get(key), str):
                    values[key] = values[key].replace("\\", "/").rsplit("/", 1)[-1]
                    for root in (models, self.rig.base / "daemon_models"):
                        at = root / folder / values[key]
                        at.parent.mkdir(parents=True, exist_ok=True)
                        at.unlink(missing_ok=True)
                        os.link(source, at)
            if node["class_type"] == "LoadImage" and isinstance(values.get("image"), str):
                values["image"] = "tiny.png"

    async def one(self, page: Any, name: str, workflow: dict[str, Any]) -> None:  # noqa: ANN401
        """Swap the loaders of a template; run it if its family is here."""
        row = self.rows[name] = {"loaders": loaders(workflow)}
        swapped = copy.deepcopy(workflow)
        row["swapped"], row["left"] = swap.swap(swapped)
        found = {tiny_of(f) for f in row["loaders"]} - {""}
        if not found:
            row["state"] = "another family"
            return
        if row["left"]:
            row["state"], row["why"] = "not run", "; ".join(row["left"])
            return
        try:
            await page.js(f"await app.loadGraphData({json.dumps(swapped)}, true)")
            graph = json.loads(await page.js("return JSON.stringify((await app.graphToPrompt()).output)"))
        except RuntimeError as err:
            row["state"], row["why"] = "not run", str(err)[:300]
            return
        parts = [await self.part(graph, tiny) for tiny in sorted(found)]
        row |= max(parts, key=lambda p: STATES.index(p["state"]))

    async def part(self, graph: Graph, tiny: str) -> dict[str, Any]:
        """Run the samplers of a template that a family's model feeds, with ours and with ComfyUI's own loader."""
        try:
            cut = Cut(graph, self.info, tiny).done()
        except ValueError as err:
            return {"state": "not run", "why": str(err)[:300]}
        self.provide(cut, tiny)
        stock = copy.deepcopy(cut)
        swap.swap(stock, back=True)
        ours = await self.rig.run(cut)
        said = str((ours.get("error") or {}).get("exception_message") or ours.get("refused")).strip()
        if said.startswith("Patchbay cannot run this"):
            return {"state": "refused", "why": said[:300]}
        theirs = await self.rig.run(stock)
        if "latents" not in theirs:
            return {
                "state": "not run", "why": f"ComfyUI's own run ends with "
                f"{str(theirs.get('error') or theirs.get('refused'))[:600]}"}
        if "latents" not in ours:
            return {"state": "DIFFERS", "why": said[:300]}
        rel = max(apart(ours["latents"].get(k, np.zeros(0)), v) for k, v in theirs["latents"].items())
        same = rel <= 1e-4 and ours["facts"]["evaluations"] == 0
        mode = "evaluation" if any("one evaluation at a time" in t for t in ours["texts"]) else "whole"
        return {"state": "same" if same else "DIFFERS", "rel": rel, "mode": mode}

    def show(self, name: str) -> None:
        row = self.rows[name]
        if row["state"] != "another family":
            print(
                f"{row['state']:8s} {name:52s} {row.get('mode', ''):10s} {row.get('rel', 0):.2g} {row.get('why', '')}",
                flush=True)


def checkpoints(base: pathlib.Path) -> None:
    """Write the tiny models that templates want as checkpoints."""
    weights = json.loads((base / "weights.json").read_text())
    for name in ("flux-c", "sd3-a"):
        plain = {f"model.diffusion_model.{k}": fill(f"{name}/{k}", s, scale, offset) for k, s, _, scale,
            offset in weights[name]["tensors"]}
        save_file(plain, base / "models" / "checkpoints" / f"{name}-full.safetensors",
            {"config": json.dumps(weights[name]["config"])})
    (base / "input").mkdir(exist_ok=True)
    picture = np.full((128, 128, 4), 120, np.uint8)
    picture[..., 3] = np.arange(128) * 2  # ComfyUI's mask of it
    Image.fromarray(picture).save(base / "input" / "tiny.png")


async def main() -> int:
    p = argparse.ArgumentParser()
    p.add_argument("comfyui")
    p.add_argument("--program", required=True)
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--templates", required=True)
    p.add_argument("--only", default="")
    p.add_argument("--out", default="")
    options = p.parse_args()
    options.record, options.frontend, options.plain_msgpack = "", "", False
    base = pathlib.Path(tempfile.mkdtemp(prefix="patchbay-templates-"))
    write_models(base, {"flux-a", "flux-c", "flux-c-full", "sd3-a", "qwen-a", "zimage-a"} | set(TINY.values()))
    checkpoints(base)
    rig = Rig(options, base)
    try:
        rig.start_comfy()
        rig.start_daemon()
        async with aiohttp.ClientSession() as rig.http:
            await rig.ready()
            async with rig.http.get(rig.url + "/object_info") as r:
                run = Templates(rig, await r.json())
            async with opened(rig) as page:
                if page is None:
                    raise SystemExit("NOT RUN: no Chromium on the PATH")
                for file in sorted(pathlib.Path(options.templates).glob("*.json")):
                    workflow = json.loads(file.read_text())
                    wanted = not options.only or any(re.fullmatch(o, file.stem) for o in options.only.split(","))
                    if wanted and isinstance(workflow, dict) and isinstance(workflow.get("nodes"),
                            list) and loaders(workflow):
                        await run.one(page, file.stem, workflow)
                        run.show(file.stem)
    finally:
        for proc in (rig.comfy, rig.daemon):
            if proc and proc.poll() is None:
                proc.terminate()
                proc.wait(30)
    states = collections.Counter(r["state"] for r in run.rows.values())
    swapped = sum(r["swapped"] > 0 for r in run.rows.values())
    print(f"ComfyUI {rig.version}: {len(run.rows)} templates with a loader, {swapped} swapped; "
        + ", ".join(f"{n} {s}" for s, n in sorted(states.items())))
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(run.rows, indent=1))
    return 1 if states["DIFFERS"] or not states["same"] else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
