"""The official Python SDK of the Model Context Protocol drives `patchbay mcp` (PROGRAM, TEMPLATES) as an application
with a language model does, for the daemon at NATS and the same one at SOCKET."""
import asyncio
import base64
import importlib.metadata
import json
import struct
import sys

from mcp import Client, StdioServerParameters

PROGRAM, TEMPLATES, NATS, SOCKET = sys.argv[1:5]
STRANGE = []  # what the SDK could not read: stdout carries the protocol only


async def heard(message):
    if isinstance(message, Exception):
        STRANGE.append(repr(message))


def client(*daemon, mode="auto", images="700K"):
    return Client(
        StdioServerParameters(command=PROGRAM, args=[
            "mcp", "--templates", TEMPLATES, "--image-bytes", images, *daemon]),
        mode=mode, read_timeout_seconds=120, message_handler=heard)


async def call(c, tool, progress=None, **arguments):
    """What a tool answers, as JSON, and the pictures beside it; an error is raised with its JSON."""
    out = await c.call_tool(tool, arguments, progress_callback=progress)
    answer = json.loads(out.content[0].text)
    if out.is_error:
        raise Refused(answer)
    assert answer == out.structured_content, answer
    return answer, [(x.mime_type, base64.b64decode(x.data)) for x in out.content[1:]]


class Refused(Exception):
    pass


async def refused(c, want, tool, **arguments):
    try:
        await call(c, tool, **arguments)
    except Refused as e:
        error = e.args[0]["error"]
        assert {k: error.get(k) for k in want} == want, error
        return e.args[0]
    raise AssertionError(f"{tool} {arguments} was taken")


async def tools(c):
    names = sorted(t.name for t in (await c.list_tools()).tools)
    assert names == ["cancel", "generate", "list_templates", "status", "submit", "view"], names
    found, _ = await call(c, "list_templates")
    by_name = {t["name"]: t for t in found["templates"]}
    assert sorted(by_name) == ["demo", "demo-edit"], found
    assert by_name["demo"]["parameters"]["properties"]["steps"]["default"] == 12, by_name["demo"]
    assert by_name["demo-edit"]["parameters"]["required"] == ["image"], by_name["demo-edit"]


async def generate(c):
    told = []

    async def progress(done, total, message):
        told.append((done, total, message))

    values = {"prompt": "a blue star on a white background", "width": 64, "height": 96, "steps": 3,
              "seed": 2**63 + 1}  # which no float is
    answer, pictures = await call(c, "generate", progress, template="demo", values=values)
    (kind, png), = pictures
    assert kind == "image/png" and struct.unpack(">II", png[16:24]) == (64, 96), (kind, png[:24])
    assert str(2**63 + 1).encode() in png, "the seed has changed on its way"
    assert answer["state"] == "done" and answer["files"][0]["name"].endswith(".png"), answer
    assert [d for d, _, _ in told] == sorted({d for d, _, _ in told}), told
    assert any("3 of 3" in m for _, _, m in told), told
    again, same = await call(c, "view", job=answer["job"])
    assert same == pictures and again["files"][0]["name"] == answer["files"][0]["name"], again
    edited, (second,) = await call(c, "generate", template="demo-edit",
                                   values={"image": answer["files"][0]["name"] + " [output]", "strength": 0.5})
    assert struct.unpack(">II", second[1][16:24]) == (128, 128), edited


async def submitted(c):
    answer, _ = await call(c, "submit", template="demo", values={"width": 64, "height": 64, "steps": 2})
    while (now := (await call(c, "status", job=answer["job"]))[0])["state"] in ("queued", "running"):
        await asyncio.sleep(0.05)
    assert now["state"] == "done" and len(now["files"]) == 1, now
    answer, _ = await call(c, "submit", template="demo", values={"width": 1024, "height": 1024, "steps": 1000})
    ended, _ = await call(c, "cancel", job=answer["job"])
    assert ended["cancelled"], ended
    await has_ended(c, answer["job"])


async def has_ended(c, job):
    while (now := (await call(c, "status", job=job))[0])["state"] in ("queued", "running"):
        await asyncio.sleep(0.05)
    assert now["state"] == "cancelled", now


async def cancelled(c):
    """The job ends with the call that waits for it."""
    job = asyncio.get_running_loop().create_future()

    async def progress(_done, _total, message):
        if message.startswith("job ") and not job.done():
            job.set_result(message.split()[1])

    waits = asyncio.create_task(call(c, "generate", progress, template="demo", values={"steps": 9999, "seed": 5}))
    name = await job
    waits.cancel()
    try:
        await waits
        raise AssertionError("a cancelled call has an answer")
    except asyncio.CancelledError:
        pass
    await has_ended(c, name)


async def errors(c):
    await refused(c, {"code": "no_such_template", "input": "template"}, "generate", template="nobody")
    few = await refused(c, {"code": "bad_workflow", "type": "value_smaller_than_min", "input": "steps"}, "generate",
                        template="demo", values={"steps": 0})
    assert few["error"]["extra_info"]["allowed"]["minimum"] == 1, few
    await refused(c, {"code": "bad_request", "input": "colour"}, "submit", template="demo", values={"colour": 1})
    await refused(c, {"code": "no_such_job"}, "status", job="nobody")
    lost = await refused(c, {"code": "bad_workflow", "node": "10", "input": "image"}, "generate", template="demo-edit",
                         values={"image": "nowhere.png"})
    assert "nowhere.png" in json.dumps(lost["node_errors"]), lost


async def small(c):
    answer, ((kind, data),) = await call(c, "generate", template="demo",
                                         values={"width": 256, "height": 256, "steps": 1})
    assert kind == "image/jpeg" and len(data) <= 16 << 10 and answer["files"][0]["bytes"] > 16 << 10, answer


async def hung_up(c):
    """The job ends with the application, too."""
    async with client("--nats", NATS) as other:
        job = asyncio.get_running_loop().create_future()

        async def progress(_done, _total, message):
            if message.startswith("job ") and not job.done():
                job.set_result(message.split()[1])

        waits = asyncio.create_task(
            call(other, "generate", progress, template="demo", values={"steps": 9999, "seed": 6}))
        name = await job
    await asyncio.gather(waits, return_exceptions=True)
    await has_ended(c, name)


async def main():
    bad = 0
    for label, settings, parts in (
            ("NATS", {"daemon": ("--nats", NATS)}, (tools, generate, submitted, cancelled, hung_up, errors)),
            ("socket, handshake of 2025", {"daemon": ("--socket", SOCKET), "mode": "legacy", "images": "16K"},
             (tools, submitted, cancelled, errors, small))):
        async with client(*settings.pop("daemon"), **settings) as c:
            for part in parts:
                try:
                    await asyncio.wait_for(part(c), 180)
                    print(f"mcp by {label}: {part.__name__} ok", flush=True)
                except Exception as e:  # the others still run
                    bad += 1
                    print(f"mcp by {label}: {part.__name__} FAILS: {e!r:.600}", flush=True)
    if STRANGE:
        bad += 1
        print("stdout has what is no message:", STRANGE[:3])
    print(f"mcp {importlib.metadata.version('mcp')}: {bad} parts fail")
    sys.exit(bad > 0)


asyncio.run(main())
