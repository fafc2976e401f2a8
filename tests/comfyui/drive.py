"""Drives a real ComfyUI, headless on the CPU, and compares pictures through the Patchbay node with its own.

usage: drive.py COMFYUI --program PATCHBAY [--python PYTHON] [--only NAME,...] [--random SEED,COUNT] [--record FOLDER]
[--out REPORT.json] Needs a Python with ComfyUI's requirements; the models are tiny, their weights come from the formula
of tests/golden/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from typing import Any

import aiohttp
import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from behaviour import behaviour  # noqa: E402
from editor import editor  # noqa: E402
from graphs import Case, Graph, cases, controlled, lora, lora_control, model_patch, style  # noqa: E402
from random_graphs import random_cases  # noqa: E402

REPO = HERE.parents[1]
GOLDEN = REPO / "tests" / "golden"
BOOT_SECONDS = 240
EDITOR = {"Comfy.TutorialCompleted": True, "Comfy.ColorPalette": "light", "Comfy.Minimap.Visible": False,
    "LiteGraph.Canvas.MinFontSizeForLOD": 0}


def fill(name: str, shape: list[int], scale: float, offset: float) -> np.ndarray[Any, Any]:
    """Return values by the formula of tests/golden/README.md, section 1."""
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & (2**64 - 1)
    with np.errstate(over="ignore"):
        z = np.uint64(h) + np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    v = ((z >> np.uint64(40)).astype(np.int64) - 2**23).astype(np.float64) / 2**24
    return (offset + scale * v).astype(np.float32).reshape(shape)


def write_models(base: pathlib.Path, names: set[str]) -> None:
    """Write the tiny models, and a LoRA for the FLUX ones."""
    weights = {k: v for file in ("weights.json", "modern/weights.json", "modern33/weights_patches.json") for k,
        v in json.loads((GOLDEN / file).read_text()).items() if isinstance(v, dict) and "config" in v}
    (base / "weights.json").write_text(json.dumps(weights))
    for folder in ("diffusion_models", "loras", "checkpoints", "model_patches"):
        (base / "models" / folder).mkdir(parents=True, exist_ok=True)
    for name in names - {"flux-c-fp8", "flux-c-wide", "flux-c-full"}:
        tensors = {k: fill(f"{name}/{k}", s, scale, offset) for k, s, _, scale, offset in weights[name]["tensors"]}
        save_file(tensors, base / "models" / "diffusion_models" / f"{name}.safetensors",
            {"config": json.dumps(weights[name]["config"])})
    shapes = {k: s for k, s, *_ in weights["flux-c"]["tensors"]}
    pairs = {}
    for layer in ("double_blocks.0.img_attn.qkv", "double_blocks.1.txt_mlp.0", "single_blocks.1.linear1", "img_in"):
        n, k = shapes[layer + ".weight"]
        key = "lora_unet_" + layer.replace(".", "_")
        pairs[key + ".lora_up.weight"] = fill("input:up/" + layer, [n, 4], 0.5, 0)
        pairs[key + ".lora_down.weight"] = fill("input:down/" + layer, [4, k], 0.5, 0)
        pairs[key + ".alpha"] = np.array(2.0, np.float32)
    inner = shapes["double_blocks.0.img_attn.qkv.weight"][1]  # a part of a fused matrix, in the diffusers way
    pairs["transformer.transformer_blocks.1.attn.to_k.lora_A.weight"] = fill("input:a", [3, inner], 0.5, 0)
    pairs["transformer.transformer_blocks.1.attn.to_k.lora_B.weight"] = fill("input:b", [inner, 3], 0.5, 0)
    save_file(pairs, base / "models" / "loras" / "tiny-lora.safetensors")
    more = {
        "qwen": ("transformer_blocks.0.attn.to_k", "transformer_blocks.1.img_mod.1",
            "transformer_blocks.2.txt_mlp.net.2"),
        "krea2": ("blocks.0.attn.wq", "blocks.1.mlp.up", "txtfusion.projector"),
        "fill": ("double_blocks.0.img_attn.qkv", "single_blocks.1.linear1"),
    }
    for family, layers in more.items():
        shapes, pairs = {k: s for k, s, *_ in weights[family + "-a"]["tensors"]}, {}
        for layer in layers:
            n, k = shapes[layer + ".weight"]
            key = "" if family == "qwen" else "diffusion_model."
            pairs[f"{key}{layer}.lora_up.weight"], pairs[f"{key}{layer}.lora_down.weight"] = fill("input:up/" + layer,
                [n, 4], 0.5, 0), fill("input:down/" + layer, [4, k], 0.5, 0)
        save_file(pairs, base / "models" / "loras" / f"tiny-lora-{family}.safetensors")
    # as Black Forest Labs' Canny and Depth LoRA: every matrix with its bias, every norm
    shapes, control = {k: s for k, s, *_ in weights["flux-c"]["tensors"]}, {}
    for key, shape in shapes.items():
        name = key.removesuffix(".weight")
        if key.endswith("_norm.scale"):
            control[key] = fill("input:norm/" + key, shape, 0.5, 1)
        elif len(shape) == 2:
            columns = 2 * shape[1] if name == "img_in" else shape[1]
            control[name + ".lora_A.weight"], control[name + ".lora_B.weight"] = fill("input:a/" + name, [3, columns],
                0.5, 0), fill("input:b/" + name, [shape[0], 3], 0.2, 0)
            control[name + ".lora_B.bias"] = fill("input:bias/" + name, shape[:1], 0.2, 0)
    save_file(control, base / "models" / "loras" / "tiny-lora-control.safetensors")
    for name in ("diffsynth-a", "diffsynth-inpaint-a", "uso-a", "uso-b"):
        tensors = {k: fill(f"{name}/{k}", s, scale, offset) for k, s, _, scale, offset in weights[name]["tensors"]}
        save_file(tensors, base / "models" / "model_patches" / f"{name}.safetensors")
    write_forms(base / "models", weights)
    ours, theirs = base / "models" / "diffusion_models", base / "daemon_models" / "diffusion_models"
    theirs.mkdir(parents=True)
    for name in names:
        if name not in ("flux-c-wide", "flux-c-full"):
            os.link(ours / f"{name}.safetensors", theirs / f"{name}.safetensors")
    for folder in ("checkpoints", "model_patches"):
        shutil.copytree(base / "models" / folder, base / "daemon_models" / folder)
    for folder in ("diffusion_models", "text_encoders", "vae", "tokenizers"):
        for models in (base / "models", base / "daemon_models"):
            shutil.copytree(REPO / "examples" / "demo" / folder, models / folder, dirs_exist_ok=True)
    os.link(ours / "flux-c.safetensors", ours / "only-here.safetensors")
    os.link(ours / "flux-c.safetensors", ours / "other.safetensors")
    os.link(ours / "flux-a.safetensors", theirs / "other.safetensors")
    wan = {"head.modulation": [1, 2, 256], "head.head.weight": [64, 256], "patch_embedding.weight": [256, 16, 1, 2, 2]}
    wan |= {"blocks.0.ffn.0.weight": [512, 256], "blocks.0.cross_attn.norm_k.weight": [256]}
    save_torch({k: torch.zeros(s, dtype=torch.float16) for k, s in wan.items()}, ours / "wan.safetensors")
    os.link(ours / "wan.safetensors", theirs / "wan.safetensors")
    (ours / "broken.safetensors").write_bytes(b"<html>not found</html>")


def write_forms(models: pathlib.Path, weights: dict[str, Any]) -> None:
    """Write flux-c once more: with fp8 weights and their factors, the same values in f32, and as a checkpoint."""
    name, config = "flux-c", {"config": json.dumps(weights["flux-c"]["config"])}
    plain = {k: fill(f"{name}/{k}", s, scale, offset) for k, s, _, scale, offset in weights[name]["tensors"]}
    packed, wide = {}, {}
    for key, value in plain.items():
        t = wide[key] = packed[key] = torch.from_numpy(value)
        if key.endswith(".weight") and t.ndim == 2 and "_blocks" in key:
            factor = (t.abs().max() / 448).float()
            packed[key] = (t / factor).to(torch.float8_e4m3fn)
            wide[key] = packed[key].float() * factor
            packed[key[:-6] + "weight_scale"] = factor
            packed[key[:-6] + "comfy_quant"] = torch.tensor(list(b'{"format": "float8_e4m3fn"}'), dtype=torch.uint8)
    save_torch(packed, models / "diffusion_models" / "flux-c-fp8.safetensors", config)
    save_torch(wide, models / "diffusion_models" / "flux-c-wide.safetensors", config)
    save_file({"model.diffusion_model." + k: v for k, v in plain.items()},
        models / "checkpoints" / "flux-c-full.safetensors", config)


class Rig:
    """A daemon and a ComfyUI, and what is asked of them."""

    def __init__(self, options: argparse.Namespace, base: pathlib.Path) -> None:
        self.options, self.base = options, base
        self.tree = pathlib.Path(options.comfyui).resolve()
        self.version = re.search(r'"(.*?)"', (self.tree / "comfyui_version.py").read_text()).group(
            1)  # type: ignore[union-attr]
        self.socket = str(base / "p.sock")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.prompts = 0
        self.http: aiohttp.ClientSession
        self.comfy: subprocess.Popen[bytes] | None = None
        self.daemon: subprocess.Popen[bytes] | None = None

    def start_daemon(self) -> None:
        log = open(self.base / "daemon.log", "ab")
        command = [self.options.program, "serve", "--models", str(self.base / "daemon_models"), "--socket", self.socket,
            "--listen", "127.0.0.1:0"]
        command += ["--store", str(self.base / "store"), "--output", str(self.base / "output"), "--compute", "f32",
            "--drain", "1s", "--queue", "memory"]
        self.daemon = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not os.path.exists(self.socket):
            if time.monotonic() > deadline or self.daemon.poll() is not None:
                raise SystemExit(f"the daemon did not start: {(self.base / 'daemon.log').read_text()[-2000:]}")
            time.sleep(0.05)

    def stop_daemon(self, kill: bool = False) -> None:
        assert self.daemon
        self.daemon.kill() if kill else self.daemon.terminate()
        self.daemon.wait(30)
        if os.path.exists(self.socket):
            os.unlink(self.socket)

    def start_comfy(self) -> None:
        nodes = self.base / "custom_nodes"
        (self.base / "comfy").mkdir()  # install-node looks for it
        subprocess.run([self.options.program, "install-node", self.base], check=True)
        shutil.copytree(HERE / "support", nodes / "patchbay_test", ignore=shutil.ignore_patterns("__pycache__"))
        env = {**os.environ, "PATCHBAY_DAEMON": self.socket, "PATCHBAY_TEST_WEIGHTS": str(self.base / "weights.json"),
            "OMP_NUM_THREADS": "1"}
        env["PATCHBAY_PROGRAM"] = str(pathlib.Path(self.options.program).resolve())
        if self.options.plain_msgpack:  # as if the package were not installed
            (self.base / "without").mkdir()
            (self.base / "without" / "msgpack.py").write_text('raise ImportError("hidden")\n')
            env["PYTHONPATH"] = str(self.base / "without")
        if self.options.record:
            env["PATCHBAY_TEST_RECORD"] = str(pathlib.Path(self.options.record).resolve())
        command = [self.options.python, "main.py", "--cpu", "--listen", "127.0.0.1", "--port", str(self.port),
            "--base-directory", str(self.base)]
        command += ["--disable-api-nodes", "--disable-auto-launch", "--preview-method", "latent2rgb",
            "--use-pytorch-cross-attention"]
        command += ["--database-url", f"sqlite:///{self.base}/db.sqlite", "--fp32-unet"]
        if self.options.frontend:
            command += ["--front-end-root", self.options.frontend]
        user = self.base / "user" / "default"
        user.mkdir(parents=True)
        (user / "comfy.settings.json").write_text(json.dumps(EDITOR))
        self.comfy = subprocess.Popen(command, cwd=self.tree, env=env, stdout=open(self.base / "comfy.log", "wb"),
            stderr=subprocess.STDOUT)

    async def ready(self) -> None:
        deadline = time.monotonic() + BOOT_SECONDS
        while True:
            try:
                async with self.http.get(self.url + "/object_info/PatchbayUNETLoader") as r:
                    if "PatchbayUNETLoader" not in await r.json():
                        raise SystemExit("ComfyUI runs without Patchbay's nodes:\n"
                            + (self.base / "comfy.log").read_text()[-3000:])
                    return
            except aiohttp.ClientError:
                if time.monotonic() > deadline or self.comfy is None or self.comfy.poll() is not None:
                    raise SystemExit("ComfyUI did not start:\n"
                        + (self.base / "comfy.log").read_text()[-3000:]) from None
                await asyncio.sleep(0.2)

    async def has(self, kind: str) -> bool:
        async with self.http.get(f"{self.url}/object_info/{kind}") as r:
            return kind in await r.json()

    async def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        async with self.http.post(self.url + path, json=body or {}) as r:
            return r.status, (await r.json() if r.content_type == "application/json" else None)

    async def facts(self) -> dict[str, Any]:
        async with self.http.get(self.url + "/patchbay_test/facts") as r:
            return await r.json()

    async def run(self, graph: dict[str, Any], on: Any = None) -> dict[str, Any]:
        """Queue a workflow and return how it ended."""
        self.prompts += 1
        await self.post("/patchbay_test/reset")
        out: dict[str, Any] = {"progress": 0, "previews": 0, "texts": [], "ok": False}
        async with self.http.ws_connect(f"{self.url}/ws?clientId=drive{self.prompts}", max_msg_size=0) as ws:
            body = {"prompt": graph, "prompt_id": f"00000000-0000-4000-9000-{self.prompts:012d}",
                "client_id": f"drive{self.prompts}"}
            status, reply = await self.post("/prompt", body)
            if status != 200:
                return {**out, "refused": reply}
            while True:
                m = await ws.receive(timeout=180)
                if m.type == aiohttp.WSMsgType.BINARY:
                    kind = struct.unpack(">I", m.data[:4])[0]
                    if kind == 3:
                        n = struct.unpack(">I", m.data[4:8])[0]
                        out["texts"].append(m.data[8 + n :].decode())
                    else:
                        out["previews"] += 1
                    continue
                if m.type != aiohttp.WSMsgType.TEXT:
                    raise RuntimeError(f"the websocket ended: {m}")
                e = json.loads(m.data)
                kind, data = e["type"], e.get("data") or {}
                if kind == "progress":
                    out["progress"] += 1
                elif kind == "execution_error":
                    out["error"] = {k: data[k] for k in ("node_type", "node_id", "exception_type", "exception_message")}
                elif kind == "execution_interrupted":
                    out["interrupted"] = True
                elif kind == "execution_success":
                    out["ok"] = True
                elif kind == "executed" and "latents" in (data.get("output") or {}):
                    file = data["output"]["latents"][0]
                    out["latent"] = load_file(self.base / "output" / file["subfolder"] / file["filename"])[
                        "latent_tensor"]
                    out.setdefault("latents", {})[data["node"]] = out["latent"]
                elif kind == "executed" and "kept" in (data.get("output") or {}):
                    out[data["output"]["name"][0]] = np.load(data["output"]["kept"][0])
                elif kind == "executed" and "text" in (data.get("output") or {}):
                    out["shown"] = out[f"shown_{data['node']}"] = data["output"]["text"]
                if on:
                    await on(kind, data)
                if kind == "executing" and data.get("node") is None:
                    break
        out["facts"] = await self.facts()
        return out

    def graph(self, case: Case, remote: bool) -> dict[str, Any]:
        file = (case.model if remote or not case.stock else case.stock) + ".safetensors"
        loader: dict[str, Any] = {"class_type": "PatchbayUNETLoader" if remote else "UNETLoader",
            "inputs": {"unet_name": file, "weight_dtype": "default"}}
        if case.checkpoint:
            loader = {"class_type": "PatchbayCheckpointLoader" if remote else "CheckpointLoaderSimple",
                "inputs": {"ckpt_name": file}}
        g = Graph("-".join(case.model.split("-")[:2]), loader, **case.settings)
        if remote and case.plan:
            loader["inputs"]["plan"] = g.add("2", "TestPlan", plan=case.plan)
        case.change(g)
        out = g.build()
        for node in out.values():
            if remote and case.swaps and node["class_type"] == "ModelPatchLoader":
                node["class_type"] = "PatchbayModelPatchLoader"
        return out


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def apart(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> float:
    """Return the largest difference over the largest value of want; a value that is no number is infinitely far."""
    if got.shape != want.shape or not np.isfinite(got).all() or not np.isfinite(want).all():
        return float("inf")
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30))


class Report:
    """What was found."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.failed: list[str] = []

    def add(self, name: str, bad: list[str], **row: Any) -> None:
        self.rows[name] = {**row, "bad": bad}
        if bad:
            self.failed.append(name)
        values = " ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
        print(f"{'FAIL' if bad else 'ok  '} {name:34s} {values} {'; '.join(bad)}", flush=True)


async def compare(rig: Rig, name: str, case: Case, report: Report) -> None:
    """Run a case through the node and through ComfyUI's own loader."""
    ours = await rig.run(rig.graph(case, True))
    if rig.options.record and case.record and case.mode == "whole":
        await rig.post("/patchbay_test/keep", {"case": name, "what": "request"})
    stock = await rig.run(rig.graph(case, False))
    if rig.options.record and case.record and case.mode == "whole":
        await rig.post("/patchbay_test/keep", {"case": name, "what": "x"})
    by_chance = not case.mode
    refused = (ours.get("error") or {}).get("exception_message",
        "").startswith(("Patchbay cannot run this", "Patchbay: plan_refused"))
    if by_chance and (refused or "latent" not in stock or not np.isfinite(stock["latent"]).all()):
        why = "ComfyUI has no latent, or one that is no numbers"
        print(f"NOT RUN {name}: {ours['error']['exception_message'].strip() if refused else why}", flush=True)
        return
    if "latent" not in ours or "latent" not in stock:
        report.add(name, [f"ours {ours.get('error') or ours.get('refused') or 'no latent'}",
            f"stock {stock.get('error') or stock.get('refused') or ''}"])
        return
    rel = apart(ours["latent"], stock["latent"])
    mode = "evaluation" if any("one evaluation at a time" in t for t in ours["texts"]) else "whole"
    bad = [f"relative error {rel:.3g}, bound {case.bound:.0e}"] * (not rel <= case.bound)
    bad += [f"{ours['facts']['evaluations']} evaluations in ComfyUI"] * (ours["facts"]["evaluations"] != 0)
    bad += ["stock evaluated nothing"] * (stock["facts"]["evaluations"] == 0 and not by_chance)
    bad += [f"went {mode}, want {case.mode}: {ours['texts']}"] * (mode != case.mode and not by_chance)
    # as its steps, of which a last bit may make one more
    few = 0.05 * stock["progress"] if name == "sampler_pixart_dpm_adaptive" else 0
    bad += [f"{k}: {ours[k]}, stock {stock[k]}" for k in ("progress", "previews") if abs(ours[k] - stock[k]) > few]
    saved = len(((ours["facts"].get("metrics") or {}).get("reused")) or [])
    bad += [f"the cache answered {saved} evaluations, texts {ours['texts']}"] * (mode == "whole"
        and case.reuses != (saved > 0) and not by_chance)
    bad += [f"{case.model} {case.settings} {case.plan} {json.dumps(rig.graph(case, False))}"] * (by_chance
        and bad != [])
    report.add(name, bad, rel=rel, reused=saved, mode=mode, progress=ours["progress"], previews=ours["previews"])


async def controls(rig: Rig, report: Report) -> None:
    """Show that the comparison can fail: other steps are far away, as is what lacks a LoRA, a control net or a model
    patch.
    """
    changes = {"lora": lora, "control_lora": lora_control, "net": controlled}
    table = {"control_steps": Case("flux-c", settings={"steps": 5}),
        **{"control_" + k: Case("flux-c", v) for k, v in changes.items()}}
    table |= {"control_patch": Case("qwen-a", model_patch, needs="QwenImageDiffsynthControlnet"),
        "control_style": Case("kontext-a", style, needs="USOStyleReference")}
    for name, case in table.items():
        if not case.needs or await rig.has(case.needs):
            base, other = [await rig.run(rig.graph(c, False)) for c in (Case(case.model), case)]
            rel = apart(other["latent"], base["latent"])
            report.add(name, [] if rel > 1e-2 else ["the difference is too small to tell anything"], rel=rel)


async def main() -> int:
    p = argparse.ArgumentParser()
    p.add_argument("comfyui")
    p.add_argument("--program", required=True)
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--only", default="")
    p.add_argument(
        "--random", default="", help="SEED,COUNT: so many random workflows, in place of the fixed ones and the faults")
    p.add_argument("--record", default="")
    p.add_argument("--out", default="")
    p.add_argument("--frontend", default="", help="folder of another editor than the installed one")
    p.add_argument("--plain-msgpack", action="store_true", help="run ComfyUI without the package msgpack")
    p.add_argument(
        "--shots", default="", help="folder for pictures of the editor, and the example workflows as it saves them")
    p.add_argument("--keep", action="store_true")
    options = p.parse_args()
    if options.random and not re.fullmatch(r"\d+,[1-9]\d*", options.random):
        p.error(f"--random {options.random}: want SEED,COUNT, as in 7,40")
    table = cases()
    if options.random:
        table, options.only = random_cases(*map(int, options.random.split(","))), options.only or "random_.*"
    wanted = [n for n in table if not options.only or any(re.fullmatch(o, n) for o in options.only.split(","))]
    base = pathlib.Path(tempfile.mkdtemp(prefix="patchbay-comfyui-"))
    write_models(base, {"flux-a", "flux-c", *(table[n].model for n in table)})
    if options.record:
        pathlib.Path(options.record).mkdir(parents=True, exist_ok=True)
    rig, report, began = Rig(options, base), Report(), time.monotonic()
    try:
        rig.start_comfy()
        rig.start_daemon()
        async with aiohttp.ClientSession() as rig.http:
            await rig.ready()
            print(f"ComfyUI {rig.version}: {len(wanted)} cases", flush=True)
            async with rig.http.get(rig.url + "/object_info/KSampler") as r:
                samplers = (await r.json())["KSampler"]["input"]["required"]["sampler_name"][0]
            if not options.only or "control" in options.only:
                await controls(rig, report)
            for name in wanted:
                sampler = table[name].settings.get("sampler_name", "euler")
                if sampler not in samplers:
                    print(f"NOT RUN {name}: this ComfyUI has no sampler {sampler}", flush=True)
                    continue
                if tuple(map(int, rig.version.split("."))) < table[name].since:
                    print(f"NOT RUN {name}: ComfyUI does it since {table[name].since}", flush=True)
                    continue
                if table[name].needs and not await rig.has(table[name].needs):
                    print(f"NOT RUN {name}: this ComfyUI has no {table[name].needs}", flush=True)
                    continue
                await compare(rig, name, table[name], report)
            await behaviour(rig, report, options.only)
            if not options.only or "editor" in options.only:
                await editor(rig, report, pathlib.Path(options.shots or base))
    finally:
        for proc in (rig.comfy, rig.daemon):
            if proc and proc.poll() is None:
                proc.terminate()
                proc.wait(30)
        if not options.keep and not report.failed:
            shutil.rmtree(base)
    errors = [r["rel"] for n, r in report.rows.items() if "rel" in r and not n.startswith("control")]
    print(
        f"ComfyUI {rig.version}: {len(report.rows)} checks, {len(report.failed)} failed, worst relative error "
        f"{max(errors, default=0):.3g}, {time.monotonic() - began:.0f} s")
    if report.failed:
        print("failed:", *report.failed, f"(logs in {base})")
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps({"comfyui": rig.version, "rows": report.rows}, indent=1))
    return 1 if report.failed or not report.rows else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
