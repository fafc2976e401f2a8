"""Adds Chroma, Lumina 2 and AuraFlow to the files of tests/golden/modern. Running the tests does not need this script.

Made with Python 3.11, torch 2.15.0, numpy 2.4.6 and the tree of ComfyUI 0.8.0, whose networks, KSampler and encoders
are imported and run as they are:
    python tests/reference/make_families.py COMFYUI_TREE tests/golden/modern [MODEL ...]

Weights and inputs are by the formula of tests/golden/README.md section 1. Only tiny configurations differ from the
published models; cases of other models stay as they are in the files.
"""

import importlib
import json
import math
import os
import sys

import comfytree
from comfytree import fill, given

tree, out, only = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:]
comfytree.start(tree, "--fp32-unet", "--fp32-text-enc", "--use-pytorch-cross-attention", vision=False)
import nodes
import comfy.model_patcher
import comfy.supported_models
import torch
from comfy_extras.nodes_model_advanced import ModelSamplingAuraFlow
from safetensors.torch import load_file, save_file

CHROMA = {
    "image_model": "chroma", "in_channels": 64, "out_channels": 64, "in_dim": 64, "mlp_ratio": 4.0, "theta": 10000,
    "patch_size": 2, "qkv_bias": True,
    "txt_ids_dims": [], "vec_in_dim": 768,
}  # fmt: skip
LUMINA = {
    "image_model": "lumina2", "patch_size": 2, "in_channels": 16, "qk_norm": True, "axes_lens": [300, 512, 512],
    "rope_theta": 10000.0,
    "ffn_dim_multiplier": 4.0, "n_refiner_layers": 2,
}  # fmt: skip
MODELS = {
    "chroma-a": ("Chroma", CHROMA | {
        "hidden_size": 120, "num_heads": 3, "axes_dim": [8, 16, 16], "depth": 2, "depth_single_blocks": 3,
        "context_in_dim": 128, "hidden_dim": 72, "out_dim": 120,
        "n_layers": 3,
    }),
    "chroma-b": ("Chroma", CHROMA | {
        "hidden_size": 96, "num_heads": 4, "axes_dim": [4, 10, 10], "depth": 3, "depth_single_blocks": 2,
        "context_in_dim": 56, "hidden_dim": 40, "out_dim": 96,
        "n_layers": 2,
    }),
    "lumina2-a": ("Lumina2", LUMINA | {"dim": 240, "n_heads": 6, "n_kv_heads": 3, "axes_dims": [12, 14, 14],
        "n_layers": 3, "cap_feat_dim": 56}),
    "lumina2-b": ("Lumina2", LUMINA | {"dim": 96, "n_heads": 6, "n_kv_heads": 2, "axes_dims": [4, 6, 6], "n_layers": 2,
        "cap_feat_dim": 40}),
    "aura-a": ("AuraFlow", {"max_seq": 25, "cond_seq_dim": 56, "dim": 120, "n_heads": 3, "global_conddim": 120,
        "n_double_layers": 2, "n_layers": 5}),
    "aura-b": ("AuraFlow", {"max_seq": 64, "cond_seq_dim": 40, "dim": 96, "n_heads": 4, "global_conddim": 96,
        "n_double_layers": 3, "n_layers": 5}),
}  # fmt: skip
# latent [n, C, Y, X], timesteps, tokens, guidance
CASES = {
    "9x13": ((1, 9, 13), [0.875], 13, [0.0]),
    "8x12-b2": ((2, 8, 12), [0.125, 0.125], 7, [0.0, 0.0]),
    "10x7-b2-mixed": ((2, 10, 7), [1.0, 0.03125], 20, [3.5, 1.0]),
    "6x26-t0": ((1, 6, 26), [0.0], 1, [0.0]),
}
RUNS = {
    "euler-simple-6": dict(seed=42, steps=6, cfg=1.0, sampler="euler", scheduler="simple", denoise=1.0,
        shape=(1, 9, 13), what="cfg 1, the default shift"),
    "cfg4-lengths-b2": dict(seed=21, steps=5, cfg=4.0, sampler="dpmpp_2m", scheduler="beta", denoise=1.0,
        shape=(2, 8, 12), neg=5, what="text lengths 13 and 5, batch 2"),
    "img2img-0.6-shifted": dict(seed=3, steps=6, cfg=2.0, sampler="euler_ancestral", scheduler="normal", denoise=0.6,
        shape=(1, 10, 7), patch=["ModelSamplingAuraFlow", 2.5], what="latent in VAE space, odd side"),
}


def rule(key, shape):
    if key.endswith("bias") and len(shape) == 1:
        return "bias", 0.4, 0.0
    if any(part in key for part in ("embed_tokens", "shared.", "relative_attention_bias", "positional_encoding",
            "register_tokens")):
        return "table", 1.0, 0.0
    if len(shape) <= 1:
        return "norm", 0.2, 1.0
    return "matrix", 2 * math.sqrt(3.0 / math.prod(shape[1:])), 0.0


def weigh(name, module):
    """Fill a module's weights and return their list."""
    listed, state = [], {}
    for key, t in sorted(module.state_dict().items()):
        kind, scale, offset = rule(key, t.shape)
        if key.endswith("SelfAttention.q.weight"):
            scale *= 0.125
        listed.append([key, list(t.shape), kind, scale, offset])
        state[key] = fill(f"{name}/{key}", tuple(t.shape), scale, offset)
    module.load_state_dict(state)
    return listed


FILES = {f: json.load(open(f"{out}/{f}.json")) for f in ("models", "weights", "e2e", "text", "weights_text")}
TENSORS = {f: load_file(f"{out}/{f}.safetensors") for f in ("models", "e2e", "text")}


def watch(network, case):
    """Record the state after every block of a forward."""
    hooks = []

    def keep(label):
        def hook(_, __, result):
            parts = result if isinstance(result, tuple) else (result,)
            for i, part in enumerate(parts):
                TENSORS["models"][f"{case}#{label}" + (f".{i}" if len(parts) > 1
                    else "")] = part.float().clone().contiguous()

        return hook

    for name in ("double_blocks", "single_blocks", "context_refiner", "noise_refiner", "layers", "double_layers",
            "single_layers"):
        for i, block in enumerate(getattr(network, name, [])):
            hooks.append(block.register_forward_hook(keep(f"{name}.{i}")))
    return hooks


def rms(t):
    return t.float().pow(2).mean().sqrt().item()


def network(name, kind, config):
    m = getattr(comfy.supported_models, kind)(dict(config)).get_model({}, "", device="cpu")
    tensors = weigh(name, m.diffusion_model)
    FILES["weights"][name] = {"class": kind, "network": type(m.diffusion_model).__name__, "config": config,
        "tensors": tensors}
    if kind == "AuraFlow":
        names = importlib.import_module("comfy.utils").auraflow_to_diffusers(config)
        FILES["weights"][name]["diffusers"] = {theirs: own if isinstance(own, str) else own[0] for theirs,
            own in names.items()}
    columns = config.get("context_in_dim") or config.get("cap_feat_dim") or config["cond_seq_dim"]
    channels = 4 if kind == "AuraFlow" else 16
    for i, (case, ((n, y, x), timesteps, tokens, guidance)) in enumerate(CASES.items()):
        case = f"{name}/{case}"
        shape, context = [n, channels, y, x], [n, tokens, columns]
        extra = {"guidance": torch.tensor(guidance)} if kind == "Chroma" else {
            "num_tokens": tokens} if kind == "Lumina2" else {}
        hooks = watch(m.diffusion_model, case) if i == 0 and name.endswith("-a") else []
        got = m.diffusion_model(given(case + "/x", shape), torch.tensor(timesteps), given(case + "/context", context),
            transformer_options={}, **extra)
        for h in hooks:
            h.remove()
        TENSORS["models"][case] = got.contiguous()
        FILES["models"][case] = {"x": shape, "timesteps": timesteps, "context": context} | ({"guidance": guidance}
            if kind == "Chroma" else {}) | {"rms": rms(got)}
        print(case, "rms %.4f" % rms(got))
    if name.endswith("-a"):
        sensitivity(name, m, columns, channels)
        for key, run in RUNS.items():
            sample(f"{name}/{key}", name, m, columns, channels, **run)


def sensitivity(name, m, columns, channels):
    """Say which tensors do not move the output when they are zero."""
    net = m.diffusion_model
    extra = {"guidance": torch.tensor([1.0])} if hasattr(net,
        "distilled_guidance_layer") else {"num_tokens": 5} if hasattr(net, "cap_embedder") else {}
    run = lambda: net(given("s/x", (1, channels, 8, 8)), torch.tensor([0.5]), given("s/c", (1, 5, columns)),
        transformer_options={}, **extra)
    want = run()
    for key, p in net.state_dict().items():
        kept = p.clone()
        p.zero_()
        moved = rms(run() - want) / rms(want)
        p.copy_(kept)
        if moved < 1e-3:
            print(name, key, "moves the output by only %.2g" % moved)


def sample(key, name, m, columns, channels, *, seed, steps, cfg, sampler, scheduler, denoise, shape, what, neg=13,
        patch=None):
    p = comfy.model_patcher.ModelPatcher(m, torch.device("cpu"), torch.device("cpu"))
    if patch:
        p = ModelSamplingAuraFlow().patch_aura(p, patch[1])[0]
    calls, net = [], m.diffusion_model
    original = net._forward

    def forward(x, *args, **kwargs):
        options = kwargs.get("transformer_options") or next(a for a in reversed(args) if isinstance(a, dict))
        calls.append([x.shape[0], list(options["cond_or_uncond"])])
        return original(x, *args, **kwargs)

    net._forward = forward
    shape = [shape[0], channels, shape[1], shape[2]]
    latent = "zeros" if denoise == 1 else f"input:e2e/{name}/latent"
    start = torch.zeros(shape) if denoise == 1 else given(f"e2e/{name}/latent", shape)
    sides = {"positive": ("pos", 13), "negative": ("neg", neg)}
    entries = {s: [[given(f"e2e/{name}/{tag}/context", (1, n, columns)), {"pooled_output": None}]] for s,
        (tag, n) in sides.items()}
    got = nodes.KSampler().sample(p, seed, steps, cfg, sampler, scheduler, entries["positive"], entries["negative"],
        {"samples": start}, denoise)[0]["samples"]
    net._forward = original
    FILES["e2e"][key] = {
        "node": "KSampler", "model": name, "model_patch": patch, "cfg_norm": None, "seed": seed, "steps": steps,
        "cfg": cfg, "sampler": sampler, "scheduler": scheduler,
        "denoise": denoise, "latent_shape": shape, "latent": latent,
        **{s: [{"tag": tag, "context": [1, n, columns]}] for s, (tag, n) in sides.items()}, "what": what,
        "output_shape": list(got.shape), "network_calls": calls,
        "rms": rms(got),
    }  # fmt: skip
    TENSORS["e2e"][key] = got.float().contiguous()
    print(key, "rms %.4f" % rms(got), calls[:2])


TEXTS = ["a cat", "", "a (red:1.3) fox jumps", "the quick brown fox, the quick brown fox, the quick brown fox"]
ENCODERS = {
    "gemma2-a": ("lumina2", "Lumina", {"vocab_size": 600, "hidden_size": 56, "intermediate_size": 136,
        "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1}),
    "pile-t5-a": ("aura_t5", "AuraT5", {
        "d_ff": 96, "d_kv": 16, "d_model": 56, "num_heads": 3, "num_layers": 3, "vocab_size": 600,
        "dense_act_fn": "gelu_pytorch_tanh", "is_gated_act": True, "model_type": "umt5",
    }),
}  # fmt: skip


def encoder(name, module, kind, config):
    """Record what an encoder makes of prompts with the vocabulary of models/tokenizer/testdata/tiny_bpe.model."""
    module = importlib.import_module("comfy.text_encoders." + module)
    vocabulary = os.path.join(os.path.dirname(__file__), "../../models/tokenizer/testdata/tiny_bpe.model")
    pieces = torch.frombuffer(bytearray(open(vocabulary, "rb").read()), dtype=torch.uint8)
    clip = importlib.import_module("comfy.sd1_clip").SDClipModel
    full = clip.__init__
    clip.__init__ = lambda m, *a, **k: full(m, *a, **{**k, "textmodel_json_config": config})
    model = getattr(module, kind + "Model")(device="cpu", dtype=torch.float32)
    clip.__init__ = full
    one = module.PT5XlTokenizer if kind == "AuraT5" else None
    if one:  # reads a file of the tree, or of whoever asks
        init = one.__init__
        import comfy.sd1_clip as sd1

        def own(self, embedding_directory=None, tokenizer_data={}):
            sd1.SDTokenizer.__init__(
                self, vocabulary, pad_with_end=False, embedding_size=2048, embedding_key="pile_t5xl",
                tokenizer_class=module.SPieceTokenizer, has_start_token=False,
                pad_to_max_length=False, max_length=99999999, min_length=256, pad_token=1,
                tokenizer_data=tokenizer_data,
            )  # fmt: skip

        one.__init__ = own
    tokens = getattr(module, kind + "Tokenizer")(tokenizer_data={"spiece_model": pieces})
    inner = getattr(model, model.clip)
    FILES["weights_text"][name] = {"class": type(inner.transformer).__name__, "config": config,
        "tensors": weigh(name, inner.transformer)}
    for i, text in enumerate(TEXTS):
        pairs = tokens.tokenize_with_weights(text)
        if kind == "Lumina":  # Gemma's vocabulary starts with token 2, this one with 1
            for chunk in pairs["gemma2_2b"]:
                chunk[0] = (2, 1.0)
        cond = model.encode_token_weights(pairs)[0]
        TENSORS["text"][f"{name}/{i}#cond"] = cond.float().contiguous()
        FILES["text"][f"{name}/{i}"] = {"text": text, "ids": [int(t[0]) for t in next(iter(pairs.values()))[0]],
            "cond": list(cond.shape), "rms": rms(cond)}
        print(name, repr(text), FILES["text"][f"{name}/{i}"]["ids"][:24], "rms %.4f" % rms(cond))


for name, (kind, config) in MODELS.items():
    if not only or name in only:
        network(name, kind, config)
for name, (module, kind, config) in ENCODERS.items():
    if not only or name in only:
        encoder(name, module, kind, config)
for f, cases in FILES.items():
    with open(f"{out}/{f}.json", "w") as file:
        file.write("{" + ",\n".join(json.dumps(k) + ": " + json.dumps(v, separators=(",", ": "), ensure_ascii=False)
            for k, v in cases.items()) + "}\n")
for f, tensors in TENSORS.items():
    save_file(tensors, f"{out}/{f}.safetensors")
    os.chmod(f"{out}/{f}.safetensors", 0o644)
