"""Workflows of the comparison, in API format. Each case is one function of a Graph; the loader is put in by the one who
runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CHANNELS = {"flux": 16, "sd3": 16, "pixart": 4, "hydit": 4, "zimage": 16, "qwen": 16, "flux2": 128, "krea2": 16,
    "fill": 16, "depth": 16, "kontext": 16}


class Graph:
    """A workflow around one KSampler, with changes."""

    def __init__(self, model: str, loader: dict[str, Any], y: int = 12, x: int = 8, batch: int = 1, **k: Any) -> None:
        self.model, self.family = model, model.split("-")[0]
        self.size = (y, x)
        self.nodes: dict[str, dict[str, Any]] = {"1": loader}
        tokens = {"hydit": 20, "pixart": 20}.get(self.family, 9)
        self.add("4", "TestConditioning", model=model, seed=3, tokens=tokens)
        self.add("5", "TestConditioning", model=model, seed=4, tokens=tokens)
        self.positive, self.negative, self.source = ["4", 0], ["5", 0], ["1", 0]
        if self.family.startswith(("flux", "fill", "depth", "kontext")):
            self.positive = self.add("6", "FluxGuidance", guidance=3.0, conditioning=self.positive)
        if self.family == "flux2":
            self.latent = self.add("7", "EmptyFlux2LatentImage", width=16 * x, height=16 * y, batch_size=batch)
        else:
            self.latent = self.add("7", "EmptySD3LatentImage" if CHANNELS[self.family] == 16 else "EmptyLatentImage",
                width=8 * x, height=8 * y, batch_size=batch)
        self.k = {"seed": 5, "steps": 4, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0,
            **k}
        self.slot = 0
        self.final: list[Any] | None = None

    def add(self, name: str, kind: str, /, **inputs: Any) -> list[Any]:
        self.nodes[name] = {"class_type": kind, "inputs": inputs}
        return [name, 0]

    def on_model(self, name: str, kind: str, **inputs: Any) -> Graph:
        self.source = self.add(name, kind, model=self.source, **inputs)
        return self

    def start(self) -> Graph:
        self.latent = self.add("70", "TestLatent", channels=CHANNELS[self.family], height=self.size[0],
            width=self.size[1], batch=1, seed=9)
        return self

    def masked(self, soft: bool = True) -> Graph:
        mask = self.add("71", "TestMask", height=8 * self.size[0], width=8 * self.size[1], soft=soft)
        self.latent = self.add("72", "SetLatentNoiseMask", samples=self.latent, mask=mask)
        return self

    def conditioned(self, name: str, kind: str, where: str = "positive", **inputs: Any) -> Graph:
        setattr(self, where, self.add(name, kind, conditioning=getattr(self, where), **inputs))
        return self

    def custom(self, guider: str = "BasicGuider", sampler: list[Any] | None = None, slot: int = 0,
            **more: Any) -> Graph:
        self.add("21", "RandomNoise", noise_seed=self.k["seed"])
        sampler = sampler or self.add("22", "KSamplerSelect", sampler_name=self.k["sampler_name"])
        self.add("23", "BasicScheduler", scheduler=self.k["scheduler"], steps=self.k["steps"],
            denoise=self.k["denoise"], model=self.source)
        inputs: dict[str, Any] = {"model": self.source, "conditioning": self.positive}
        if guider == "CFGGuider":
            inputs = {"model": self.source, "positive": self.positive, "negative": self.negative, "cfg": self.k["cfg"]}
        if guider == "DualCFGGuider":
            inputs = {"model": self.source, "cond1": self.positive, "cond2": ["5", 0], "negative": self.negative,
                "cfg_conds": 2.0, "cfg_cond2_negative": 1.5, **more}
        self.add("24", guider, **inputs)
        self.final = self.add("25", "SamplerCustomAdvanced", noise=["21", 0], guider=["24", 0], sampler=sampler,
            sigmas=["23", 0], latent_image=self.latent)
        self.final = ["25", slot]
        return self

    def stages(self) -> Graph:
        common = {"model": self.source, "positive": self.positive, "negative": self.negative, "noise_seed": 5}
        common |= {k: self.k[k] for k in ("steps", "cfg", "sampler_name", "scheduler")}
        half = self.k["steps"] // 2
        one = self.add("8", "KSamplerAdvanced", **common, add_noise="enable", start_at_step=0, end_at_step=half,
            return_with_leftover_noise="enable", latent_image=self.latent)
        self.final = self.add("9", "KSamplerAdvanced", **common, add_noise="disable", start_at_step=half,
            end_at_step=100, return_with_leftover_noise="disable", latent_image=one)
        return self

    def build(self) -> dict[str, Any]:
        if self.final is None:
            self.final = self.add("8", "KSampler", model=self.source, positive=self.positive, negative=self.negative,
                latent_image=self.latent, **self.k)
        self.add("10", "SaveLatent", filename_prefix="x", samples=self.final)
        return self.nodes


@dataclass
class Case:
    """One comparison. mode: "whole" or "evaluation", "" either; bound is the relative error allowed; record puts it
    among the replayed ones.
    """

    model: str
    change: Callable[[Graph], Any] = lambda g: g
    settings: dict[str, Any] = field(default_factory=dict)
    mode: str = "whole"
    plan: str = ""
    bound: float = 1e-4
    record: bool = True
    needs: str = ""  # a class that older versions lack
    since: tuple[int, ...] = ()  # the first version of ComfyUI that does it, or does it right
    stock: str = ""  # another file for ComfyUI's own loader
    checkpoint: bool = False
    swaps: bool = True  # loaders of model patches are swapped as well
    reuses: bool = False  # a cache must have answered some evaluations, not all


def lora(g: Graph, at: str = "28", strength: float = 0.8, name: str = "tiny-lora") -> Graph:
    return g.on_model(at, "LoraLoaderModelOnly", lora_name=f"{name}.safetensors", strength_model=strength)


def lora_control(g: Graph, at: str = "28", strength: float = 1.0) -> Graph:
    """Put a control LoRA on the model and the picture that it follows on both sides."""
    vae, pixels = g.add("80", "TestVAE", channels=16, pixels=8, frame=False), g.add("81", "EmptyImage",
        width=8 * g.size[1] + 5, height=8 * g.size[0], batch_size=1, color=0x336699)
    both = g.add("82", "InstructPixToPixConditioning", positive=g.positive, negative=g.negative, vae=vae, pixels=pixels)
    g.positive, g.negative = both, [both[0], 1]
    return lora(g, at, strength, "tiny-lora-control")


def model_patch(g: Graph, at: str = "8", strength: float = 0.8, name: str = "diffsynth-a", mask: bool = False,
        wide: int = 0) -> Graph:
    """Put a DiffSynth ControlNet on the model; wide is how much wider than the latent its picture is."""
    vae = g.add(at + "0", "TestVAE", channels=16, pixels=8, frame=True)
    pixels = g.add(at + "1", "EmptyImage", width=8 * g.size[1] + wide, height=8 * g.size[0], batch_size=1,
        color=0x336699 + int(at))
    more = {"mask": g.add(at + "2", "TestMask", height=8 * g.size[0], width=8 * g.size[1], soft=True)} if mask else {}
    patch = g.add(at + "3", "ModelPatchLoader", name=f"{name}.safetensors")
    return g.on_model(at + "4", "QwenImageDiffsynthControlnet", model_patch=patch, vae=vae, image=pixels,
        strength=strength, **more)


def style(g: Graph, at: str = "8", name: str = "uso-a", pictures: int = 1) -> Graph:
    """Put what USO makes of a picture in front of the text."""
    patch, seen = g.add(at + "3", "ModelPatchLoader", name=f"{name}.safetensors"), g.add(at + "1", "TestSight", seed=30
        + int(at), pictures=pictures)
    return g.on_model(at + "4", "USOStyleReference", model_patch=patch, clip_vision_output=seen)


def combined(g: Graph) -> None:
    g.positive = g.add("40", "ConditioningCombine", conditioning_1=g.positive, conditioning_2=["5", 0])


def zeroed(g: Graph) -> None:
    g.conditioned("41", "ConditioningZeroOut", "negative")


def controlled(g: Graph, name: str = "90", seed: int = 1, **more: Any) -> Graph:
    """Put a control net on both sides, behind those that are there."""
    net = g.add(name, "TestControlNet", model=g.model, seed=seed)
    inputs = {"strength": 0.6, "start_percent": 0.0, "end_percent": 1.0, **more}
    apply = g.add(name + "1", "ControlNetApplyAdvanced", positive=g.positive, negative=g.negative, control_net=net,
        image=[name, 1], **inputs)
    g.positive, g.negative = apply, [apply[0], 1]
    return g


def area(g: Graph, kind: str = "ConditioningSetArea") -> None:
    inputs = {"width": 64, "height": 72, "x": 16, "y": 24, "strength": 0.8}
    if kind == "ConditioningSetAreaPercentage":
        inputs = {"width": 0.5, "height": 0.6, "x": 0.25, "y": 0.3, "strength": 1.2}
    other = g.add("42", kind, conditioning=["5", 0], **inputs)
    g.positive = g.add("43", "ConditioningCombine", conditioning_1=g.positive, conditioning_2=other)


def masked_cond(g: Graph, bounds: str = "default") -> None:
    mask = g.add("44", "TestMask", height=96, width=64, soft=bounds == "default")
    other = g.add("45", "ConditioningSetMask", conditioning=["5", 0], mask=mask, strength=0.7, set_cond_area=bounds)
    g.positive = g.add("46", "ConditioningCombine", conditioning_1=g.positive, conditioning_2=other)


def cache(kind: str, threshold: float = 0.2, start: float = 0.15, end: float = 0.95) -> Callable[[Graph], Any]:
    """Return the change that puts EasyCache or LazyCache on the model."""
    return lambda g: g.on_model("60", kind, reuse_threshold=threshold, start_percent=start, end_percent=end,
        verbose=False)


def cached_foreign(g: Graph) -> None:
    cache("LazyCache", 1.0, 0.0, 1.0)(g).custom(sampler=g.add("50", "TestForeignSampler"))


SAMPLERS = """euler euler_cfg_pp euler_ancestral euler_ancestral_cfg_pp heun heunpp2 exp_heun_2_x0 exp_heun_2_x0_sde
dpm_2 dpm_2_ancestral lms dpm_fast dpm_adaptive dpmpp_2s_ancestral dpmpp_2s_ancestral_cfg_pp dpmpp_sde dpmpp_sde_gpu
dpmpp_2m dpmpp_2m_cfg_pp dpmpp_2m_sde dpmpp_2m_sde_gpu dpmpp_2m_sde_heun dpmpp_2m_sde_heun_gpu dpmpp_3m_sde
dpmpp_3m_sde_gpu ddpm lcm ipndm ipndm_v deis res_multistep res_multistep_cfg_pp res_multistep_ancestral
res_multistep_ancestral_cfg_pp gradient_estimation gradient_estimation_cfg_pp er_sde seeds_2 seeds_3 sa_solver
sa_solver_pece ddim uni_pc uni_pc_bh2""".split()
SCHEDULERS = "simple sgm_uniform karras exponential ddim_uniform beta normal linear_quadratic kl_optimal".split()


def cases() -> dict[str, Case]:
    """Return all cases by name, the quick ones first."""
    f = "flux-c"
    long = {"steps": 12, "y": 16, "x": 24}
    big = {"y": 36, "x": 32}  # PixArt's positions need more than 65 rows and columns
    out = {
        "plain": Case(f),
        "cfg": Case(f, settings={"cfg": 3.5}),
        "batch": Case(f, settings={"batch": 2, "cfg": 2.0}),
        "thirty_steps": Case(f, settings={"steps": 30, "sampler_name": "dpmpp_2m"}),
        "img2img": Case(f, lambda g: g.start(), {"denoise": 0.6, "steps": 6}),
        "mask": Case(f, lambda g: g.start().masked(), {"denoise": 0.6, "steps": 6}),
        "hard_mask": Case(f, lambda g: g.start().masked(False), {"steps": 5}),
        "mask_ddim": Case(f, lambda g: g.start().masked(), {"denoise": 0.6, "sampler_name": "ddim"}),
        "differential": Case(f, lambda g: g.start().masked().on_model("60", "DifferentialDiffusion"), {"denoise": 0.8},
            mode="evaluation"),
        "basic_guider": Case(f, lambda g: g.custom()),
        "cfg_guider": Case(f, lambda g: g.custom("CFGGuider"), {"cfg": 2.5}),
        "dual_guider": Case(f, lambda g: g.custom("DualCFGGuider", style="regular")),
        "dual_guider_norm": Case(f, lambda g: g.on_model("60", "CFGNorm", strength=1.0).custom("DualCFGGuider",
            style="regular"), mode="evaluation"),
        "dual_guider_nested": Case(f, lambda g: g.custom("DualCFGGuider", style="nested")),
        "second_output": Case(f, lambda g: g.custom(slot=1), {"batch": 2}),
        "custom_img2img": Case(f, lambda g: g.start().custom(), {"denoise": 0.6}),
        "two_stages": Case(f, lambda g: g.stages(), {"steps": 6}),
        "two_stages_ancestral": Case(f, lambda g: g.stages(),
            {"steps": 6, "sampler_name": "euler_ancestral", "cfg": 2.0}),
        "lora": Case(f, lora),
        "lora_twice": Case(f, lambda g: lora(lora(g), "29", -0.5)),
        "lora_shift": Case(f, lambda g: lora(g).on_model("61", "ModelSamplingFlux", max_shift=1.15, base_shift=0.5,
            width=512, height=512)),
        "lora_custom": Case(f, lambda g: lora(g).custom()),
        "lora_control": Case(f, lora_control, {"cfg": 2.0}),
        "lora_control_behind": Case(f, lambda g: lora_control(lora(g), "29", 0.7).start().masked(),
            {"batch": 2, "denoise": 0.7, "y": 9, "x": 7}),
        "lora_control_evaluation": Case(f, lambda g: lora_control(g).custom("CFGGuider",
            g.add("50", "TestForeignSampler")), {"cfg": 2.0, "batch": 2}, mode="evaluation"),
        "after_lora": Case(f, settings={"seed": 77}),
        "shift": Case(f, lambda g: g.on_model("61", "ModelSamplingFlux", max_shift=1.15, base_shift=0.5, width=512,
            height=512)),
        # FLUX multiplies its time by 1000 once more than this sampling means: an ulp of a frequency is a radian's
        # twentieth there.
        "shift_sd3": Case(f, lambda g: g.on_model("61", "ModelSamplingSD3", shift=3.0), bound=2e-3),
        "shift_sd3_on_sd3": Case("sd3-a", lambda g: g.on_model("61", "ModelSamplingSD3", shift=2.0)),
        "shift_aura": Case(f, lambda g: g.on_model("61", "ModelSamplingAuraFlow", shift=1.73)),
        "range": Case(f, lambda g: g.conditioned("40", "ConditioningSetTimestepRange", start=0.0, end=0.5),
            {"cfg": 2.0}),
        "range_shift": Case(f, lambda g: g.on_model("61", "ModelSamplingSD3", shift=2.0).conditioned("40",
            "ConditioningSetTimestepRange", start=0.2, end=0.9), bound=2e-3),
        "combined": Case(f, combined),
        "zeroed": Case(f, zeroed, {"cfg": 2.0}),
        "area": Case(f, area, {"cfg": 2.0, "x": 12}),
        "area_percent": Case(f, lambda g: area(g, "ConditioningSetAreaPercentage"), {"cfg": 2.0, "batch": 2}),
        "cond_mask": Case(f, masked_cond, {"cfg": 2.0}),
        "cond_mask_bounds": Case(f, lambda g: masked_cond(g, "mask bounds"), {"cfg": 2.0}),
        "no_guidance": Case(f, lambda g: g.conditioned("47", "FluxDisableGuidance")),
        "foreign_sampler": Case(f, lambda g: g.custom(sampler=g.add("50", "TestForeignSampler")), mode="evaluation"),
        "foreign_sampler_cfg": Case(f, lambda g: g.custom("CFGGuider", g.add("50", "TestForeignSampler")),
            {"cfg": 2.0, "batch": 2}, mode="evaluation"),
        "rescale_cfg": Case("pixart-b", lambda g: g.on_model("60", "RescaleCFG", multiplier=0.7), {"cfg": 3.0, **big},
            mode="evaluation"),
        "cfg_norm": Case(f, lambda g: g.on_model("60", "CFGNorm", strength=1.0), {"cfg": 3.0}),
        "cfg_norm_one": Case(f, lambda g: cache("EasyCache", 1.0)(g).on_model("62", "CFGNorm", strength=0.8), long,
            reuses=True),
        "sampler_options": Case(f, lambda g: g.custom(sampler=g.add("50", "SamplerEulerAncestral", eta=0.5,
            s_noise=0.9))),
        "lms_order": Case(f, lambda g: g.custom(sampler=g.add("50", "SamplerLMS", order=3)), {"steps": 6}),
        "noise_scale": Case(f, lambda g: g.on_model("61", "ModelSamplingSD3", shift=3.0).on_model("62",
            "ModelNoiseScale", noise_scale=1.5), needs="ModelNoiseScale", bound=2e-3, record=False),
        "noise_scale_mask": Case(f, lambda g: g.start().masked().on_model("61", "ModelSamplingSD3",
            shift=3.0).on_model("62", "ModelNoiseScale", noise_scale=1.5), needs="ModelNoiseScale", bound=2e-3,
                record=False),
        "noise_scale_ancestral": Case(
            f,
            lambda g: g.on_model("61", "ModelSamplingSD3", shift=3.0).on_model("62", "ModelNoiseScale",
                noise_scale=1.5),
            {"sampler_name": "euler_ancestral"},
            mode="evaluation",
            needs="ModelNoiseScale", bound=2e-3,
            record=False,
        ),
        "v_prediction": Case("pixart-b", lambda g: g.on_model("60", "ModelSamplingDiscrete", sampling="v_prediction",
            zsnr=False), {"cfg": 2.0, "scheduler": "karras", **big}),
        "eps_prediction": Case("hydit-a", lambda g: g.on_model("60", "ModelSamplingDiscrete", sampling="eps",
            zsnr=False), {"cfg": 2.0, "scheduler": "karras", "y": 8, "x": 8}),
        "sizes": Case(f, settings={"y": 7, "x": 10}),
        "fp8": Case("flux-c-fp8", stock="flux-c-wide", record=False),
        # ComfyUI would round the weights again where a LoRA was added: the same values in f32 say what is meant.
        "fp8_lora": Case("flux-c-fp8", lora, stock="flux-c-wide", record=False),
        "checkpoint": Case("flux-c-full", settings={"cfg": 2.0}, checkpoint=True, record=False),
        "checkpoint_lora": Case("flux-c-full", lora, checkpoint=True, record=False),
        "seed_largest": Case(f, settings={"seed": 2**64 - 1}),
    }
    for kind in ("EasyCache", "LazyCache"):
        at = kind[:4].lower() + "_cache"
        since = (0, 8) if kind == "EasyCache" else ()  # 0.3.64 adds the differences of both conditionings to each
        out[at] = Case(f, cache(kind, 1.0), {**long, "cfg": 2.0}, reuses=True, since=since)
        out[at + "_late"] = Case(f, cache(kind, 1.0, 0.4, 0.8), {**long, "batch": 2}, reuses=True)
        out[at + "_sampler"] = Case(f, cache(kind, 0.6), {**long, "cfg": 3.0, "sampler_name": "dpmpp_2m",
            "scheduler": "karras"}, reuses=True, since=since)
        # EasyCache begins anew at each size
        out[at + "_parts"] = Case(f, lambda g, c=cache(kind, 1.5): area(c(g)), {**long, "cfg": 2.0},
            reuses=kind == "LazyCache", record=False)
        out[at + "_guider"] = Case(f, lambda g, c=cache(kind, 0.8): lora(c(g)).start().masked().custom("CFGGuider"),
            {**long, "cfg": 2.0}, reuses=True, record=False, since=since)
        out[at + "_qwen"] = Case("qwen-a", cache(kind, 0.4), {**long, "cfg": 2.0}, reuses=True, since=since)
        out[at + "_zimage"] = Case("zimage-a", cache(kind, 1.0), {**long, "cfg": 2.0}, needs="ZImageFunControlnet",
            reuses=True, record=False)
        out[at + "_sd3"] = Case("sd3-a", cache(kind, 1.5), {**long, "cfg": 2.0}, reuses=kind == "LazyCache")
        out[at + "_none"] = Case(f, cache(kind, 0.0), {"steps": 6}, record=False)
        out[at + "_plan"] = Case(f, cache(kind, 1.0), {**long, "cfg": 2.0}, plan="ulysses=2,ring=2", reuses=True,
            record=False, since=since)
    out["lazy_cache_foreign"] = Case(f, cached_foreign, long, mode="evaluation", record=False)
    for plan in ("ulysses=3", "pipe=2,patches=2,warmup=4", "cfg=2", "ring=2", "tensor=2"):
        out["plan_" + plan.replace("=", "").replace(",", "_")] = Case(f, settings={"cfg": 2.0}, plan=plan, record=False)
    for name in ("flux-b", "sd3-a", "sd3-c", "pixart-a", "pixart-b", "hydit-a", "hydit-b", "zimage-a", "zimage-b",
            "qwen-a", "qwen-b", "flux2-a", "flux2-b", "krea2-a", "krea2-b"):
        # older ones lack the family
        needs = {"zimage": "ZImageFunControlnet", "flux2": "EmptyFlux2LatentImage",
            "krea2": "ModelMergeKrea2"}.get(name.split("-")[0], "")
        out["family_" + name.replace("-", "_")] = Case(name, settings={"cfg": 2.0, "batch": 2,
            **(big if name.startswith("pixart") else {"y": 8, "x": 8})}, needs=needs)
        out["evaluation_" + name.replace("-", "_")] = Case(
            name, lambda g: g.custom("CFGGuider", g.add("50", "TestForeignSampler")),
            {"cfg": 2.0, **(big if name.startswith("pixart") else {"y": 8, "x": 8})},
            mode="evaluation", record=False, needs=needs,
        )  # fmt: skip
    aura = {"cfg": 2.0, "y": 8, "x": 12, "steps": 5, "sampler_name": "res_multistep"}
    out["zimage_sampling"] = Case("zimage-a", lambda g: g.on_model("60", "ModelSamplingAuraFlow", shift=3.0), aura,
        needs="ZImageFunControlnet")
    out["qwen_sampling"] = Case("qwen-a", lambda g: g.on_model("60", "ModelSamplingAuraFlow", shift=3.1), aura)
    out["qwen_patch"] = Case("qwen-a", model_patch, {"cfg": 2.0})
    out["qwen_patch_mask"] = Case("qwen-a", lambda g: model_patch(g, name="diffsynth-inpaint-a", mask=True),
        {"cfg": 2.0, "batch": 2, "y": 7, "x": 10})
    out["qwen_patch_unmasked"] = Case("qwen-a", lambda g: model_patch(g, name="diffsynth-inpaint-a", strength=-0.5))
    out["qwen_patches"] = Case("qwen-a", lambda g: lora(model_patch(model_patch(g), "9", 1.5, wide=24),
        name="tiny-lora-qwen"), {"cfg": 2.0}, plan="ulysses=3")
    out["qwen_patch_evaluation"] = Case("qwen-a", lambda g: model_patch(g, wide=16).custom("CFGGuider",
        g.add("50", "TestForeignSampler")), {"cfg": 2.0, "batch": 2}, mode="evaluation")
    out["qwen_patch_cache"] = Case("qwen-a", lambda g: cache("EasyCache", 0.4)(model_patch(g)), {**long, "cfg": 2.0},
        reuses=True, since=(0, 8), record=False)
    out["qwen_mask"] = Case("qwen-a", lambda g: g.start().masked(), {"denoise": 0.6, "steps": 6})
    out["qwen_lora"] = Case("qwen-a", lambda g: lora(g, name="tiny-lora-qwen"), {"cfg": 2.0, "y": 7, "x": 10})
    out["qwen_area"] = Case("qwen-b", area, {"cfg": 2.0, "x": 12})
    out["qwen_cond_mask"] = Case("qwen-b", masked_cond, {"cfg": 2.0, "batch": 2})
    out["qwen_norm"] = Case("qwen-b", lambda g: g.on_model("60", "CFGNorm", strength=0.9), {"cfg": 3.0, "batch": 2})
    refer = lambda g, *sizes: [g.conditioned(f"9{i}", "ReferenceLatent",
        latent=g.add(f"8{i}", "TestLatent", channels=CHANNELS[g.family], height=y, width=x, batch=1, seed=i,
            frame=g.family in ("qwen", "krea2"))) for i, (y, x) in enumerate(sizes)]  # noqa: E731
    out["qwen_reference"] = Case("qwen-a", lambda g: refer(g, (8, 12)), {"cfg": 2.0})
    out["qwen_references"] = Case("qwen-b", lambda g: (refer(g, (8, 12), (14, 6)),
        g.conditioned("94", "ConditioningSetTimestepRange", start=0.0, end=0.7)), {"batch": 2, "cfg": 2.0})
    layered = lambda g, layers=2, batch=1: setattr(g, "latent",
        g.add("7", "EmptyQwenImageLayeredLatentImage", width=8 * g.size[1], height=8 * g.size[0], layers=layers,
            batch_size=batch))  # noqa: E731
    frames = "EmptyQwenImageLayeredLatentImage"
    out["qwen_layered"] = Case("qwen-c", lambda g: (layered(g), refer(g, (8, 12))), {"cfg": 2.0}, needs=frames)
    out["qwen_layered_cond_mask"] = Case("qwen-c", lambda g: (layered(g, 2, 2), masked_cond(g)), {"cfg": 2.0},
        needs=frames)
    out["qwen_layered_plan"] = Case("qwen-c", lambda g: (layered(g, 3, 2), refer(g, (6, 10), (8, 12))), {"cfg": 2.0},
        plan="ulysses=3", needs=frames)
    out["qwen_layered_evaluation"] = Case("qwen-c", lambda g: (layered(g, 1, 2), refer(g, (8, 12)),
        g.on_model("60", "RescaleCFG", multiplier=0.7)), {"cfg": 2.0}, mode="evaluation", needs=frames)
    out["qwen_reference_evaluation"] = Case("qwen-a", lambda g: (refer(g, (8, 12)),
        g.on_model("60", "RescaleCFG", multiplier=0.7)), {"cfg": 2.0, "batch": 2}, mode="evaluation")
    method = {"reference_latents_method": "index_timestep_zero"}
    out["qwen_reference_method"] = Case("qwen-a", lambda g: (refer(g, (8, 12)),
        g.conditioned("95", "FluxKontextMultiReferenceLatentMethod", **method)), {"cfg": 2.0})
    out["kontext_style"] = Case("kontext-a", style, needs="USOStyleReference")
    out["kontext_styles"] = Case("kontext-a", lambda g: (refer(style(style(g), "6", "uso-b"), (8, 6)),
        g.conditioned("95", "FluxKontextMultiReferenceLatentMethod", reference_latents_method="uxo/uno")),
            {"y": 7, "x": 9}, needs="USOStyleReference")
    out["kontext_style_plan"] = Case("kontext-a", style, plan="ulysses=3", needs="USOStyleReference", record=False)
    out["kontext_style_evaluation"] = Case("kontext-a", lambda g: style(g).custom("CFGGuider",
        g.add("50", "TestForeignSampler")), mode="evaluation", needs="USOStyleReference")
    out["flux_reference"] = Case(f, lambda g: refer(g, (8, 12)), {"cfg": 2.0})
    out["flux_references"] = Case(f, lambda g: (refer(g, (7, 12), (14, 6)),
        g.conditioned("94", "ReferenceLatent", "negative", latent=["80", 0])), {"cfg": 2.0, "batch": 2, "x": 9})
    for m in ("index", "uxo/uno"):
        out["flux_reference_" + m[:3]] = Case(f, lambda g, m=m: (refer(g, (8, 12), (6, 4)),
            g.conditioned("95", "FluxKontextMultiReferenceLatentMethod", reference_latents_method=m)))
    out["flux_reference_evaluation"] = Case(f, lambda g: (refer(g, (8, 12)),
        g.on_model("60", "RescaleCFG", multiplier=0.7)), {"cfg": 2.0, "batch": 2}, mode="evaluation")


    def styled(g: Graph, *styles: tuple[float, str], where: str = "positive") -> Graph:
        for i, (strength, kind) in enumerate(styles):
            style = g.add(f"9{i}{where}", "TestStyle", model=g.model, seed=20 + i, rows=5 - i)
            g.conditioned(f"8{i}{where}", "StyleModelApply", where, style_model=style, clip_vision_output=[style[0], 1],
                strength=strength, strength_type=kind)
        return g

    bias = "attn_bias"
    out["redux_biases"] = Case(f, lambda g: styled(g, (0.3, bias), (2.5, bias)),
        {"cfg": 2.0, "batch": 2, "y": 7, "x": 10})
    out["redux_biases_both"] = Case(f, lambda g: styled(styled(g, (0.4, bias), (0.7, "multiply"), (1.0, bias)),
        (1.6, bias), where="negative"), {"cfg": 2.0})
    out["redux_bias_evaluation"] = Case(f, lambda g: styled(g, (0.3, bias)).on_model("60", "RescaleCFG",
        multiplier=0.7), {"cfg": 2.0, "batch": 2}, mode="evaluation")
    out["redux_bias_plan"] = Case(f, lambda g: styled(g, (0.3, bias)), {"cfg": 2.0}, plan="cfg=2,ulysses=2",
        record=False)

    def beside(g: Graph, mask: bool = False, sides: tuple[str, ...] = ("positive", "negative")) -> Graph:
        image = g.add("85", "TestLatent", channels=16, height=g.size[0] + 2, width=g.size[1], batch=1, seed=8)
        more = {"mask": g.add("86", "TestMask", height=8 * g.size[0], width=8 * g.size[1], soft=True)} if mask else {}
        for side in sides:
            g.conditioned("87" + side, "TestConcat", side, latent=image, **more)
        return g

    out["fill_mask"] = Case("fill-a", lambda g: beside(g.start().masked(), True), {"denoise": 0.9, "steps": 5})
    out["fill_batch"] = Case("fill-a", lambda g: beside(g, True, ("positive",)),
        {"batch": 2, "cfg": 2.0, "y": 9, "x": 7})
    out["fill_area"] = Case("fill-a", lambda g: area(beside(g, True)), {"cfg": 2.0, "x": 12})
    out["fill_latent_mask"] = Case("fill-a", lambda g: beside(g.start().masked()), {"steps": 5})
    out["depth"] = Case("depth-a", beside, {"cfg": 2.0, "sampler_name": "dpmpp_2m"})
    out["fill_evaluation"] = Case("fill-a", lambda g: beside(g, True).custom("CFGGuider",
        g.add("50", "TestForeignSampler")), {"cfg": 2.0, "batch": 2}, mode="evaluation")
    out["flux2_references"] = Case("flux2-a", lambda g: refer(g, (6, 8), (4, 4)), {"cfg": 2.0, "y": 6, "x": 8},
        needs="EmptyFlux2LatentImage")
    out["flux2_mask"] = Case("flux2-b", lambda g: g.start().masked(), {"denoise": 0.6, "steps": 6, "y": 6, "x": 8},
        needs="EmptyFlux2LatentImage")
    out["flux2_cache"] = Case("flux2-a", cache("EasyCache", 1.0), {"steps": 12, "y": 8, "x": 8},
        needs="EmptyFlux2LatentImage", reuses=True, record=False)
    krea = {"needs": "ModelMergeKrea2"}
    out["krea2_mask"] = Case("krea2-a", lambda g: g.start().masked(), {"denoise": 0.6, "steps": 6, "cfg": 2.0}, **krea)
    out["krea2_lora"] = Case("krea2-a", lambda g: lora(g, name="tiny-lora-krea2"), {"batch": 2, "y": 7, "x": 10},
        **krea)
    out["krea2_area"] = Case("krea2-b", area, {"cfg": 2.0, "x": 12}, **krea)
    out["krea2_references"] = Case("krea2-a", lambda g: (refer(g, (8, 12), (6, 4)),
        g.conditioned("95", "FluxKontextMultiReferenceLatentMethod", **method)), {"cfg": 2.0}, **krea)
    out["krea2_reference_unsaid"] = Case("krea2-b", lambda g: refer(g, (8, 12)), {"cfg": 2.0}, **krea)
    out["krea2_cache"] = Case("krea2-a", cache("EasyCache", 1.0), {**long, "cfg": 2.0}, reuses=True, record=False,
        **krea)
    out["krea2_plan"] = Case("krea2-b", lambda g: g.on_model("60", "ModelSamplingAuraFlow", shift=1.15), {"cfg": 2.0},
        plan="cfg=2,ulysses=3", record=False, **krea)
    for name in ("flux-c", "sd3-a", "qwen-a"):
        net = {"mode": "evaluation", "record": False}
        out["controlnet_" + name.split("-")[0]] = Case(name, lambda g: controlled(g),
            {"cfg": 2.0, "batch": 2, "y": 7, "x": 10}, **net)
        out["controlnet_two_" + name.split("-")[0]] = Case(name,
            lambda g: controlled(controlled(g, end_percent=0.6), "92", 2, start_percent=0.3), {"cfg": 2.0},
            plan="pipe=2,patches=2", **net)
    out["qwen_second"] = Case("qwen-b", lambda g: g.custom(slot=1), {"batch": 2})
    for name, case in out.items():
        if case.model == "qwen-b" or name == "qwen_reference_method":  # index_timestep_zero
            case.since = (0, 8)
    for s in SCHEDULERS[1:]:
        out["scheduler_" + s] = Case(f, settings={"scheduler": s, "steps": 5})
        out["scheduler_pixart_" + s] = Case("pixart-b", settings={"scheduler": s, "steps": 5, "cfg": 2.0, **big},
            record=s in ("karras", "normal"))
    for s in SAMPLERS[1:]:
        out["sampler_" + s] = Case(f, settings={"sampler_name": s, "steps": 5, "cfg": 2.0})
        # Not "normal": the steps between its sigmas lie in the middle of two entries of the table, and a last bit says
        # which one is asked. dpm_adaptive chooses its steps by what it gets, and meets such places anyhow.
        settings = {"sampler_name": s, "scheduler": "karras", "steps": 5, "cfg": 2.0, **big}
        out["sampler_pixart_" + s] = Case("pixart-b", settings=settings, record=False, bound=2e-2 if s == "dpm_adaptive"
            else 1e-4)
    return out
