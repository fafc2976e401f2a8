"""Drive a KSampler workflow node by node from Python, as a host with a graph of its own would.

    python3 examples/python_ksampler.py --spawn bin/patchbay --models examples/demo --out heart.png
    python3 examples/python_ksampler.py --socket $XDG_RUNTIME_DIR/patchbay.sock --out heart.png

The first starts a worker of its own and talks to it over stdio; the second asks a daemon. MODEL, CLIP and VAE stay
there as handles; text states, latents and pictures come back as numpy arrays. Needs msgpack and numpy, and
clients/python on PYTHONPATH or installed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import numpy as np

try:
    import patchbay  # noqa: F401
except ImportError:
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients", "python"))

from patchbay import Client


def main() -> None:
    """Parse the command line, run the nodes, write the picture."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    where = p.add_mutually_exclusive_group(required=True)
    where.add_argument("--spawn", metavar="PROGRAM", help="start this patchbay as a worker")
    where.add_argument("--socket", metavar="PATH", help="ask the daemon at this socket")
    where.add_argument("--nats", metavar="URL", help="ask a daemon behind this NATS server")
    p.add_argument("--models", default="examples/demo", help="models folder of a worker that is started")
    p.add_argument("--prompt", default="a big red heart on a pale blue background")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--out", default="out.png")
    args = p.parse_args()
    if args.spawn:
        client = Client.spawn([args.spawn, "worker", "--models", args.models, "--log", "warn"])
    elif args.socket:
        client = Client.socket(args.socket)
    else:
        client = Client.nats(args.nats)
    with client as c:
        run(c, args)


def run(c: Client, args: argparse.Namespace) -> None:
    """Run the nodes of examples/demo.json one by one."""

    def node(class_type: str, **inputs: Any) -> list[Any]:  # noqa: ANN401
        began = time.monotonic()
        outputs = c.exec(class_type, inputs).outputs
        shown = ", ".join(str(getattr(o, "shape", getattr(o, "type", type(o).__name__))) for o in outputs)
        print(f"{class_type:22} {time.monotonic() - began:6.2f} s  {shown}")
        return outputs

    (model,) = node("UNETLoader", unet_name="demo_flux.safetensors", weight_dtype="default")
    (clip,) = node("DualCLIPLoader", clip_name1="demo_clip.safetensors", clip_name2="demo_t5.safetensors", type="flux")
    (vae,) = node("VAELoader", vae_name="demo_ae.safetensors")
    (positive,) = node("CLIPTextEncode", text=args.prompt, clip=clip)
    (negative,) = node("CLIPTextEncode", text="", clip=clip)
    (latent,) = node("EmptySD3LatentImage", width=128, height=128, batch_size=1)
    (latent,) = node(
        "KSampler",
        model=model,
        positive=positive,
        negative=negative,
        latent_image=latent,
        seed=args.seed,
        steps=args.steps,
        cfg=3.5,
        sampler_name="euler",
        scheduler="simple",
        denoise=1.0,
    )
    (image,) = node("VAEDecode", samples=latent, vae=vae)
    assert image.dtype == np.float32 and image.shape == (1, 128, 128, 3)
    (saved,) = c.exec("SaveImage", {"images": image, "filename_prefix": "example"}).files
    with open(args.out, "wb") as f:
        f.write(saved.data)
    print(f"wrote {args.out}: {len(saved.data)} bytes, mean {image.mean():.4f}")
    c.free([model, clip, vae])


if __name__ == "__main__":
    main()
