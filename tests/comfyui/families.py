"""Draws with random checkpoints of real names and widths in a real ComfyUI and in Patchbay, from the same files, and
compares the pictures.

usage: families.py COMFYUI --program PATCHBAY [--only NAME,...] [--base FOLDER] [--plans PLAN ...]
Runs ComfyUI's own node classes in this process, on the CPU and in f32. Transformers have few blocks and encoders three
layers (CLIP-G all), so that a set fits 6 GB; names, widths, vocabularies and the VAE are those of the published files.
SD3's width is 64 times its blocks in ComfyUI, so it alone is narrow. Language models have thinner MLPs; klein's, which
is read behind its 27th layer, 28 layers with fewer heads. The later families' weights stay in f16 in ComfyUI, which
widens them when it computes.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

from random_files import LAYERS, ComfyUI, Flow, Writer, shortened

# Gemma's own vocabulary is in no tree
WORDS = pathlib.Path(__file__).parents[2] / "models" / "tokenizer" / "testdata" / "tiny_bpe.model"
PROMPT, NEGATIVE = "a (red:1.3) fox jumps over 3 lazy dogs, watercolour", "blurry"


def node(kind: str, **inputs: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"class_type": kind, "inputs": inputs}


def tail(flow: Flow, size: tuple[int, int], latent: str, cfg: float, sampler: str, scheduler: str) -> Flow:
    """Add sampling, decoding and saving to loaders "model", "clip" and "vae" and texts "positive" and "negative"."""
    link = flow.pop("links", {"model": ["model", 0], "vae": ["vae", 0]})
    flow["latent"] = node(latent, width=size[0], height=size[1], batch_size=1)
    flow["sample"] = node(
        "KSampler", model=link["model"], positive=["positive", 0], negative=["negative", 0], latent_image=["latent", 0],
        seed=7, steps=3, cfg=cfg,
        sampler_name=sampler, scheduler=scheduler, denoise=1.0,
    )  # fmt: skip
    flow["decode"] = node("VAEDecode", samples=["sample", 0], vae=link["vae"])
    flow["save"] = node("SaveImage", images=["decode", 0], filename_prefix="family")
    return flow


def encoder(comfy: ComfyUI, config: str, kind: str) -> dict[str, Any]:
    """Return the tensors of an encoder by their published names: kind is clip_l, clip_g, t5 or bert."""
    at = comfy.tree / "comfy" / config
    values = shortened(json.loads(at.read_text()))
    module, name = {"t5": ("comfy.text_encoders.t5", "T5"), "bert": ("comfy.text_encoders.bert", "BertModel")}.get(kind,
        ("comfy.clip_model", "CLIPTextModel"))
    make = getattr(importlib.import_module(module), name)
    return comfy.shapes(lambda: make(values, comfy.torch.float32, "cpu", comfy.ops))


def vae(comfy: ComfyUI, channels: int) -> dict[str, Any]:
    config = {"double_z": True, "z_channels": channels, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 128,
        "ch_mult": [1, 2, 4, 4]}
    config |= {"num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0}
    models = importlib.import_module("comfy.ldm.models.autoencoder")
    if channels == 16:
        return comfy.shapes(lambda: models.AutoencodingEngine(
            regularizer_config={"target": "comfy.ldm.models.autoencoder.DiagonalGaussianRegularizer"},
            encoder_config={"target": "comfy.ldm.modules.diffusionmodules.model.Encoder", "params": config},
            decoder_config={"target": "comfy.ldm.modules.diffusionmodules.model.Decoder", "params": config},
        ))  # fmt: skip
    return comfy.shapes(lambda: models.AutoencoderKL(embed_dim=channels, ddconfig=config))


def hunyuan(comfy: ComfyUI, w: Writer, name: str, old: bool) -> Flow:
    make = importlib.import_module("comfy.ldm.hydit.models").HunYuanDiT
    extra = {"size_cond": True, "use_style_cond": True} if old else {}
    tensors = w.values(comfy.shapes(lambda: make(depth=4, hidden_size=1408, num_heads=16, operations=comfy.ops,
        dtype=comfy.torch.float32, device="cpu", **extra)))
    out = {"model." + k: v for k, v in tensors.items()}
    bert = w.values(encoder(comfy, "text_encoders/hydit_clip.json", "bert"))
    out |= {"text_encoders.hydit_clip.transformer." + k: v for k, v in bert.items()}
    mt5 = w.values(encoder(comfy, "text_encoders/mt5_config_xl.json", "t5"))
    out |= {"text_encoders.mt5xl.transformer." + k: v for k, v in mt5.items()}
    # mT5's own is in no tree
    pieces = (comfy.tree / "comfy" / "text_encoders" / "t5_pile_tokenizer" / "tokenizer.model").read_bytes()
    out["text_encoders.mt5xl.spiece_model"] = comfy.torch.frombuffer(bytearray(pieces), dtype=comfy.torch.uint8)
    out |= {"vae." + k: v for k, v in w.values(vae(comfy, 4)).items()}
    w.file(f"checkpoints/{name}.safetensors", out)
    flow: Flow = {"all": node("CheckpointLoaderSimple", ckpt_name=f"{name}.safetensors")}
    for side, text in (("positive", PROMPT), ("negative", NEGATIVE)):
        flow[side] = node("CLIPTextEncodeHunyuanDiT", clip=["all", 1], bert=text, mt5xl=text)
    flow["links"] = {"model": ["all", 0], "vae": ["all", 2]}
    return tail(flow, (128, 192), "EmptyLatentImage", 5.0, "dpmpp_2m", "normal")


def pixart(comfy: ComfyUI, w: Writer, name: str, edge: int, alpha: bool) -> Flow:
    make = importlib.import_module("comfy.ldm.pixart.pixartms").PixArtMS
    micro = alpha and edge == 1024
    tensors = w.values(comfy.shapes(lambda: make(
        input_size=edge // 8, pe_interpolation=edge // 512, depth=3, hidden_size=1152, num_heads=16,
        model_max_length=120 if alpha else 300,
        micro_condition=micro, operations=comfy.ops, dtype=comfy.torch.float32, device="cpu",
    )))  # fmt: skip
    # published files have it; ComfyUI reads its size
    tensors["pos_embed"] = comfy.torch.zeros(1, (edge // 16) ** 2, 1152)
    w.file(f"diffusion_models/{name}.safetensors", tensors)
    w.file("text_encoders/t5xxl_short.safetensors", w.values(encoder(comfy, "text_encoders/t5_config_xxl.json", "t5")))
    w.file("vae/vae4.safetensors", w.values(vae(comfy, 4)))
    flow: Flow = {"model": node("UNETLoader", unet_name=f"{name}.safetensors", weight_dtype="default"),
        "vae": node("VAELoader", vae_name="vae4.safetensors")}
    flow["clip"] = node("CLIPLoader", clip_name="t5xxl_short.safetensors", type="pixart")
    for side, text in (("positive", PROMPT), ("negative", NEGATIVE)):
        if alpha:
            flow[side] = node("CLIPTextEncodePixArtAlpha", clip=["clip", 0], text=text, width=1024, height=1024)
        else:
            flow[side] = node("CLIPTextEncode", clip=["clip", 0], text=text)
    return tail(flow, (256, 320), "EmptyLatentImage", 4.5, "euler", "normal")


def sd3(comfy: ComfyUI, w: Writer, name: str, newer: bool, encoders: str) -> Flow:
    make = importlib.import_module("comfy.ldm.modules.diffusionmodules.mmdit").OpenAISignatureMMDITWrapper
    depth = 6
    form = {"qk_norm": "rms", "x_block_self_attn_layers": [0, 1, 2]} if newer else {}
    edge = 384 if newer else 192
    tensors = w.values(comfy.shapes(lambda: make(
        patch_size=2, depth=depth, in_channels=16, adm_in_channels=2048, pos_embed_max_size=edge,
        num_patches=edge * edge, input_size=None,
        context_embedder_config={"target": "torch.nn.Linear",
            "params": {"in_features": 4096, "out_features": 64 * depth}}, pos_embed_scaling_factor=None,
        operations=comfy.ops, dtype=comfy.torch.float32, device="cpu", **form,
    )))  # fmt: skip
    parts = {"l": ("clip_l", "sd1_clip_config.json"), "g": ("clip_g", "clip_config_bigg.json"),
        "t": ("t5xxl", "text_encoders/t5_config_xxl.json")}
    files = {}
    for key in encoders:
        kind, config = parts[key]
        files[kind] = w.values(encoder(comfy, config, "t5" if key == "t" else kind))
        w.file(f"text_encoders/{kind}_short.safetensors", files[kind])
    flow: Flow = {}
    clip: list[Any] = ["clip", 0]
    if newer:  # a checkpoint
        out = {"model.diffusion_model." + k: v for k, v in tensors.items()}
        for kind, part in files.items():
            out |= {f"text_encoders.{kind}.transformer.{k}": v for k, v in part.items()}
        out |= {"first_stage_model." + k: v for k, v in w.values(vae(comfy, 16)).items()}
        w.file(f"checkpoints/{name}.safetensors", out)
        flow["all"] = node("CheckpointLoaderSimple", ckpt_name=f"{name}.safetensors")
        flow["links"], clip = {"model": ["all", 0], "vae": ["all", 2]}, ["all", 1]
    else:
        w.file(f"diffusion_models/{name}.safetensors", tensors)
        w.file("vae/vae16.safetensors", w.values(vae(comfy, 16)))
        flow = {"model": node("UNETLoader", unet_name=f"{name}.safetensors", weight_dtype="default"),
            "vae": node("VAELoader", vae_name="vae16.safetensors")}
        names = {f"clip_name{i}": f"{kind}_short.safetensors" for i, kind in enumerate(files, 1)}
        if len(files) == 1:
            flow["clip"] = node("CLIPLoader", clip_name=names["clip_name1"], type="sd3")
        else:
            flow["clip"] = node("TripleCLIPLoader", **names) if len(files) == 3 else node("DualCLIPLoader", **names,
                type="sd3")
    for side, text in (("positive", PROMPT), ("negative", NEGATIVE)):
        flow[side] = node("CLIPTextEncode", clip=clip, text=text)
    return tail(flow, (128, 192), "EmptySD3LatentImage", 4.0, "euler", "sgm_uniform")


def language(comfy: ComfyUI, kind: str, layers: int, mlp: int, **more: int) -> dict[str, Any]:
    """Return the tensors of a language model without eyes, and let ComfyUI read such a one."""
    comfy.language = {"num_hidden_layers": layers, "intermediate_size": mlp, **more}
    make = getattr(importlib.import_module("comfy.text_encoders.llama"), kind)
    shapes = comfy.shapes(lambda: make(comfy.language, comfy.torch.float32, "meta", comfy.ops))
    return {k: v for k, v in shapes.items() if not k.startswith("visual.")}


def prompts(flow: Flow, clip: list[Any]) -> Flow:
    for side, text in (("positive", PROMPT), ("negative", NEGATIVE)):
        flow[side] = node("CLIPTextEncode", clip=clip, text=text)
    return flow


def together(
    comfy: ComfyUI, w: Writer, name: str, model: dict[str, Any],
    encoders: dict[str, tuple[dict[str, Any], dict[str, Any]]], vae: dict[str, Any],
    prefix: str = "model.diffusion_model.",
) -> Flow:  # fmt: skip
    """Write one file with everything, encoders as (tensors, what stands in it as it is), and return its loader and
    texts.
    """
    comfy.keep("f16")
    out = {prefix + k: v for k, v in w.halves(model).items()}
    for kind, (tensors, beside) in encoders.items():
        out |= {f"text_encoders.{kind}.transformer.{k}": v for k, v in w.halves(tensors).items()}
        out |= {"text_encoders." + k: v for k, v in beside.items()}
    out |= {"vae." + k: v for k, v in w.halves(vae).items()}
    w.file(f"checkpoints/{name}.safetensors", out)
    flow: Flow = {"all": node("CheckpointLoaderSimple", ckpt_name=f"{name}.safetensors"),
        "links": {"model": ["all", 0], "vae": ["all", 2]}}
    return prompts(flow, ["all", 1])


def later(
    comfy: ComfyUI, w: Writer, name: str, model: Any, encoders: list[dict[str, Any]], vae: Any, typ: str,
    beside: dict[str, Any] | None = None,  # noqa: ANN401
) -> Flow:  # fmt: skip
    """Write the files of FLUX or a later family, what is beside an encoder's tensors as it is, and return its loaders
    and texts.
    """
    comfy.keep("f16")
    w.file(f"diffusion_models/{name}.safetensors", w.halves(comfy.shapes(model) if callable(model) else model))
    texts = {f"clip_name{i}": f"{name}_text{i}.safetensors" for i in range(1, len(encoders) + 1)}
    for file, tensors in zip(texts.values(), encoders, strict=True):
        w.file(f"text_encoders/{file}", w.halves(tensors) | (beside or {}))
    w.file(f"vae/{name}_vae.safetensors", w.halves(comfy.shapes(vae) if callable(vae) else vae))
    gc.collect()
    flow: Flow = {"model": node("UNETLoader", unet_name=f"{name}.safetensors", weight_dtype="default"),
        "vae": node("VAELoader", vae_name=f"{name}_vae.safetensors")}
    flow["clip"] = node("DualCLIPLoader", **texts, type=typ) if len(texts) == 2 else node("CLIPLoader",
        clip_name=texts["clip_name1"], type=typ)
    return prompts(flow, ["clip", 0])


def shifted(flow: Flow, shift: float) -> Flow:
    flow["shifted"] = node("ModelSamplingAuraFlow", model=["model", 0], shift=shift)
    flow["links"] = {"model": ["shifted", 0], "vae": ["vae", 0]}
    return flow


def zimage(comfy: ComfyUI, w: Writer, name: str) -> Flow:
    make = importlib.import_module("comfy.ldm.lumina.model").NextDiT
    model = lambda: make(  # noqa: E731
        patch_size=2, in_channels=16, dim=3840, n_layers=1, n_refiner_layers=2, n_heads=30, n_kv_heads=30,
        axes_dims=[32, 48, 48], axes_lens=[1536, 512, 512],
        rope_theta=256.0, ffn_dim_multiplier=8 / 3, qk_norm=True, cap_feat_dim=2560, z_image_modulation=True,
        time_scale=1000.0, pad_tokens_multiple=32,
        operations=comfy.ops, dtype=comfy.torch.float32, device="meta",
    )  # fmt: skip
    flow = later(comfy, w, name, model, [language(comfy, "Qwen3_4B", LAYERS, 4096)], vae(comfy, 16), "lumina2")
    return tail(shifted(flow, 3.0), (128, 192), "EmptySD3LatentImage", 4.0, "res_multistep", "simple")


def qwenimage(comfy: ComfyUI, w: Writer, name: str) -> Flow:
    make = importlib.import_module("comfy.ldm.qwen_image.model").QwenImageTransformer2DModel
    model = lambda: make(num_layers=2, operations=comfy.ops, dtype=comfy.torch.float32, device="meta")  # noqa: E731
    flow = later(comfy, w, name, model, [language(comfy, "Qwen25_7BVLI", LAYERS, 4096)], wan, "qwen_image")
    return tail(shifted(flow, 3.1), (128, 192), "EmptySD3LatentImage", 4.0, "euler", "simple")


def layered(comfy: ComfyUI, w: Writer, name: str) -> Flow:
    """Take a picture apart into two layers with alpha, as the official template of Qwen-Image-Layered does; latents
    have odd sides.
    """
    make = importlib.import_module("comfy.ldm.qwen_image.model").QwenImageTransformer2DModel
    model = lambda: make(num_layers=2, use_additional_t_cond=True, operations=comfy.ops, dtype=comfy.torch.float32,
        device="meta")  # noqa: E731
    flow = later(comfy, w, name, model, [language(comfy, "Qwen25_7BVLI", LAYERS, 4096)], lambda: wan(4), "qwen_image")
    flow = tail(shifted(flow, 1.0), (104, 152), "EmptyQwenImageLayeredLatentImage", 2.5, "euler", "simple")
    flow["latent"]["inputs"]["layers"] = 2
    flow["picture"] = node("EmptyImage", width=104, height=152, batch_size=1, color=3368601)
    flow["seen"] = node("VAEEncode", pixels=["picture", 0], vae=["vae", 0])
    for side in ("positive", "negative"):
        flow[side + " referred"] = node("ReferenceLatent", conditioning=[side, 0], latent=["seen", 0])
        flow["sample"]["inputs"][side] = [side + " referred", 0]
    flow["cut"] = node("LatentCut", samples=["sample", 0], dim="t", index=1, amount=16384)
    flow["apart"] = node("LatentCutToBatch", samples=["cut", 0], dim="t", slice_size=1)
    flow["decode"]["inputs"]["samples"] = ["apart", 0]
    return flow


def words(comfy: ComfyUI) -> dict[str, Any]:
    """Return a small vocabulary as Gemma's file has one inside: the end is token 1 and the start 2, by which Patchbay
    begins.
    """
    data = WORDS.read_bytes()
    at = [0]  # where its pieces begin: unknown, start, end, each shorter than 128 bytes
    for _ in range(3):
        at.append(at[-1] + 2 + data[at[-1] + 1])
    data = data[: at[1]] + data[at[2] : at[3]] + data[at[1] : at[2]] + data[at[3] :]
    return {"spiece_model": comfy.torch.frombuffer(bytearray(data), dtype=comfy.torch.uint8)}


def chroma(comfy: ComfyUI, w: Writer, name: str, guided: bool) -> Flow:
    """Draw with Chroma1: with a guidance on one side and prompts filled up, or as its first workflows did."""
    make = importlib.import_module("comfy.ldm.chroma.model").Chroma
    config = {**form(3072), "vec_in_dim": None, "in_channels": 64, "out_channels": 64, "in_dim": 64, "out_dim": 3072,
        "hidden_dim": 5120, "n_layers": 5}
    del config["guidance_embed"]
    shapes = comfy.shapes(lambda: make(**config, depth=1, depth_single_blocks=2, operations=comfy.ops,
        dtype=comfy.torch.float32, device="meta"))
    model = {re.sub(r"(_norm|\.norms\.\d+)\.weight$", r"\1.scale", k): v for k, v in shapes.items()}  # as published
    flow = later(comfy, w, name, model, [encoder(comfy, "text_encoders/t5_config_xxl.json", "t5")], vae(comfy, 16),
        "chroma")
    if guided:
        flow["filled"] = node("T5TokenizerOptions", clip=["clip", 0], min_padding=1, min_length=40)
        for side in ("positive", "negative"):
            flow[side]["inputs"]["clip"] = ["filled", 0]
        flow["text"] = flow["positive"]
        flow["positive"] = node("FluxGuidance", conditioning=["text", 0], guidance=3.5)
    return tail(flow, (72, 104), "EmptySD3LatentImage", 4.0, "euler", "beta")


def lumina2(comfy: ComfyUI, w: Writer, name: str, whole: bool) -> Flow:
    """Draw with Lumina-Image 2.0, from one file or from three."""
    make = importlib.import_module("comfy.ldm.lumina.model").NextDiT
    model = comfy.shapes(lambda: make(
        patch_size=2, in_channels=16, dim=2304, n_layers=2, n_refiner_layers=2, n_heads=24, n_kv_heads=8,
        axes_dims=[32, 32, 32], axes_lens=[300, 512, 512],
        rope_theta=10000.0, ffn_dim_multiplier=4.0, qk_norm=True, cap_feat_dim=2304, operations=comfy.ops,
        dtype=comfy.torch.float32, device="meta",
    ))  # fmt: skip
    gemma = language(comfy, "Gemma2_2B", LAYERS, 4096)
    flow = together(comfy, w, name, model, {"gemma2_2b": (gemma, words(comfy))},
        vae(comfy, 16)) if whole else later(comfy, w, name, model, [gemma], vae(comfy, 16), "lumina2", words(comfy))
    return tail(flow, (72, 104), "EmptySD3LatentImage", 4.0, "res_multistep", "simple")


def auraflow(comfy: ComfyUI, w: Writer, name: str, edge: int, whole: bool) -> Flow:
    """Draw with AuraFlow, from one file as published or from three."""
    make = importlib.import_module("comfy.ldm.aura.mmdit").MMDiT
    model = comfy.shapes(lambda: make(max_seq=edge * edge, n_double_layers=1, n_layers=3, operations=comfy.ops,
        dtype=comfy.torch.float32, device="meta"))
    pile = encoder(comfy, "text_encoders/t5_pile_config_xl.json", "t5")
    if whole:
        flow = together(comfy, w, name, model, {"pile_t5xl": (pile, {})}, vae(comfy, 4), "model.")
    else:
        flow = shifted(later(comfy, w, name, model, [pile], vae(comfy, 4), "stable_diffusion"), 2.5)
    return tail(flow, (72, 104), "EmptyLatentImage", 3.5, "uni_pc", "normal")


def wan(channels: int = 3) -> Any:  # noqa: ANN401
    film = importlib.import_module("comfy.ldm.wan.vae").WanVAE
    # older trees know three alone
    more = {} if channels == 3 else {"image_channels": channels, "conv_out_channels": channels}
    return film(dim=96, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
        temperal_downsample=[False, True, True], dropout=0.0, **more)


def krea2(comfy: ComfyUI, w: Writer, name: str) -> Flow:
    make = importlib.import_module("comfy.ldm.krea2.model").SingleStreamDiT
    model = lambda: make(layers=1, operations=comfy.ops, dtype=comfy.torch.float32, device="meta")  # noqa: E731
    comfy.language = {"intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2}
    qwen = importlib.import_module("comfy.text_encoders.qwen3vl")._make_qwen3vl_model("qwen3vl_4b")  # noqa: SLF001
    shapes = comfy.shapes(lambda: qwen(comfy.language, comfy.torch.float32, "meta", comfy.ops))
    eyes = ("visual.deepstack_merger_list.0.norm.weight", "visual.merger.linear_fc2.weight")  # what tells the file
    encoder = {k.replace("model.", "model.language_model."): v for k, v in shapes.items() if k.startswith("model.")}
    encoder |= {"model." + k: shapes[k] for k in eyes}
    flow = later(comfy, w, name, model, [encoder], wan, "krea2")
    return tail(flow | {"links": {"model": ["model", 0], "vae": ["vae", 0]}}, (128, 192), "EmptyLatentImage", 4.0,
        "euler", "simple")


def klein(comfy: ComfyUI, w: Writer, name: str) -> Flow:
    make = importlib.import_module("comfy.ldm.flux.model").Flux
    model = lambda: make(  # noqa: E731
        in_channels=128, out_channels=128, vec_in_dim=None, context_in_dim=7680, hidden_size=3072, mlp_ratio=3.0,
        num_heads=24, depth=1, depth_single_blocks=2,
        axes_dim=[32, 32, 32, 32], theta=2000, patch_size=1, qkv_bias=False, guidance_embed=False, txt_ids_dims=[3],
        global_modulation=True, mlp_silu_act=True,
        ops_bias=False, default_ref_method="index", ref_index_scale=10.0, operations=comfy.ops,
        dtype=comfy.torch.float32, device="meta",
    )  # fmt: skip
    encoder = language(comfy, "Qwen3_4B", 28, 512, num_attention_heads=8, num_key_value_heads=2)
    config = {"double_z": True, "z_channels": 32, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 128,
        "ch_mult": [1, 2, 4, 4]}
    config |= {"num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0, "batch_norm_latent": True}
    models = importlib.import_module("comfy.ldm.models.autoencoder")
    flow = later(comfy, w, name, model, [encoder], lambda: models.AutoencoderKL(embed_dim=32, ddconfig=config), "flux2")
    flow["picture"] = node("EmptyImage", width=96, height=64, batch_size=1, color=3368601)
    flow["seen"] = node("VAEEncode", pixels=["picture", 0], vae=["vae", 0])
    for side in ("positive", "negative"):
        flow["text_" + side] = flow[side]
        flow[side] = node("ReferenceLatent", conditioning=["text_" + side, 0], latent=["seen", 0])
    return tail(flow, (128, 192), "EmptyFlux2LatentImage", 4.0, "euler", "simple")


def form(hidden: int) -> dict[str, Any]:
    """Return FLUX.1's form, of another width if need be."""
    return {
        "in_channels": 16, "out_channels": 16, "vec_in_dim": 768, "context_in_dim": 4096, "hidden_size": hidden,
        "mlp_ratio": 4.0, "num_heads": hidden // 128,
        "axes_dim": [16, 56, 56], "theta": 10000, "patch_size": 2, "qkv_bias": True, "guidance_embed": True,
        "txt_ids_dims": [],
    }  # fmt: skip


def flux(comfy: ComfyUI, w: Writer, name: str, channels: int = 16, hidden: int = 3072, depth: int = 1) -> Flow:
    """Draw with FLUX.1: 96 channels are Fill's."""
    make = importlib.import_module("comfy.ldm.flux.model").Flux
    config = form(hidden) | {"in_channels": channels, "out_channels": 16}
    shapes = comfy.shapes(lambda: make(**config, depth=depth, depth_single_blocks=2, operations=comfy.ops,
        dtype=comfy.torch.float32, device="meta"))
    # as published; newer trees have names of their own
    model = {k.replace("_norm.weight", "_norm.scale"): v for k, v in shapes.items()}
    texts = [encoder(comfy, *of) for of in (("sd1_clip_config.json", "clip_l"),
        ("text_encoders/t5_config_xxl.json", "t5"))]
    flow = later(comfy, w, name, model, texts, vae(comfy, 16), "flux")
    return tail(flow, (72, 104), "EmptySD3LatentImage", 2.0, "euler", "simple")


def controlled(comfy: ComfyUI, w: Writer, flow: Flow, name: str, make: Any, names: Any = None) -> Flow:  # noqa: ANN401
    """Put a control net of random values, in the names of diffusers by ComfyUI's table, and another behind it on both
    sides.
    """
    own = w.values(comfy.shapes(make))
    out = dict(own) if names is None else {k: v for k, v in own.items()
        if k.startswith(("controlnet_", "pos_embed_input.proj"))}
    for theirs, of in (names or {}).items():
        key, part = (of, None) if isinstance(of, str) else (of[0], of[1])
        if key in own:
            out[theirs] = own[key] if part is None else own[key].narrow(*part).clone()
    w.file(f"controlnet/{name}_net.safetensors", out)
    flow["net"] = node("ControlNetLoader", control_net_name=f"{name}_net.safetensors")
    if names is None or "x_embedder.weight" in names:  # FLUX has union nets; other nets of ComfyUI stumble over a type
        flow["typed"] = node("SetUnionControlNetType", control_net=["net", 0], type="canny/lineart/anime_lineart/mlsd")
    flow["hint"] = node("EmptyImage", width=150, height=111, batch_size=1, color=3368601)
    sides: dict[str, Any] = {side: [side, 0] for side in ("positive", "negative")}
    for k, (net, part) in enumerate((("typed", {"start_percent": 0.0, "end_percent": 1.0}),
            ("net", {"start_percent": 0.3, "end_percent": 0.8}))):
        kind = "ControlNetApplySD3" if k else "ControlNetApplyAdvanced"
        flow[f"applied{k}"] = node(kind, **sides, control_net=[net if net in flow else "net", 0], vae=["vae", 0],
            image=["hint", 0], strength=0.6 - 0.2 * k, **part)
        sides = {"positive": [f"applied{k}", 0], "negative": [f"applied{k}", 1]}
    flow["sample"]["inputs"].update(sides)
    return flow


def controlled_flux(comfy: ComfyUI, w: Writer, name: str) -> Flow:
    make = importlib.import_module("comfy.ldm.flux.controlnet").ControlNetFlux
    names = importlib.import_module("comfy.utils").flux_to_diffusers({"depth": 2, "depth_single_blocks": 1,
        "hidden_size": 768})
    # what adapters and FLUX.2 call the same tensors
    others = (".linear_in.", ".linear_out.", ".to_qkv_mlp_proj.", ".to_out.weight")
    names = {theirs: of for theirs, of in names.items() if not any(part in theirs for part in others)}
    net = lambda: make(  # noqa: E731
        latent_input=True, num_union_modes=8, control_latent_channels=16, **form(768), depth=2, depth_single_blocks=1,
        operations=comfy.ops,
        dtype=comfy.torch.float32, device="cpu",
    )  # fmt: skip
    return controlled(comfy, w, flux(comfy, w, name, hidden=768, depth=3), name, net, names)


def controlled_sd3(comfy: ComfyUI, w: Writer, name: str) -> Flow:
    make = importlib.import_module("comfy.cldm.mmdit").ControlNet
    names = importlib.import_module("comfy.utils").mmdit_to_diffusers({"depth": 6, "num_blocks": 2})
    net = lambda: make(  # noqa: E731
        num_blocks=2, control_latent_channels=16, patch_size=2, depth=6, in_channels=16, adm_in_channels=2048,
        pos_embed_max_size=192, num_patches=192 * 192,
        input_size=None, context_embedder_config={"target": "torch.nn.Linear",
            "params": {"in_features": 4096, "out_features": 384}},
        pos_embed_scaling_factor=None, operations=comfy.ops, dtype=comfy.torch.float32, device="cpu",
    )  # fmt: skip
    return controlled(comfy, w, sd3(comfy, w, name, newer=False, encoders="lg"), name, net, names)


def fill(comfy: ComfyUI, w: Writer, name: str) -> Flow:
    flow = flux(comfy, w, name, channels=96)
    flow["picture"] = node("EmptyImage", width=96, height=64, batch_size=1, color=3368601)
    flow["hole"] = node("SolidMask", value=0.7, width=48, height=64)
    sides = {side: [side, 0] for side in ("positive", "negative")}
    flow["texts"] = node("InpaintModelConditioning", **sides, vae=["vae", 0], pixels=["picture", 0], mask=["hole", 0],
        noise_mask=False)
    flow["sample"]["inputs"] |= {"positive": ["texts", 0], "negative": ["texts", 1]}
    return flow


def kontext(comfy: ComfyUI, w: Writer, name: str) -> Flow:
    """Draw with FLUX.1 Kontext, and Redux on one side."""
    flow = flux(comfy, w, name)
    layers = 23  # ComfyUI looks at layer 22
    config = json.loads((comfy.tree / "comfy" / "clip_vision_siglip_384.json").read_text()) | {
        "num_hidden_layers": layers}
    eyes = importlib.import_module("comfy.clip_model").CLIPVisionModelProjection
    w.file("clip_vision/siglip.safetensors", w.halves(comfy.shapes(lambda: eyes(config, comfy.torch.float32, "meta",
        comfy.ops))))
    style = importlib.import_module("comfy.ldm.flux.redux").ReduxImageEncoder
    w.file("style_models/redux.safetensors", w.halves(comfy.shapes(style)))
    load = importlib.import_module("comfy.clip_vision").ClipVisionModel
    full = load.load_sd

    def load_sd(model: Any, tensors: dict[str, Any]) -> Any:  # noqa: ANN401
        model.model.vision_model.encoder.layers = model.model.vision_model.encoder.layers[:layers]
        return full(model, tensors)

    load.load_sd = load_sd
    flow["picture"] = node("EmptyImage", width=96, height=64, batch_size=1, color=3368601)
    flow["seen"] = node("VAEEncode", pixels=["picture", 0], vae=["vae", 0])
    flow["eyes"], flow["style"] = node("CLIPVisionLoader", clip_name="siglip.safetensors"), node("StyleModelLoader",
        style_model_name="redux.safetensors")
    flow["sight"] = node("CLIPVisionEncode", clip_vision=["eyes", 0], image=["picture", 0], crop="center")
    flow["styled"] = node("StyleModelApply", conditioning=["positive", 0], style_model=["style", 0],
        clip_vision_output=["sight", 0], strength=0.8, strength_type="multiply")
    flow["referred"] = node("ReferenceLatent", conditioning=["styled", 0], latent=["seen", 0])
    flow["sample"]["inputs"]["positive"] = ["referred", 0]
    return flow


SETS = {
    "flux": flux,
    "flux-control": controlled_flux,
    "sd3-control": controlled_sd3,
    "hunyuan-1.1": lambda c, w, n: hunyuan(c, w, n, old=True),
    "hunyuan-1.2": lambda c, w, n: hunyuan(c, w, n, old=False),
    "pixart-alpha-512": lambda c, w, n: pixart(c, w, n, 512, alpha=True),
    "pixart-alpha-1024": lambda c, w, n: pixart(c, w, n, 1024, alpha=True),
    "pixart-sigma-1024": lambda c, w, n: pixart(c, w, n, 1024, alpha=False),
    "pixart-sigma-2048": lambda c, w, n: pixart(c, w, n, 2048, alpha=False),
    "sd3": lambda c, w, n: sd3(c, w, n, newer=False, encoders="lgt"),
    "sd3-l-g": lambda c, w, n: sd3(c, w, n, newer=False, encoders="lg"),
    "sd3-t5": lambda c, w, n: sd3(c, w, n, newer=False, encoders="t"),
    "sd3.5": lambda c, w, n: sd3(c, w, n, newer=True, encoders="lgt"),
    "sd3.5-g-t5": lambda c, w, n: sd3(c, w, n, newer=True, encoders="gt"),
    "z-image": zimage,
    "qwen-image": qwenimage,
    "qwen-image-layered": layered,
    "flux2-klein": klein,
    "flux1-kontext-redux": kontext,
    "flux1-fill": fill,
    "krea2": krea2,
    "chroma": lambda c, w, n: chroma(c, w, n, guided=False),
    "chroma-guided": lambda c, w, n: chroma(c, w, n, guided=True),
    "lumina2": lambda c, w, n: lumina2(c, w, n, whole=False),
    "lumina2-whole": lambda c, w, n: lumina2(c, w, n, whole=True),
    "auraflow-0.2": lambda c, w, n: auraflow(c, w, n, 64, whole=False),
    "auraflow-0.3": lambda c, w, n: auraflow(c, w, n, 96, whole=True),
}
# Sets that only newer trees know, by a folder of theirs; 0.8.0 has FLUX.2 and control nets of FLUX at the released
# widths alone.
NEWER = dict.fromkeys(("krea2", "qwen-image-layered", "flux-control", "flux2-klein"), "comfy/ldm/krea2")


def ours(program: str, tree: pathlib.Path, base: pathlib.Path, name: str, flow: Flow, plan: str) -> Any:  # noqa: ANN401
    """Run a graph in Patchbay and return its pictures as an array [B, H, W, 3 or 4] of bytes, or its error."""
    import numpy as np
    from PIL import Image

    (base / f"{name}.json").write_text(json.dumps(flow))
    out = base / "out" / f"{name}-{plan or 'one'}".replace("=", "").replace(",", "-")
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.png"):
        old.unlink()
    command = [program, "run", str(base / f"{name}.json"), "--local", "--models", str(base / "models"), "--comfyui",
        str(tree), "--compute", "f32"]
    command += ["--devices", "cpu", "--out", str(out), "--output", str(base / "saved"), "--log",
        "error"] + (["--plan", plan] if plan else [])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stdout + done.stderr)[-1500:]
    return np.stack([np.asarray(Image.open(p)) for p in sorted(out.glob("*.png"))])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("comfyui")
    parser.add_argument("--program", required=True)
    parser.add_argument("--only", default=",".join(SETS))
    parser.add_argument("--base", default="/tmp/patchbay-families")
    parser.add_argument("--plans", nargs="*", default=["", "cfg=2,ulysses=2"])
    options = parser.parse_args()
    tree, base = pathlib.Path(options.comfyui).resolve(), pathlib.Path(options.base)
    base.mkdir(parents=True, exist_ok=True)
    comfy = ComfyUI(tree, base)
    import folder_paths  # of the tree
    import numpy as np

    failed = 0
    for name in options.only.split(","):
        for file in (base / "models").rglob("*.safetensors"):  # 6 GB at most
            file.unlink()
        if name in NEWER and not (tree / NEWER[name]).exists():
            print(f"{name:20} NOT RUN: this ComfyUI is older than its {NEWER[name]}", flush=True)
            continue
        start = time.time()
        comfy.keep("f32")
        try:
            flow = SETS[name](comfy, Writer(base, comfy.torch), name)
            folder_paths.filename_list_cache.clear()
            want = np.clip(255.0 * comfy.draw(flow), 0, 255).astype(np.uint8).astype(int)
        except Exception as err:  # noqa: BLE001 - the other sets are drawn all the same
            failed += 1
            print(f"{name:20} ComfyUI FAILED: {type(err).__name__}: {err}", flush=True)
            continue
        size = sum(f.stat().st_size for f in (base / "models").rglob("*.safetensors"))
        took = time.time() - start
        spread = f"{want.std():.0f}"
        for plan in options.plans:
            got = ours(options.program, tree, base, name, flow, plan)
            if isinstance(got, str):
                failed += 1
                print(f"{name:20} {plan or 'one rank':18} FAILED: {got}", flush=True)
                continue
            apart = int(abs(got.astype(int) - want).max()) if got.shape == want.shape else 255
            failed += apart > 1
            state = "ok" if apart <= 1 else "DIFFERS"
            print(
                f"{name:20} {plan or 'one rank':18} {state}: {apart} levels apart at most; spread {spread}, "
                f"{size >> 20} MiB, {took:.0f} s", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
