"""What results, errors and the client for asyncio are like."""

from __future__ import annotations

import asyncio
import builtins
import os
import pathlib
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

import patchbay
from patchbay import AsyncClient, CancelledError, Client, ConnectionLostError, File, PatchbayError, RefusedError
from patchbay.results import pixels

from .conftest import PATIENCE, Daemon, poll
from .test_client import MODEL, conds, workflow
from .test_sampling import LATENT


def test_reasons_are_in_the_text(client: Client) -> None:
    flow = workflow()
    flow["3"]["inputs"]["sampler_name"] = "nope"
    with pytest.raises(PatchbayError, match=r"(?s)bad_workflow.*node 3 \(KSampler\): Value not in list: sampler_name"):
        client.run(flow)
    flow = {"1": {"class_type": "Alpha", "inputs": {}}, "2": {"class_type": "Beta", "inputs": {}}}
    with pytest.raises(RefusedError, match=r"(?s)not here: Alpha \(node 1\).*not here: Beta \(node 2\)"):
        client.run(flow)


def test_unknown_fields_are_refused(client: Client) -> None:
    with pytest.raises(RefusedError, match="plna: is not known here .*there are .*plan") as e:
        client.run(workflow(), plna="ulysses=2")
    assert e.value.input == "plna"
    bodies: dict[str, dict[str, Any]] = {
        "run": {"workflow": workflow()},
        "exec": {"class_type": "EmptyImage"},
        "sample": {},
    }
    for verb, body in bodies.items():  # of what is not this client
        with pytest.raises(PatchbayError, match="plna.*not known here"):
            next(client._ask(verb, {**body, "plna": "ulysses=2"}))
    replies = list(client._ask("run", {"prompt": workflow(), "plna": "x"}))  # ComfyUI passes it over
    assert replies[-1]["type"] == "execution_success"


def test_results_are_short_and_have_pictures(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    previews: list[tuple[str, object]] = []
    result = client.run(
        workflow(steps=12, seed=time.time_ns() % 2**63),
        on_preview=lambda node, jpeg: previews.append((node, type(jpeg))),
    )
    assert len(repr(result)) < 250 and "execution_success" in repr(result) and "128x128" in repr(result.files[0])
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    (array,) = result.images
    monkeypatch.undo()
    shown = client.exec("LoadImage", {"image": "a.png"}, files={"a.png": result.files[0].data})
    np.testing.assert_array_equal(np.round(shown.outputs[0][0] * 255), array)
    assert len(repr(shown)) < 200 and "float32 [1, 128, 128, 3]" in repr(shown)
    positive = conds(client, "a big red heart")
    done = client.sample(
        MODEL,
        "euler",
        np.linspace(1, 0, 13),
        LATENT,
        [{"model_conds": positive}],
        on_preview=lambda node, jpeg: previews.append((node, type(jpeg))),
    )
    assert (
        len(repr(done)) < 80
        and {kind for _, kind in previews} == {bytes}
        and {node for node, _ in previews} >= {"3", ""}
    )


def test_pngs_without_pillow() -> None:
    """All five filters and four colour types, against rows that are filtered here by the formulas of the PNG
    specification, 9.2.
    """
    rng = np.random.default_rng(1)
    for colour, channels in ((0, 1), (2, 3), (4, 2), (6, 4)):
        picture = rng.integers(0, 256, (5, 7, channels), np.uint8)
        raw, flat = b"", picture.reshape(5, -1).astype(int)
        for kind in range(5):
            raw += bytes([kind])
            for i in range(flat.shape[1]):
                a = flat[kind, i - channels] if i >= channels else 0
                b = flat[kind - 1, i] if kind else 0
                c = flat[kind - 1, i - channels] if kind and i >= channels else 0
                p = a + b - c
                paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
                raw += bytes([(flat[kind, i] - [0, a, b, (a + b) // 2, paeth][kind]) % 256])
        chunks = [
            (b"IHDR", struct.pack(">IIBBBBB", 7, 5, 8, colour, 0, 0, 0)),
            (b"IDAT", zlib.compress(raw)),
            (b"IEND", b""),
        ]
        png = b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks
        )
        np.testing.assert_array_equal(pixels(png), picture)
        np.testing.assert_array_equal(np.asarray(File({}, png).image).reshape(picture.shape), picture)


def test_version_is_that_of_the_package() -> None:
    text = (pathlib.Path(patchbay.__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert 'version = {attr = "patchbay.__version__"}' in text and patchbay.__version__.count(".") == 2


def test_asyncio(daemon: Daemon) -> None:
    """Jobs overlap in one task group, callbacks run in the loop, a task that is cancelled cancels its job."""

    async def main() -> None:
        async with await AsyncClient.nats(daemon.nats) as c, await AsyncClient.socket(daemon.socket) as other:
            loop, inside = asyncio.get_running_loop(), []

            def see(_: object) -> None:
                inside.append(asyncio.get_running_loop() is loop)

            seed = time.time_ns() % 2**62
            first, second = await asyncio.gather(
                c.run(workflow(seed=seed), on_event=see), other.run(workflow(seed=seed + 1))
            )
            assert first.files[0].data[:4] == second.files[0].data[:4] == b"\x89PNG" and inside and all(inside)
            started = asyncio.Event()
            task = asyncio.create_task(
                c.run(
                    workflow(steps=9000, seed=seed),
                    id=f"async-{seed}",
                    on_event=lambda e: e["type"] == "progress" and started.set(),
                )
            )
            await asyncio.wait_for(started.wait(), PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in poll("the job was cancelled"):
                if (await c.status(f"async-{seed}"))["state"] == "cancelled":
                    break
            with pytest.raises(CancelledError):
                await c.follow(f"async-{seed}")
        with pytest.raises((ConnectionLostError, RuntimeError)):
            await c.models()

    asyncio.run(main())
    assert os.path.exists(daemon.socket)


def test_every_question_ends() -> None:
    """A daemon that says nothing more is noticed by every verb, with and without a timeout of one's own."""
    asked: dict[str, float | None] = {}

    class Deaf:
        lost = False

        def ask(
            self, verb: str, _body: object, _job: str = "", timeout: float | None = None, _tick: object = None
        ) -> Iterator[Any]:
            asked[verb] = timeout
            raise TimeoutError(verb)

        def tell(self, _verb: str, _job: str) -> None:
            pass

    client = Client(cast(Any, Deaf()))
    latent = np.zeros((1, 4, 2, 2), np.float32)
    entry = {"model_conds": {"c_crossattn": latent[0]}}
    calls: list[Callable[[], object]] = [
        lambda: client.run(workflow(), reconnect=0),
        lambda: client.follow("a", reconnect=0),
        lambda: client.submit(workflow()),
        lambda: client.exec("EmptyLatentImage"),
        lambda: client.sample("m", "euler", np.array([1, 0]), latent, [entry]),
        lambda: client.load("m"),
        client.free,
        client.jobs,
        client.stats,
        client.models,
        client.describe,
        lambda: client.cancel("a"),
        lambda: client.retry("a"),
    ]
    for call in calls:
        with pytest.raises(TimeoutError):
            call()
    assert len(asked) == len(calls) and all(t and t > 0 for t in asked.values()), asked
    assert (
        asked["exec"] == asked["load"] == 3600
        and asked["submit"] == asked["free"] == 120
        and asked["run"] == asked["jobs"] == 30
    )
    client.timeout = 7
    for call in calls:
        with pytest.raises(TimeoutError):
            call()
    assert set(asked.values()) == {7}


def test_reuse(keeper: Client) -> None:
    """The same job again is answered from the first, with its file; without reuse it runs."""
    flow = workflow(seed=int(time.time_ns() % 2**63))
    first = keeper.run(flow, reuse=True)
    again = keeper.run(flow, reuse=True)
    assert not first.reused and again.reused == first.job != again.job
    assert again.files[0].data == first.files[0].data and not keeper.run(flow).reused


@pytest.mark.parametrize("end", ["execution_success", "execution_error"])
@pytest.mark.parametrize("without", range(4))
def test_each_lost_reply_is_asked_for_again(without: int, end: str) -> None:
    """Whichever reply of a job with two files is lost: the files are whole, asked for once more if one of theirs or the
    end was lost.

    Those of a job that failed afterwards come with its error."""
    data, asked = os.urandom(300), list[str]()
    ref = {"node": "9", "bytes": len(data)}
    replies: list[dict[str, Any]] = [
        {"type": "record", "job": "j"},
        {"type": "output", "job": "j", "output": 0, "ref": ref, "data": data},
        {"type": "output", "job": "j", "output": 1, "ref": ref, "data": data},
        {"type": end, "job": "j", "seq": 4, "ts": 4, "data": {"outputs": [ref, ref]}},
    ]

    class Lossy:
        lost = False

        def ask(
            self, verb: str, _body: object, _job: str = "", _timeout: float | None = None, _tick: object = None
        ) -> Iterator[Any]:
            asked.append(verb)
            yield from (dict(m) for i, m in enumerate(replies) if len(asked) > 1 or i != without)

        def tell(self, _verb: str, _job: str) -> None:
            pass

    heard: list[str] = []
    client = Client(cast(Any, Lossy()))
    try:
        files = client.follow("j", on_event=lambda e: heard.append(e["type"])).files
        assert end == "execution_success"
    except PatchbayError as err:
        files = err.files
        assert end == "execution_error"
    assert [f.data for f in files] == [data, data] and len(asked) == 1 + (without > 0)
    assert heard == [end]
