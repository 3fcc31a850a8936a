#!/usr/bin/env python3
"""Turns a Llama-architecture GGUF file into a folder in Hugging Face layout (bf16).

Quantised tensors are expanded and rounded to bf16 (to nearest even), so the folder holds exactly
the weights that any reader of it computes with. The file stores the rows of q and k reordered for
rotary pairs (2i, 2i+1); the folder has them for pairs (i, i + d/2), as its config means.

usage: gguf_to_hf.py FILE.gguf DIR        needs: gguf, numpy
"""
import json
import os
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def to_bf16(x):
    u = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def half_split(w, heads):
    rows, cols = w.shape
    return w.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def write_safetensors(path, tensors):
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, w in tensors.items():
        head[name] = {"dtype": "BF16", "shape": list(w.shape), "data_offsets": [at, at + w.nbytes]}
        at += w.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little"))
        f.write(text)
        for w in tensors.values():
            f.write(w.tobytes())


def dump(path, obj):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(obj, f, ensure_ascii=False, indent=2)
        f.write("\n")


def tokenizer(get, tokens, types):
    """GPT-2 style byte-level BPE; the pre-tokenizer is known by name."""
    if get("tokenizer.ggml.model") != "gpt2" or get("tokenizer.ggml.pre") != "smollm":
        sys.exit("only the 'smollm' tokenizer is known here")
    special = [
        {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for i, t in enumerate(tokens) if types[i] == 3
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    return special, {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)},
                  "merges": get("tokenizer.ggml.merges")},
    }


def main():
    src, out = sys.argv[1:3]
    r = GGUFReader(src)

    def get(key):
        return r.fields[key].contents()

    if get("general.architecture") != "llama":
        sys.exit("not a Llama-architecture file")
    heads, kv = get("llama.attention.head_count"), get("llama.attention.head_count_kv")
    os.makedirs(out, exist_ok=True)
    tensors = {}
    for t in r.tensors:
        w = dequantize(t.data, t.tensor_type)
        part = t.name.split(".")
        if part[0] == "blk":
            name = f"model.layers.{part[1]}.{LAYER[part[2]]}.weight"
            if part[2] in ("attn_q", "attn_k"):
                w = half_split(w, heads if part[2] == "attn_q" else kv)
        else:
            name = TOP[part[0]] + ".weight"
        tensors[name] = to_bf16(w)
    write_safetensors(os.path.join(out, "model.safetensors"), tensors)

    tokens = get("tokenizer.ggml.tokens")
    special, tok = tokenizer(get, tokens, get("tokenizer.ggml.token_type"))
    bos, eos = get("tokenizer.ggml.bos_token_id"), get("tokenizer.ggml.eos_token_id")
    pad = get("tokenizer.ggml.padding_token_id")
    dump(os.path.join(out, "config.json"), {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False,
        "hidden_act": "silu", "hidden_size": get("llama.embedding_length"),
        "intermediate_size": get("llama.feed_forward_length"),
        "num_hidden_layers": get("llama.block_count"),
        "num_attention_heads": heads, "num_key_value_heads": kv,
        "max_position_embeddings": get("llama.context_length"),
        "rms_norm_eps": float(f"{get('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": get("llama.rope.freq_base"), "rope_scaling": None,
        "rope_interleaved": False, "tie_word_embeddings": "lm_head.weight" not in tensors,
        "vocab_size": len(tokens), "bos_token_id": bos, "eos_token_id": eos,
        "pad_token_id": pad, "pretraining_tp": 1, "use_cache": True,
        "initializer_range": 0.041666666666666664, "torch_dtype": "bfloat16",
    })
    dump(os.path.join(out, "generation_config.json"),
         {"_from_model_config": True, "bos_token_id": bos, "eos_token_id": eos,
          "pad_token_id": pad})
    dump(os.path.join(out, "tokenizer.json"), tok)
    dump(os.path.join(out, "tokenizer_config.json"), {
        "add_prefix_space": False, "add_bos_token": bool(get("tokenizer.ggml.add_bos_token")),
        "added_tokens_decoder": {str(s["id"]): {k: s[k] for k in s if k != "id"} for s in special},
        "bos_token": tokens[bos], "eos_token": tokens[eos], "pad_token": tokens[pad],
        "unk_token": tokens[get("tokenizer.ggml.unknown_token_id")],
        "chat_template": get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False, "model_max_length": get("llama.context_length"),
        "tokenizer_class": "GPT2Tokenizer", "vocab_size": len(tokens),
    })
    print(f"{out}: {len(tensors)} tensors, {sum(w.nbytes for w in tensors.values())} bytes")


main()
