from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from patchbay import Client, ConnectionLostError, Handle, PatchbayError

MODEL = "demo_flux.safetensors"


def workflow(steps: int = 2, seed: int = 1) -> dict[str, Any]:
    path = os.path.join(os.path.dirname(__file__), "..", "..", "..", "examples", "demo.json")
    with open(path, encoding="utf-8") as f:
        out: dict[str, Any] = json.load(f)
    out["3"]["inputs"] |= {"steps": steps, "seed": seed}
    return out


def conds(c: Client, text: str) -> dict[str, Any]:
    clip = c.exec("DualCLIPLoader", {"clip_name1": "demo_clip.safetensors", "clip_name2": "demo_t5.safetensors", "type": "flux"}).outputs[0]
    context, keys = c.exec("CLIPTextEncode", {"text": text, "clip": clip}).outputs[0][0]
    return {"c_crossattn": context, "y": keys["pooled_output"], "guidance": np.array([3.5], np.float32)}


def test_run_submit_status_cancel(client: Client) -> None:
    events: list[str] = []
    seed = int(time.time_ns() % 2**63)
    result = client.run(workflow(seed=seed), on_event=lambda e: events.append(e["type"]))
    assert events[0] == "queued" and events[-1] == "execution_success" and "progress" in events
    assert result.files[0].data[:4] == b"\x89PNG" and result.files[0].ref["width"] == 128
    receipt = client.submit(workflow(seed=seed + 1), id=f"job-{seed}")
    assert receipt["job"] == f"job-{seed}"
    assert client.follow(receipt["job"]).files[0].data[:4] == b"\x89PNG"
    assert client.status(receipt["job"])["state"] == "done"
    assert client.cancel(receipt["job"]) is False
    slow = client.submit(workflow(steps=5000, seed=seed))["job"]
    assert client.cancel(slow) is True
    with pytest.raises(PatchbayError) as e:
        client.follow(slow)
    assert e.value.code == "cancelled"


def test_errors_are_typed(client: Client) -> None:
    with pytest.raises(PatchbayError) as e:
        client.exec("NoSuchNode")
    assert (e.value.code, e.value.status, e.value.retryable) == ("no_such_node_type", 404, False)
    with pytest.raises(PatchbayError) as e:
        client.exec("VAEDecode", {"samples": Handle("gone"), "vae": Handle("gone")})
    assert e.value.code == "no_such_handle"
    with pytest.raises(PatchbayError) as e:
        client.status("nobody")
    assert e.value.code == "no_such_job"
    latent = np.zeros((1, 16, 16, 16), np.float32)
    with pytest.raises(PatchbayError) as e:
        client.sample(MODEL, "euler", np.array([1, 0]), latent, [{"model_conds": {"c_crossattn": latent[0], "c_concat": latent}}])
    assert e.value.code == "bad_request" and "c_c" in e.value.input


def test_describe_and_models(client: Client) -> None:
    assert MODEL in client.models()["diffusion_models"]
    assert list(client.describe("KSampler")) == ["KSampler"]


def test_sample_equals_the_node(client: Client) -> None:
    """The same run as a KSampler node and as a sample message."""
    model = client.exec("UNETLoader", {"unet_name": MODEL, "weight_dtype": "default"}).outputs[0]
    positive = conds(client, "a big red heart")
    sigmas = client.exec("BasicScheduler", {"model": model, "scheduler": "simple", "steps": 3, "denoise": 1.0}).outputs[0]
    noise = np.random.default_rng(5).standard_normal((1, 4, 16, 16)).astype(np.float32)
    channels = client.exec("EmptySD3LatentImage", {"width": 128, "height": 128, "batch_size": 1}).outputs[0]["samples"].shape[1]
    noise = np.resize(noise, (1, channels, 16, 16))
    steps: list[tuple[int, int, tuple[int, ...]]] = []
    size = client.load(MODEL)
    assert size > 1_000_000
    run = {"noise": noise, "preview": "latent", "want_x0": True, "on_progress": lambda p: steps.append((p["i"], p["n"], p["x0"].shape))}
    first = client.sample(MODEL, "euler", sigmas, np.zeros_like(noise), [{"model_conds": positive}], **run)
    assert steps == [(i, 3, noise.shape) for i in (1, 2, 3)] and first.evals == 3
    assert first.x0 is not None and np.isfinite(first.x).all() and first.x.std() > 0.1
    np.testing.assert_allclose(first.x, first.x0, atol=1e-5)  # the last sigma is 0: the result is its denoised estimate
    again = client.sample(MODEL, "euler", sigmas, np.zeros_like(noise), [{"model_conds": positive}], noise=noise)
    assert (again.x == first.x).all() and again.metrics["load_seconds"] == 0
    other = client.sample(MODEL, "euler", sigmas, np.zeros_like(noise), [{"model_conds": positive}], noise=-noise)
    assert np.abs(other.x - first.x).max() > 0.01
    client.free([model])


def test_sample_is_cancelled(client: Client) -> None:
    positive = conds(client, "a big red heart")
    channels = client.exec("EmptySD3LatentImage", {"width": 128, "height": 128, "batch_size": 1}).outputs[0]["samples"].shape[1]
    latent = np.zeros((1, channels, 16, 16), np.float32)
    name = f"run-{time.time_ns()}"

    def stop(p: dict[str, Any]) -> None:
        if p["i"] == 1:
            threading.Thread(target=lambda: client.cancel(name)).start()

    with pytest.raises(PatchbayError) as e:
        client.sample(MODEL, "euler", np.linspace(1, 0, 5001), latent, [{"model_conds": positive}], noise=latent + 1, id=name, on_progress=stop)
    assert e.value.code == "cancelled"


def test_nobody_there(tmp_path: object) -> None:
    with pytest.raises(ConnectionLostError):
        Client.socket(f"{tmp_path}/none.sock")
    with pytest.raises(ConnectionLostError):
        Client.nats("nats://127.0.0.1:1", connect_timeout=1)


def test_tensor_speed(daemon: dict[str, str]) -> None:
    """64 MiB there (into a node that refuses it) over the socket; the time is printed, only a gross fault fails."""
    big = np.zeros((1, 16, 1024, 1024), np.float32)
    with Client.socket(daemon["socket"]) as c:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            with pytest.raises(PatchbayError):
                c.exec("NoSuchNode", {"x": big})
            times.append(time.perf_counter() - began)
    print(f"64 MiB Python -> daemon -> worker: median {sorted(times)[2] * 1000:.0f} ms, best {min(times) * 1000:.0f} ms")
    assert min(times) < 5
