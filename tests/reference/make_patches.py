"""Records what model patches do in ComfyUI: tests/golden/modern33/patches.*. Running the tests does not need this
script.

Made with torch 2.15.0 and the tree of ComfyUI 0.33.0, whose networks, nodes and KSampler are imported and run as they
are:
    python tests/reference/make_patches.py COMFYUI_TREE tests/golden/modern33

Weights and inputs are by the formula of tests/golden/README.md section 1. Only tiny configurations differ from the
published models.
"""

import json
import math
import os
import sys

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(tree, "--force-fp32", "--fp32-vae", "--fp32-text-enc", "--use-pytorch-cross-attention",
    "--disable-all-custom-nodes")
import nodes
import comfy.clip_vision
import comfy.model_patcher
import comfy.ops
import comfy.sd
import comfy.supported_models
from comfy.ldm.lumina.controlnet import ZImage_Control
import torch
from comfy_extras import nodes_model_patch
from safetensors.torch import save_file

CPU = torch.device("cpu")


def picture(name, shape):
    return fill("input:" + name, shape, 1, 0.5)


def recorded(name, file):
    """The state of a model that is recorded elsewhere."""
    for f in (f"{out}/../modern/{file}.json", f"{out}/../{file}.json"):
        entry = json.load(open(f)).get(name) if os.path.exists(f) else None
        if entry is None:
            continue
        return entry, {key: fill(f"{name}/{key}", tuple(shape), scale, offset) for key, shape, _, scale,
            offset in entry["tensors"]}


def base(name):
    entry, state = recorded(name, "weights")
    config = getattr(comfy.supported_models, entry["class"])(dict(entry["config"]))
    m = config.get_model({}, "", device="cpu")
    m.diffusion_model.load_state_dict(config.process_unet_state_dict(state))
    return m, entry["config"]


def vae(name, file="weights_vae"):
    return comfy.sd.VAE(sd=recorded(name, file)[1])


def flux_vae(name):
    """FLUX's autoencoder of a size that ComfyUI does not guess: as one with convolutions of the latent that change
    nothing.

    It computes in f64: torch's norm of a gray picture, whose channels are all but constant, is off by 1e-3 in f32.
    """
    entry, state = recorded(name, "weights_text_vae")
    for key, n in (("quant_conv", 32), ("post_quant_conv", 16)):
        state |= {f"{key}.weight": torch.eye(n)[:, :, None, None], f"{key}.bias": torch.zeros(n)}
    v = comfy.sd.VAE(sd=state, config={"params": {"ddconfig": entry["config"], "embed_dim": 16}})
    v.first_stage_model.double()
    v.latent_channels, v.vae_dtype = 16, torch.float64
    return v


WEIGHTS, RUNS, TENSORS, ALIVE = {}, {}, {}, []


def patch(name, main, module, zero=()):
    """Fill a patch's weights, list them, and make a MODEL_PATCH of it; zero: what the file has no values in."""
    listed, state = [], {}
    for key, t in sorted(module.state_dict().items()):
        if key.endswith("bias") and t.dim() == 1:
            kind, scale, offset = "bias", 0.4, 0.0
        elif t.dim() <= 1:
            kind, scale, offset = "norm", 0.2, 1.0
        else:
            kind, scale, offset = "matrix", 2 * math.sqrt(3.0 / math.prod(t.shape[1:])), 0.0
        scale = 0.0 if key in zero else scale
        listed.append([key, list(t.shape), kind, scale, offset])
        state[key] = fill(f"{name}/{key}", tuple(t.shape), scale, offset)
    module.load_state_dict(state)
    WEIGHTS[name] = {"class": type(module).__name__, "main_model": main, "config": {}, "tensors": listed}
    return comfy.model_patcher.CoreModelPatcher(module, load_device=CPU, offload_device=CPU)


def rms(t):
    return t.float().pow(2).mean().sqrt().item()


def keep(key, got, run):
    TENSORS[key] = got.float().contiguous()
    RUNS[key] = run | {"output_shape": list(got.shape), "rms": rms(got)}
    print(key, list(got.shape), "rms %.4f" % rms(got))


class Given:
    """In place of a VAE: hints come from the formula, in the VAE's space, one name for each picture in the order they
    are encoded.
    """

    def __init__(self, *names, frames=(1,)):
        self.names, self.frames = list(names), frames

    def encode(self, image):
        return given(self.names.pop(0), (1, 16, *self.frames, image.shape[1] // 8, image.shape[2] // 8))

    def spacial_compression_encode(self):
        return 8


def qwen():
    m, _ = base("qwen-a")
    args = {"num_layers": 3, "in_dim": 64, "dim": 120, "device": CPU, "dtype": torch.float32,
        "operations": comfy.ops.manual_cast}
    kinds = {
        "diffsynth-a": patch("diffsynth-a", "qwen-a", nodes_model_patch.QwenImageBlockWiseControlNet(**args)),
        "diffsynth-inpaint-a": patch("diffsynth-inpaint-a", "qwen-a",
            nodes_model_patch.QwenImageBlockWiseControlNet(additional_in_dim=4, **args)),
    }
    # name: latent [n, Y, X], timesteps, tokens, references, patches [file, strength, mask of Y, X]
    cases = {
        "8x10-b2": ((2, 8, 10), [0.75, 0.25], 9, [], [["diffsynth-a", 0.7, None]]),
        "7x9-mask": ((1, 7, 9), [0.5], 5, [], [["diffsynth-inpaint-a", -0.6, [7, 9]]]),
        "6x8-nomask-ref": ((1, 6, 8), [0.9], 5, [(4, 6)], [["diffsynth-inpaint-a", 1.0, None]]),
        "8x6-two": ((1, 8, 6), [0.4], 7, [], [["diffsynth-a", 0.8, None], ["diffsynth-inpaint-a", 0.5, [8, 6]]]),
    }
    for case, ((n, y, x), timesteps, tokens, refs, patches) in cases.items():
        case = f"qwen-a/{case}"
        p = comfy.model_patcher.ModelPatcher(m, CPU, CPU)
        for i, (file, strength, mask) in enumerate(patches):
            args = {} if mask is None else {"mask": picture(f"{case}/mask{i}", (1, *mask))}
            p = nodes_model_patch.QwenImageDiffsynthControlnet().diffsynth_controlnet(
                p, kinds[file], Given(f"{case}/hint{i}"), torch.zeros(1, 8 * y, 8 * x, 3), strength, **args)[0]
        options = p.model_options["transformer_options"]
        plain = m.diffusion_model(given(case + "/x", (n, 16, 1, y, x)), torch.tensor(timesteps),
            given(case + "/context", (n, tokens, 56)), transformer_options={})
        args = {"ref_latents": [given(f"{case}/ref{i}", (n, 16, 1, *r)) for i, r in enumerate(refs)]} if refs else {}
        got = m.diffusion_model(given(case + "/x", (n, 16, 1, y, x)), torch.tensor(timesteps),
            given(case + "/context", (n, tokens, 56)), transformer_options=options, **args)
        print("moved", rms(got - plain) / rms(plain))
        keep(case, got, {"x": [n, 16, 1, y, x], "timesteps": timesteps, "context": [n, tokens, 56], "refs": refs,
            "patches": patches})
    # through the nodes, with a picture and a mask of other sizes than the latent's
    for key, file, mask in (("run", "diffsynth-a", False), ("run-mask", "diffsynth-inpaint-a", True)):
        key = f"qwen-a/{key}"
        p, eyes = comfy.model_patcher.ModelPatcher(m, CPU, CPU), vae("wanvae-a")
        ALIVE.extend((p, eyes))  # ComfyUI keeps weak references of what it has loaded
        args = {"mask": picture(key + "/mask", (1, 9, 14))} if mask else {}
        p = nodes_model_patch.QwenImageDiffsynthControlnet().diffsynth_controlnet(
            p, kinds[file], eyes, picture(key + "/image", (1, 45, 70, 3)), 0.8, **args)[0]
        sides = [[[given(f"{key}/{side}", (1, 6, 56)), {"pooled_output": None}]] for side in ("positive", "negative")]
        got = nodes.KSampler().sample(p, 7, 2, 2.0, "euler", "simple", *sides, {"samples": torch.zeros(1, 16, 1, 8, 6)},
            1.0)[0]["samples"]
        keep(key, got, {"patch": file, "seed": 7, "steps": 2, "cfg": 2.0, "strength": 0.8, "image": [1, 45, 70, 3],
            "mask": [1, 9, 14] if mask else None, "vae": "wanvae-a", "context": [1, 6, 56]})


def zimage():
    m, config = base("zimage-a")
    size = {k: config[k] for k in ("dim", "n_heads", "n_kv_heads")} | {"dtype": torch.float32, "device": CPU,
        "operations": comfy.ops.manual_cast}
    lite, union = {"n_control_layers": 3}, {"n_control_layers": 15}
    fills = {"additional_in_dim": 17, "refiner_control": True}
    zero = ("control_noise_refiner.0.after_proj.weight",)
    kinds = {
        "fun-a": patch("fun-a", "zimage-a", ZImage_Control(**size)),
        "fun-lite-a": patch("fun-lite-a", "zimage-a", ZImage_Control(**size, **lite, **fills)),
        "fun-union-a": patch("fun-union-a", "zimage-a", ZImage_Control(**size, **union, **fills)),
        "fun-broken-a": patch("fun-broken-a", "zimage-a", ZImage_Control(**size, **union, **fills, broken=True), zero),
    }
    assert not kinds["fun-broken-a"].model.state_dict()[zero[0]].any()
    # name: latent [n, Y, X], timesteps, tokens, patches [file, strength, mask of Y, X, a picture to be filled in]
    cases = {
        "8x10-b2": ((2, 8, 10), [0.75, 0.25], 9, [["fun-a", 0.7, None, False]]),
        "7x9-lite": ((1, 7, 9), [0.5], 40, [["fun-lite-a", -0.6, None, False]]),
        "6x8-union": ((2, 6, 8), [0.9, 0.3], 5, [["fun-union-a", 1.0, [6, 8], True]]),
        "8x6-broken": ((1, 8, 6), [0.4], 7, [["fun-broken-a", 0.8, [8, 6], False]]),
        "6x6-two": ((1, 6, 6), [0.6], 7, [["fun-a", 0.5, None, False], ["fun-union-a", -0.4, None, True]]),
    }
    for case, ((n, y, x), timesteps, tokens, patches) in cases.items():
        case = f"zimage-a/{case}"
        p, even = comfy.model_patcher.ModelPatcher(m, CPU, CPU), (y + y % 2, x + x % 2)
        for i, (file, strength, mask, fill_in) in enumerate(patches):
            shown = torch.zeros(1, 8 * even[0], 8 * even[1], 3)
            args = {} if mask is None else {"mask": picture(f"{case}/mask{i}", (1, *mask))}
            args |= {"inpaint_image": shown} if fill_in else {}
            p = nodes_model_patch.ZImageFunControlnet().diffsynth_controlnet(
                p, kinds[file], Given(f"{case}/hint{i}", f"{case}/fill{i}", frames=()), shown, strength, **args)[0]
        options = p.model_options["transformer_options"]
        args = given(case + "/x", (n, 16, y, x)), torch.tensor(timesteps), given(case + "/context",
            (n, tokens, 56)), tokens
        plain = m.diffusion_model(*args, transformer_options={})
        got = m.diffusion_model(*args, transformer_options=options)
        print("moved", rms(got - plain) / rms(plain))
        keep(case, got, {"x": [n, 16, y, x], "timesteps": timesteps, "context": [n, tokens, 56], "patches": patches})
    # through the nodes, with pictures and masks of other sizes than the latent's
    for key, node, file, shown in (
        ("run", "ZImageFunControlnet", "fun-a", {"image": [1, 45, 70, 3]}),
        ("run-fill", "ZImageFunControlnet", "fun-union-a", {"image": [1, 45, 70, 3], "inpaint_image": [1, 64, 48, 3],
            "mask": [1, 9, 14]}),
        ("run-fill-alone", "ZImageFunControlnet", "fun-union-a",
            {"inpaint_image": [1, 60, 90, 3], "mask": [1, 30, 21]}),
        ("run-qwen-node", "QwenImageDiffsynthControlnet", "fun-broken-a",
            {"image": [1, 45, 70, 3], "mask": [1, 50, 50]}),
        ("run-odd", "QwenImageDiffsynthControlnet", "fun-union-a", {"image": [1, 33, 70, 3]}),
    ):
        key = f"zimage-a/{key}"
        y, x = (7, 5) if key.endswith("odd") else (8, 6)
        p, eyes = comfy.model_patcher.ModelPatcher(m, CPU, CPU), flux_vae("vae-flux")
        ALIVE.extend((p, eyes))
        pictures = {k: picture(f"{key}/{k}", tuple(v)) for k, v in shown.items()}
        p = getattr(nodes_model_patch, node)().diffsynth_controlnet(p, kinds[file], eyes, strength=0.8, **pictures)[0]
        sides = [[[given(f"{key}/{side}", (1, 6, 56)), {"pooled_output": None}]] for side in ("positive", "negative")]
        steps = 1 if file == "fun-a" else 2  # what ComfyUI keeps of a step goes only behind block 5
        got = nodes.KSampler().sample(p, 7, steps, 2.0, "euler", "simple", *sides,
            {"samples": torch.zeros(1, 16, y, x)}, 1.0)[0]["samples"]
        keep(key, got, {"node": node, "patch": file, "seed": 7, "steps": steps, "cfg": 2.0, "strength": 0.8,
            "vae": "vae-flux", "context": [1, 6, 56]} | {"image": None, "inpaint_image": None, "mask": None} | shown)


def uso():
    m, config = base("kontext-a")
    sizes = {"hidden_size": 28, "image_size": 44, "intermediate_size": 52, "num_attention_heads": 2,
        "num_hidden_layers": 21, "patch_size": 14}
    eyes = comfy.clip_vision.ClipVisionModel(sizes | {"hidden_act": "gelu_pytorch_tanh", "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3, "model_type": "siglip_vision_model", "num_channels": 3})
    patch("siglip-deep-a", "", eyes.model)
    WEIGHTS["siglip-deep-a"]["config"] = {"num_attention_heads": 2, "image_size": 44}
    project = {"siglip_token_nums": 9, "style_token_nums": 4, "siglip_token_dims": 28,
        "hidden_size": config["hidden_size"], "device": CPU, "dtype": torch.float32,
        "operations": comfy.ops.manual_cast}
    kinds = {}
    for name in ("uso-a", "uso-b"):
        module = nodes_model_patch.SigLIPMultiFeatProjModel(**project)
        # the prefix that the loader takes off
        patch(name, "kontext-a", torch.nn.ModuleDict({"feature_embedder": module}))
        WEIGHTS[name]["class"] = type(module).__name__
        kinds[name] = comfy.model_patcher.CoreModelPatcher(module, load_device=CPU, offload_device=CPU)
    # name: patches, references, latent, picture; a scaled picture is rounded to 8 bits, where another order of sums may
    # move a value by one
    for key, files, refs, (y, x), image in (
        ("uso", ["uso-a"], [], (8, 6), (44, 44)),
        ("uso-refs", ["uso-a"], [(6, 4), (4, 4)], (7, 5), (50, 70)),
        ("uso-two", ["uso-a", "uso-b"], [(4, 6)], (6, 6), (50, 70)),
    ):
        key, p = f"kontext-a/{key}", comfy.model_patcher.ModelPatcher(m, CPU, CPU)
        ALIVE.append(p)
        for i, name in enumerate(files):
            seen = nodes.CLIPVisionEncode().encode(eyes, picture(f"{key}/image{i}", (1, *image, 3)), "center")[0]
            rows = kinds[name].model(torch.stack((seen.all_hidden_states[:, -20], seen.all_hidden_states[:, -11],
                seen.penultimate_hidden_states)))
            keep(f"{key}#rows{i}", rows, {})
            p = nodes_model_patch.USOStyleReference().apply_patch(p, kinds[name], seen)[0]
        cond = {"pooled_output": given(key + "/pooled", (1, 32)), "guidance": 3.5}
        if refs:
            cond |= {"reference_latents": [given(f"{key}/ref{i}", (1, 16, *r)) for i, r in enumerate(refs)],
                "reference_latents_method": "uxo"}
        sides = [[[given(f"{key}/{side}", (1, 6, 40)), cond]] for side in ("positive", "negative")]
        got = nodes.KSampler().sample(p, 7, 2, 1.0, "euler", "simple", *sides, {"samples": torch.zeros(1, 16, y, x)},
            1.0)[0]["samples"]
        keep(key, got, {"style": files, "refs": refs, "seed": 7, "steps": 2, "image": [1, *image, 3],
            "context": [1, 6, 40]})


class Calls(torch.nn.Module):
    """In place of the layers of a Fun patch: notes which of them a model of 30 blocks runs before which block says
    something.
    """

    def __init__(self, n, broken):
        super().__init__()
        self.n_control_layers, self.broken, self.seen = n, broken, []
        self.additional_in_dim = 0

    def forward(self, *_):
        return torch.zeros(1, 1, 1)

    def forward_noise_refiner_block(self, k, context, *_):
        return torch.full((1, 1, 1), 100.0 + k), context

    def forward_control_block(self, k, context, *_):
        return torch.full((1, 1, 1), 1.0 + k), context


def feeds():
    for n in (3, 6, 15):
        p = nodes_model_patch.ZImageControlPatch(type("M", (), {"model": Calls(n, False)})(), Given("", frames=()),
            torch.zeros(1, 16, 16, 3), 1.0)
        said = {}
        for kind, blocks in (("noise_refiner", 2), ("double", 30)):
            for b in range(blocks):
                img = torch.zeros(1, 1, 1)
                args = {"x": torch.zeros(1, 16, 2, 2), "img": img, "img_input": img.clone(), "txt": img, "pe": None,
                    "vec": None, "block_index": b}
                p(args | ({"block_type": kind} if kind == "noise_refiner" else {}))
                if img.item():
                    said[f"{kind} {b}"] = int(img.item()) - (100 if kind == "noise_refiner" else 1)
        RUNS[f"feeds/{n}"] = {"feeds": said}


qwen()
zimage()
feeds()
uso()
for f, cases in {"patches": RUNS, "weights_patches": WEIGHTS}.items():
    with open(f"{out}/{f}.json", "w") as file:
        file.write("{" + ",\n".join(json.dumps(k) + ": " + json.dumps(v, separators=(",", ": ")) for k,
            v in cases.items()) + "}\n")
save_file(TENSORS, f"{out}/patches.safetensors")
os.chmod(f"{out}/patches.safetensors", 0o644)
