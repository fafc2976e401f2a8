"""Records runs with control nets whose hint is several pictures: tests/golden/modern33/hints.*. Running the tests does
not need this script.

Made with torch 2.15.0 and the tree of ComfyUI 0.33.0, whose networks, nodes, VAE code and KSampler are imported and run
as they are:
    python tests/reference/make_hints.py COMFYUI_TREE tests/golden

Weights and inputs are by the formula of tests/golden/README.md section 1, of models that are recorded there or beside
the runs. Only tiny configurations differ from the published models.
"""

import json
import math
import os
import sys

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(tree, "--force-fp32", "--fp32-vae", "--use-pytorch-cross-attention", "--disable-all-custom-nodes")
import nodes
import comfy.cldm.dit_embedder
import comfy.cldm.mmdit
import comfy.controlnet
import comfy.latent_formats
import comfy.ldm.flux.controlnet
import comfy.ldm.hydit.controlnet
import comfy.ldm.models.autoencoder
import comfy.ldm.qwen_image.controlnet
import comfy.model_patcher
import comfy.ops
import comfy.sd
import comfy.supported_models
import torch
from comfy_extras import nodes_controlnet
from safetensors.torch import save_file

CPU = torch.device("cpu")
MADE = {"device": CPU, "dtype": torch.float32, "operations": comfy.ops.manual_cast}


def picture(name, shape):
    return fill("input:" + name, shape, 1, 0.5)


KNOWN = {k: v for f in ("weights", "weights_text_vae", "modern/weights", "modern/weights_vae", "modern/weights_control",
    "modern/weights_control_qwen") for k, v in json.load(open(f"{out}/{f}.json")).items()}
WEIGHTS, TENSORS, ALIVE = {}, {}, []


def state(name):
    return {key: fill(f"{name}/{key}", tuple(shape), scale, offset) for key, shape, _, scale,
        offset in {**KNOWN, **WEIGHTS}[name]["tensors"]}


def base(name):
    m = getattr(comfy.supported_models, KNOWN[name]["class"])(dict(KNOWN[name]["config"])).get_model({}, "",
        device="cpu")
    m.diffusion_model.dtype = torch.float32
    own = m.diffusion_model.state_dict()
    m.diffusion_model.load_state_dict({k if k in own else k.replace("norm.scale", "norm.weight"): v for k,
        v in state(name).items()})
    ALIVE.append(comfy.model_patcher.ModelPatcher(m, CPU, CPU))
    return ALIVE[-1]


def config(name):
    return {k: v for k, v in KNOWN[name]["config"].items() if k not in ("image_model", "num_layers", "num_blocks")}


def listed(net):
    """List the tensors of a net with what the formula makes of them."""
    out = []
    for key, t in sorted(net.state_dict().items()):
        if key.endswith("bias") and t.dim() == 1:
            kind = "bias", 0.4, 0.0
        elif t.dim() <= 1:
            kind = "norm", 0.2, 1.0
        else:
            kind = "matrix", 2 * math.sqrt(3.0 / math.prod(t.shape[1:])), 0.0
        out.append([key, list(t.shape), *(("table", 1.0, 0.0) if key == "pos_embed" else kind)])
    return out


def net_of(name):
    """Make a control net as ComfyUI's loaders do it: load_controlnet_flux_instantx, _flux_xlabs_mistoline, _mmdit and
    _qwen_instantx.
    """
    ratio = 1
    if name.startswith(("cn-union", "cn-xlabs", "cn-mistoline")):
        known = KNOWN[name]
        fields = comfy.ldm.flux.model.FluxParams.__dataclass_fields__
        c = {k: v for k, v in {**config(known["main_model"]), **known["config"]}.items() if k in fields
            or k in known["config"]}
        net, channels, format, extra = comfy.ldm.flux.controlnet.ControlNetFlux(**c,
            **MADE), 16, comfy.latent_formats.Flux(), ["y", "guidance"]
        if name != "cn-union-a":  # whose hint is a picture
            ratio, format = 8, None
    elif name.startswith("cn-sd35"):  # load_controlnet_sd35
        c = config("sd3-b")
        depth = c["depth"]
        net = comfy.cldm.dit_embedder.ControlNetEmbedder(
            img_size=None, patch_size=2, in_chans=16, num_layers=2, main_model_double=depth, double_y_emb=True,
            attention_head_dim=64, num_attention_heads=depth, adm_in_channels=c["adm_in_channels"], **MADE)
        own = [t for t in listed(net) if not t[0].startswith("orig_y_embedder.")]
        kind = {"cn-sd35-canny-a": 1.0, "cn-sd35-depth-a": 2.0}[name]
        WEIGHTS[name] = {"class": "ControlNetEmbedder", "main_model": "sd3-b", "config": {},
            "tensors": [*own, ["control_type", [1], "kind", 0.0, kind]]}
        net.load_state_dict({k: v for k, v in state(name).items() if k != "control_type"}, strict=False)
        shown = (lambda a: (a * 255 * 0.5 + 0.5)) if kind == 1 else (lambda a: 1.0 - a)
        return comfy.controlnet.ControlNetSD35(net, compression_ratio=1, latent_format=comfy.latent_formats.SD3(),
            load_device=CPU, preprocess_image=shown)
    elif name.startswith("cn-sd3"):
        net, channels, format, extra = comfy.cldm.mmdit.ControlNet(num_blocks=1, control_latent_channels=17,
            **config("sd3-b"), **MADE), 17, comfy.latent_formats.SD3(), ["y"]
        format.shift_factor = 0
        WEIGHTS[name] = {"class": "ControlNet", "main_model": "sd3-b", "config": {}, "tensors": listed(net)}
    # load_controlnet_hunyuandit, with as many blocks as the small model has skip connections
    elif name == "cn-hydit-a":
        c = config("hydit-a")
        net = comfy.ldm.hydit.controlnet.HunYuanControlNet(**c, **MADE)
        n = c["depth"] // 2 - 1
        net.blocks, net.after_proj_list = net.blocks[:n], net.after_proj_list[:n]
        WEIGHTS[name] = {"class": "HunYuanControlNet", "main_model": "hydit-a", "config": {"num_heads": c["num_heads"]},
            "tensors": listed(net)}
        net.load_state_dict(state(name))
        extra = ["text_embedding_mask", "encoder_hidden_states_t5", "text_embedding_mask_t5", "image_meta_size",
            "style", "cos_cis_img", "sin_cis_img"]
        return comfy.controlnet.ControlNet(net, compression_ratio=1, latent_format=comfy.latent_formats.SDXL(),
            load_device=CPU, extra_conds=extra)
    elif name == "cn-fun-a":  # load_controlnet_qwen_fun
        c = config("qwen-a")
        net = comfy.ldm.qwen_image.controlnet.QwenImageFunControlNetModel(132,
            c["num_attention_heads"] * c["attention_head_dim"], c["num_attention_heads"], c["attention_head_dim"],
            **MADE)
        WEIGHTS[name] = {"class": "QwenImageFunControlNetModel", "main_model": "qwen-a", "config": {},
            "tensors": listed(net)}
        net.load_state_dict(state(name))
        return comfy.controlnet.QwenFunControlNet(net, compression_ratio=1, latent_format=comfy.latent_formats.Wan21(),
            concat_mask=False, load_device=CPU, extra_conds=[])
    else:
        known = KNOWN[name]
        net = comfy.ldm.qwen_image.controlnet.QwenImageControlNetModel(**{**config("qwen-a"), **known["config"]},
            **MADE)
        channels, format, extra = 16 + known["config"]["extra_condition_channels"] // 4, comfy.latent_formats.Wan21(
            ), []
    own = net.state_dict()
    net.load_state_dict({k if k in own else k.replace("norm.scale", "norm.weight"): v for k, v in state(name).items()})
    return comfy.controlnet.ControlNet(net, compression_ratio=ratio, latent_format=format, concat_mask=channels == 17,
        load_device=CPU, extra_conds=extra)


def tiny_vae(name="vae-flux"):
    """comfy.sd.VAE of vae-flux or vae-kl: what its constructor sets for those, whose widths it does not read."""
    d = KNOWN[name]["config"]
    part = lambda kind: {"target": f"comfy.ldm.modules.diffusionmodules.model.{kind}", "params": d}  # noqa: E731
    v = comfy.sd.VAE.__new__(comfy.sd.VAE)
    v.first_stage_model = comfy.ldm.models.autoencoder.AutoencodingEngine(
        regularizer_config={"target": "comfy.ldm.models.autoencoder.DiagonalGaussianRegularizer"},
        encoder_config=part("Encoder"), decoder_config=part("Decoder"))
    if name == "vae-kl":
        v.first_stage_model = comfy.ldm.models.autoencoder.AutoencoderKL(ddconfig=d, embed_dim=4)
    v.first_stage_model.load_state_dict(state(name))
    v.first_stage_model.eval()
    v.downscale_ratio, v.latent_dim, v.latent_channels, v.output_channels = 8, 2, d["z_channels"], 3
    v.crop_input, v.pad_channel_value = True, None
    v.process_input, v.memory_used_encode = lambda image: image * 2.0 - 1.0, lambda *_: 1
    v.device, v.output_device, v.vae_dtype = CPU, CPU, torch.float32
    v.disable_offload, v.handles_tiling, v.extra_1d_channel, v.format_encoded = False, False, None, None
    v.not_video, v.vae_output_dtype = False, lambda: torch.float32
    v.patcher = comfy.model_patcher.CoreModelPatcher(v.first_stage_model, load_device=CPU, offload_device=CPU)
    return v


class Style:
    """StyleModel with recorded weights: what StyleModelApply asks."""

    def get_cond(self, seen):
        w, f = state("redux-a"), torch.nn.functional
        return f.linear(f.silu(f.linear(seen, w["redux_up.weight"], w["redux_up.bias"])), w["redux_down.weight"],
            w["redux_down.bias"])


# nets: [file, type of a union net, strength, start, end, pictures, masks or 0]
RUNS = {
    "flux-2-of-3": dict(model="kontext-a", cfg=2.0, latent=[3, 16, 6, 4], text=[5, 40], pooled=32,
        nets=[["cn-union-a", "depth", 0.6, 0.0, 1.0, 2, 0]]),
    "flux-3-of-2-and-one": dict(model="kontext-a", cfg=1.0, latent=[2, 16, 5, 7], text=[5, 40], pooled=32,
        nets=[["cn-union-a", "auto", 0.5, 0.0, 1.0, 3, 0], ["cn-union-a", "tile", 0.4, 0.0, 0.6, 1, 0]]),
    "flux-2-redux": dict(model="kontext-a", cfg=1.0, latent=[2, 16, 6, 4], text=[5, 40], pooled=32,
        nets=[["cn-union-a", "normal", 0.7, 0.0, 1.0, 2, 0]], redux=[0.3, "attn_bias"]),
    "flux-xlabs-2-of-3": dict(model="kontext-a", cfg=2.0, latent=[3, 16, 6, 4], text=[5, 40], pooled=32,
        nets=[["cn-xlabs-a", "auto", 0.6, 0.0, 1.0, 2, 0]]),
    "flux-mistoline": dict(model="kontext-a", cfg=1.0, latent=[2, 16, 4, 6], text=[5, 40], pooled=32,
        nets=[["cn-mistoline-a", "auto", 0.6, 0.0, 0.6, 1, 0], ["cn-union-a", "depth", 0.4, 0.0, 1.0, 1, 0]]),
    "sd3-2-of-3-mask": dict(model="sd3-b", cfg=2.0, latent=[3, 16, 6, 4], text=[6, 40], pooled=56,
        nets=[["cn-sd3-a", "auto", 0.7, 0.0, 1.0, 2, 1]]),
    "sd3-2-masks-of-one": dict(model="sd3-b", cfg=2.0, latent=[2, 16, 4, 6], text=[6, 40], pooled=56,
        nets=[["cn-sd3-a", "auto", 0.7, 0.0, 1.0, 1, 2]]),
    "sd3-3-with-masks": dict(model="sd3-b", cfg=1.0, latent=[3, 16, 4, 6], text=[6, 40], pooled=56,
        nets=[["cn-sd3-a", "auto", 0.6, 0.2, 1.0, 3, 3]]),
    "sd35-canny": dict(model="sd3-b", cfg=2.0, latent=[3, 16, 6, 4], text=[6, 40], pooled=56,
        nets=[["cn-sd35-canny-a", "auto", 0.7, 0.0, 1.0, 3, 0]]),
    "sd35-depth-two": dict(model="sd3-b", cfg=1.0, latent=[2, 16, 4, 6], text=[6, 40], pooled=56,
        nets=[["cn-sd35-depth-a", "auto", 0.6, 0.0, 1.0, 1, 0], ["cn-sd3-a", "auto", 0.5, 0.0, 0.7, 1, 0]]),
    "hydit-2-of-3": dict(model="hydit-a", cfg=2.0, latent=[3, 4, 6, 4], text=[77, 48], pooled=0, mt5=[256, 64],
        valid=[21, 90], nets=[["cn-hydit-a", "auto", 0.7, 0.0, 1.0, 2, 0]]),
    "hydit-odd": dict(model="hydit-a", cfg=1.0, latent=[2, 4, 5, 7], text=[77, 48], pooled=0, mt5=[256, 64],
        valid=[77, 200], nets=[["cn-hydit-a", "auto", 0.6, 0.0, 0.7, 1, 0]]),
    "qwen-4": dict(model="qwen-a", cfg=2.0, latent=[2, 16, 6, 4], text=[6, 56], pooled=0,
        nets=[["cn-qwen-a", "auto", 0.7, 0.0, 1.0, 4, 0]]),
    "qwen-fun": dict(model="qwen-a", cfg=2.0, latent=[2, 16, 5, 7], text=[6, 56], pooled=0,
        nets=[["cn-fun-a", "auto", 0.5, 0.0, 1.0, 1, 1]]),
    "qwen-3-with-masks": dict(model="qwen-a", cfg=2.0, latent=[2, 16, 4, 6], text=[6, 56], pooled=0,
        nets=[["cn-qwen-inpaint-a", "auto", 0.8, 0.0, 1.0, 3, 3]]),
}  # fmt: skip
for key, run in RUNS.items():
    model, vae = base(run["model"]), comfy.sd.VAE(sd=state("wanvae-a")) if run["model"] == "qwen-a" else tiny_vae(
        "vae-kl" if "mt5" in run else "vae-flux")
    ALIVE.append(vae)  # ComfyUI keeps weak references of what it has loaded
    sides = [[[given(f"hints/{key}/{side}", (1, *run["text"])),
        {"pooled_output": given(f"hints/{key}/{side}/pooled", (1, run["pooled"])) if run["pooled"] else None}]]
            for side in ("positive", "negative")]
    for side, texts in zip(("positive", "negative"), sides, strict=True):
        if "mt5" in run:
            masks = {k: (torch.arange(n) < valid).int()[None] for k, n,
                valid in zip(("attention_mask", "attention_mask_mt5xl"), (77, 256), run["valid"], strict=True)}
            texts[0][1] |= {"conditioning_mt5xl": given(f"hints/{key}/{side}/mt5", (1, *run["mt5"])), **masks}
    if "redux" in run:
        sides[0] = nodes.StyleModelApply().apply_stylemodel(sides[0], Style(), given(f"hints/{key}/seen", (1, 9, 28)),
            *run["redux"])[0]
    for i, (file, kind, strength, start, end, pictures, masks) in enumerate(run["nets"]):
        net = net_of(file)
        ALIVE.append(net)
        net = nodes_controlnet.SetUnionControlNetType.execute(net, kind).result[0] if file == "cn-union-a" else net
        image = picture(f"hints/{key}/image{i}", (pictures, 45, 33, 3))
        if masks:
            sides = nodes_controlnet.ControlNetInpaintingAliMamaApply.execute(*sides, net, vae, image,
                picture(f"hints/{key}/mask{i}", (masks, 9, 14)), strength, start, end).result
        else:
            sides = nodes.ControlNetApplyAdvanced().apply_controlnet(*sides, net, image, strength, start, end, vae=vae)
    latent = torch.zeros(run["latent"]) if run["model"] != "qwen-a" else torch.zeros(run["latent"]).unsqueeze(2)
    got = nodes.KSampler().sample(model, 7, 3, run["cfg"], "euler", "simple", *sides, {"samples": latent},
        1.0)[0]["samples"].float()
    TENSORS[key] = got.reshape(run["latent"]).contiguous()
    run["rms"] = got.pow(2).mean().sqrt().item()
    print(key, "rms %.4f, pictures %.3g apart" % (run["rms"], (got - got[:1]).abs().max()))
model, net, said = base("qwen-a").model.diffusion_model, net_of("cn-fun-a").control_model, {}
for k, v in {"x": (2, 16, 1, 5, 7), "hint": (2, 16, 1, 5, 7), "context": (2, 6, 56)}.items():
    said[k] = given(f"cn-fun-a/0/{k}", v)
outputs = net(timesteps=torch.tensor([0.75, 0.25]), base_model=model, **said)["input"]
for k, block in enumerate((0, 12, 24, 36, 48)):
    TENSORS[f"cn-fun-a/0#input.{k}"] = outputs[block].contiguous()
assert sum(t is not None for t in outputs) == 5
for f, d in {"hints": RUNS, "weights_hints": WEIGHTS}.items():
    with open(f"{out}/modern33/{f}.json", "w") as file:
        file.write("{" + ",\n".join(json.dumps(k) + ": " + json.dumps(v, separators=(",", ": ")) for k, v in d.items())
            + "}\n")
save_file(TENSORS, f"{out}/modern33/hints.safetensors")
os.chmod(f"{out}/modern33/hints.safetensors", 0o644)
