"""Adds prompts with embedding:name to tests/golden/modern33/tokens_embedding.json. Running the tests does not need
this script.

Made with torch 2.15.0 and the tree of ComfyUI 0.33.0, whose tokenizers are imported and run as they are:
    python tests/reference/make_embeddings.py COMFYUI_TREE tests/golden

A case `grid/n` has a prompt and, by tokenizer, its chunks: ids, or "row" for a row of an embedding, and weights where
one is not 1; or the name of the exception. The folder has
`two` (2 rows for every encoder), `sub/deep` (1 row) and `a,b` (1 row). `mistral3` and `gemma2` have the small
vocabularies of tests/golden/modern/tokens.json and models/tokenizer/testdata.
"""

import json
import os
import sys
import tempfile

import comfytree

tree, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
comfytree.start(tree, "--disable-all-custom-nodes")
import torch
from comfy import sd1_clip, sdxl_clip
from comfy.text_encoders import flux, krea2, lumina2, pixart_t5, qwen_image, z_image
from safetensors.torch import save_file

WIDTHS = {
    "clip_l": 768,
    "clip_g": 1280,
    "t5xxl": 4096,
    "qwen3_4b": 2560,
    "qwen3_8b": 4096,
    "qwen3vl_4b": 2560,
    "mistral3_24b": 5120,
    "qwen25_7b": 3584,
    "gemma2_2b": 2304,
}
PROMPTS = [
    "embedding:two", "embedding:none", "a embedding:two, b", "embedding:none, x", "embedding:two,",
    "a,embedding:two b", "(embedding:two:1.3) cat", "(red embedding:none cat:0.5) b",
    "embedding:two embedding:two", "embedding:none embedding:two embedding:none", "a\tembedding:two\n\n b",
    "x\u00a0embedding:two\u00a0b", "x\u3000embedding:none\u2003b", "embedding:,two,", "embedding:,none,,",
    "embedding:two[b]", "embedding:none<b> c   d", "embedding:<b>", "embedding:[two] c", "x  embedding:none  y",
    "((embedding:two)) embedding:none", "embedding:sub/deep", "embedding:sub/deep.safetensors x",
    "embedding:../two", "\\(embedding:two\\)", "a embedding:two\\) b", "EMBEDDING:two", "embedding:two.",
    "embedding:a,b c", "embedding:", "a embedding: ", "embedding:\ntwo", "a\nembedding:none\nb\nc",
    "red " * 72 + "embedding:two end", "blue " * 74 + "embedding:two (embedding:deep, end:1.2)",
    "embedding:deep embedding:embedding:two", "x embedding:two<|im_end|> y", "embedding:two\u200bb",
    "embedding:two;b embedding:two|c",
]  # fmt: skip

folder = tempfile.mkdtemp()
os.mkdir(folder + "/sub")
for name, rows in (("two", 2), ("sub/deep", 1), ("a,b", 1)):
    save_file({k: torch.zeros(rows, w) for k, w in WIDTHS.items()}, f"{folder}/{name}.safetensors")
words = json.load(open(f"{out}/modern/tokens.json"))["tekken_synthetic"]["json"]
tekken = torch.frombuffer(bytearray(words.encode()), dtype=torch.uint8)
spiece = torch.frombuffer(
    bytearray(open(f"{out}/../../models/tokenizer/testdata/tiny_bpe.model", "rb").read()), dtype=torch.uint8
)
tokenizers = {
    "clip_l": sd1_clip.SD1Tokenizer(embedding_directory=[folder]),
    "clip_g": sd1_clip.SD1Tokenizer(
        embedding_directory=[folder], clip_name="g", tokenizer=sdxl_clip.SDXLClipGTokenizer
    ),
    "t5xxl": pixart_t5.PixArtTokenizer(embedding_directory=[folder]),
    "z_image": z_image.ZImageTokenizer(embedding_directory=[folder]),
    "qwen_image": qwen_image.QwenImageTokenizer(embedding_directory=[folder]),
    "klein": flux.KleinTokenizer(embedding_directory=[folder]),
    "klein8": flux.KleinTokenizer8B(embedding_directory=[folder]),
    "krea2": krea2.Krea2Tokenizer(embedding_directory=[folder]),
    "mistral3": flux.Flux2Tokenizer(embedding_directory=[folder], tokenizer_data={"tekken_model": tekken}),
    "gemma2": lumina2.LuminaTokenizer(embedding_directory=[folder], tokenizer_data={"spiece_model": spiece}),
}


def trimmed(chunk):
    """A chunk without the pads at its end, of which one stays."""
    while len(chunk) > 1 and chunk[-1] == chunk[-2] and isinstance(chunk[-1][0], int) and chunk[-1][1] == 1:
        chunk = chunk[:-1]
    return chunk


path = f"{out}/modern33/tokens_embedding.json"
record = {k: v for k, v in json.load(open(path)).items() if not k.startswith("grid/")}
for n, prompt in enumerate(PROMPTS):
    case = {"prompt": prompt}
    for name, t in tokenizers.items():
        try:
            chunks = next(iter(t.tokenize_with_weights(prompt).values()))
        except Exception as e:
            case[name] = {"raises": type(e).__name__}
            continue
        chunks = [[("row" if torch.is_tensor(i) else int(i), w) for i, w in c] for c in chunks]
        case[name] = {"ids": [[i for i, _ in trimmed(c)] for c in chunks], "lengths": [len(c) for c in chunks]}
        if any(w != 1 for c in chunks for _, w in c):
            case[name]["weights"] = [[w for _, w in trimmed(c)] for c in chunks]
    record[f"grid/{n}"] = case
with open(path, "w") as file:
    file.write(
        "{" + ",\n".join(json.dumps(k) + ": " + json.dumps(v, separators=(",", ":")) for k, v in record.items()) + "}\n"
    )
