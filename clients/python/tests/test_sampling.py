"""What a host like ComfyUI needs of ``sample``: adapters, tensors sent once, an end when it is asked for."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from patchbay import BF16, CancelledError, Client, LoRA, PatchbayError, RefusedError

from .conftest import lora, poll
from .test_client import MODEL, conds, latent_factors, workflow

LATENT = np.random.default_rng(5).standard_normal((1, 16, 16, 16)).astype(np.float32)


def patches(strength: float = 0.75) -> list[LoRA]:
    """Return the LoRA of conftest as adapters, the fused weight in two pieces as ComfyUI has those."""
    out = []
    for name, m in lora().items():
        for first, count in [(0, 192), (192, 384)] if name.endswith("qkv") else [(0, len(m["up"]))]:
            rows = (first, count) if count < len(m["up"]) else None
            out.append(
                LoRA(f"diffusion_model.{name}.weight", m["down"], m["up"][first : first + count], 8, strength, rows)
            )
    return out


def sample(c: Client, positive: dict[str, Any], **more: Any) -> np.ndarray:
    return c.sample(MODEL, "euler", np.linspace(1, 0, 3), LATENT, [{"model_conds": positive}], **more).x


def ended(c: Client, run: str) -> str:
    """Wait until a run has ended and return its state. A worker forgets what has ended."""
    state = ""
    for _ in poll(f"{run} has ended"):
        try:
            state = str(c.status(run)["state"])
        except RefusedError as err:
            assert err.code == "no_such_verb"
            try:
                c.cancel(run)
                state = "running"
            except RefusedError:
                state = "cancelled"
        if state not in ("queued", "running"):
            break
    return state


def test_adapters_equal_the_lora_node(client: Client) -> None:
    plain = client.exec("UNETLoader", {"unet_name": MODEL, "weight_dtype": "default"}).outputs[0]
    adapted = client.exec(
        "LoraLoaderModelOnly", {"model": plain, "lora_name": "mine.safetensors", "strength_model": 0.75}
    ).outputs[0]
    sigmas = client.exec("BasicScheduler", {"model": plain, "scheduler": "simple", "steps": 3, "denoise": 1.0}).outputs[
        0
    ]
    clip = client.exec(
        "DualCLIPLoader", {"clip_name1": "demo_clip.safetensors", "clip_name2": "demo_t5.safetensors", "type": "flux"}
    ).outputs[0]
    positive = client.exec("CLIPTextEncode", {"text": "a big red heart", "clip": clip}).outputs[0]
    shift, scale = latent_factors()

    def by_node(model: Any) -> np.ndarray:
        inputs = {
            "model": model,
            "add_noise": "disable",
            "noise_seed": 0,
            "steps": 3,
            "cfg": 1.0,
            "sampler_name": "euler",
            "scheduler": "simple",
        }
        inputs |= {
            "positive": positive,
            "negative": positive,
            "latent_image": {"samples": LATENT},
            "start_at_step": 1,
            "end_at_step": 10000,
        }
        out: np.ndarray = client.exec("KSamplerAdvanced", {**inputs, "return_with_leftover_noise": "disable"}).outputs[
            0
        ]["samples"]
        return out

    def by_sample(p: list[LoRA]) -> np.ndarray:
        entry = {"model_conds": {"c_crossattn": positive[0][0], "y": positive[0][1]["pooled_output"]}}
        return client.sample(MODEL, "euler", sigmas[1:], (LATENT - shift) * scale, [entry], patches=p).x / scale + shift

    base, with_it = by_node(plain), by_node(adapted)
    assert np.abs(base - with_it).max() > 0.01
    bound = 1e-5 * float(np.abs(base).max())
    np.testing.assert_allclose(by_sample(patches()), with_it, rtol=0, atol=bound)
    np.testing.assert_allclose(by_sample([]), base, rtol=0, atol=bound)
    assert np.abs(by_sample(patches(0.25)) - with_it).max() > 0.001
    client.free([plain, adapted, clip])


def test_a_wrong_adapter_is_refused_by_its_field(client: Client) -> None:
    wrong = LoRA("diffusion_model.nothing.weight", np.zeros((2, 4), np.float32), np.zeros((4, 2), np.float32))
    with pytest.raises(RefusedError, match="nothing") as e:
        sample(client, conds(client, "x"), patches=[*patches(), wrong])
    assert e.value.status < 500 and "model.patches[4]" in f"{e.value} {e.value.input}"


def test_tensors_travel_with_every_run(client: Client) -> None:
    """The worker keeps nothing for the next run, which gives the same picture."""
    positive, adapters = conds(client, "a big red heart"), patches(0.5)
    size = sum(p.up.nbytes + p.down.nbytes for p in adapters)
    assert size > 200_000
    pictures = []
    for _ in range(2):
        before = client.bytes_sent
        pictures.append(sample(client, positive, patches=adapters))
        assert client.bytes_sent - before > size
    assert (pictures[0] == pictures[1]).all()


def test_bfloat16_tensors(client: Client) -> None:
    """A text state as bfloat16 gives what its values as float32 give."""
    positive = conds(client, "a big red heart")
    bits = (positive["c_crossattn"].view(np.uint32) >> 16).astype(np.uint16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    a = sample(client, {**positive, "c_crossattn": BF16(bits)})
    b = sample(client, {**positive, "c_crossattn": wide})
    assert (a == b).all()


@pytest.mark.parametrize("how", ["stop", "callback"])
def test_a_run_ends_when_it_is_told_to(client: Client, how: str) -> None:
    positive, run, going = conds(client, "a big red heart"), f"stop-{time.time_ns()}", threading.Event()

    def step(_: Any) -> None:
        going.set()
        if how == "callback":
            raise KeyError("from the host")

    with pytest.raises(CancelledError if how == "stop" else KeyError):
        stop = going.is_set if how == "stop" else None
        client.sample(
            MODEL,
            "euler",
            np.linspace(1, 0, 9001),
            LATENT,
            [{"model_conds": positive}],
            id=run,
            on_progress=step,
            stop=stop,
        )
    assert ended(client, run) == "cancelled"


@pytest.mark.parametrize("how", ["stop", "callback"])
def test_a_job_ends_when_it_is_told_to(client: Client, how: str) -> None:
    run, going, pictures = f"job-{time.time_ns()}", threading.Event(), []

    def preview(_: str, jpeg: bytes) -> None:
        pictures.append(jpeg)
        going.set()
        if how == "callback":
            raise KeyError("from the host")

    with pytest.raises(CancelledError if how == "stop" else KeyError):
        client.run(workflow(steps=9000), id=run, on_preview=preview, stop=going.is_set if how == "stop" else None)
    assert pictures[0][:2] == b"\xff\xd8" and ended(client, run) == "cancelled"


def test_previews_and_progress(client: Client) -> None:
    positive, jpegs = conds(client, "a big red heart"), []
    client.sample(
        MODEL,
        "euler",
        np.linspace(1, 0, 41),
        LATENT,
        [{"model_conds": positive}],
        preview="jpeg",
        on_progress=lambda p: jpegs.append(p.get("jpeg")),
    )
    assert len(jpegs) == 40 and any(j and j[:2] == b"\xff\xd8" for j in jpegs)


def test_errors_name_node_and_field(client: Client) -> None:
    bad = workflow()
    bad["3"]["inputs"]["sampler_name"] = "nothing"
    with pytest.raises(RefusedError) as e:
        client.run(bad)
    assert (e.value.code, e.value.status) == ("bad_workflow", 422) and "3" in e.value.node_errors
    with pytest.raises(RefusedError, match="field_that_is_new") as e:
        client.run(workflow(), field_that_is_new=1)
    with pytest.raises(PatchbayError) as late:
        client.exec(
            "VAEDecode",
            {
                "samples": {"samples": LATENT[:, :3]},
                "vae": client.exec("VAELoader", {"vae_name": "demo_ae.safetensors"}).outputs[0],
            },
        )
    assert late.value.class_type == "VAEDecode" and late.value.status < 500
