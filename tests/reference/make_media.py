"""Records tests/golden/media: files of videos and sounds as ComfyUI 0.33.0's nodes write them, and what they read back.

    python tests/reference/make_media.py COMFYUI FOLDER

The frames are 9 of 72 x 66: red rises with the column, green with the row, blue is (x + y + 4 t) mod 40 / 40; with
alpha, alpha is blue. The sound has 11025 samples at 22050 Hz: 0.5 sin(440 Hz) and 0.25 sin(660 Hz).
"""
import json
import os
import sys

os.chdir(sys.argv[1])
sys.path.insert(0, sys.argv[1])
from comfy.cli_args import args  # noqa: E402

args.cpu = True
import av  # noqa: E402
import folder_paths  # noqa: E402
import torch  # noqa: E402
from comfy_extras import nodes_audio as na, nodes_images as ni, nodes_video as nv  # noqa: E402
from comfy_api.latest import io  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

OUT = sys.argv[2]
os.makedirs(OUT, exist_ok=True)
for set_folder in (folder_paths.set_output_directory, folder_paths.set_temp_directory,
                   folder_paths.set_input_directory):
    set_folder(OUT)

PROMPT = {"1": {"class_type": "X", "inputs": {"t": 'a=b;#\\"\n'}}}


def run(node, *args, **kwargs):
    hidden = io.HiddenHolder.from_dict({io.Hidden.prompt: PROMPT, io.Hidden.extra_pnginfo: {"workflow": {"nodes": []}}})
    out = type(node.__name__, (node,), {"hidden": hidden}).execute(*args, **kwargs)
    if out.ui is not None:
        print(out.ui.as_dict())
    return out.result


N, Y, X = 9, 66, 72
frames = torch.zeros(N, Y, X, 3)
for t in range(N):
    for y in range(Y):
        for x in range(X):
            frames[t, y, x, 0] = x / (X - 1)
            frames[t, y, x, 1] = y / (Y - 1)
            frames[t, y, x, 2] = ((x + y + 4 * t) % 40) / 40
rgba = torch.cat([frames, frames[..., 2:3]], -1)
rate = 22050
times = torch.arange(rate // 2) / rate
wave = torch.stack([0.5 * torch.sin(2 * torch.pi * 440 * times), 0.25 * torch.sin(2 * torch.pi * 660 * times)])[None]
sound = {"waveform": wave, "sample_rate": rate}

clip = run(nv.CreateVideo, frames, 24.0, sound, 8)[0]
deep = run(nv.CreateVideo, frames, 23.976, None, 10)[0]


def encoding(crf, space):
    return {"codec": "h264", "encoding": {"encoding": "re-encode", "crf": crf, "color_space": space}}


run(nv.SaveVideo, clip, "h264", format={"format": "auto", "codec": {"codec": "auto"}})
run(nv.SaveVideo, deep, "mkv10", format={"format": "mkv", "codec": {"codec": "h264"}})
run(nv.SaveVideo, clip, "av1", format={"format": "webm", "codec": {"codec": "auto"}})
run(nv.SaveVideo, clip, "hdr", format={"format": "mp4", "codec": encoding(18.0, "HDR")})
run(nv.SaveWEBM, frames, "vp9", 24.0, "vp9", 32.0)
run(nv.SaveWEBM, frames, "av1", 24.0, "webmav1", 32.0)
run(nv.SaveWEBM, rgba, "vp9", 23.976, "vp9a", 32.0)
run(na.SaveAudio, sound, "flac")
run(na.SaveAudioMP3, sound, "mp3v0", quality="V0")
run(na.SaveAudioMP3, sound, "mp3k", quality="128k")
run(na.SaveAudioOpus, sound, "opus", quality="96k")
run(ni.SaveAnimatedWEBP, frames, 6.0, "webp", True, 80, "default")
run(ni.SaveAnimatedWEBP, frames, 24.0, "webplossy", False, 80, "slowest")
run(ni.SaveAnimatedWEBP, rgba, 24.0, "webpa", True, 80, "fastest")

tensors, facts = {}, {}
for name, number in (("h264_00001_.mp4", "h264"), ("vp9_00001_.webm", "vp9"), ("mkv10_00001_.mkv", "mkv10")):
    images, audio, fps, bits, space = run(nv.GetVideoComponents, run(nv.LoadVideo, name)[0])
    tensors[number + ".frames"] = images[[8]]
    facts[number] = {"frames": images.shape[0], "fps": fps, "bits": bits, "space": space}
    if audio is not None:
        tensors[number + ".sound"] = audio["waveform"][..., :4000]
        facts[number].update(rate=audio["sample_rate"], samples=audio["waveform"].shape[-1])
for name in ("mp3v0_00001.mp3", "opus_00001.opus", "flac_00001.flac"):
    audio = run(na.LoadAudio, name)[0]
    number = name.split("_")[0]
    tensors["load." + number] = audio["waveform"][..., :4000]
    facts["load." + number] = {"rate": audio["sample_rate"], "samples": audio["waveform"].shape[-1]}

a = {"waveform": wave[:, :, :300] * 1.5, "sample_rate": 22050}
b = {"waveform": torch.cos(torch.arange(500) * 0.05)[None, None] * 0.9, "sample_rate": 48000}
left, right = run(na.SplitAudioChannels, a)
made = {
    "a": a, "b": b, "left": left, "right": right,
    "concat.after": run(na.AudioConcat, a, b, "after")[0], "concat.before": run(na.AudioConcat, a, b, "before")[0],
    "merge.ba": run(na.AudioMerge, b, a, "add")[0], "volume": run(na.AudioAdjustVolume, a, -7)[0],
    "trim": run(na.TrimAudioDuration, a, 0.0025, 0.004)[0],
    "trim.end": run(na.TrimAudioDuration, a, -0.005, 60.0)[0], "join": run(na.JoinAudioChannels, b, right)[0],
}
for method in ("add", "mean", "subtract", "multiply"):
    made["merge." + method] = run(na.AudioMerge, a, b, method)[0]
for name, audio in made.items():
    tensors["node." + name] = audio["waveform"]
    facts["node." + name] = {"rate": audio["sample_rate"]}
save_file({k: v.float().clone().contiguous() for k, v in tensors.items()}, os.path.join(OUT, "media.safetensors"))

for name in sorted(os.listdir(OUT)):
    if name.endswith((".safetensors", ".json", ".webp")):
        continue
    with av.open(os.path.join(OUT, name)) as c:
        streams = [{"codec": s.codec.canonical_name} for s in c.streams]
        for s, out in zip(c.streams, streams):
            if s.type == "video":
                out.update(width=s.width, height=s.height, pixels=s.pix_fmt, rate=str(s.average_rate),
                           transfer=int(s.color_trc), primaries=int(s.color_primaries), matrix=int(s.colorspace))
            else:
                out.update(hertz=s.rate, channels=s.channels)
        tags = {k.lower(): v for k, v in {**c.metadata, **c.streams[0].metadata}.items()}
        facts[name] = {"streams": streams, "prompt": tags["prompt"], "workflow": tags["workflow"]}
with open(os.path.join(OUT, "media.json"), "w") as f:
    json.dump(facts, f, indent=0)
