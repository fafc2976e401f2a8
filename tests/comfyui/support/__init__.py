"""Test nodes inside the ComfyUI that is driven: conditionings without encoders, and what lets tiny models load and
tells which loop ran.

Not part of what is installed. PATCHBAY_TEST_WEIGHTS is weights.json, PATCHBAY_TEST_RECORD a folder that requests and
results are written into.
"""

import functools
import json
import os
import pickle
import sys
import time
from unittest.mock import MagicMock

import comfy.cldm.mmdit
import comfy.controlnet
import comfy.ldm.flux.controlnet
import comfy.ldm.flux.model
import comfy.ldm.qwen_image.controlnet
import comfy.model_base
import comfy.model_detection
import comfy.model_management
import comfy.model_patcher
import comfy.model_sampling
import comfy.samplers
import comfy.supported_models
import folder_paths
import numpy as np
import torch
from aiohttp import web
from server import PromptServer

WEIGHTS = json.load(open(os.environ["PATCHBAY_TEST_WEIGHTS"]))
if hasattr(comfy.supported_models, "ZImage"):
    comfy.supported_models.ZImage.unet_config.pop("dim")  # tiny ones are told by their configs
RECORD = os.environ.get("PATCHBAY_TEST_RECORD", "")
FACTS = {"evaluations": 0, "left": 0.0, "asked": 0.0}

# The config of every tiny model by what its file holds: shapes do not tell heads and axes.
CONFIGS = {frozenset((k, tuple(s)) for k, s, *_ in w["tensors"]): w["config"] for w in WEIGHTS.values()}
detect = comfy.model_detection.detect_unet_config


def detect_tiny(state_dict, key_prefix, *args, **kwargs):
    found = frozenset((k[len(key_prefix) :], tuple(v.shape)) for k, v in state_dict.items() if k.startswith(key_prefix))
    for known, config in CONFIGS.items():
        if known == found:
            fields = getattr(comfy.ldm.flux.model.FluxParams, "__dataclass_fields__", {})
            return {k: v for k, v in config.items() if k != "txt_ids_dims" or k in fields}
    return detect(state_dict, key_prefix, *args, **kwargs)


comfy.model_detection.detect_unet_config = detect_tiny

# In float32 a flow model gets the sampler's own x, and EasyCache's += lands in it; in the narrower types people run it
# is a copy.
comfy.model_sampling.CONST.calculate_input = lambda self, sigma, noise: noise.clone()
apply = comfy.model_base.BaseModel._apply_model


def counted(self, *args, **kwargs):
    FACTS["evaluations"] += 1
    return apply(self, *args, **kwargs)


comfy.model_base.BaseModel._apply_model = counted


def plain(v):
    """Return a message with every tensor as an array."""
    assert not hasattr(v, "bits"), "a bfloat16 tensor"
    if isinstance(v, np.ndarray):
        return v.copy()
    if isinstance(v, dict):
        return {k: plain(e) for k, e in v.items()}
    return [plain(e) for e in v] if isinstance(v, list) else v


def watch_loop():
    """Note when the package's wrapper was left, and what went into it and came out of it."""
    module = next((m for n, m in sys.modules.items() if n.endswith(".offload") and hasattr(m, "whole_loop")), None)
    if module is None or getattr(module, "watched", False):
        return
    module.watched = True
    client = sys.modules[module.__name__.replace(".offload", ".client.client")].Client
    send = client._stream

    def stream(self, verb, body, *args):
        if RECORD and verb == "sample":
            FACTS["request"] = plain(body)
        return send(self, verb, body, *args)

    client._stream = stream
    proxy = sys.modules[module.__name__.replace(".offload", ".proxy")]
    nodes = sys.modules[module.__name__.replace(".offload", ".nodes")]
    loop = module.whole_loop

    def watched(executor, guider, sigmas, extra_args, callback, *args, **kwargs):
        def timed(*a):
            began = time.time()
            callback(*a)
            FACTS["callbacks"] += time.time() - began

        FACTS.update(entered=time.time(), callbacks=0.0)
        try:
            return loop(executor, guider, sigmas, extra_args, timed, *args, **kwargs)
        finally:
            FACTS["left"] = time.time()

    note = module.LAST.note

    def noted(what, metrics):
        FACTS["metrics"] = {k: metrics.get(k) for k in ("load_seconds", "step_seconds", "reused")}
        note(what, metrics)

    module.LAST.note = noted

    def install(patcher):
        out = original(patcher)
        out.remove_wrappers_with_key("sampler_sample", proxy.KEY)
        out.add_wrapper_with_key("sampler_sample", proxy.KEY, watched)
        return out

    original = nodes.install
    nodes.install = install


interrupt = comfy.model_management.interrupt_current_processing


def noted(value=True):
    if value:
        FACTS["asked"] = time.time()
    interrupt(value)


comfy.model_management.interrupt_current_processing = noted
sample_stock = comfy.samplers.KSAMPLER.sample


def recorded(self, *args, **kwargs):
    out = sample_stock(self, *args, **kwargs)
    if RECORD:
        FACTS["x"] = out.detach().float().numpy().copy()
    return out


comfy.samplers.KSAMPLER.sample = recorded


@PromptServer.instance.routes.post("/patchbay_test/reset")
async def reset(_):
    watch_loop()
    FACTS.clear()
    FACTS.update(evaluations=0, left=0.0, asked=0.0)
    return web.json_response({})


@PromptServer.instance.routes.get("/patchbay_test/facts")
async def facts(_):
    mm = comfy.model_management
    models = [type(m.model).__name__ for m in mm.current_loaded_models if m.model is not None]
    return web.json_response({**{k: v for k, v in FACTS.items()
        if k in ("evaluations", "entered", "left", "asked", "metrics", "callbacks")}, "models": models})


@PromptServer.instance.routes.post("/patchbay_test/keep")
async def keep(request):
    """Write what was recorded of a case: the request of the daemon's run, or the latent of the stock one."""
    q = await request.json()
    with open(os.path.join(RECORD, q["case"] + "." + q["what"]), "wb") as f:
        pickle.dump(FACTS.get(q["what"]), f)
    return web.json_response({"there": FACTS.get(q["what"]) is not None})


def values(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


class TestConditioning:
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "make"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("STRING", {}), "seed": ("INT", {"default": 0}),
            "tokens": ("INT", {"default": 8})}}

    def make(self, model, seed, tokens):
        c = WEIGHTS[model]["config"]
        extra = {}
        if model.startswith("flux2"):
            width, extra["pooled_output"] = c["context_in_dim"], None  # older ones look for the key
        elif model.startswith(("flux", "fill", "depth", "kontext")):
            width, extra["pooled_output"] = c["context_in_dim"], values(seed + 1000, 1, c["vec_in_dim"])
        elif model.startswith("sd3"):
            width, extra["pooled_output"] = c["context_embedder_config"]["params"]["in_features"], values(seed + 1000,
                1, c["adm_in_channels"])
        elif model.startswith("pixart"):
            width = c["caption_channels"]
        elif model.startswith("zimage"):
            width = c["cap_feat_dim"]
        elif model.startswith("qwen"):
            width = c["joint_attention_dim"]
        elif model.startswith("krea2"):
            width = c["txtlayers"] * c["txtdim"]
        else:
            width = c["text_states_dim"]
            extra["pooled_output"] = values(seed + 1000, 1, 1024)
            extra["attention_mask"] = torch.cat([torch.ones(1, tokens), torch.zeros(1, 77 - tokens)], 1)
            extra["conditioning_mt5xl"] = values(seed + 2000, 1, 256, c["text_states_dim_t5"])
            extra["attention_mask_mt5xl"] = torch.cat([torch.ones(1, tokens + 3), torch.zeros(1, 253 - tokens)], 1)
            tokens = 77
        return ([[values(seed, 1, tokens, width), extra]],)


class TestLatent:
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "make"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        i = ("INT", {"default": 1})
        return {"required": {"channels": i, "height": i, "width": i, "batch": i, "seed": i},
            "optional": {"frame": ("BOOLEAN", {"default": False})}}

    def make(self, channels, height, width, batch, seed, frame=False):
        samples = values(seed, batch, channels, height, width)
        return ({"samples": samples.unsqueeze(2) if frame else samples},)


class InsideNet(comfy.controlnet.ControlNet):
    """Stands for the kinds that read weights of the model."""

    def copy(self):
        out = super().copy()
        out.__class__ = InsideNet
        return out


class TestControlNet:
    """A control net of two blocks for the network of a model, with random weights, which reads the hint's colours as
    they are; and a hint.
    """

    RETURN_TYPES = ("CONTROL_NET", "IMAGE")
    FUNCTION = "make"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("STRING", {}), "seed": ("INT", {"default": 1})},
            "optional": {"inside": ("BOOLEAN", {"default": False})}}

    def make(self, model, seed, inside=False):
        c = {k: v for k, v in WEIGHTS[model]["config"].items() if k not in ("image_model", "num_layers", "num_blocks")}
        more = {"dtype": torch.float32, "device": "cpu", "operations": comfy.ops.disable_weight_init}
        if model.startswith("flux"):
            c |= {"depth": 2, "depth_single_blocks": 1}
            fields = getattr(comfy.ldm.flux.model.FluxParams, "__dataclass_fields__", {})
            c = {k: v for k, v in c.items() if k in fields}
            net = comfy.ldm.flux.controlnet.ControlNetFlux(latent_input=True, control_latent_channels=3, **c, **more)
        elif model.startswith("sd3"):
            net = comfy.cldm.mmdit.ControlNet(num_blocks=1, control_latent_channels=3, **c, **more)
        else:
            net = comfy.ldm.qwen_image.controlnet.QwenImageControlNetModel(num_layers=2, **c, **more)
            net.controlnet_x_embedder = torch.nn.Linear(12, net.inner_dim)
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in (*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())):
                p.copy_(torch.randn(p.shape, generator=random) / (p.shape[-1] ** 0.5 if p.ndim > 1 else 3))
        net = net.eval().requires_grad_(False)
        kind = InsideNet if inside else comfy.controlnet.ControlNet
        out = kind(net, compression_ratio=1, load_device=torch.device("cpu"), extra_conds=["y", "guidance"]
            if model.startswith("flux") else ["y"])
        if model.startswith("qwen"):
            out.extra_conds, out.preprocess_image = [], lambda hint: hint.unsqueeze(2)
        return (out, torch.rand(1, 24, 40, 3, generator=random))


class TestVAE:
    """A VAE that encodes pictures as random numbers, of their own for each picture."""

    RETURN_TYPES = ("VAE",)
    FUNCTION = "make"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        i = ("INT", {"default": 1})
        return {"required": {"channels": i, "pixels": i, "frame": ("BOOLEAN", {"default": False})}}

    def make(self, channels, pixels, frame):
        def encode(picture):
            b, y, x = picture.shape[:3]
            latent = values(int(picture.double().sum() * 1000) % 2**31, b, channels, y // pixels, x // pixels)
            return latent.unsqueeze(2) if frame else latent

        return (MagicMock(encode=encode, spacial_compression_encode=lambda: pixels),)


# ComfyUI's ModelPatchLoader knows the real file's 60 layers of width 3072 only.
extras = next((m for m in list(sys.modules.values()) if (getattr(m, "__file__", None)
    or "").endswith("nodes_model_patch.py")), None)
if extras is not None:
    shapes = {k: s for k, s, *_ in WEIGHTS["diffsynth-a"]["tensors"]}
    layers = sum(k.endswith("x_rms.weight") for k in shapes)
    extras.QwenImageBlockWiseControlNet = functools.partial(extras.QwenImageBlockWiseControlNet, num_layers=layers,
        dim=shapes["img_in.weight"][0])
if hasattr(extras, "SigLIPMultiFeatProjModel"):
    shapes = {k: s for k, s, *_ in WEIGHTS["uso-a"]["tensors"]}
    (rows, tokens), (width, seen) = (shapes[f"feature_embedder.mid_{k}.weight"]
        for k in ("embedding_linear.0", "projection"))
    sizes = {"siglip_token_nums": tokens, "style_token_nums": rows, "siglip_token_dims": seen, "hidden_size": width}
    extras.SigLIPMultiFeatProjModel = functools.partial(extras.SigLIPMultiFeatProjModel, **sizes)


class TestSight:
    """What a picture encoder of 21 layers sees of pictures: 9 rows of 28 values behind each."""

    RETURN_TYPES = ("CLIP_VISION_OUTPUT",)
    FUNCTION = "make"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        i = ("INT", {"default": 1})
        return {"required": {"seed": i, "pictures": i}}

    def make(self, seed, pictures):
        states = values(seed, pictures, 21, 9, 28)
        return (MagicMock(all_hidden_states=states, penultimate_hidden_states=states[:, -2]),)


class PatchNet(torch.nn.Module):
    """As much of a net that patches blocks as the node that puts it on a model asks for."""

    additional_in_dim = 0

    def process_input_latent_image(self, latent):
        return latent


class TestPatch:
    """What ModelPatchLoader gives."""

    RETURN_TYPES = ("MODEL_PATCH",)
    FUNCTION = "make"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def make(self):
        cpu = torch.device("cpu")
        return (comfy.model_patcher.ModelPatcher(PatchNet(), load_device=cpu, offload_device=cpu),)


class TestMask:
    RETURN_TYPES = ("MASK",)
    FUNCTION = "make"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        i = ("INT", {"default": 1})
        return {"required": {"height": i, "width": i, "soft": ("BOOLEAN", {"default": True})}}

    def make(self, height, width, soft):
        x = torch.linspace(0, 1, width).repeat(height, 1)
        return ((x if soft else (x > 0.4).float())[None],)


class TestConcat:
    """What InpaintModelConditioning and InstructPixToPixConditioning attach, without a VAE."""

    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "make"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"conditioning": ("CONDITIONING",), "latent": ("LATENT",)}, "optional": {"mask": ("MASK",)}}

    def make(self, conditioning, latent, mask=None):
        more = {"concat_latent_image": latent["samples"]} | ({} if mask is None else {"concat_mask": mask[:, None]})
        return ([[c, {**o, **more}] for c, o in conditioning],)


class TestStyle:
    """A style model that reads no picture: so many random rows; and what no picture was seen as."""

    RETURN_TYPES = ("STYLE_MODEL", "CLIP_VISION_OUTPUT")
    FUNCTION = "make"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("STRING", {}), "seed": ("INT", {"default": 1}), "rows": ("INT", {"default": 5})}}

    def make(self, model, seed, rows):
        class Style:
            def get_cond(self, seen):
                return values(seed, 1, rows, WEIGHTS[model]["config"]["context_in_dim"])

        return (Style(), None)


class TestAttentionMask:
    """A mask of text and picture that none of ComfyUI's nodes makes."""

    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "make"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"conditioning": ("CONDITIONING",)}}

    def make(self, conditioning):
        n = conditioning[0][0].shape[1] + 1
        return ([[c, {**o, "attention_mask": values(3, 1, n, n), "attention_mask_img_shape": (1, 1)}] for c,
            o in conditioning],)


class TestPlan:
    RETURN_TYPES = ("PATCHBAY_PLAN",)
    FUNCTION = "make"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"plan": ("STRING", {})}}

    def make(self, plan):
        return (plan,)


class TestKeep:
    """Writes numbers to a file."""

    RETURN_TYPES = ()
    FUNCTION = "keep"
    OUTPUT_NODE = True
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"name": ("STRING", {}), "image": ("IMAGE",)}}

    def keep(self, name, image):
        path = os.path.join(folder_paths.get_output_directory(), name + ".npy")
        np.save(path, image.float().numpy())
        return {"ui": {"kept": [path], "name": [name]}}


class TestForeignSampler:
    """A sampler that only this extension has: Euler with half of the noise of an ancestral step."""

    RETURN_TYPES = ("SAMPLER",)
    FUNCTION = "make"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def make(self):
        return (comfy.samplers.KSAMPLER(sample_foreign),)


def sample_foreign(model, x, sigmas, extra_args=None, callback=None, disable=None):
    for i in range(len(sigmas) - 1):
        x0 = model(x, sigmas[i] * x.new_ones([x.shape[0]]), **extra_args)
        if callback is not None:
            callback({"x": x, "i": i, "sigma": sigmas[i], "sigma_hat": sigmas[i], "denoised": x0})
        x = x0 + (x - x0) * (sigmas[i + 1] / sigmas[i]) * 0.97
    return x


NODE_CLASS_MAPPINGS = {c.__name__: c for c in (TestConditioning, TestControlNet, TestLatent, TestMask, TestVAE,
    TestSight, TestPatch, TestConcat, TestStyle, TestAttentionMask, TestPlan, TestKeep, TestForeignSampler)}
