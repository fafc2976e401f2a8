"""Makes tests/golden/ltx/text.*, tokens.json, generate.json, weights_text.json and spiece_synthetic.model: the text
encoder of LTX-2 as ComfyUI 0.33.0 loads and runs it, with small random weights, and what it writes as TextGenerate asks
it. Running the tests does not need this script.

    python tests/reference/make_gemma3.py COMFYUI_TREE tests/golden/ltx

Weights are by the formula of tests/golden/README.md section 1; those of norms have the offset 0, as files have them
minus 1. Sizes that shapes tell are small, all else is that of Gemma 3 12B. Cases are MODEL/PROMPT: `#cond` is what the
loader's CLIP makes of a text, `#states` all states of one of them, layer by layer. `bf16/` has weights in bfloat16 and
the projection computed in it, as on a card. Long prompts have their last 40 rows.
"""

import io
import json
import math
import os
import sys

import comfytree
from comfytree import fill

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(tree, "--force-fp32", "--fp32-text-enc", "--use-pytorch-cross-attention", "--disable-all-custom-nodes")
import comfy.model_management
import comfy.sd
import comfy.text_encoders.llama as llama
import comfy.text_encoders.lt as lt
import sentencepiece
import torch
from safetensors.torch import save_file

SENTENCES = [
    "a cat walks over the wet grass while the rain falls on the old house",
    "A close-up shot of a young woman with a gentle smile, her warm brown eyes meet the camera",
    "the camera slowly moves to the left and shows a bright blue sea under the evening sun",
    "You are a helpful assistant.",
    "music plays softly, footsteps on tiles, the wind in the trees and a dog that barks far away",
    "blurry, low quality, still frame, watermark, subtitles",
    "色调艳丽，过曝，静态，细节模糊不清",
    "ein Mann geht langsam durch die Straße und spricht: »Guten Abend«",
]


def vocabulary():
    """Return a small vocabulary with the rules of Gemma 3's: BPE of bytes where letters lack, spaces as they are."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3), model_writer=made, model_type="bpe", vocab_size=440, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", add_dummy_prefix=False,
        remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True, pad_id=0, eos_id=1,
        bos_id=2, unk_id=3, user_defined_symbols=["<start_of_turn>", "<end_of_turn>", "\n\n", "▁▁"], num_threads=1,
        hard_vocab_limit=False,
    )  # fmt: skip
    return made.getvalue()


PROMPTS = {
    "p0": "a cat walks over the grass",
    "p1": "",
    "p2": "Beautiful young woman, (gentle smile:1.3), embedding:none  two   spaces\n\nand lines \\( 2025 ",
    "p3": "色调艳丽，过曝 – unseen wörds 🐉 and </s> <bos> tokens",
    "p4": "<start_of_turn>user\nthe sea<end_of_turn>\n<start_of_turn>model\n",
    "p5": "the sea<end_of_turn>",
    "p6": " the sun",
    "long": " ".join(SENTENCES[:6] * 6),
}
MODELS = {
    # LTX-2: one projection, without a bias
    "gemma3-a": ({"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 7, "num_attention_heads": 4,
                  "num_key_value_heads": 2}, {"aggregate_embed.weight": [80, 8]}),
    # LTX-2.3: one each for the video and for the sound
    "gemma3-b": ({"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 2,
                  "num_key_value_heads": 1},
                 {"video_aggregate_embed.weight": [80, 7], "video_aggregate_embed.bias": [80],
                  "audio_aggregate_embed.weight": [48, 7], "audio_aggregate_embed.bias": [48]}),
}  # fmt: skip
ENCODED = {"gemma3-a": ["p0", "p1", "p2", "long"], "gemma3-b": ["p0", "p1", "p3"], "bf16/gemma3-a": ["p0"],
           "bf16/gemma3-b": ["p0"]}  # fmt: skip
TURNS = "<start_of_turn>system\nBe brief.<end_of_turn>\n<start_of_turn>user\nPrompt: the sea<end_of_turn>\n"
SAMPLED = {"temperature": 0.7, "top_k": 64, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.05,
           "presence_penalty": 0.0, "seed": 5}  # fmt: skip
HOT = {**SAMPLED, "temperature": 2.0, "top_k": 0, "top_p": 0.9, "min_p": 0.0, "repetition_penalty": 1.3,
       "presence_penalty": 0.5, "seed": 123456789012}  # fmt: skip
# prompt, without the template, how tokens are sampled (None: the likeliest one)
WRITTEN = {
    "words": ("a cat walks", False, None), "bare": ("a cat walks", True, HOT), "turns": (TURNS, False, HOT),
    "sampled": ("the sea", False, {**SAMPLED, "repetition_penalty": 5.0}), "hot": ("the sea", False, HOT),
    "long": (PROMPTS["long"], False, HOT),
}  # fmt: skip
EYES = {"num_channels": 3, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 16, "image_size": 28,
        "intermediate_size": 16, "model_type": "siglip_vision_model", "num_attention_heads": 1,
        "num_hidden_layers": 1, "patch_size": 14}  # fmt: skip


def small(sizes, rows):
    """Give ComfyUI's Gemma 3 12B other sizes."""
    config = llama.Gemma3_12B_Config
    config.vision_config = EYES
    config.__init__.__defaults__ = tuple(
        {**sizes, "vocab_size": rows}.get(name, default)
        for name, default in zip(config.__dataclass_fields__, config.__init__.__defaults__)
    )


def tensors(model, sizes, projection, rows):
    """Return the list of a model's tensors: name, shape, kind, scale, offset."""
    small(sizes, rows)
    shapes = {k: list(v.shape) for k, v in
              lt.Gemma3_12BModel(dtype=torch.float32).transformer.state_dict().items() if k.startswith("model.")}
    e = sizes["hidden_size"]
    for k, shape in projection.items():
        shapes["text_embedding_projection." + k] = [shape[0], shape[1] * e] if len(shape) == 2 else shape
    made = []
    for k, shape in shapes.items():
        if k.endswith("bias"):
            kind, scale = "bias", 0.4
        elif "embed_tokens" in k:
            kind, scale = "table", 1.0
        elif len(shape) == 1:
            kind, scale = "norm", 0.4
        else:
            kind, scale = "matrix", 2 * math.sqrt(3 / shape[1])
        made.append([k, shape, kind, scale, 0.0])
    return made


def load(model, made, words, dtype=torch.float32):
    """Return the CLIP that loaders make of two files."""
    sd = {k: fill(f"{model}/{k}", tuple(s), scale, offset).to(dtype) for k, s, _, scale, offset in made}
    projection = {k: sd.pop(k) for k in list(sd) if k.startswith("text_embedding_projection.")}
    sd["spiece_model"] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
    return comfy.sd.load_text_encoder_state_dicts([sd, projection], clip_type=comfy.sd.CLIPType.LTXV)


path = f"{out}/spiece_synthetic.model"
words = open(path, "rb").read() if os.path.exists(path) else vocabulary()
rows = sentencepiece.SentencePieceProcessor(model_proto=words).get_piece_size()
print("pieces", rows)
weights, cases, recorded, tokens, texts = {}, {}, {}, {}, {}
for model, (sizes, projection) in MODELS.items():
    made = tensors(model, sizes, projection, rows)
    config = {**sizes, "vocab_size": rows}
    weights[model] = {"class": "Gemma3_12B", "config": config, "tensors": made}
    for dtype, folder in ((torch.float32, ""), (torch.bfloat16, "bf16/")):
        small(sizes, rows)
        clip = load(model, made, words, dtype)
        on_card = comfy.model_management.should_use_bf16
        if folder:
            comfy.model_management.should_use_bf16 = lambda *a, **kw: True
        for name, text in PROMPTS.items():
            pairs = clip.tokenize(text)
            ids = [t for t, _ in pairs["gemma3_12b"][0]]
            pads = 0
            while ids[pads] == 0:
                pads += 1
            assert len(pairs["gemma3_12b"]) == 1 and all(w == 1 for _, w in pairs["gemma3_12b"][0])
            tokens[name] = {"text": text, "total": len(ids), "ids": ids[pads:]}
            if name not in ENCODED[folder + model]:
                continue
            cond, extra = clip.encode_from_tokens_scheduled(pairs)[0]
            assert extra.get("unprocessed_ltxav_embeds") and extra.get("pooled_output") is None, extra
            key = f"{folder}{model}/{name}"
            first = max(0, cond.shape[1] - 40) if name == "long" else 0
            cases[key] = {"text": text, "cond": list(cond.shape), "first_row": first}
            recorded[key + "#cond"] = cond[0, first:].float().contiguous()
            if name == "p0" and not folder:
                states, _, mask = clip.cond_stage_model.gemma3_12b.encode_token_weights(pairs["gemma3_12b"])
                n = int(mask["attention_mask"].sum())
                recorded[key + "#states"] = states[0, :, -n:].float().contiguous()
            print(key, list(cond.shape), float(cond.pow(2).mean().sqrt()))
        comfy.model_management.should_use_bf16 = on_card
        if folder:
            continue
        for name, (text, bare, drawn) in WRITTEN.items():
            pairs = clip.tokenize(text, image=None, skip_template=bare, min_length=1, thinking=False)
            most = 64 if name == "long" else 12
            ids = clip.generate(pairs, do_sample=drawn is not None, max_length=most, **(drawn or SAMPLED))
            texts[f"{model}/{name}"] = {"prompt": text, "bare": bare, "sampling": drawn, "max_length": most, "ids": ids,
                                        "text": clip.decode(ids)}  # fmt: skip
            print(model, name, len(pairs["gemma3_12b"][0]), ids, repr(clip.decode(ids)))
with open(path, "wb") as f:
    f.write(words)
for name, data in (("tokens", tokens), ("text", cases), ("weights_text", weights), ("generate", texts)):
    with open(f"{out}/{name}.json", "w") as f:
        f.write("{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in data.items()) + "\n}\n")
save_file(recorded, f"{out}/text.safetensors")
os.chmod(f"{out}/text.safetensors", 0o644)
