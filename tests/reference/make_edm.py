"""Writes tests/golden/sdxl/edm*: continuous model samplings, and files whose markers ask for them. Running the tests
does not need this script.

Made with Python 3.11, torch 2.15.0, numpy 2.4.6, transformers 4.57.3 and the tree of ComfyUI 0.33.0, whose network,
nodes and reading of markers are imported and run as they are:
    python tests/reference/make_edm.py COMFYUI_TREE tests/golden
    python tests/reference/planes.py tests/golden/sdxl/edm.safetensors

Weights and inputs are by the formula of tests/golden/README.md section 1, networks those of tests/golden/sdxl.
edm_sigmas: names are those of goldenModel in models/sampling; edm: runs, `patches` are the nodes in front of the
sampler, `markers` the tensors beside those of the model in its file.
"""

import gzip
import json
import os
import sys

import comfytree
from comfytree import fill, given

tree, out = os.path.abspath(sys.argv[1]), sys.argv[2]
comfytree.start(tree, "--fp32-unet", "--fp32-text-enc", "--use-pytorch-cross-attention")
import nodes
import comfy.model_patcher
import comfy.samplers
import comfy.supported_models
import torch
from comfy_extras import nodes_model_advanced
from safetensors.torch import save_file

CPU = torch.device("cpu")
RECORDED = json.load(gzip.open(f"{out}/sdxl/weights.json.gz"))
EDM, ARC = "ModelSamplingContinuousEDM", "ModelSamplingContinuousV"
LINES = {
    "edm-eps": (EDM, "eps", 120.0, 0.002), "edm-edm": (EDM, "edm", 80.0, 0.002), "edm-v": (EDM, "v_prediction", 700.0,
    0.03), "edm-cosmos": (EDM, "cosmos_rflow", 80.0, 0.002), "edm-arc": (ARC, "v_prediction", 500.0, 0.03),
}  # fmt: skip
SIGMAS = [0.002, 0.03, 0.3, 1.0, 5.0, 14.0, 79.5, 120.0]
TIMES = {"edm": [-1.5, -0.5, 0.0, 0.25, 1.0, 1.19], "edm-cosmos": [0.002, 0.25, 0.5, 0.9, 0.98, 0.99, 1.0],
    "edm-arc": [0.02, 0.25, 0.5, 0.75, 0.99]}
PERCENT = [0.0, 0.001, 0.2, 0.5, 0.77, 0.999, 1.0]
SHOWN = "input:e2ex/%s/start"
RUNS = {
    "eps": dict(model="sdxl-a", patches=[(EDM, "eps", 120.0, 0.002)], sampler="euler", scheduler="karras", seed=31),
    "v-rescale": dict(model="sdxl-b", patches=[(EDM, "v_prediction", 700.0, 0.03), ("RescaleCFG", 0.7)],
        sampler="dpmpp_2m", scheduler="exponential", seed=32, cfg=7.0),
    "edm-denoise-0.6": dict(model="sdxl-a", patches=[(EDM, "edm", 80.0, 0.002)], sampler="euler", scheduler="normal",
        seed=33, denoise=0.6),
    "playground-masked": dict(model="sdxl-a", patches=[(EDM, "edm_playground_v2.5", 120.0, 0.002)],
        sampler="dpmpp_2m", scheduler="karras", seed=34, mask=True),
    "cosmos-masked": dict(model="sdxl-a", patches=[(EDM, "cosmos_rflow", 80.0, 0.002)], sampler="euler",
        scheduler="normal", seed=35, mask=True),
    "cosmos-ancestral": dict(model="sdxl-a", patches=[(EDM, "cosmos_rflow", 80.0, 0.01)], sampler="euler_ancestral",
        scheduler="sgm_uniform", seed=36),
    "arc": dict(model="sdxl-b", patches=[(ARC, "v_prediction", 500.0, 0.03)], sampler="euler",
        scheduler="sgm_uniform", seed=37),
    "sd15-edm": dict(model="sd15-a", patches=[(EDM, "edm", 80.0, 0.002)], sampler="euler", scheduler="simple", seed=38),
    "sd15-playground": dict(model="sd15-a", patches=[(EDM, "edm_playground_v2.5", 80.0, 0.002)], sampler="euler",
        scheduler="beta", seed=39),
    "discrete-behind": dict(model="sdxl-a", patches=[(EDM, "edm_playground_v2.5", 80.0, 0.002),
        ("ModelSamplingDiscrete", "v_prediction", True)], sampler="euler", scheduler="normal", seed=40),
    "file-vpred": dict(model="sdxl-b", markers={"edm_vpred.sigma_max": 700.0, "edm_vpred.sigma_min": 0.02, "v_pred":
        None}, sampler="euler", scheduler="karras", seed=41),
    "file-vpred-max": dict(model="sdxl-b", markers={"edm_vpred.sigma_max": 300.0}, sampler="euler",
        scheduler="normal", seed=42),
    "file-playground": dict(model="sdxl-a", markers={"edm_mean": [-1.6574, 1.886, -1.383, 2.5155], "edm_std": [8.4927,
        5.9022, 6.5498, 5.2299], "edm_vpred.sigma_max": 300.0}, sampler="dpmpp_2m", scheduler="karras", seed=43,
        denoise=0.7),
    "file-zsnr": dict(model="sdxl-b", markers={"v_pred": None, "ztsnr": None}, sampler="euler", scheduler="normal",
        seed=44),
    "file-ztsnr-alone": dict(model="sdxl-b", markers={"ztsnr": None}, sampler="euler", scheduler="normal", seed=45),
    "file-sd15": dict(model="sd15-a", markers={"v_pred": None, "ztsnr": None}, sampler="euler", scheduler="normal",
        seed=46),
}  # fmt: skip


def stored(markers):
    return {k: torch.tensor([] if v is None else v) for k, v in markers.items()}


def network(name, markers):
    """Return a network as ComfyUI makes it of a file with markers."""
    kind = {"sdxl": comfy.supported_models.SDXL, "sd15": comfy.supported_models.SD15}[name.split("-")[0]]
    model = kind(dict(RECORDED[name]["config"]))
    model.unet_config |= RECORDED[name]["config"]  # heads that are not 64 wide
    model.sampling_settings = dict(model.sampling_settings)
    m = model.get_model(stored(markers), "", device="cpu")
    m.diffusion_model.load_state_dict(
        {k: fill(f"{name}/{k}", tuple(s), scale, offset) for k, s, _, scale, offset in RECORDED[name]["tensors"]}
    )
    return comfy.model_patcher.ModelPatcher(m, CPU, CPU)


def patched(patcher, patches):
    for name, *inputs in patches:
        patcher = nodes_model_advanced.NODE_CLASS_MAPPINGS[name]().patch(patcher, *inputs)[0]
    return patcher


def side(name, tag):
    """Return a conditioning, and how it is recorded."""
    columns = RECORDED[name]["config"]["context_dim"]
    pooled = {"pooled_output": given(f"e2ex/{name}/{tag}/pooled", (1, 24))} if name != "sd15-a" else {}
    recorded = {"context": f"input:e2ex/{name}/{tag}/context", "shape": [1, 77, columns]}
    return [[given(f"e2ex/{name}/{tag}/context", (1, 77, columns)), pooled]], recorded | (
        {"pooled": [1, 24]} if pooled else {})


def sample(key, *, model, sampler, scheduler, seed, patches=(), markers={}, cfg=5.0, denoise=1.0, mask=False, steps=6,
        width=80, height=64):
    patcher = patched(network(model, markers), patches)
    shape = [1, 4, height // 8, width // 8]
    shown = denoise < 1 or mask
    start = {"samples": given(f"e2ex/{model}/start", shape) if shown else torch.zeros(shape)}
    if mask:
        m = torch.zeros(1, height, width)
        m[:, height // 4 : 3 * height // 4, width // 3 :] = 1
        start["noise_mask"] = m
    (positive, pos), (negative, neg) = side(model, "pos"), side(model, "neg")
    got = nodes.KSampler().sample(patcher, seed, steps, cfg, sampler, scheduler, positive, negative, start,
        denoise)[0]["samples"]
    TENSORS[key] = got.float().contiguous()
    CASES[key] = {
        "model": model, "latent": SHOWN % model if shown else "zeros", "mask": "as in e2e.json" if mask else "",
        "width": width, "height": height, "steps": steps, "cfg": cfg, "sampler": sampler, "scheduler": scheduler,
        "denoise": denoise, "seed": seed, "positive": pos, "negative": neg,
        "patches": [[name, *inputs] for name, *inputs in patches],
        "markers": {k: t.ravel().tolist() for k, t in stored(markers).items()}, "rms": rms(got),
    }  # fmt: skip
    print(key, "rms %.4f" % rms(got))


def rms(t):
    return t.float().pow(2).mean().sqrt().item()


def short(t):
    """Return values as the shortest decimals that give the same float32."""
    return [float(str(x)) for x in t.float().numpy().ravel()]


def line(name, patch):
    m = patched(network("sdxl-a", {}), [patch])
    sampling = m.model.model_sampling = m.get_model_object("model_sampling")
    times = torch.tensor(TIMES.get(name, TIMES["edm"]))
    SIGMA[name + "/conversions"] = {
        "prediction": type(sampling).__bases__[1].__name__, "family": type(sampling).__bases__[0].__name__,
        "n": len(sampling.sigmas), "sigma": SIGMAS,
        "sigma_to_timestep": short(torch.stack([sampling.timestep(torch.tensor(s)) for s in SIGMAS])),
        "timestep": short(times),
        "timestep_to_sigma": short(torch.stack([torch.as_tensor(sampling.sigma(t)) for t in times])),
        "percent": PERCENT, "percent_to_sigma_f64": [float(sampling.percent_to_sigma(p)) for p in PERCENT],
        "table": short(sampling.sigmas),
    }  # fmt: skip
    for scheduler in comfy.samplers.SCHEDULER_NAMES:
        for steps in (4, 20):
            SIGMA[f"{name}/{scheduler}/{steps}"] = {
                str(d): short(comfy.samplers.KSampler(m, steps, CPU, "euler", scheduler, d).sigmas) for d in (1.0, 0.5)
            }


SIGMA, CASES, TENSORS = {}, {}, {}
for name, patch in LINES.items():
    line(name, patch)
for key, run in RUNS.items():
    sample(key, **run)
for f, cases in {"edm_sigmas": SIGMA, "edm": CASES}.items():
    lines = ("{" + ",\n".join(json.dumps(k) + ": " + json.dumps(v) for k, v in cases.items()) + "}\n").encode()
    packed = f == "edm_sigmas"
    with open(f"{out}/sdxl/{f}.json" + ".gz" * packed, "wb") as file:
        file.write(gzip.compress(lines, 9, mtime=0) if packed else lines)
save_file(TENSORS, f"{out}/sdxl/edm.safetensors")
os.chmod(f"{out}/sdxl/edm.safetensors", 0o644)
