"""Random workflows of the comparison: what the fixed ones of graphs.py put together by hand, put together by chance."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from graphs import CHANNELS, SAMPLERS, SCHEDULERS, Case, Graph, area, cache, combined, controlled, lora, zeroed

MODELS = """flux-b flux-c fill-a depth-a sd3-a sd3-c pixart-a pixart-b hydit-a hydit-b zimage-a zimage-b qwen-a qwen-b
qwen-c flux2-a flux2-b krea2-a krea2-b""".split()
LORAS = {"flux-c": "tiny-lora", "fill-a": "tiny-lora-fill", "qwen-a": "tiny-lora-qwen", "krea2-a": "tiny-lora-krea2"}


def random_cases(seed: int, count: int) -> dict[str, Case]:
    """Return so many cases by name; one of them has the same name and the same workflow whatever the count is."""
    out, r = {}, random.Random(seed)
    for i in range(count):
        out[f"random_{seed}_{i}"] = random_case(random.Random(r.getrandbits(64)))
    return out


def random_case(r: random.Random) -> Case:
    model = r.choice(MODELS)
    family = model.split("-")[0]
    y, x = r.choice([(36, 32), (30, 40)]) if family == "pixart" else (r.randint(4, 15), r.randint(4, 15))
    settings: dict[str, Any] = {
        "y": y, "x": x, "batch": r.choice([1, 1, 2, 3]), "seed": r.choice([0, 5, 2**32 + 7, r.randrange(2**63)]),
        "steps": r.choice([1, 2, 3, 4, 5, 7, 9]),
        "cfg": r.choice([1.0, 1.0, 1.7, 3.5, 0.6]), "sampler_name": r.choice(SAMPLERS),
        "scheduler": r.choice(SCHEDULERS), "denoise": r.choice([1.0, 1.0, 0.35, 0.72, 0.9]),
    }  # fmt: skip
    plan = r.choice(["", "", "", "ulysses=2", "ring=2", *(["tensor=2"] if family != "krea2" else [])])
    return Case(model, partial(change, model=model, state=r.getrandbits(64)), settings, mode="", plan=plan,
        record=False)


def change(g: Graph, model: str, state: int) -> None:
    """Make the same changes whenever it is called for a case."""
    r = random.Random(state)
    latents(g, r, model)
    on_model(g, r, model)
    conditionings(g, r, model)
    way = r.random()
    if way < 0.15:
        stage(g, r)
    elif way < 0.65:
        custom(g, r)


def latents(g: Graph, r: random.Random, model: str) -> None:
    family = g.family
    if family in ("fill", "depth"):
        image = g.add("85", "TestLatent", channels=16, height=g.size[0] + r.choice([0, 2]), width=g.size[1], batch=1,
            seed=8)
        more = {"mask": g.add("86", "TestMask", height=8 * g.size[0], width=8 * g.size[1],
            soft=r.random() < 0.7)} if family == "fill" else {}
        for side in r.choice([("positive", "negative"), ("positive",)]):
            g.conditioned("87" + side, "TestConcat", side, latent=image, **more)
    if model == "qwen-c":
        g.latent = g.add("7", "EmptyQwenImageLayeredLatentImage", width=8 * g.size[1], height=8 * g.size[0],
            layers=r.randint(1, 3), batch_size=r.choice([1, 2]))
        return
    if r.random() < 0.35:
        g.start()
        if r.random() < 0.4:
            g.latent = g.add("73", "RepeatLatentBatch", samples=g.latent, amount=r.choice([2, 3]))
            if r.random() < 0.5:
                g.latent = g.add("74", "LatentFromBatch", samples=g.latent, batch_index=1, length=1)
    if r.random() < 0.25:
        g.masked(r.random() < 0.6)


def on_model(g: Graph, r: random.Random, model: str) -> None:
    if model in LORAS and r.random() < 0.3:
        lora(g, strength=r.choice([0.8, -0.5, 1.3]), name=LORAS[model])
    shifted = r.random() < 0.25
    if shifted and g.family in ("pixart", "hydit"):
        g.on_model("61", "ModelSamplingDiscrete", sampling=r.choice(["eps", "v_prediction"]), zsnr=False)
    elif shifted and g.family == "flux":  # ModelSamplingSD3 makes of an ulp of its time a radian's twentieth
        g.on_model("61", "ModelSamplingFlux", max_shift=1.15, base_shift=0.5, width=r.choice([512, 1024]), height=640)
    elif shifted:
        g.on_model("61", r.choice(["ModelSamplingSD3", "ModelSamplingAuraFlow"]), shift=r.choice([1.0, 1.7, 3.0, 6.5]))
    if r.random() < 0.15:
        g.on_model("62", "CFGNorm", strength=r.choice([1.0, 0.6]))
    rescaled = r.random() < 0.1
    if rescaled:
        g.on_model("63", "RescaleCFG", multiplier=0.6)
    # Behind a shift ComfyUI's first run differs from its later ones; EasyCache does not go with single evaluations;
    # dpm_adaptive makes its steps of differences that a cache leaves to the last bits.
    if not shifted and g.k["sampler_name"] != "dpm_adaptive" and r.random() < 0.12:
        cache("LazyCache" if rescaled else r.choice(["EasyCache", "LazyCache"]), r.choice([0.2, 0.8, 1.5]),
            r.choice([0.0, 0.15, 0.4]), r.choice([0.7, 0.95, 1.0]))(g)


def conditionings(g: Graph, r: random.Random, model: str) -> None:
    framed = g.family in ("qwen", "krea2")
    if g.family in ("qwen", "flux", "flux2", "krea2") and r.random() < 0.2:
        for i in range(r.choice([1, 1, 2])):
            image = g.add(f"8{i}", "TestLatent", channels=CHANNELS[g.family], height=2 * r.randint(3, 10),
                width=2 * r.randint(3, 10), batch=1, seed=i, frame=framed)
            g.conditioned(f"9{i}", "ReferenceLatent", r.choice(["positive", "positive", "negative"]), latent=image)
        if r.random() < 0.4:
            g.conditioned("95", "FluxKontextMultiReferenceLatentMethod",
                reference_latents_method=r.choice(["offset", "index", "uxo/uno", "index_timestep_zero"]))
    if g.family in ("flux", "fill") and r.random() < 0.15:
        for i in range(r.choice([1, 2])):
            style = g.add(f"9{i}s", "TestStyle", model=g.model, seed=20 + i, rows=5 - i)
            g.conditioned(
                f"8{i}s", "StyleModelApply", r.choice(["positive", "negative"]), style_model=style,
                clip_vision_output=[style[0], 1],
                strength=r.choice([0.3, 1.0, 1.6]), strength_type=r.choice(["multiply", "attn_bias"]),
            )  # fmt: skip
    if model in ("flux-c", "sd3-a", "qwen-a") and r.random() < 0.15:
        controlled(g, start_percent=r.choice([0.0, 0.2]), end_percent=r.choice([0.6, 1.0]))
    if r.random() < 0.2:
        start, end = sorted((round(r.random(), 3), round(r.random(), 3)))
        g.conditioned("96", "ConditioningSetTimestepRange", r.choice(["positive", "negative"]), start=start, end=end)
    if r.random() < 0.15:
        combined(g)
    if g.family != "pixart" and model != "qwen-c" and r.random() < 0.1:
        area(g, r.choice(["ConditioningSetArea", "ConditioningSetAreaPercentage"]))
    elif r.random() < 0.1:
        mask = g.add("44", "TestMask", height=8 * g.size[0], width=8 * g.size[1], soft=True)
        other = g.add("45", "ConditioningSetMask", conditioning=["5", 0], mask=mask, strength=0.7,
            set_cond_area="default")
        g.positive = g.add("46", "ConditioningCombine", conditioning_1=g.positive, conditioning_2=other)
    if r.random() < 0.1:
        zeroed(g)
    if r.random() < 0.1:
        g.positive = g.add("48", "ConditioningAverage", conditioning_to=g.positive, conditioning_from=["5", 0],
            conditioning_to_strength=0.7)
    if g.family not in ("pixart", "hydit") and r.random() < 0.1:
        g.positive = g.add("49", "ConditioningConcat", conditioning_to=g.positive, conditioning_from=["5", 0])


def stage(g: Graph, r: random.Random) -> None:
    """Sample with one KSamplerAdvanced, which begins and ends anywhere."""
    start = r.randint(0, g.k["steps"] - 1)
    g.final = g.add(
        "8", "KSamplerAdvanced", model=g.source, positive=g.positive, negative=g.negative, noise_seed=g.k["seed"],
        latent_image=g.latent,
        **{k: g.k[k] for k in ("steps", "cfg", "sampler_name", "scheduler")}, add_noise=r.choice(["enable", "disable"]),
        start_at_step=start,
        end_at_step=r.choice([10000, start + 1, start + 3]), return_with_leftover_noise=r.choice(["enable", "disable"]),
    )  # fmt: skip


def custom(g: Graph, r: random.Random) -> None:
    """Sample with SamplerCustom or SamplerCustomAdvanced, a sampler with options and sigmas of any node."""
    eta, cpu = r.choice([0.0, 0.7, 1.0]), {"noise_device": "cpu"}
    kind, inputs = r.choice([
        ("KSamplerSelect", {"sampler_name": g.k["sampler_name"]}),
        ("SamplerDPMPP_2M_SDE", {"solver_type": r.choice(["midpoint", "heun"]), "eta": eta, "s_noise": 0.9, **cpu}),
        ("SamplerDPMPP_3M_SDE", {"eta": eta, "s_noise": 1.1, **cpu}),
        ("SamplerDPMPP_SDE", {"eta": eta, "s_noise": 1.0, "r": r.choice([0.3, 0.5, 0.7]), **cpu}),
        ("SamplerDPMPP_2S_Ancestral", {"eta": eta, "s_noise": 1.1}),
        ("SamplerEulerAncestral", {"eta": eta, "s_noise": 0.9}),
        ("SamplerEulerAncestralCFGPP", {"eta": eta, "s_noise": 1.1}),
        ("SamplerLMS", {"order": r.choice([1, 2, 3, 4])}),
        ("SamplerER_SDE", {"solver_type": r.choice(["ER-SDE", "Reverse-time SDE", "ODE"]),
            "max_stage": r.choice([1, 2, 3]), "eta": eta, "s_noise": 1.0}),
        ("SamplerSEEDS2", {"solver_type": r.choice(["phi_1", "phi_2"]), "eta": eta, "s_noise": 1.0,
            "r": r.choice([0.3, 0.5])}),
        (
            "SamplerSASolver",
            {
                "model": g.source, "eta": eta, "sde_start_percent": 0.2, "sde_end_percent": 0.8, "s_noise": 1.0,
                "predictor_order": r.choice([1, 2, 3]),
                "corrector_order": r.choice([0, 2, 4]), "use_pece": r.random() < 0.5,
                "simple_order_2": r.random() < 0.5,
            },  # fmt: skip
        ),
    ])  # fmt: skip
    g.add("22", kind, **inputs)
    g.add("21", "RandomNoise", noise_seed=g.k["seed"])
    g.add("20", "DisableNoise")
    sigmas, image = sigmas_of(g, r), {"latent_image": g.latent}
    guider = r.choice(["BasicGuider", "CFGGuider", "CFGGuider", "DualCFGGuider", ""])
    if not guider:
        g.add(
            "25", "SamplerCustom", model=g.source, add_noise=r.random() < 0.7, noise_seed=g.k["seed"], cfg=g.k["cfg"],
            positive=g.positive, negative=g.negative,
            sampler=["22", 0], sigmas=sigmas, **image,
        )  # fmt: skip
    else:
        sides = {"positive": g.positive, "negative": g.negative, "cfg": g.k["cfg"]}
        if guider == "BasicGuider":
            sides = {"conditioning": g.positive}
        if guider == "DualCFGGuider":
            sides = {"cond1": g.positive, "cond2": ["5", 0], "negative": g.negative, "cfg_conds": 2.0,
                "cfg_cond2_negative": 1.5, "style": r.choice(["regular", "nested"])}
        g.add("24", guider, model=g.source, **sides)
        g.add("25", "SamplerCustomAdvanced", noise=[r.choice(["21", "21", "20"]), 0], guider=["24", 0],
            sampler=["22", 0], sigmas=sigmas, **image)
    g.final = ["25", r.choice([0, 0, 1])]


def sigmas_of(g: Graph, r: random.Random) -> list[Any]:
    steps, flow = g.k["steps"], g.family not in ("pixart", "hydit")
    bounds = {"sigma_max": 0.98 if flow else 14.6, "sigma_min": 0.03, "steps": steps}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("BasicScheduler", {"scheduler": g.k["scheduler"], "steps": steps, "denoise": g.k["denoise"],
            "model": g.source}),
        ("KarrasScheduler", {**bounds, "rho": r.choice([7.0, 3.0])}),
        ("ExponentialScheduler", bounds),
        ("PolyexponentialScheduler", {**bounds, "rho": 0.8}),
        ("LaplaceScheduler", {**bounds, "mu": 0.1, "beta": 0.5}),
        ("BetaSamplingScheduler", {"model": g.source, "steps": steps, "alpha": r.choice([0.5, 0.6]), "beta": 0.6}),
    ]
    if flow:
        kinds.append(("OptimalStepsScheduler", {"model_type": r.choice(["FLUX", "Chroma"]), "steps": steps + 3,
            "denoise": 1.0}))
    else:  # sigmas above 1 are none of a flow's
        kinds.append(("VPScheduler", {"steps": steps, "beta_d": 19.9, "beta_min": 0.1, "eps_s": 0.001}))
        kinds.append(("SDTurboScheduler", {"model": g.source, "steps": min(steps, 10), "denoise": 1.0}))
    kind, inputs = r.choice(kinds)
    sigmas = g.add("23", kind, **inputs)
    if steps > 2 and r.random() < 0.2:
        return [g.add("26", "SplitSigmas", sigmas=sigmas, step=r.randint(1, steps - 1))[0], r.choice([0, 1])]
    if r.random() < 0.1:
        return [g.add("26", "SplitSigmasDenoise", sigmas=sigmas, denoise=0.6)[0], 1]
    if r.random() < 0.1:
        spacing = r.choice(["linear", "cosine", "sine"])
        return g.add("26", "ExtendIntermediateSigmas", sigmas=sigmas, steps=2, start_at_sigma=-1.0, end_at_sigma=0.1,
            spacing=spacing)
    return sigmas
