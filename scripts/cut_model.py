#!/usr/bin/env python3
"""Makes a smaller model of a real one: its first layers and the first rows of its vocabulary.

The weights that stay keep their bits, so the small model has a real model's outliers and scales
(though little to say), and fits where the whole does not. One safetensors file, Llama or Qwen dense
layers. The tokenizer is left out: prompts are token ids.

    scripts/cut_model.py build/models/SmolLM2-135M-Instruct build/models/cut --layers 6 --vocab 8192
"""
import argparse
import json
import os
import re


def kept(name, info, layers, vocab):
    """The tensor's description in the small model, None when it goes."""
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    if layer and int(layer.group(1)) >= layers:
        return None
    shape = list(info["shape"])
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        shape[0] = min(shape[0], vocab)
    begin, end = info["data_offsets"]
    size = (end - begin) // info["shape"][0] * shape[0]  # rows lie one after the other
    return {"dtype": info["dtype"], "shape": shape, "from": begin, "size": size}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model")
    a.add_argument("out")
    a.add_argument("--layers", type=int, required=True)
    a.add_argument("--vocab", type=int, required=True)
    a = a.parse_args()
    with open(os.path.join(a.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config["num_hidden_layers"] = min(config["num_hidden_layers"], a.layers)
    config["vocab_size"] = min(config["vocab_size"], a.vocab)
    os.makedirs(a.out, exist_ok=True)
    with open(os.path.join(a.model, "model.safetensors"), "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        head = json.loads(f.read(size))
        rest = {}
        for name, info in sorted(head.items()):
            new = name != "__metadata__" and kept(name, info, a.layers, a.vocab)
            if new:
                rest[name] = new
        small, at = {"__metadata__": {"format": "pt"}}, 0
        for name, t in rest.items():
            small[name] = {"dtype": t["dtype"], "shape": t["shape"], "data_offsets": [at, at + t["size"]]}
            at += t["size"]
        text = json.dumps(small, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(a.out, "model.safetensors"), "wb") as o:
            o.write(len(text).to_bytes(8, "little") + text)
            for t in rest.values():
                f.seek(8 + size + t["from"])
                o.write(f.read(t["size"]))
    with open(os.path.join(a.out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    print(f"{a.out}: {config['num_hidden_layers']} layers, {config['vocab_size']} tokens, {at} bytes")


if __name__ == "__main__":
    main()
