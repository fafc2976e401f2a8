"""Adds Qwen-Image-Layered and its autoencoder with alpha to the files of tests/golden/modern. Running the tests does
not need this script.

Made with torch 2.15.0 and the tree of ComfyUI 0.33.0, whose network, nodes, KSampler and VAE are imported and run as
they are:
    python tests/reference/make_layered.py COMFYUI_TREE tests/golden/modern

Weights and inputs are by the formula of tests/golden/README.md section 1. Only tiny configurations differ from the
published models; cases of other models stay as they are in the files.
"""

import gzip
import json
import math
import os
import sys

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(tree, "--force-fp32", "--fp32-vae", "--use-pytorch-cross-attention", "--disable-all-custom-nodes")
import nodes
import comfy.ldm.wan.vae
import comfy.model_detection
import comfy.model_patcher
import comfy.sd
import comfy.supported_models
import torch
import comfy_extras.nodes_post_processing  # noqa: F401  before nodes_latent, which it imports and which imports it
from comfy_extras.nodes_easycache import EasyCacheNode
from comfy_extras.nodes_edit_model import ReferenceLatent
from comfy_extras.nodes_latent import LatentCut, LatentCutToBatch
from comfy_extras.nodes_model_advanced import ModelSamplingAuraFlow
from comfy_extras.nodes_qwen import EmptyQwenImageLayeredLatentImage
from safetensors.torch import load_file, save_file

CPU = torch.device("cpu")
NAME, EYES = "qwen-c", "wanvae-b"
ALIVE = []  # ComfyUI keeps weak references of what it has loaded
CONFIG = {
    "image_model": "qwen_image", "in_channels": 64, "num_layers": 3, "attention_head_dim": 40, "num_attention_heads": 3,
    "joint_attention_dim": 56, "axes_dims_rope": [8, 16, 16],
    "default_ref_method": "negative_index", "use_additional_t_cond": True,
}  # fmt: skip
VAE = {"dim": 12, "z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2,
    "temperal_downsample": [False, True, True], "image_channels": 4, "conv_out_channels": 4}


def rule(key, shape):
    if key.endswith("bias") and len(shape) == 1:
        return "bias", 0.4, 0.0
    if "embedding" in key:
        return "table", 1.0, 0.0
    if len(shape) <= 1 or key.endswith("gamma"):
        return "norm", 0.2, 1.0
    return "matrix", 2 * math.sqrt(3.0 / math.prod(shape[1:])), 0.0


def weigh(name, module):
    """Fill a module's weights and return their list."""
    listed, state = [], {}
    for key, t in sorted(module.state_dict().items()):
        kind, scale, offset = rule(key, t.shape)
        listed.append([key, list(t.shape), kind, scale, offset])
        state[key] = fill(f"{name}/{key}", tuple(t.shape), scale, offset)
    module.load_state_dict(state)
    return listed, state


FILES = {f: json.load(open(f"{out}/{f}.json")) for f in ("models", "weights", "e2e", "vae", "weights_vae")}
TENSORS = {f: load_file(f"{out}/{f}.safetensors") for f in ("models", "e2e", "vae")}


def rms(t):
    return t.float().pow(2).mean().sqrt().item()


def keep(file, key, got, entry):
    TENSORS[file][key] = got.float().contiguous()
    FILES[file][key] = entry
    print(key, list(got.shape), "rms %.4f" % rms(got))


def detected(state):
    """Whether ComfyUI takes a file of these names for the model."""
    config = comfy.model_detection.detect_unet_config(state, "")
    want = {k: v for k, v in CONFIG.items() if k in config}
    assert config == want and "use_additional_t_cond" in config, config


# latent [n, T, Y, X], timesteps, tokens, references, method
CASES = {
    "3x9x13-ref": ((1, 3, 9, 13), [0.875], 11, [(9, 13)], None),
    "2x8x10-2refs-b2": ((2, 2, 8, 10), [0.5, 0.25], 7, [(6, 9), (7, 12)], None),
    "4x6x5-t0": ((1, 4, 6, 5), [0.0], 20, [], None),
    "1x7x9-ref": ((1, 1, 7, 9), [1.0], 9, [(7, 9)], None),
    "3x5x6-ref-index": ((1, 3, 5, 6), [0.3], 5, [(6, 5)], "index"),
}


def forwards(m):
    net = m.diffusion_model
    for i, (case, ((n, t, y, x), timesteps, tokens, refs, method)) in enumerate(CASES.items()):
        case = f"{NAME}/{case}"
        shape, context = [n, 16, t, y, x], [n, tokens, 56]
        entry = {"x": shape, "timesteps": timesteps, "context": context}
        args = {"ref_latents": [given(f"{case}/ref{k}", (n, 16, 1, *r)) for k, r in enumerate(refs)]} if refs else {}
        if refs:
            entry["ref_latents"] = [[n, 16, 1, *r] for r in refs]
        if method:
            entry["ref_latents_method"] = args["ref_latents_method"] = method
        ids, hooks, places = net.pe_embedder.forward, [], []

        def embed(at):
            places.append(at)
            return ids(at)

        net.pe_embedder.forward = embed
        for k, block in enumerate(net.transformer_blocks if i == 0 else []):

            def hook(_, __, result, k=k):
                for side, part in enumerate(result):
                    TENSORS["models"][f"{case}#transformer_blocks.{k}.{side}"] = part.float().clone().contiguous()

            hooks.append(block.register_forward_hook(hook))
        got = net(given(case + "/x", shape), torch.tensor(timesteps), given(case + "/context", context),
            transformer_options={}, **args)
        net.pe_embedder.forward = ids
        for h in hooks:
            h.remove()
        TENSORS["models"][case + "#position_ids"] = places[0].float().contiguous()
        keep("models", case, got, entry | {"rms": rms(got)})
    run = lambda: net(given("s/x", (1, 16, 2, 8, 8)), torch.tensor([0.5]), given("s/c", (1, 5, 56)),
        ref_latents=[given("s/r", (1, 16, 1, 8, 8))], transformer_options={})
    want = run()
    for key, p in net.state_dict().items():  # which tensors do not move the output when they are zero
        kept = p.clone()
        p.zero_()
        if rms(run() - want) / rms(want) < 1e-3:
            print(key, "moves the output by only %.2g" % (rms(run() - want) / rms(want)))
        p.copy_(kept)


RUNS = {
    "image-to-layers": dict(seed=42, steps=5, cfg=2.5, sampler="euler", scheduler="simple", size=(9, 13), layers=2, n=1,
        ref=(9, 13), what="the template: the picture on both sides, shift 1, odd sides"),
    "text-to-layers-b2": dict(seed=7, steps=4, cfg=2.5, sampler="euler_ancestral", scheduler="simple", size=(8, 6),
        layers=3, n=2, ref=None, what="no picture, batch 2, ancestral noise"),
    "easycache": dict(seed=5, steps=8, cfg=2.5, sampler="euler", scheduler="simple", size=(11, 18), layers=2, n=1,
        ref=(11, 18), easy=0.6, what="EasyCache measures every eighth row and column of every layer"),
}


def sample(m, key, *, seed, steps, cfg, sampler, scheduler, size, layers, n, ref, what, easy=None):
    key = f"{NAME}/{key}"
    p = ModelSamplingAuraFlow().patch_aura(comfy.model_patcher.ModelPatcher(m, CPU, CPU), 1.0)[0]
    if easy:
        p = EasyCacheNode.execute(p, easy, 0.15, 0.95, False)[0]
    ALIVE.append(p)
    calls, net = [], m.diffusion_model
    original, outer = net._forward, net.forward
    net.forward = lambda x, *args, **kwargs: outer(x.clone(), *args, **kwargs)  # EasyCache adds to it in place

    def forward(x, *args, **kwargs):
        options = kwargs.get("transformer_options") or next(a for a in reversed(args) if isinstance(a, dict))
        calls.append([x.shape[0], list(options["cond_or_uncond"])])
        return original(x, *args, **kwargs)

    net._forward = forward
    start = EmptyQwenImageLayeredLatentImage.execute(8 * size[1] + 3, 8 * size[0] + 5, layers, n)[0]
    shape, sides = list(start["samples"].shape), {}
    entries = {"positive": {"tag": "pos", "context": [1, 13, 56]}, "negative": {"tag": "neg", "context": [1, 6, 56]}}
    if easy:
        entries["negative"]["context"] = [1, 13, 56]
    for side, e in entries.items():
        sides[side] = [[given(f"e2e/{NAME}/{e['tag']}/context", e["context"]), {"pooled_output": None}]]
        if ref:
            picture = {"input": f"e2e/{NAME}/picture{ref[0]}x{ref[1]}", "shape": [1, 16, 1, *ref]}
            sides[side] = ReferenceLatent.execute(sides[side],
                {"samples": given(picture["input"], picture["shape"])})[0]
            e["reference_latents"] = [picture]
    got = nodes.KSampler().sample(p, seed, steps, cfg, sampler, scheduler, sides["positive"], sides["negative"], start,
        1.0)[0]
    net._forward, net.forward = original, outer
    assert list(got["samples"].shape) == shape == [n, 16, layers + 1, *size]
    keep("e2e", key, got["samples"], {
        "node": "KSampler", "model": NAME, "model_patch": ["ModelSamplingAuraFlow", 1.0], "cfg_norm": None,
        "seed": seed, "steps": steps, "cfg": cfg, "sampler": sampler,
        "scheduler": scheduler, "denoise": 1.0, "latent_shape": shape, "latent": "zeros",
        **{s: [e] for s, e in entries.items()}, "what": what, "output_shape": shape, "network_calls": calls,
        "rms": rms(got["samples"]),
    } | ({"easycache": [easy, 0.15, 0.95]} if easy else {}))  # fmt: skip
    cut = LatentCut.execute(got, "t", 1, 16384)[0]
    TENSORS["e2e"][key + "#layers"] = LatentCutToBatch.execute(cut, "t", 1)[0]["samples"].contiguous()
    print(calls)


def autoencoder():
    tensors, state = weigh(EYES, comfy.ldm.wan.vae.WanVAE(**VAE))
    FILES["weights_vae"][EYES] = {"class": "WanVAE", "config": VAE, "tensors": tensors}
    vae = comfy.sd.VAE(sd=state)
    ALIVE.append(vae)
    assert vae.output_channels == 4 and vae.pad_channel_value == 1.0
    for size, (y, x), (tall, wide) in (("5x7", (5, 7), (43, 61)), ("8x6", (8, 6), (67, 53))):
        z = given(f"{EYES}/latent/{size}", (1, 16, 1, y, x))
        TENSORS["vae"][f"{EYES}/decode/{size}#raw"] = vae.first_stage_model.decode(z).contiguous()
        image = nodes.VAEDecode().decode(vae, {"samples": z})[0]
        inner = ((image > 0) & (image < 1)).float().mean().item()
        keep("vae", f"{EYES}/decode/{size}#image", image, {"latent": list(z.shape),
            "image_shape_of_node": list(image.shape), "clamped_share": 1 - inner})
        FILES["vae"][f"{EYES}/decode/{size}"] = FILES["vae"].pop(f"{EYES}/decode/{size}#image")
        for channels in (3, 4):
            picture = fill(f"input:{EYES}/image/{size}", (1, tall, wide, channels), 1, 0.5)
            key = f"{EYES}/encode/{size}" + ("-rgba" if channels == 4 else "")
            keep("vae", key, vae.encode(picture), {"image": list(picture.shape), "image_offset": 0.5,
                "image_scale": 1.0, "note": "a picture without alpha is opaque: alpha 1 before 2x-1"})
    layers = given(f"{EYES}/layers", (1, 16, 3, 4, 5))
    cut = LatentCutToBatch.execute({"samples": layers}, "t", 1)[0]
    keep("vae", f"{EYES}/layers", nodes.VAEDecode().decode(vae, cut)[0],
        {"latent": list(layers.shape), "note": "LatentCutToBatch t 1, VAEDecode"})


def cuts():
    """LatentCut and LatentCutToBatch among the recorded nodes."""
    path = f"{out}/../nodes.json.gz"
    record = json.load(gzip.open(path))
    record["cases"] = [c for c in record["cases"] if not c["class"].startswith("LatentCut")]

    def case(node, shape, **inputs):
        source = {"tensor": "l", "shape": list(shape), "scale": 1.0, "offset": 0.0, "latent": True}
        got = node.execute({"samples": fill("l", shape, 1.0, 0.0)}, **inputs)[0]["samples"]
        outputs = [{"shape": list(got.shape), "values": [float("%.9g" % v) for v in got.flatten().tolist()]}]
        record["cases"].append({"class": node.__name__, "inputs": {"samples": source, **inputs}, "outputs": outputs})

    for dim, index, amount in (("t", 1, 16384), ("t", -2, 1), ("t", 9, 2), ("t", -9, 2), ("y", 1, 2), ("x", -3, 2),
            ("x", 0, 1)):
        case(LatentCut, (2, 2, 3, 3, 4), dim=dim, index=index, amount=amount)
    case(LatentCut, (1, 2, 5, 4), dim="y", index=-2, amount=9)
    for dim, size in (("t", 1), ("t", 2), ("t", 9), ("y", 2), ("x", 3)):
        case(LatentCutToBatch, (2, 2, 3, 3, 4), dim=dim, slice_size=size)
    case(LatentCutToBatch, (2, 2, 5, 4), dim="x", slice_size=2)
    with gzip.open(path, "wt") as file:
        file.write('{"comfyui": "0.33.0", "cases": [\n' + ",\n".join(json.dumps(c) for c in record["cases"]) + "\n]}\n")


m = comfy.supported_models.QwenImage(dict(CONFIG)).get_model({}, "", device="cpu")
tensors, state = weigh(NAME, m.diffusion_model)
detected(state)
FILES["weights"][NAME] = {"class": "QwenImage", "network": type(m.diffusion_model).__name__, "config": CONFIG,
    "tensors": tensors}
forwards(m)
for key, run in RUNS.items():
    sample(m, key, **run)
autoencoder()
cuts()
for f, cases in FILES.items():
    with open(f"{out}/{f}.json", "w") as file:
        file.write("{" + ",\n".join(json.dumps(k) + ": " + json.dumps(v, separators=(",", ": "), ensure_ascii=False)
            for k, v in cases.items()) + "}\n")
for f, tensors in TENSORS.items():
    save_file(tensors, f"{out}/{f}.safetensors")
    os.chmod(f"{out}/{f}.safetensors", 0o644)
