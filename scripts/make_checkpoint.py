#!/usr/bin/env python3
"""Writes a checkpoint of random weights for a shape, so that a start from files can be measured
where no model can be fetched:

    python3 scripts/make_checkpoint.py configs/shapes/llama-3.1-8b.json /dev/shm/m [--layers N]
        [--tokenizer configs/models/demo]

config.json, safetensors shards with their index and, when asked for, a tokenizer's files. Values are
uniform with the deviations of `--load-format dummy` (engine/model/dummy.h), so activations stay near
unit variance; the same few million are repeated, which is what makes it fast (numpy, no torch).
"""
import argparse
import json
import math
import multiprocessing
import os
import shutil
import struct

import numpy as np

SHARD = 1 << 30          # bytes of a shard, about
DRAWS = (4 << 20) - 7    # values that are repeated; odd, so that rows of a tensor differ
FP8_AMP = 224.0


def attention_gqa(c, p, out):
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    kv = c.get("num_key_value_heads") or heads
    dim = c.get("head_dim") or hidden // heads
    wide = 2 * hidden if "draft_vocab_size" in c else hidden
    for name, n, k in (("q", heads * dim, wide), ("k", kv * dim, wide), ("v", kv * dim, wide),
                       ("o", hidden, heads * dim)):
        out[f"{p}self_attn.{name}_proj.weight"] = (n, k)
        if c["model_type"] == "qwen2" and name != "o" or c.get("attention_bias"):
            out[f"{p}self_attn.{name}_proj.bias"] = (n,)
    if c["model_type"].startswith("qwen3"):
        out[f"{p}self_attn.q_norm.weight"] = out[f"{p}self_attn.k_norm.weight"] = (dim,)


def attention_mla(c, p, out):
    p += "self_attn."
    hidden, heads, lora, rope = (c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"],
                                 c["qk_rope_head_dim"])
    nope, v, q_lora = c["qk_nope_head_dim"], c["v_head_dim"], c.get("q_lora_rank")
    if q_lora:
        out[p + "q_a_proj.weight"] = (q_lora, hidden)
        out[p + "q_a_layernorm.weight"] = (q_lora,)
        out[p + "q_b_proj.weight"] = (heads * (nope + rope), q_lora)
    else:
        out[p + "q_proj.weight"] = (heads * (nope + rope), hidden)
    out[p + "kv_a_proj_with_mqa.weight"] = (lora + rope, hidden)
    out[p + "kv_a_layernorm.weight"] = (lora,)
    out[p + "kv_b_proj.weight"] = (heads * (nope + v), lora)
    out[p + "o_proj.weight"] = (hidden, heads * v)


def mlp(hidden, inter, p, out):
    out[p + "gate_proj.weight"] = out[p + "up_proj.weight"] = (inter, hidden)
    out[p + "down_proj.weight"] = (hidden, inter)


def feed_forward(c, i, p, out):
    hidden, p = c["hidden_size"], p + "mlp."
    experts = c.get("n_routed_experts") or c.get("num_experts") or 0
    dense = not experts or i < c.get("first_k_dense_replace", 0) or i in c.get("mlp_only_layers", [])
    if dense:
        return mlp(hidden, c["intermediate_size"], p, out)
    inter = c["moe_intermediate_size"]
    out[p + "gate.weight"] = (experts, hidden)
    if c.get("topk_method") == "noaux_tc":
        out[p + "gate.e_score_correction_bias"] = (experts,)
    for e in range(experts):
        mlp(hidden, inter, f"{p}experts.{e}.", out)
    if c.get("n_shared_experts"):
        mlp(hidden, inter * c["n_shared_experts"], p + "shared_experts.", out)


def layer(c, i, p, out):
    out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (c["hidden_size"],)
    (attention_mla if "kv_lora_rank" in c else attention_gqa)(c, p, out)
    feed_forward(c, i, p, out)


def tensors(c):
    """{name: shape} of what the model files of this shape hold."""
    out, hidden, vocab = {}, c["hidden_size"], c["vocab_size"]
    if "draft_vocab_size" in c:  # an EAGLE-3 head
        wide = c.get("target_hidden_size", hidden)
        out["fc.weight"] = (hidden, 3 * wide)
        layer(c, 0, "midlayer.", out)
        out["midlayer.hidden_norm.weight"] = out["norm.weight"] = (hidden,)
        out["lm_head.weight"] = (c["draft_vocab_size"], hidden)
        out["d2t"] = (c["draft_vocab_size"],)  # zeros: the first ids of the target
        return out
    out["model.embed_tokens.weight"] = (vocab, hidden)
    n = c["num_hidden_layers"]
    for i in range(n):
        layer(c, i, f"model.layers.{i}.", out)
    for i in range(n, n + c.get("num_nextn_predict_layers", 0)):
        p = f"model.layers.{i}."
        layer(c, i, p, out)
        out[p + "enorm.weight"] = out[p + "hnorm.weight"] = out[p + "shared_head.norm.weight"] = (hidden,)
        out[p + "eh_proj.weight"] = (hidden, 2 * hidden)
    out["model.norm.weight"] = (hidden,)
    if not c.get("tie_word_embeddings"):
        out["lm_head.weight"] = (vocab, hidden)
    return out


def with_types(c, shapes):
    """[(name, safetensors type, shape)], with block scales where the configuration announces fp8."""
    fp8 = "quantization_config" in c
    for name, shape in shapes.items():
        if fp8 and name.endswith("_proj.weight") and not name.endswith("eh_proj.weight"):
            yield name, "F8_E4M3", shape
            yield name + "_scale_inv", "F32", tuple((x + 127) // 128 for x in shape)
        else:
            dtype = {"d2t": "I64"}.get(name, "F32" if name.endswith("correction_bias") else "BF16")
            yield name, dtype, shape


SIZE = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I64": 8}


def nbytes(dtype, shape):
    return SIZE[dtype] * math.prod(shape)


def amplitude(name, fan_in, layers):
    name = name.removesuffix("_scale_inv")
    if name.endswith("embed_tokens.weight"):
        return math.sqrt(3)
    dev = 1.2 / math.sqrt(fan_in)
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        dev /= math.sqrt(2 * layers)
    return dev * math.sqrt(3)


def bf16(x):
    u = x.astype(np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def fp8_codes(x):
    """E4M3 codes nearest to the values, by search in the table of all finite ones."""
    code = np.arange(0x7F)
    e, m = code >> 3, code & 7
    value = np.where(e > 0, (1 + m / 8) * 2.0 ** (e - 7), m / 8 * 2.0**-6)
    at = np.searchsorted((value[1:] + value[:-1]) / 2, np.abs(x))
    return (at | (x < 0) << 7).astype(np.uint8)


class Blocks:
    """Blocks of values in a file's type, one for each amplitude, made once."""

    def __init__(self, layers):
        self.layers, self.made = layers, {}
        self.draws = np.random.default_rng(1).random(DRAWS, np.float32) * 2 - 1

    def of(self, name, dtype, shape, fan_in):
        amp = amplitude(name, fan_in, self.layers)
        zero = "bias" in name or name == "d2t"
        key = (dtype, zero, amp if len(shape) > 1 else 1)
        if key not in self.made:
            if len(shape) == 1:
                x = np.full(1 << 16, 0.0 if zero else 1.0)
            elif dtype == "F32":
                x = np.full(1 << 16, amp / FP8_AMP)
            else:
                x = self.draws * (FP8_AMP if dtype == "F8_E4M3" else amp)
            convert = {"F32": lambda v: v.astype(np.float32), "I64": lambda v: v.astype(np.int64),
                       "F8_E4M3": fp8_codes, "BF16": bf16}
            self.made[key] = memoryview(convert[dtype](x).tobytes())
        return self.made[key]


def write_shard(job):
    path, layers, entries = job
    head, at = {}, 0
    for name, dtype, shape, _ in entries:
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes(dtype, shape)]}
        at += nbytes(dtype, shape)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64 + 56)  # data at a multiple of 64 bytes
    blocks = Blocks(layers)
    with open(path, "wb", buffering=0) as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for i, (name, dtype, shape, fan_in) in enumerate(entries):
            left, block = nbytes(dtype, shape), blocks.of(name, dtype, shape, fan_in)
            start = i * 977 * 8 % len(block)
            while left:
                n = f.write(block[start:start + left])
                left, start = left - n, (start + n) % len(block)
    return at


def shards(entries):
    """Lists of about SHARD bytes each, every tensor with the fan in of its product."""
    part, size, fan_in = [], 0, 1
    for name, dtype, shape in entries:
        fan_in = fan_in if name.endswith("_scale_inv") else shape[-1]
        if size and size + nbytes(dtype, shape) > SHARD:
            yield part
            part, size = [], 0
        part.append((name, dtype, shape, fan_in))
        size += nbytes(dtype, shape)
    yield part


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("shape", help="a file of configs/shapes, or any config.json")
    ap.add_argument("out", help="the directory to write")
    ap.add_argument("--layers", type=int, help="the first so many layers only")
    ap.add_argument("--tokenizer", help="a directory whose tokenizer files are copied")
    ap.add_argument("--processes", type=int, default=min(16, os.cpu_count() or 1))
    a = ap.parse_args()
    with open(a.shape, encoding="utf-8") as f:
        conf = json.load(f)
    if a.layers:
        conf["num_hidden_layers"] = a.layers
    parts = list(shards(with_types(conf, tensors(conf))))
    os.makedirs(a.out, exist_ok=True)
    names = [f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors" for i in range(len(parts))]
    jobs = [(os.path.join(a.out, n), conf["num_hidden_layers"], p) for n, p in zip(names, parts)]
    with multiprocessing.Pool(min(a.processes, len(jobs))) as pool:
        total = sum(pool.imap_unordered(write_shard, jobs))
    index = {"metadata": {"total_size": total},
             "weight_map": {e[0]: n for n, p in zip(names, parts) for e in p}}
    for name, x in (("config.json", conf), ("model.safetensors.index.json", index)):
        with open(os.path.join(a.out, name), "w", encoding="utf-8") as f:
            json.dump(x, f, indent=1)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if a.tokenizer and os.path.exists(os.path.join(a.tokenizer, name)):
            shutil.copy(os.path.join(a.tokenizer, name), a.out)
    print(f"{a.out}: {total / 1e9:.2f} GB in {len(parts)} shards")


if __name__ == "__main__":
    main()
