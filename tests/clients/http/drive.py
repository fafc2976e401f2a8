"""drive.py ADDRESS [COMFYUI-ADDRESS]: runs client packages of ComfyUI, unchanged, against a server at HOST:PORT, and
against a real ComfyUI if one is named. Prints a line for each and ends with how many work, and how many answer the
same. PK names the folder with the packages, each in a folder of its own (see run.sh); COMFYUI a tree of ComfyUI, for
its three example scripts."""

import asyncio
import contextlib
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time

PK = os.environ.get("PK", "pk")
COMFYUI = os.environ.get("COMFYUI", "")
HERE = os.path.dirname(os.path.abspath(__file__))
CLIENTS = {}


def client(f):
    """Registers a function (address, graph, file of the graph) -> what the client reports."""
    CLIENTS[f.__name__] = f
    return f


def package(name):
    sys.path.insert(0, f"{PK}/{name}")


def graph():
    """A new picture each time, so that nothing is answered from a cache."""
    color = random.randrange(1 << 24)
    return {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 48, "batch_size": 1, "color": color},
              "_meta": {"title": "Empty"}},
        "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "doors", "images": ["1", 0]},
              "_meta": {"title": "Save Image"}},
    }


def on_socket(g):
    """The same picture for SaveImageWebsocket."""
    g = {k: v for k, v in g.items() if v["class_type"] != "SaveImage"}
    g["save_image_websocket_node"] = {"class_type": "SaveImageWebsocket", "inputs": {"images": ["1", 0]}}
    return g


def size(picture):
    from PIL import Image
    return list(Image.open(io.BytesIO(picture)).size)


def example(name, address, g):
    """Runs an example script of ComfyUI with another address and graph."""
    text = open(f"{COMFYUI}/script_examples/{name}.py").read()
    for old, new in (
        ("127.0.0.1:8188", address), ("prompt = json.loads(prompt_text)", "prompt = GRAPH"),
        ('prompt["6"]["inputs"]["text"] =', "_ ="), ('prompt["3"]["inputs"]["seed"] =', "_ ="),
    ):
        text = text.replace(old, new)
    names = {"GRAPH": g}
    exec(compile(text, name, "exec"), names)
    return {k: [size(x) for x in v] for k, v in names.get("images", {}).items()}


if COMFYUI:
    @client
    def example_basic(address, g, path):
        return example("basic_api_example", address, g)

    @client
    def example_ws(address, g, path):
        made = example("websockets_api_example", address, g)
        assert made
        return made

    @client
    def example_ws_images(address, g, path):
        made = example("websockets_api_example_ws_images", address, on_socket(g))
        assert made.get("save_image_websocket_node"), "no picture on the socket"
        return made


@client
def comfy_api_simplified(address, g, path):
    package("comfy_api_simplified")
    from comfy_api_simplified import ComfyApiWrapper, ComfyWorkflowWrapper
    w = ComfyApiWrapper(f"http://{address}")
    made = w.queue_and_wait_images(ComfyWorkflowWrapper(path), "Save Image")
    assert made
    return [{k: size(v) for k, v in made.items()}, len(w.get_object_info("SaveImage")), len(w.get_queue()),
            type(w.get_embeddings()).__name__, "system" in w.get_system_stats()]


@client
def comfyui_utils(address, g, path):
    package("comfyui_utils")
    from comfyui_utils import comfy
    outputs = []

    class Callbacks(comfy.Callbacks):
        async def queue_position(self, position):
            pass

        async def in_progress(self, node_id, progress, total):
            pass

        async def completed(self, made, cached):
            outputs.append(made)

    async def go():
        api = comfy.ComfyAPI(address)
        await api.submit(g, Callbacks())
        sizes = []

        async def read(f):
            sizes.append(size(f.read()))
        await api.fetch(outputs[0]["images"][0], read)
        return sizes
    return asyncio.run(go())


@client
def comfy_ui_client(address, g, path):
    package("comfy_ui_client")
    from comfy_ui_client.client import ComfyUIClient
    c = ComfyUIClient(address)
    c.connect()
    made = c.get_outputs(g)
    assert made["images"]
    return [str(list(made["images"])), "system" in c.get_system_stats(), len(c.get_object_info("SaveImage"))]


@client
def comfyapi(address, g, path):
    package("comfyapi")
    import comfyapi as m
    c = m.ComfyAPIManager()
    c.set_base_url(f"http://{address}")
    c.load_workflow(path)
    job = c.submit_workflow()
    for _ in range(60):
        with contextlib.suppress(Exception):
            if c.check_queue(job):
                break
        time.sleep(1)
    return list(c.find_output(job, with_filename=True))


@client
def comfyui_xy(address, g, path):
    package("comfyui_xy")
    from comfyui_xy import ComfyUiClient
    c = ComfyUiClient(f"http://{address}")
    made = c.process_workflow(g, execution_timeout=60)
    assert made
    return [str(getattr(x, "file_type", x))[:40] for x in made] + [bool(c.get_object_info("SaveImage"))]


@client
def comfyflow(address, g, path):
    package("comfyflow")
    from comfyflow.client import ComfyClient
    c = ComfyClient.create(address)

    class Node:
        def __init__(self, key, node):
            self.id, self.inputs = key, node["inputs"]
            self.schema = type("Schema", (), {"name": node["class_type"]})

    class Workflow:
        nodes = [Node(k, v) for k, v in g.items()]

        def iter_uploads(self):
            return []

        def to_api_json(self):
            return g
    made = [(key, list(im.size)) for key, im in c.run(Workflow())]
    assert made
    return made


@client
def comfy_toolkit(address, g, path):
    package("comfy_toolkit")
    from comfy_toolkit import ComfyClient
    c = ComfyClient(f"http://{address}")
    assert c.is_online()
    made = c.submit_and_track(g)
    images = c.wait_for_images(made["prompt_id"]) if made.get("prompt_id") else made["images"]
    return [size(c.download(images[0])), c.queue_status()]


@client
def comfyui_async_api_tool(address, g, path):
    package("comfyui_async_api_tool")
    import aiohttp
    from comfyui_async_api_tool import ComfyClient

    async def go():
        async with aiohttp.ClientSession() as s:
            return [str(x)[:90] async for x in ComfyClient(s, [f"http://{address}"]).run(g)]
    made = asyncio.run(go())
    assert made
    return made[-2:]


@client
def comfy_proxy(address, g, path):
    package("comfy_proxy")
    from comfy_proxy.comfy import SingleComfy
    g = on_socket(g)

    class Workflow:
        def to_dict(self):
            return g

        def to_json(self):
            return json.dumps(g)

    async def go():
        return [size(x) async for x in SingleComfy(address).generate(Workflow())]
    made = asyncio.run(go())
    assert made
    return made


@client
def pycomfy(address, g, path):
    package("pycomfy")
    from pycomfy.client import ComfyAPI
    with ComfyAPI(address) as c:
        made = c.load_workflow(path).execute()
    assert made
    return [list(x.size) for x in made]


@client
def comfy_cli(address, g, path):
    host, port = address.split(":")
    home = tempfile.mkdtemp()
    env = dict(os.environ, HOME=home, XDG_CONFIG_HOME=home, DO_NOT_TRACK="1", COMFY_WHERE="local", COMFY_HOST=host,
               COMFY_PORT=port)
    codes = []

    def run(*args, named=("--host", host, "--port", port)):
        r = subprocess.run([os.path.dirname(sys.executable) + "/comfy", "--skip-prompt", "--json", *args, *named],
                           capture_output=True, text=True, env=env, cwd=home, timeout=110)
        codes.append([args[0], r.returncode])
        return (r.stdout or r.stderr).strip()
    last = run("run", "--workflow", path, "--wait", "--timeout", "60").splitlines()[-1]
    picture = os.path.join(home, "up.png")
    from PIL import Image
    Image.new("RGB", (8, 8), (random.randrange(256), 2, 3)).save(picture)
    run("upload", picture)
    run("jobs", "ls")
    job = json.loads(last)["data"]["prompt_id"]
    run("jobs", "status", job)
    run("download", job, named=())
    return codes


def one(name, address):
    """Runs one client in this process."""
    g = graph()
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as f:
        json.dump(g, f)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            made = CLIENTS[name](address, g, f.name)
        out = {"ok": True, "made": made}
    except BaseException as e:
        out = {"ok": False, "error": repr(e)[:300]}
    print(json.dumps(out, default=str))
    sys.stdout.flush()
    os._exit(0)  # whatever threads a package has left


def run(name, address):
    try:
        r = subprocess.run([sys.executable, __file__, "one", name, address], capture_output=True, text=True, timeout=90)
    except subprocess.TimeoutExpired:  # one that opens its socket after it has posted waits for ever for ComfyUI
        return {"ok": False, "error": "no end within 90 s"}
    lines = r.stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines else {"ok": False, "error": r.stderr[-300:]}


def shape(out):
    """What must be equal: all but addresses, counters and times."""
    text = json.dumps(out, sort_keys=True)
    return re.sub(r"127\.0\.0\.1:\d+|_\d{5}_|\d+\.\d+|[0-9a-f]{8}-[0-9a-f-]{27}", "*", text)


def main():
    if sys.argv[1] == "one":
        one(*sys.argv[2:4])
    works = same = alone = 0
    for name in CLIENTS:
        outs = [run(name, address) for address in sys.argv[1:]]
        works += outs[0]["ok"]
        alike = shape(outs[0]) == shape(outs[-1])
        same += alike
        verdict = "works" if outs[0]["ok"] else "FAILS"
        if outs[0]["ok"] and not outs[-1]["ok"]:
            alone += 1
            verdict += ", not with ComfyUI"
        elif not alike:
            verdict += ", OTHERWISE THAN COMFYUI"
        print(f"{name}: {verdict}",
              json.dumps(outs if not alike else outs[0], default=str)[:400], flush=True)
    print(f"{works} of {len(CLIENTS)} clients work", end="")
    print(f", {same} answer as with ComfyUI, {alone} only work here" if len(sys.argv) > 2 else "")
    sys.exit(works < len(CLIENTS) or same + alone < len(CLIENTS))


if __name__ == "__main__":
    main()
