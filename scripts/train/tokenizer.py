#!/usr/bin/env python3
"""Trains the byte-level BPE both demo models share and packs the texts into token files.

Writes tokenizer.json / tokenizer_config.json, and (pack) train.bin, chat.bin, held.bin as uint16 ids.
Documents are separated by <|endoftext|>; conversations are rendered by the chat template itself, so
training and serving cannot drift apart.
"""
import argparse, json, random, lzma
import jinja2
import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCAB = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]  # ids 0..3
RESERVED = ["<think>", "</think>", "<tool_call>", "</tool_call>"]      # ids 4..7, never trained, for later use
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
         r"\s*[\r\n]+|\s+(?!\S)|\s+")
TEMPLATE = """{%- for message in messages %}
{%- set content = message['content'] | trim %}
{{- '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>' }}
{%- if not loop.last or add_generation_prompt %}{{- '\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
CONFIG = {
    "add_bos_token": False, "add_eos_token": False, "add_prefix_space": False,
    "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
    "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False, "errors": "replace",
    "model_max_length": 4096, "split_special_tokens": False, "tokenizer_class": "PreTrainedTokenizerFast",
}


def template():
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return env.from_string(TEMPLATE)


def train(args):
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, show_progress=False, min_frequency=2,
                                  special_tokens=SPECIAL + RESERVED,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())

    def texts():
        rng = random.Random(2)
        for l in open(args.docs):
            if rng.random() < 0.5:
                yield json.loads(l)["text"]
        for l in open(args.chat):
            if rng.random() < 0.15:
                for _, t in json.loads(l)["turns"]:
                    yield t
    tok.train_from_iterator(texts(), trainer)
    j = json.loads(tok.to_str())
    for t in j["added_tokens"]:  # the reserved ones are ordinary added tokens, as Qwen3 has them
        t["special"] = t["content"] in SPECIAL
    for out in args.out:
        json.dump(j, open(out + "/tokenizer.json", "w"), ensure_ascii=False, separators=(",", ":"))
        cfg = dict(CONFIG)
        cfg["added_tokens_decoder"] = {str(t["id"]): {k: t[k] for k in
                                       ("content", "lstrip", "normalized", "rstrip", "single_word", "special")}
                                       for t in j["added_tokens"]}
        json.dump(dict(sorted(cfg.items())), open(out + "/tokenizer_config.json", "w"), indent=2)
        open(out + "/tokenizer_config.json", "a").write("\n")
    print("vocab", len(j["model"]["vocab"]), "merges", len(j["model"]["merges"]))


def pack(args):
    tok = Tokenizer.from_file(args.tokenizer)
    assert tok.get_vocab_size() == VOCAB
    eot = tok.token_to_id("<|endoftext|>")

    def write(name, texts):
        ids, nbytes = [], 0
        batch = []

        def flush():
            for e in tok.encode_batch(batch, add_special_tokens=False):
                ids.append(np.array(e.ids + [eot], dtype=np.uint16))
            batch.clear()
        for t in texts:
            nbytes += len(t.encode())
            batch.append(t)
            if len(batch) == 512:
                flush()
        flush()
        a = np.concatenate(ids)
        a.tofile(f"{args.dir}/{name}.bin")
        print(f"{name}: {nbytes / 1e6:.2f} MB, {len(a) / 1e6:.3f} M tokens, {nbytes / len(a):.2f} bytes/token")
    docs = [json.loads(l)["text"] for l in open(f"{args.dir}/train.jsonl")]
    write("train", docs)
    write("held", [json.loads(l)["text"] for l in open(f"{args.dir}/held.jsonl")])
    tmpl = template()
    write("chat", [tmpl.render(messages=[{"role": r, "content": t} for r, t in json.loads(l)["turns"]],
                               add_generation_prompt=False) for l in open(f"{args.dir}/chat.jsonl")])


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    sub = ap.add_subparsers(dest="cmd", required=True)
    p = sub.add_parser("train")
    p.add_argument("--docs", required=True)
    p.add_argument("--chat", required=True)
    p.add_argument("--out", nargs="+", required=True)
    p = sub.add_parser("pack")
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--dir", required=True)
    a = ap.parse_args()
    (train if a.cmd == "train" else pack)(a)
