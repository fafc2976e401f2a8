"""What is not a number: stop, faults of the daemon, refusals, and what grows."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import os
import pathlib
import random
import re
import signal
import struct
from typing import Any

from graphs import Case, Graph, area, cache, lora, model_patch, style

LONG = {"steps": 400, "y": 48, "x": 48}
INTERRUPTS = 100
RUNS = 50


async def behaviour(rig: Any, report: Any, only: str = "") -> None:  # noqa: ANN401
    """Run all of it, or the parts that are named."""
    want = await rig.run(rig.graph(Case("flux-c"), True))
    same = lambda got: "latent" in got and bool((got["latent"] == want["latent"]).all())  # noqa: E731
    plain = (pictures, refusals, overhead, large_file, growth)
    for part in (pictures, interrupts, refusals, other_ways, overhead, large_file, growth, faults):
        if not only or "behaviour" in only or part.__name__ in only:
            await (part(rig, report) if part in plain else part(rig, report, same))


async def pictures(rig: Any, report: Any) -> None:  # noqa: ANN401
    """Draw the demo's picture with every node of the package, and once more as a whole workflow on the daemon: they
    must be equal.
    """
    whole = json.loads((pathlib.Path(__file__).parents[2] / "examples" / "demo.json").read_text())
    k = whole["3"]["inputs"]
    encoders = {"clip_name1": "demo_clip.safetensors", "clip_name2": "demo_t5.safetensors", "type": "flux"}
    parts = {
        "1": {"class_type": "PatchbayUNETLoader", "inputs": {"unet_name": "demo_flux.safetensors",
            "weight_dtype": "default", "plan": ["2", 0]}},
        "2": {"class_type": "PatchbayPlan", "inputs": {"mode": "degrees", "ulysses": 2,
            "predict": "demo_flux.safetensors", "width": 64, "height": 64, "steps": 2}},
        "5": whole["5"],
        "6": {"class_type": "PatchbayCLIPTextEncode", "inputs": {"text": whole["6"]["inputs"]["text"], **encoders}},
        "7": {"class_type": "PatchbayCLIPTextEncode", "inputs": {"text": "", **encoders}},
        "3": {"class_type": "KSampler", "inputs": k},
        "8": {"class_type": "PatchbayVAEDecode", "inputs": {"samples": ["3", 0], "vae_name": "demo_ae.safetensors"}},
        "9": {"class_type": "TestKeep", "inputs": {"name": "parts", "image": ["8", 0]}},
        "10": {"class_type": "PatchbayRun", "inputs": {"workflow": json.dumps(whole)}},
        "11": {"class_type": "TestKeep", "inputs": {"name": "whole", "image": ["10", 0]}},
        "12": {"class_type": "PatchbayStatus", "inputs": {"after": ["8", 0]}},
    }
    got = await rig.run(parts)
    apart = float("inf")
    if "parts" in got and "whole" in got and got["parts"].shape == got["whole"].shape:
        apart = float(abs(got["parts"] - got["whole"]).max())
    bad = [f"they differ by {apart:.3g}: {got.get('error') or got.get('refused')}"] * (not apart <= 1 / 255)
    bad += ["it is one colour"] * (not bad and float(got["whole"].std()) < 0.05)
    status, plan = str(got.get("shown_12")), str(got.get("shown_2"))
    bad += [f"status says {status}"] * ("ulysses=2 on 2 ranks" not in status or "devices cpu" not in status)
    bad += [f"the plan says {plan}"] * ("ulysses=2 on cpu: " not in plan or "GiB a device" not in plan
        or not any(t.startswith("Predicted: ulysses=2") for t in got["texts"]))
    report.add("pictures", bad, apart=apart, status=status, plan=plan)
    parts["2"]["inputs"] |= {"ulysses": 1, "pipe": 9}
    error = (await rig.run(parts)).get("error") or {}
    bad = [f"got {error}"] * (error.get("node_type") != "PatchbayPlan"
        or "use pipe=" not in error.get("exception_message", ""))
    report.add("plan_refused", bad, said=error.get("exception_message"))
    said = []
    for patch in ("none", "diffsynth-a.safetensors"):
        parts["2"]["inputs"] = {"mode": "degrees", "predict": "qwen-a.safetensors", "width": 256, "height": 256,
            "model_patches": patch}
        said.append(str((await rig.run(parts)).get("shown_2")))
    numbers = [[float(x) for x in re.findall(r"([0-9.e-]+) (?:s|GiB)\b", text)] for text in said]
    bad = [f"got {said}"] * (not all(len(n) == 2 for n in numbers)
        or not all(b > a for a, b in zip(*numbers, strict=True)))
    report.add("plan_nets", bad, said=said)


def foreign(g: Graph) -> None:
    g.custom(sampler=g.add("50", "TestForeignSampler"))


async def stopped(rig: Any, wait: float, before: Any = None, change: Any = None) -> tuple[float,
        dict[str, Any]]:  # noqa: ANN401
    """Stop a long run so many seconds after its first step; return how many seconds after ComfyUI took the stop the
    wrapper was left.
    """
    asked: list[str] = []

    async def on(kind: str, data: dict[str, Any]) -> None:
        if kind == "progress" and not asked:
            asked.append(kind)
            await asyncio.sleep(wait)
            if before:
                before()
                await asyncio.sleep(0.3)
            await rig.post("/interrupt")

    case = Case("flux-c", change or (lambda g: g), {**LONG, "seed": random.randrange(2**40)})
    got = await rig.run(rig.graph(case, True), on)
    return got["facts"]["left"] - got["facts"]["asked"], got


async def interrupts(rig: Any, report: Any, same: Any) -> None:  # noqa: ANN401
    """Press stop a hundred times at random moments, a tenth of them while the loop runs in ComfyUI."""
    random.seed(4)
    left, bad = [], []
    for i in range(INTERRUPTS):
        seconds, got = await stopped(rig, random.uniform(0, 0.15), change=foreign if i % 10 == 9 else None)
        left.append(1000 * seconds)
        if not got.get("interrupted") or got.get("error"):
            bad.append(f"ended as {got.get('error') or got['ok']}")
    left.sort()
    p95 = left[int(0.95 * len(left)) - 1]
    bad += [f"p95 {p95:.0f} ms, at most 100"] * (not p95 <= 100) + [f"{left[-1]:.0f} ms, at most 200"] * (
        not left[-1] <= 200)
    bad += ["a run after them differs"] * (not same(await rig.run(rig.graph(Case("flux-c"), True))))
    report.add("interrupts", bad, count=len(left), median_ms=left[len(left) // 2], p95_ms=p95, most_ms=left[-1])


def family(pid: int) -> list[int]:
    """Return a process and its children."""
    out = [pid]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as f:
            for child in f.read().split():
                out += family(int(child))
    return out


async def faults(rig: Any, report: Any, same: Any) -> None:  # noqa: ANN401
    """Hang, kill and restart the daemon."""
    halt = lambda how: [os.kill(p, how) for p in family(rig.daemon.pid)]  # noqa: E731
    seconds, got = await stopped(rig, 0.1, lambda: halt(signal.SIGSTOP))
    halt(signal.SIGCONT)
    bad = [f"left after {1000 * seconds:.0f} ms, at most 250"] * (not seconds <= 0.25) + ["not interrupted"] * (
        not got.get("interrupted"))
    halt(signal.SIGSTOP)
    said = str((await rig.run(rig.graph(Case("flux-c", settings={"seed": 13}), True))).get("refused", ""))
    halt(signal.SIGCONT)
    bad += [f"queued on a daemon that hangs: {said}"] * ("does not answer" not in said)
    await asyncio.sleep(4)
    bad += ["a run after it differs"] * (not same(await rig.run(rig.graph(Case("flux-c"), True))))
    report.add("hung_daemon", bad, left_ms=1000 * seconds)

    rig.stop_daemon()
    rig.start_daemon()
    got = await rig.run(rig.graph(Case("flux-c", settings={"seed": 6}), True))
    bad = [f"got {got.get('error')}"] * (not got["ok"]) + ["the run differs"] * (
        not same(await rig.run(rig.graph(Case("flux-c"), True))))
    report.add("restarted_daemon", bad)

    async def kill(kind: str, _: dict[str, Any]) -> None:
        if kind == "progress" and rig.daemon.poll() is None:
            for p in family(rig.daemon.pid):
                os.kill(p, signal.SIGKILL)
            rig.stop_daemon(kill=True)

    got = await rig.run(rig.graph(Case("flux-c", settings={**LONG, "seed": 11}), True), kill)
    text = (got.get("error") or {}).get("exception_message", "")
    bad = [f"got {got.get('error')}"] * ("was lost" not in text or got["error"]["node_type"] != "KSampler")
    report.add("killed_daemon", bad, text=text.strip())

    got = await rig.run(rig.graph(Case("flux-c", settings={"seed": 12}), True))
    text = str(got.get("refused", ""))
    report.add("missing_daemon", [f"got {got.get('error') or text}"] * ("patchbay serve" not in text
        or "custom_validation_failed" not in text), text=text[:160])
    rig.start_daemon()
    report.add("daemon_is_back", ["the run differs or failed"] * (not same(await rig.run(rig.graph(Case("flux-c"),
        True)))))


def on_model(kind: str, **inputs: Any) -> Any:  # noqa: ANN401
    return lambda g: g.on_model("60", kind, **inputs)


def merged(g: Graph) -> None:
    g.source = g.add("60", "ModelMergeSimple", model1=g.source, model2=g.source, ratio=0.5)


async def refusals(rig: Any, report: Any) -> None:  # noqa: ANN401
    """Everything that cannot run must be a red node that says why."""
    table: dict[str, tuple[Case, str]] = {
        "skip_layer": (Case("sd3-a", on_model("SkipLayerGuidanceSD3", layers="1", scale=3.0, start_percent=0.0,
            end_percent=1.0), {"cfg": 3.0}), "patches_replace"),
        "easy_cache_foreign": (Case("flux-c", lambda g: cache("EasyCache")(g).custom(sampler=g.add("50",
            "TestForeignSampler"))), "EasyCache together with sampler"),
        "two_caches": (Case("flux-c", lambda g: cache("EasyCache")(g).on_model("62", "LazyCache", reuse_threshold=0.2,
            start_percent=0.1, end_percent=0.9, verbose=False)), "diffusion_model wrapper"),
        "merged": (Case("flux-c", merged), "weight patch of kind"),
        "patch_unswapped": (Case("qwen-a", model_patch, swaps=False), "with Load Model Patch (Patchbay)"),
        "patch_area": (Case("qwen-a", lambda g: area(model_patch(g))), "its model a patch, and an area"),
        "patch_other_family": (Case("flux-c", model_patch), "is for qwen"),
        "style_unswapped": (Case("kontext-a", style, swaps=False), "with Load Model Patch (Patchbay)"),
        "style_pictures": (Case("kontext-a", lambda g: style(g, pictures=2)), "uso-a.safetensors following 2 pictures"),
        "style_other_family": (Case("qwen-a", style), "makes rows of 120 values in front of a text"),
        "bypass_lora": (Case("flux-c", on_model("LoraLoaderBypassModelOnly", lora_name="tiny-lora.safetensors",
            strength_model=0.8)), "injection"),
        "plan": (Case("flux-c", settings={"seed": 31}, plan="pipe=5"), "plan_refused"),
        "plan_syntax": (Case("flux-c", settings={"seed": 31}, plan="ulises=2"), "ulises"),
        "reference": (Case("zimage-a", lambda g: g.conditioned("60", "ReferenceLatent", latent=g.latent),
            needs="ModelMergeKrea2"), "the zimage model takes no references"),
        "attention_mask": (Case("flux-c", lambda g: g.conditioned("60", "TestAttentionMask")),
            "an attention mask that is not of StyleModelApply"),
        "zsnr": (Case("pixart-b", on_model("ModelSamplingDiscrete", sampling="v_prediction", zsnr=True)),
            "a table of sigmas of its own"),
        "lcm": (Case("pixart-b", on_model("ModelSamplingDiscrete", sampling="lcm", zsnr=False)),
            "is not known; the classes are"),
        "not_there": (Case("only-here"), "no_such_model"),
        "another_file": (Case("other"), "fingerprint"),
        "family": (Case("wan"), "looks like a diffusion model (wan) (supported: "),
        "no_file": (Case("broken"), "no safetensors file"),
    }
    for name, (case, text) in table.items():
        graph = rig.graph(case if case.model in ("flux-c", "sd3-a", "zimage-a", "pixart-b", "qwen-a", "kontext-a")
            else Case("flux-c"), True)
        graph["1"]["inputs"]["unet_name"] = case.model + ".safetensors"
        kinds = {n["class_type"] for n in graph.values()} | {case.needs or "KSampler"}
        absent = [k for k in kinds if not await rig.has(k)]
        if absent:
            print(f"NOT RUN refusal_{name}: this ComfyUI has no {', '.join(absent)}", flush=True)
            continue
        got = await rig.run(graph)
        said = (got.get("error") or {}).get("exception_message", "") or str(got.get("refused", ""))
        bad = [f"ran or said {said!r}"] * (text not in said or "Patchbay" not in said) + ["it ran"] * got["ok"]
        bad += ["the network was asked here"] * (got.get("facts", {}).get("evaluations", 0) != 0)
        report.add("refusal_" + name, bad, said=said.strip()[:150])
    if await rig.has("QwenImageDiffsynthControlnet"):
        graph = rig.graph(Case("qwen-a", model_patch), True)
        graph["1"]["class_type"] = "UNETLoader"
        said = str((await rig.run(graph)).get("error"))
        report.add("refusal_model_unswapped", [f"said {said}"] * ("use Load Model Patch with" not in said),
            said=said[:150])
    got = await rig.run({"1": rig.graph(Case("flux-c"), True)["1"],
        "2": {"class_type": "ModelSave", "inputs": {"filename_prefix": "m", "model": ["1", 0]}}})
    bad = ["it ran"] * got["ok"] + ["no advice"] * ("Patchbay" not in str(got.get("error")))
    report.add("refusal_save", bad, said=str((got.get("error") or {}).get("exception_message", "")).strip()[:120])
    for name, kind, inputs in (("compile", "TorchCompileModel", {"backend": "inductor"}),):
        if not await rig.has(kind):
            print(f"NOT RUN harmless_{name}: this ComfyUI has no {kind}", flush=True)
            continue
        got = await rig.run(rig.graph(Case("flux-c", on_model(kind, **inputs)), True))
        report.add("harmless_" + name, [f"got {got.get('error')}"] * (not got["ok"]))


async def other_version(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request as a daemon of another protocol would."""
    size = struct.unpack(">I", await reader.readexactly(4))[0]
    body = await reader.readexactly(size)
    tag = body[body.index(b"\xa3tag") + 4]  # a small number
    reply = b"\x84\xa2op\xa8describe\xa3tag" + bytes([tag]) + b"\xa1v\x02\xa3end\xc3"
    writer.write(struct.pack(">I", len(reply)) + reply)
    await writer.drain()


async def other_ways(rig: Any, report: Any, same: Any) -> None:  # noqa: ANN401
    """Reach a daemon over NATS, and start a worker: the same picture. A daemon that is not there is said before the
    queue runs.
    """
    url = json.loads((rig.base / "store" / "daemon.json").read_text()).get("nats", "")
    ways = {"started": "start", "nowhere": str(rig.base / "nobody.sock"), "not_nats": "nats://127.0.0.1:1"}
    if importlib.util.find_spec("nats"):
        ways["nats"] = url
    else:
        print("NOT RUN way_nats: nats-py is not installed", flush=True)
    newer = await asyncio.start_unix_server(other_version, str(rig.base / "newer.sock"))
    ways["newer"] = str(rig.base / "newer.sock")
    settings = rig.base / "user" / "default" / "comfy.settings.json"
    before = json.loads(settings.read_text())
    for name, address in ways.items():
        settings.write_text(json.dumps(before))
        graph = rig.graph(Case("flux-c"), True)
        graph["1"]["inputs"]["daemon"] = address
        alone = str((await rig.run(graph)).get("refused", ""))
        report.add("foreign_" + name, [f"got {alone}"] * ("the workflow names the daemon" not in alone))
        settings.write_text(json.dumps({**before, "Patchbay.Daemon": address}))  # now the user names it too
        got = await rig.run(graph)
        if name in ("nowhere", "not_nats", "newer"):
            said, want = str(got.get("refused", "")), "speaks protocol 2" if name == "newer" else "patchbay serve"
            report.add("way_" + name, [f"got {got.get('error')} {said}"] * ("custom_validation_failed" not in said
                or want not in said))
        else:
            report.add("way_" + name, [f"got {got.get('error') or got.get('refused')}"] * (not got["ok"])
                + ["another picture"] * (not same(got)))
    settings.write_text(json.dumps(before))
    newer.close()


async def overhead(rig: Any, report: Any) -> None:  # noqa: ANN401
    """Measure what the node adds to the daemon's own time at 1024 x 1024 pixels: at most 30 ms and 2 ms a step."""
    extra = []
    for seed in range(6):
        got = await rig.run(rig.graph(Case("flux-b", settings={"y": 128, "x": 128, "steps": 4, "seed": 900 + seed}),
            True))
        facts = got["facts"]
        spent = facts["left"] - facts["entered"] - facts["callbacks"]  # those are ComfyUI's pictures of the steps
        own = sum(facts["metrics"]["step_seconds"]) + facts["metrics"]["load_seconds"]
        extra.append(1000 * (spent - own))
    extra = sorted(extra[1:])
    # the others waited for other programs
    bad = ["more than 38 ms over the daemon's time for 4 steps"] * (not extra[0] <= 38)
    report.add("overhead", bad, extra_ms=[round(v, 1) for v in extra])


def flux_layout() -> dict[str, list[int]]:
    """Return names and shapes of FLUX.1 dev."""
    h, d = 3072, 128
    out: dict[str, list[int]] = {}

    def linear(name: str, n: int, k: int) -> None:
        out[name + ".weight"], out[name + ".bias"] = [n, k], [n]

    linear("img_in", h, 64)
    linear("txt_in", h, 4096)
    for name, k in (("time_in", 256), ("vector_in", 768), ("guidance_in", 256)):
        linear(name + ".in_layer", h, k)
        linear(name + ".out_layer", h, h)
    for i in range(19):
        for side in ("img", "txt"):
            at = f"double_blocks.{i}.{side}_"
            linear(at + "mod.lin", 6 * h, h)
            linear(at + "attn.qkv", 3 * h, h)
            linear(at + "attn.proj", h, h)
            linear(at + "mlp.0", 4 * h, h)
            linear(at + "mlp.2", h, 4 * h)
            out[at + "attn.norm.query_norm.scale"] = out[at + "attn.norm.key_norm.scale"] = [d]
    for i in range(38):
        at = f"single_blocks.{i}."
        linear(at + "linear1", 7 * h, h)
        linear(at + "linear2", h, 5 * h)
        linear(at + "modulation.lin", 3 * h, h)
        out[at + "norm.query_norm.scale"] = out[at + "norm.key_norm.scale"] = [d]
    linear("final_layer.linear", 64, h)
    linear("final_layer.adaLN_modulation.1", 2 * h, h)
    return out


async def large_file(rig: Any, report: Any) -> None:  # noqa: ANN401
    """Load the header of a FLUX.1 dev of real size, whose data is a hole: ComfyUI must not grow by more than 50 MB."""
    header, at = {}, 0
    for name, shape in flux_layout().items():
        n = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    raw = json.dumps(header).encode()
    path = rig.base / "models" / "diffusion_models" / "real-size.safetensors"
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(raw)) + raw)
        f.truncate(8 + len(raw) + at)

    def resident() -> float:
        with open(f"/proc/{rig.comfy.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) / 1024

    graph = rig.graph(Case("flux-c", settings={"seed": 71}), True)
    await rig.run(graph)
    graph["1"]["inputs"]["unet_name"] = path.name
    before = resident()
    got = await rig.run(graph)
    grown = resident() - before
    said = str((got.get("error") or {}).get("exception_message"))
    bad = [f"grew by {grown:.0f} MiB"] * (not grown < 50) + [f"said {said}"] * ("no_such_model" not in said)
    report.add("real_size", bad, apparent_gib=round(at / 2**30, 1), tensors=len(header), grown_mib=grown)
    path.unlink()


async def growth(rig: Any, report: Any) -> None:  # noqa: ANN401
    """Fifty runs, with a LoRA and without, must leave both sides as large as they were."""

    def resident() -> list[float]:
        out = []
        for pid in (rig.comfy.pid, *family(rig.daemon.pid)):
            with open(f"/proc/{pid}/status") as f:
                out.append(next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) / 1024)
        return out

    async def runs(n: int, seed: int) -> None:
        for i in range(n):
            await rig.run(rig.graph(Case("flux-c", lora if i % 2 else (lambda g: g),
                {"seed": seed + i, "y": 24, "x": 24, "cfg": 2.0}), True))

    await runs(RUNS // 2, 1000)
    before = resident()
    await runs(RUNS, 2000)
    after = resident()
    bad = [f"process {i}: {a:.0f} MiB, then {b:.0f}" for i, (a, b) in enumerate(zip(before, after, strict=True))
        if b > a + 32]
    report.add("fifty_runs", bad, before_mib=[round(v) for v in before], after_mib=[round(v) for v in after])
