"""Makes the small vocabularies and cases.json in this folder with the original programs.

    pip install transformers==4.57.6 tokenizers==0.22.2 sentencepiece==0.2.3   (without ftfy)
    python make_cases.py

cases.json: vocabulary -> list of [text, ids with start and end token]. demo_*.tokenizer.json are inputs: the demo
checkpoint's own vocabularies. Everything here was trained or written for this project.
"""
import json, os, random, tempfile, unicodedata
import sentencepiece, tokenizers
from transformers import BertTokenizer, CLIPTokenizer, Qwen2Tokenizer

random.seed(20)
SHAPES = "heart star moon flower square triangle ring diamond cross circle drop".split()
COLOURS = "red green blue yellow purple orange pink white black cyan brown".split()
CAPTIONS = [f"a {size} {c} {s} {where} {b} background" for size in ("big", "small", "tiny") for c in COLOURS
    for s in SHAPES
            for where, b in (("on a pale", "blue"), ("above the dark", "green"), ("next to a very light", "pink"))]
RULES = ["41\t61", "42\t62", "43\t63", "E9\t65 301", "FB01\t66 69", "2026\t2E 2E 2E", "9\t20", "A\t20", "A0\t20",
    "65 301\t65", "61 301 62\t78", "200B\t"]
ODD = ["", " ", "   ", " a  b ", "<sep>heart<sep>", "heartheart", "Bé\u0301 ﬁ…\u200b", "a\u0301b x",
    "<|endoftext|> a <|startoftext|>", "</s>red<pad>", "[MASK]red [UNK]",
       "<|im_start|>user\nhi<|im_end|>", "İstanbul ΟΔΟΣ Σ.", "don't WE'LL 'ſ", "一只red熊", "👨‍👩‍👧 🇩🇪",
       "a\r\nb\tc\u3000d\u2028e", "\x00\x1c\ufffd\ufeffz", "½ ² Ⅷ", "…," * 9, "x" * 130, "\u0345red\u0345"]
RANGES = [(0x20, 0x7f)] * 4 + [(0xa1, 0x250), (0x370, 0x3ff), (0x400, 0x52f), (0x5d0, 0x5eb), (0x905, 0x939),
    (0x1e00, 0x1f00), (0x2010, 0x2028), (0x3041, 0x3097), (0x4e00, 0x4e80), (0xac00, 0xac80), (0x300, 0x345),
    (0x1f300, 0x1f500)]


def text():
    out = ""
    for _ in range(random.randint(1, 7)):
        kind = random.random()
        if kind < .5:
            out += random.choice(random.choice(CAPTIONS).split())
        elif kind < .6:
            out += random.choice(random.choice(CAPTIONS).split()).upper()
        else:
            pick = [chr(random.randrange(*random.choice(RANGES))) for _ in range(random.randint(1, 4))]
            out += "".join(c for c in pick if unicodedata.category(c) != "Cn")
        out += random.choice([" ", " ", "  ", "\n", ",", "", ""])
    return out


def byte_vocab(suffix):
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    return alphabet + [c + suffix for c in alphabet] if suffix else alphabet


def write_qwen(folder):
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(CAPTIONS, tokenizers.trainers.BpeTrainer(vocab_size=340, initial_alphabet=byte_vocab(""),
        show_progress=False))
    model = json.loads(t.to_str())["model"]
    json.dump(model["vocab"], open(f"{folder}/vocab.json", "w"), ensure_ascii=False)
    open(f"{folder}/merges.txt", "w").write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    n = len(model["vocab"])
    added = {str(n + i): dict(content=c, lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
             for i, c in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))}
    json.dump(dict(tokenizer_class="Qwen2Tokenizer", added_tokens_decoder=added, unk_token="<|endoftext|>",
        pad_token="<|endoftext|>"),
              open(f"{folder}/tokenizer_config.json", "w"), indent=1)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    os.chdir(here)
    with tempfile.TemporaryDirectory() as tmp:
        open(f"{tmp}/corpus", "w").write("\n".join(CAPTIONS))
        open(f"{tmp}/rules.tsv", "w").write("\n".join(RULES) + "\n")
        common = dict(input=f"{tmp}/corpus", minloglevel=2, byte_fallback=True, hard_vocab_limit=False)
        sentencepiece.SentencePieceTrainer.train(model_prefix=f"{tmp}/unigram", model_type="unigram", vocab_size=330,
            user_defined_symbols=["<sep>", "heart"],
                                                 normalization_rule_tsv=f"{tmp}/rules.tsv", **common)
        sentencepiece.SentencePieceTrainer.train(model_prefix=f"{tmp}/bpe", model_type="bpe", vocab_size=380,
            user_defined_symbols=["<sep>", "ea"],
                                                 normalization_rule_name="identity", remove_extra_whitespaces=False,
                                                 **common)
        for kind in ("unigram", "bpe"):
            os.replace(f"{tmp}/{kind}.model", f"tiny_{kind}.model")
        demo = json.load(open("demo_clip.tokenizer.json"))["model"]
        json.dump(demo["vocab"], open(f"{tmp}/vocab.json", "w"))
        open(f"{tmp}/merges.txt", "w").write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in demo["merges"]))
        clip = CLIPTokenizer(f"{tmp}/vocab.json", f"{tmp}/merges.txt")
        assert clip.fix_text is None, "uninstall ftfy"
    os.makedirs("tiny_qwen", exist_ok=True)
    write_qwen("tiny_qwen")
    letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()] + ["é", "一", "熊", "σ", "ο"]
    words = sorted({w for c in CAPTIONS for w in c.split()})
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in "abdefgrstuσο"), *words[::2],
        *("##" + w[2:] for w in words[1::2] if len(w) > 3)]
    open("tiny_bert.vocab.txt", "w").write("".join(v + "\n" for v in dict.fromkeys(vocab)))
    bert = BertTokenizer("tiny_bert.vocab.txt", do_lower_case=True)
    qwen = Qwen2Tokenizer.from_pretrained("tiny_qwen")
    t5 = tokenizers.Tokenizer.from_file("demo_t5.tokenizer.json")
    pieces = {k: sentencepiece.SentencePieceProcessor(model_file=f"tiny_{k}.model", add_eos=True)
        for k in ("unigram", "bpe")}
    encoders = {"demo_clip.tokenizer.json": lambda s: clip(s)["input_ids"],
        "demo_t5.tokenizer.json": lambda s: t5.encode(s).ids,
                "tiny_qwen": lambda s: qwen(s)["input_ids"], "tiny_bert.vocab.txt": lambda s: bert(s)["input_ids"],
                "tiny_unigram.model": pieces["unigram"].encode, "tiny_bpe.model": pieces["bpe"].encode}
    texts = ODD + [text() for _ in range(90)]
    with open("cases.json", "w") as f:
        rows = {name: ",\n".join(json.dumps([s, encode(s)], separators=(",", ":")) for s in texts) for name,
            encode in encoders.items()}
        f.write("{" + ",\n".join(f"{json.dumps(name)}: [\n{body}\n]" for name, body in rows.items()) + "}\n")


main()
