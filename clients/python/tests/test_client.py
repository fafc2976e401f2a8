from __future__ import annotations

import json
import os
import pathlib
import struct
import threading
import time
import zlib
from typing import Any

import numpy as np
import pytest

from patchbay import Client, ConnectionLostError, Handle, PatchbayError, RefusedError

from .conftest import Daemon, worker

MODEL = "demo_flux.safetensors"


def workflow(steps: int = 2, seed: int = 1, size: int = 128) -> dict[str, Any]:
    path = os.path.join(os.path.dirname(__file__), "..", "..", "..", "examples", "demo.json")
    with open(path, encoding="utf-8") as f:
        out: dict[str, Any] = json.load(f)
    out["3"]["inputs"] |= {"steps": steps, "seed": seed}
    out["5"]["inputs"] |= {"width": size, "height": size}
    return out


def conds(c: Client, text: str) -> dict[str, Any]:
    clip = c.exec(
        "DualCLIPLoader", {"clip_name1": "demo_clip.safetensors", "clip_name2": "demo_t5.safetensors", "type": "flux"}
    ).outputs[0]
    context, keys = c.exec("CLIPTextEncode", {"text": text, "clip": clip}).outputs[0][0]
    return {"c_crossattn": context, "y": keys["pooled_output"], "guidance": np.array([3.5], np.float32)}


def test_run_and_cancel(client: Client) -> None:
    events: list[str] = []
    seed = int(time.time_ns() % 2**63)
    result = client.run(workflow(seed=seed), on_event=lambda e: events.append(e["type"]))
    assert events[0] == "queued" and events[-1] == "execution_success" and "progress" in events
    assert result.files[0].data[:4] == b"\x89PNG" and result.files[0].ref["width"] == 128
    name, asked = f"slow-{seed}", []

    def cancel(event: dict[str, Any]) -> None:
        if event["type"] == "progress" and not asked:
            asked.append(threading.Thread(target=lambda: client.cancel(name), daemon=True))
            asked[0].start()

    with pytest.raises(PatchbayError) as e:
        client.run(workflow(steps=5000, seed=seed), id=name, on_event=cancel)
    asked[0].join()
    assert e.value.code == "cancelled"


def test_submit_status_cancel(keeper: Client) -> None:
    seed = int(time.time_ns() % 2**63)
    receipt = keeper.submit(workflow(seed=seed + 1), id=f"job-{seed}")
    assert receipt["job"] == f"job-{seed}"
    assert keeper.follow(receipt["job"]).files[0].data[:4] == b"\x89PNG"
    assert keeper.status(receipt["job"])["state"] == "done"
    assert keeper.cancel(receipt["job"]) is False
    slow = keeper.submit(workflow(steps=5000, seed=seed))["job"]
    assert keeper.cancel(slow) is True
    with pytest.raises(PatchbayError) as e:
        keeper.follow(slow)
    assert e.value.code == "cancelled"
    with pytest.raises(PatchbayError) as e:
        keeper.status("nobody")
    assert e.value.code == "no_such_job"


def test_a_worker_names_what_it_does_not_answer(home: pathlib.Path) -> None:
    with Client.spawn(worker(home)) as c, pytest.raises(RefusedError, match="submit .*daemon.*run, exec, sample") as e:
        c.submit(workflow())
    assert e.value.code == "no_such_verb"


def test_errors_are_typed(client: Client) -> None:
    with pytest.raises(PatchbayError) as e:
        client.exec("NoSuchNode")
    assert (e.value.code, e.value.status, e.value.retryable) == ("no_such_node_type", 404, False)
    with pytest.raises(PatchbayError) as e:
        client.exec("VAEDecode", {"samples": Handle("gone"), "vae": Handle("gone")})
    assert e.value.code == "no_such_handle"
    with pytest.raises(PatchbayError) as e:
        client.cancel("nobody")
    assert e.value.code == "no_such_job"
    latent = np.zeros((1, 16, 16, 16), np.float32)
    with pytest.raises(PatchbayError) as e:
        client.sample(
            MODEL, "euler", np.array([1, 0]), latent, [{"model_conds": {"c_crossattn": latent[0], "c_concat": latent}}]
        )
    assert e.value.code == "bad_request" and "c_c" in e.value.input


def test_describe_and_models(client: Client, keeper: Client) -> None:
    assert MODEL in keeper.models()["diffusion_models"]
    assert list(client.describe("KSampler")) == ["KSampler"]
    assert client.devices() == keeper.devices() != []


def latent_factors() -> tuple[float, float]:
    """Return shift and scale of the demo model's latent format, from the header of its file."""
    path = os.path.join(os.environ["PATCHBAY_MODELS"], "diffusion_models", MODEL)
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    config = json.loads(header["__metadata__"]["config"])
    return config["latent_shift_factor"], config["latent_scale_factor"]


def test_sample_equals_the_node(client: Client) -> None:
    """The last two of three steps, from one latent, as a KSamplerAdvanced node and as a sample message: the same
    numbers.
    """
    model = client.exec("UNETLoader", {"unet_name": MODEL, "weight_dtype": "default"}).outputs[0]
    clip = client.exec(
        "DualCLIPLoader", {"clip_name1": "demo_clip.safetensors", "clip_name2": "demo_t5.safetensors", "type": "flux"}
    ).outputs[0]
    given = {
        name: client.exec("CLIPTextEncode", {"text": text, "clip": clip}).outputs[0]
        for name, text in (("positive", "a big red heart"), ("negative", ""))
    }
    sigmas = client.exec("BasicScheduler", {"model": model, "scheduler": "simple", "steps": 3, "denoise": 1.0}).outputs[
        0
    ]
    latent = np.random.default_rng(5).standard_normal((2, 16, 16, 16)).astype(np.float32)
    node = client.exec(
        "KSamplerAdvanced",
        {
            "model": model,
            "add_noise": "disable",
            "noise_seed": 0,
            "steps": 3,
            "cfg": 3.5,
            "sampler_name": "euler",
            "scheduler": "simple",
            "latent_image": {"samples": latent},
            "start_at_step": 1,
            "end_at_step": 10000,
            "return_with_leftover_noise": "disable",
            **given,
        },
    ).outputs[0]["samples"]
    entries = {
        name: [{"model_conds": {"c_crossattn": c[0][0], "y": c[0][1]["pooled_output"]}}] for name, c in given.items()
    }
    shift, scale = latent_factors()
    message = client.sample(
        MODEL, "euler", sigmas[1:], (latent - shift) * scale, entries["positive"], entries["negative"], cfg=3.5
    )
    assert message.evals == 2 and np.abs(node - latent).max() > 0.1
    np.testing.assert_allclose(message.x / scale + shift, node, rtol=0, atol=1e-5 * float(np.abs(node).max()))
    client.free([model, clip])


def test_sample_reports_and_repeats(client: Client) -> None:
    model = client.exec("UNETLoader", {"unet_name": MODEL, "weight_dtype": "default"}).outputs[0]
    positive = conds(client, "a big red heart")
    sigmas = client.exec("BasicScheduler", {"model": model, "scheduler": "simple", "steps": 3, "denoise": 1.0}).outputs[
        0
    ]
    noise = np.random.default_rng(5).standard_normal((1, 16, 16, 16)).astype(np.float32)
    steps: list[tuple[int, int, tuple[int, ...]]] = []
    size = client.load(MODEL)
    assert size > 1_000_000
    run = {
        "noise": noise,
        "preview": "latent",
        "want_x0": True,
        "on_progress": lambda p: steps.append((p["i"], p["n"], p["x0"].shape)),
    }
    first = client.sample(MODEL, "euler", sigmas, np.zeros_like(noise), [{"model_conds": positive}], **run)
    assert steps == [(i, 3, noise.shape) for i in (1, 2, 3)] and first.evals == 3
    assert first.x0 is not None and np.isfinite(first.x).all() and first.x.std() > 0.1
    np.testing.assert_allclose(first.x, first.x0, atol=1e-5)  # the last sigma is 0: the result is its denoised estimate
    again = client.sample(MODEL, "euler", sigmas, np.zeros_like(noise), [{"model_conds": positive}], noise=noise)
    assert (again.x == first.x).all() and again.metrics["load_seconds"] == 0
    other = client.sample(MODEL, "euler", sigmas, np.zeros_like(noise), [{"model_conds": positive}], noise=-noise)
    assert np.abs(other.x - first.x).max() > 0.01
    client.free([model])


@pytest.mark.parametrize("size", [64, 600, 2000])
def test_pictures_there_and_back(client: Client, size: int) -> None:
    """Tensors inside the message and beside it, in memory of their own and in that of the client."""
    image = np.random.default_rng(1).random((1, size, size, 3), np.float32)
    shared = client.empty(image.shape)
    shared[:] = image
    for given in (image, shared, np.asfortranarray(image))[: 3 if size < 2000 else 2]:
        for _ in range(2 if size < 2000 else 1):
            (got,) = client.exec("ImageInvert", {"image": given}).outputs
            np.testing.assert_array_equal(got, np.float32(1) - image)


def noisy_png(side: int) -> bytes:
    """Return a picture that does not compress."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = np.random.default_rng(2).integers(0, 256, (side, 1 + 3 * side), np.uint8)
    rows[:, 0] = 0
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows.tobytes(), 1))
        + chunk(b"IEND", b"")
    )


def test_pictures_sent_with_a_job(client: Client) -> None:
    """LoadImage finds a picture of 3 MB that came with the job; the saved one comes back whole."""
    side = 1000
    picture = noisy_png(side)
    flow = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "mine.png"}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}},
    }
    result = client.run(flow, inputs={"mine.png": picture})
    assert len(result.files[0].data) > 2_500_000 and result.files[0].ref["width"] == side
    (loaded, _) = client.exec("LoadImage", {"image": "mine.png"}, files={"mine.png": picture}).outputs
    assert loaded.shape == (1, side, side, 3)
    (back, _) = client.exec("LoadImage", {"image": "back.png"}, files={"back.png": result.files[0].data}).outputs
    np.testing.assert_allclose(loaded + back, 1, atol=1 / 255 + 1e-6)


def test_sample_is_cancelled(client: Client) -> None:
    positive = conds(client, "a big red heart")
    channels = (
        client.exec("EmptySD3LatentImage", {"width": 128, "height": 128, "batch_size": 1})
        .outputs[0]["samples"]
        .shape[1]
    )
    latent = np.zeros((1, channels, 16, 16), np.float32)
    name = f"run-{time.time_ns()}"

    def stop(p: dict[str, Any]) -> None:
        if p["i"] == 1:
            threading.Thread(target=lambda: client.cancel(name), daemon=True).start()

    with pytest.raises(PatchbayError) as e:
        client.sample(
            MODEL,
            "euler",
            np.linspace(1, 0, 5001),
            latent,
            [{"model_conds": positive}],
            noise=latent + 1,
            id=name,
            on_progress=stop,
        )
    assert e.value.code == "cancelled"


def test_nobody_there(tmp_path: object) -> None:
    with pytest.raises(ConnectionLostError):
        Client.socket(f"{tmp_path}/none.sock")
    with pytest.raises(ConnectionLostError):
        Client.nats("nats://127.0.0.1:1", connect_timeout=1)


@pytest.mark.parametrize("way", ["shared memory", "socket", "NATS"])
def test_tensor_speed(daemon: Daemon, way: str) -> None:
    """64 MiB there, to a node that there is not, which is known when they have come; the time is printed."""
    with Client.nats(daemon.nats) if way == "NATS" else Client.socket(daemon.socket) as c:
        big = c.empty((1, 16, 1024, 1024)) if way == "shared memory" else np.zeros((1, 16, 1024, 1024), np.float32)
        times = []
        for _ in range(7):
            big[0, 0, 0] += 1
            began = time.perf_counter()
            with pytest.raises(PatchbayError, match="NoSuchNode"):
                c.exec("NoSuchNode", {"x": big})
            times.append(time.perf_counter() - began)
    times = sorted(times[2:])
    print(
        f"64 MiB Python -> daemon -> worker, {way}: median {times[len(times) // 2] * 1000:.0f} ms, best "
        f"{times[0] * 1000:.0f} ms"
    )
