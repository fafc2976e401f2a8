"""Drives ComfyUI's editor in a headless Chromium over its debugging protocol: load, swap, queue, look."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

REPO = pathlib.Path(__file__).resolve().parents[2]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


class Page:
    """A page of a browser."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws, self.asked = ws, 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:  # noqa: ANN401
        self.asked += 1
        await self.ws.send_json({"id": self.asked, "method": method, "params": params})
        while True:
            m = await self.ws.receive_json(timeout=120)
            if m.get("id") == self.asked:
                if "error" in m:
                    raise RuntimeError(f"{method}: {m['error']}")
                return m["result"]

    async def js(self, code: str) -> Any:  # noqa: ANN401
        """Run the body of an asynchronous function and return what it returns."""
        r = await self.call("Runtime.evaluate", expression=f"(async () => {{ {code} }})()", awaitPromise=True,
            returnByValue=True)
        if "exceptionDetails" in r:
            raise RuntimeError(
                f"{r['exceptionDetails'].get('exception', {}).get('description', r['exceptionDetails'])} in "
                f"{code[:200]}")
        return r["result"].get("value")

    async def until(self, condition: str, seconds: float = 60) -> Any:  # noqa: ANN401
        for _ in range(int(seconds / 0.1)):
            value = await self.js(f"try {{ return {condition}; }} catch {{ return null; }}")
            if value:
                return value
            await asyncio.sleep(0.1)
        raise RuntimeError(f"never true: {condition}")

    async def picture(self, path: pathlib.Path) -> None:
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


async def editor(rig: Any, report: Any, shots: pathlib.Path) -> None:  # noqa: ANN401
    """Load the example with ComfyUI's loader, swap it, queue it and see progress and picture; the same with the loader
    inside a subgraph.
    """
    async with opened(rig) as page:
        if page is None:
            print("NOT RUN editor: no Chromium on the PATH", flush=True)
        else:
            await walk(page, rig, report, shots)


@contextlib.asynccontextmanager
async def opened(rig: Any) -> AsyncIterator[Page | None]:  # noqa: ANN401
    """Open ComfyUI's editor in a browser; None where there is none."""
    program = next((p for p in map(shutil.which, CHROMIUM) if p), None)
    if program is None:
        yield None
        return
    profile = tempfile.mkdtemp(prefix="patchbay-editor-")
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
        f"--user-data-dir={profile}", "--window-size=1600,900", "--force-device-scale-factor=1.25", "about:blank"]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port_file = pathlib.Path(profile) / "DevToolsActivePort"
        for _ in range(300):
            if port_file.exists() and port_file.read_text().count("\n") >= 1:
                break
            await asyncio.sleep(0.1)
        port = port_file.read_text().split()[0]
        async with rig.http.get(f"http://127.0.0.1:{port}/json") as r:
            target = next(t for t in await r.json(content_type=None) if t["type"] == "page")
        async with rig.http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as ws:
            page = Page(ws)
            await page.call("Page.enable")
            await page.call("Page.navigate", url=rig.url)
            await page.until(
                "app.graph && app.extensionManager && app.vueAppReady !== false && "
                "LiteGraph.registered_node_types.PatchbayUNETLoader", 120)
            await asyncio.sleep(2)
            yield page
    finally:
        browser.terminate()
        browser.wait(20)
        shutil.rmtree(profile, ignore_errors=True)


def stock_demo() -> dict[str, Any]:
    """Return the demo's example as one has it before: with ComfyUI's own loader."""
    graph = json.loads((REPO / "comfyui" / "workflows" / "demo_api.json").read_text())
    graph["1"] = {"class_type": "UNETLoader", "inputs": {k: graph["1"]["inputs"][k]
        for k in ("unet_name", "weight_dtype")}}
    del graph["2"]
    return graph


QUEUE = """
const seen = {progress: 0, previews: 0, ended: ""};
const on = (name, f) => app.api.addEventListener(name, f);
on("progress", () => seen.progress++);
on("b_preview", () => seen.previews++);
on("b_preview_with_metadata", () => seen.previews++);
on("execution_success", () => seen.ended ||= "success");
on("execution_error", (e) => seen.ended ||= "error " + e.detail?.exception_message);
globalThis.seen = seen;
await app.queuePrompt(0);
"""
KINDS = (
    "[...app.graph.nodes, ...[...(app.graph.subgraphs?.values?.() ?? [])].flatMap((g) => [...g.nodes])]"
    ".map((n) => n.type)"
)


async def fit(page: Page) -> None:
    """Show the whole graph."""
    await page.js("await app.extensionManager.command.execute('Comfy.Canvas.FitView'); app.canvas.setDirty(true, true)")
    await page.js("document.querySelectorAll('.p-toast-close-button').forEach((b) => b.click())")
    await asyncio.sleep(1.5)


async def walk(page: Page, rig: Any, report: Any, shots: pathlib.Path) -> None:  # noqa: ANN401
    for file in sorted((REPO / "comfyui" / "workflows").glob("*_api.json")):
        await page.js(f"await app.loadApiJson({file.read_text()}, '{file.stem}')")
        saved = await page.js("return JSON.stringify(app.graph.serialize(), null, 1)")
        (shots / (file.stem.removesuffix("_api") + ".json")).write_text(saved + "\n")
        await fit(page)
        await page.picture(shots / f"comfyui-{rig.version}-{file.stem}.png")
    bad = []
    for file in sorted((REPO / "comfyui" / "workflows").glob("*.json")):
        if file.stem.endswith("_api"):
            continue
        await page.js(f"await app.loadGraphData({file.read_text()}, true)")
        kept = await page.js(
            "return [app.graph.nodes.length, app.graph.nodes.find((n) => n.type === "
            "'PatchbayUNETLoader')?.widgets[0].value]")
        want = json.loads(file.with_stem(file.stem + "_api").read_text())
        bad += [f"{file.name}: {kept}"] * (kept != [len(want), want["1"]["inputs"]["unet_name"]])
    await page.js(f"await app.loadApiJson({json.dumps(stock_demo())}, 'demo')")
    bad += ["the loader is not ComfyUI's"] * ("UNETLoader" not in await page.js(f"return {KINDS}"))
    menu = await page.js("return app.canvas.getCanvasMenuOptions().map((o) => o?.content)")
    bad += [f"the canvas menu has {menu}"] * ("Swap loaders for Patchbay" not in menu)
    for where in ("top", "subgraph"):
        if where == "subgraph":
            await page.js("await app.extensionManager.command.execute('Patchbay.SwapLoadersBack')")
            await page.until(f"{KINDS}.includes('UNETLoader')")
            await page.js(
                "const n = app.graph.nodes.find((n) => n.type === 'UNETLoader'); app.graph.convertToSubgraph(new "
                "Set([n]))")
            bad += ["no subgraph"] * (
                not await page.js("return app.graph.serialize().definitions?.subgraphs?.length > 0"))
        await page.js("await app.extensionManager.command.execute('Patchbay.SwapLoaders')")
        kinds = await page.js(f"return {KINDS}")
        bad += [f"{where}: after the swap there are {kinds}"] * ("PatchbayUNETLoader" not in kinds
            or "UNETLoader" in kinds)
        seed = 41 if where == "top" else 42
        await page.js(
            f"app.graph.nodes.find((n) => n.type === 'KSampler').widgets.find((w) => w.name === 'seed').value = {seed}")
        await page.js(QUEUE)
        seen = await page.until("globalThis.seen.ended && globalThis.seen", 90)
        bad += [f"{where}: {seen}"] * (seen["ended"] != "success" or seen["progress"] < 10 or seen["previews"] < 10)
        images = await page.until("app.graph.nodes.find((n) => n.type === 'SaveImage').imgs?.length ?? 0", 30)
        bad += [f"{where}: no picture on the node"] * (not images)
        await fit(page)
        await page.picture(shots / f"comfyui-{rig.version}-{where}.png")
    report.add("editor", bad, menu=len(menu), seen=seen)
