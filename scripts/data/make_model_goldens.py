#!/usr/bin/env python3
"""Golden log-probabilities of tiny checkpoints of every family and variant, by transformers.

Each variant becomes test/data/model/NAME.json (its config.json, its tensors with the rule that
generates their values, its prompts) and NAME.bin (what transformers says, fp32, eager attention).
The C tests generate the same weights from the same rule, so no weights are stored. Values of a
tensor: hash of (name, index) -> u in [-1, 1), then offset + scale * u in fp32, rounded to the
tensor's type; fp8 tensors take random codes with exponents 4 to 11. Scales are chosen so that
mistakes show: products 1.2 / sqrt(fan in), norms away from 1, biases away from 0.

NAME.bin, little endian: for every prompt and position: 4 x u16 ids of the largest, 4 x f32 their
log-probabilities, 8 x f32 log-probabilities of the columns (31 * position + 17 * j) % vocabulary.

usage: make_model_goldens.py [NAME ...]      needs torch, transformers, safetensors, numpy
Variants "demo" and "demo-qwen3" take the trained models of configs/models, with this file as text:
make them again when the models change.
"""
import json
import math
import os
import struct
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = os.path.join(ROOT, "test/data/model")
FP8_STD = 9.46  # of the codes the rule draws


# ---- the generator; test/model/gen.c is its twin ----

def name_seed(name):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def hash_u64(name, n):
    with np.errstate(over="ignore"):
        z = np.uint64(name_seed(name)) + (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def fp8_table():
    t = np.zeros(256, np.float32)
    for c in range(256):
        e, m = (c >> 3) & 15, c & 7
        v = m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
        t[c] = -v if c & 128 else v
    return t


def values(t):
    """The tensor's values as fp32 (fp8: the decoded codes, without their scale)."""
    name, dtype, shape, offset, scale = t
    n = int(np.prod(shape))
    z = hash_u64(name, n)
    if dtype == "F8_E4M3":
        code = ((z >> np.uint64(60)) & np.uint64(1)) << np.uint64(7)
        code |= (np.uint64(4) + ((z >> np.uint64(40)) & np.uint64(7))) << np.uint64(3)
        code |= (z >> np.uint64(44)) & np.uint64(7)
        return torch.from_numpy(fp8_table()[code.astype(np.int64)].reshape(shape))
    u = (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    v = np.float32(offset) + np.float32(scale) * u
    w = torch.from_numpy(v.astype(np.float32).reshape(shape))
    kind = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}[dtype]
    return w.to(kind).to(torch.float32)


# ---- tensors of a configuration ----

class Tensors:
    def __init__(self, dtype="BF16", fp8=False, scale_dtype="F32"):
        self.v, self.dtype, self.fp8, self.scale_dtype = [], dtype, fp8, scale_dtype

    def product(self, name, *shape, gain=1.2, quant=True):
        std = gain / math.sqrt(shape[-1])
        if self.fp8 and quant:
            self.v.append([name, "F8_E4M3", list(shape), 0, 1])
            blocks = [(s + 127) // 128 for s in shape]
            s = std / FP8_STD
            self.v.append([name + "_scale_inv", self.scale_dtype, blocks, s, s / 2])
        else:
            self.v.append([name, self.dtype, list(shape), 0, round(std * math.sqrt(3), 6)])

    def norm(self, name, n):
        self.v.append([name, self.dtype, [n], 1, 0.4])

    def bias(self, name, n, scale=0.5, dtype=None):
        self.v.append([name, dtype or self.dtype, [n], 0, scale])


def mlp(t, p, h, i, bias=False):
    for n, o, k in (("gate_proj", i, h), ("up_proj", i, h), ("down_proj", h, i)):
        t.product(f"{p}{n}.weight", o, k)
        if bias:
            t.bias(f"{p}{n}.bias", o)


def experts(t, p, h, i, n, fused):
    if fused:
        t.product(p + "experts.gate_up_proj", n, 2 * i, h)
        t.product(p + "experts.down_proj", n, h, i)
    else:
        for e in range(n):
            mlp(t, f"{p}experts.{e}.", h, i)


def top(t, c):
    h = c["hidden_size"]
    t.v.append(["model.embed_tokens.weight", t.dtype, [c["vocab_size"], h], 0, 1.7])
    t.norm("model.norm.weight", h)
    if not c.get("tie_word_embeddings"):
        t.product("lm_head.weight", c["vocab_size"], h, gain=2.0, quant=False)


def dense_tensors(c, t, fused=False):
    h, nh, nkv = c["hidden_size"], c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
    hd = c.get("head_dim") or h // nh
    kind = c["model_type"]
    top(t, c)
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        t.norm(p + "input_layernorm.weight", h)
        t.norm(p + "post_attention_layernorm.weight", h)
        for n, o, k in (("q_proj", nh * hd, h), ("k_proj", nkv * hd, h), ("v_proj", nkv * hd, h), ("o_proj", h, nh * hd)):
            t.product(f"{p}self_attn.{n}.weight", o, k)
            if c.get("attention_bias") or (kind == "qwen2" and n != "o_proj"):
                t.bias(f"{p}self_attn.{n}.bias", o)
        if kind in ("qwen3", "qwen3_moe"):
            t.norm(p + "self_attn.q_norm.weight", hd)
            t.norm(p + "self_attn.k_norm.weight", hd)
        sparse = kind == "qwen3_moe" and l not in c["mlp_only_layers"] and (l + 1) % c["decoder_sparse_step"] == 0
        if sparse:
            t.product(p + "mlp.gate.weight", c["num_experts"], h, quant=False)
            experts(t, p + "mlp.", h, c["moe_intermediate_size"], c["num_experts"], fused)
        else:
            mlp(t, p + "mlp.", h, c["intermediate_size"], c.get("mlp_bias"))
    return t.v


def deepseek_tensors(c, t):
    h, nh = c["hidden_size"], c["num_attention_heads"]
    qk, kv, v = c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["kv_lora_rank"], c["v_head_dim"]
    bias = c.get("attention_bias")

    def layer(l):
        p = f"model.layers.{l}."
        a = p + "self_attn."
        t.norm(p + "input_layernorm.weight", h)
        t.norm(p + "post_attention_layernorm.weight", h)
        if c.get("q_lora_rank"):
            t.product(a + "q_a_proj.weight", c["q_lora_rank"], h)
            t.norm(a + "q_a_layernorm.weight", c["q_lora_rank"])
            t.product(a + "q_b_proj.weight", nh * qk, c["q_lora_rank"])
            if bias:
                t.bias(a + "q_a_proj.bias", c["q_lora_rank"])
        else:
            t.product(a + "q_proj.weight", nh * qk, h)
        t.product(a + "kv_a_proj_with_mqa.weight", kv + c["qk_rope_head_dim"], h)
        t.norm(a + "kv_a_layernorm.weight", kv)
        t.product(a + "kv_b_proj.weight", nh * (c["qk_nope_head_dim"] + v), kv)
        t.product(a + "o_proj.weight", h, nh * v)
        if bias:
            t.bias(a + "kv_a_proj_with_mqa.bias", kv + c["qk_rope_head_dim"])
            t.bias(a + "o_proj.bias", h)
        if l < c["first_k_dense_replace"]:
            mlp(t, p + "mlp.", h, c["intermediate_size"])
            return
        t.product(p + "mlp.gate.weight", c["n_routed_experts"], h, quant=False)
        if c["model_type"] != "deepseek_v2":
            t.bias(p + "mlp.gate.e_score_correction_bias", c["n_routed_experts"], 0.3, "F32")
        mlp(t, p + "mlp.shared_experts.", h, c["n_shared_experts"] * c["moe_intermediate_size"])
        experts(t, p + "mlp.", h, c["moe_intermediate_size"], c["n_routed_experts"], False)

    top(t, c)
    for l in range(c["num_hidden_layers"]):
        layer(l)
    for k in range(c.get("num_nextn_predict_layers", 0)):
        l = c["num_hidden_layers"] + k
        p = f"model.layers.{l}."
        layer(l)
        for n in ("enorm", "hnorm", "shared_head.norm"):
            t.norm(p + n + ".weight", h)
        t.product(p + "eh_proj.weight", h, 2 * h, quant=False)
    return t.v


# ---- variants ----

def dense(arch, kind, **kw):
    c = dict(architectures=[arch], model_type=kind, hidden_act="silu", hidden_size=72, intermediate_size=100,
             num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=256,
             rms_norm_eps=1e-5, vocab_size=131, bos_token_id=1, eos_token_id=2, torch_dtype="bfloat16",
             initializer_range=0.02, use_cache=True, attention_dropout=0.0, tie_word_embeddings=False)
    c.update(kw)
    return c


def deep(version, **kw):
    c = dict(architectures=[f"DeepseekV{version}ForCausalLM"], model_type=f"deepseek_v{version}", hidden_act="silu",
             hidden_size=72, intermediate_size=112, moe_intermediate_size=28, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=4, q_lora_rank=36, kv_lora_rank=40, qk_nope_head_dim=14,
             qk_rope_head_dim=8, v_head_dim=18, n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=4,
             first_k_dense_replace=1, moe_layer_freq=1, max_position_embeddings=256, rms_norm_eps=1e-6,
             vocab_size=131, bos_token_id=0, eos_token_id=1, torch_dtype="bfloat16", attention_bias=False,
             attention_dropout=0.0, tie_word_embeddings=False, rope_theta=10000, aux_loss_alpha=0.001, seq_aux=True,
             ep_size=1, pretraining_tp=1, initializer_range=0.02, use_cache=True)
    c.update(kw)
    return c


def yarn(m, **kw):
    return dict(type="yarn", factor=4, original_max_position_embeddings=64, beta_fast=32, beta_slow=1, mscale=m,
                mscale_all_dim=m, **kw)


V3 = dict(n_group=4, topk_group=2, topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True,
          routed_scaling_factor=2.5)
FP8 = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128])
LL, Q2, Q3, QM = ("LlamaForCausalLM", "llama"), ("Qwen2ForCausalLM", "qwen2"), ("Qwen3ForCausalLM", "qwen3"), (
    "Qwen3MoeForCausalLM", "qwen3_moe")
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
MOE = dict(num_experts=12, num_experts_per_tok=3, moe_intermediate_size=36, decoder_sparse_step=1, mlp_only_layers=[],
           head_dim=16, rope_theta=10000.0, router_aux_loss_coef=0.001, output_router_logits=False)


def variants():
    def d(c, fused=False, **kw):
        return c, dense_tensors(c, Tensors(**kw), fused)

    def x(c, **kw):
        return c, deepseek_tensors(c, Tensors(**kw))

    return {
        "llama2": d(dense(*LL, num_key_value_heads=6, rope_theta=10000.0, rope_scaling=None, pretraining_tp=1)),
        "llama3": d(dense(*LL, rope_theta=5000.0, rope_scaling=dict(rope_type="llama3", **LLAMA3))),
        "llama-linear": d(dense(*LL, head_dim=20, rope_parameters=dict(rope_type="linear", factor=4.0,
                                                                       rope_theta=10000.0)), dtype="F16"),
        "llama-yarn": d(dense(*LL, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rope_theta=10000.0,
                              rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=64))),
        "llama-tied": d(dense(*LL, tie_word_embeddings=True, rope_theta=100000, hidden_size=72, num_attention_heads=9,
                              num_key_value_heads=3), dtype="F32"),
        "qwen2": d(dense(*Q2, rope_theta=1000000.0, use_sliding_window=False, sliding_window=32, max_window_layers=3,
                         tie_word_embeddings=True)),
        "qwen2-yarn": d(dense(*Q2, use_sliding_window=False, rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64, truncate=False,
            attention_factor=1.3, beta_fast=24, beta_slow=2))),
        "qwen2-window": d(dense(*Q2, rope_theta=10000.0, use_sliding_window=True, sliding_window=24,
                                max_window_layers=1)),
        "qwen3": d(dense(*Q3, head_dim=16, rope_theta=1000000, rms_norm_eps=1e-6, attention_bias=False)),
        "qwen3-window": d(dense(*Q3, head_dim=16, attention_bias=True, use_sliding_window=True, sliding_window=20,
                                max_window_layers=0,
                                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=10000.0))),
        "qwen3-moe": d(dense(*QM, **MOE, norm_topk_prob=True)),
        "qwen3-moe-fused": d(dense(*QM, **{**MOE, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
                                   norm_topk_prob=False, rope_scaling=dict(type="llama3", **LLAMA3))
                             | dict(num_hidden_layers=6), fused=True),
        "ds-v2-lite": x(deep(2, q_lora_rank=None, n_shared_experts=2, topk_method="greedy", scoring_func="softmax",
                             n_group=1, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0,
                             rope_scaling=yarn(0.707))),
        "ds-v2": x(deep(2, n_shared_experts=2, topk_method="group_limited_greedy", scoring_func="softmax", n_group=4,
                        topk_group=2, norm_topk_prob=False, routed_scaling_factor=4.0, rope_scaling=yarn(1.0))),
        "ds-v3": x(deep(3, **V3, rope_scaling=yarn(1.0), num_nextn_predict_layers=1)),
        "ds-v3-half": x(deep(3, **{**V3, "norm_topk_prob": False, "routed_scaling_factor": 1.2}, q_lora_rank=None,
                             attention_bias=True, rope_interleave=False,
                             rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=10000.0))),
        "ds-v3-llama3": x(deep(3, **V3, n_shared_experts=2, first_k_dense_replace=0,
                               rope_scaling=dict(rope_type="llama3", **LLAMA3))),
        "ds-v3-default": x(deep(3, **V3, tie_word_embeddings=True), dtype="F16"),
        "kimi-k2": x(deep(3, **{**V3, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827}, rms_norm_eps=1e-5,
                          rope_scaling=dict(yarn(1.0), beta_fast=1.0, beta_slow=1.0, factor=32.0)) |
                     dict(model_type="kimi_k2", rope_theta=50000.0, num_nextn_predict_layers=0)),
        "ds-v3-fp8": x(deep(3, **V3, rope_scaling=yarn(1.0), num_nextn_predict_layers=1, hidden_size=160,
                            intermediate_size=288, moe_intermediate_size=128, num_hidden_layers=2, q_lora_rank=128,
                            kv_lora_rank=136, qk_nope_head_dim=48, qk_rope_head_dim=16, v_head_dim=40,
                            num_attention_heads=4, n_routed_experts=8, num_experts_per_tok=3,
                            quantization_config=FP8), fp8=True),
        "qwen3-fp8": d(dense(*Q3, head_dim=32, hidden_size=192, intermediate_size=320, num_hidden_layers=2,
                             rope_theta=1000000, quantization_config=dict(FP8, modules_to_not_convert=["lm_head"])),
                       fp8=True, scale_dtype="BF16"),
    }


PROMPT_LENGTHS = (9, 33, 150)


def prompts_of(vocab, lengths):
    return [[int(z % np.uint64(vocab)) for z in hash_u64(f"prompt {k}", n)] for k, n in enumerate(lengths)]


# ---- transformers ----

def dequantised(tensors):
    w = {t[0]: values(t) for t in tensors}
    for t in tensors:
        s = w.pop(t[0] + "_scale_inv", None)
        if s is not None:
            o, i = t[2]
            w[t[0]] *= s.repeat_interleave(128, 0)[:o].repeat_interleave(128, 1)[:, :i]
    return {k: v.contiguous() for k, v in w.items()}


def load_reference(config, weights):
    config = {k: v for k, v in config.items() if k not in ("quantization_config", "torch_dtype")}
    if config["model_type"] == "kimi_k2":
        config["model_type"] = "deepseek_v3"
    with tempfile.TemporaryDirectory() as dir_:
        with open(os.path.join(dir_, "config.json"), "w") as f:
            json.dump(config, f)
        save_file(weights, os.path.join(dir_, "model.safetensors"), metadata={"format": "pt"})
        m, info = AutoModelForCausalLM.from_pretrained(dir_, dtype=torch.float32, attn_implementation="eager",
                                                       output_loading_info=True)
    n = config["num_hidden_layers"]
    odd = [k for k in info["unexpected_keys"] if not k.startswith(f"model.layers.{n}.")]
    missing = [k for k in info["missing_keys"] if not (k.startswith("lm_head") and config["tie_word_embeddings"])]
    assert not missing and not odd and not info["mismatched_keys"], info
    return m.eval()


def records(m, prompts):
    out, spread, cols = b"", [], np.arange(8) * 17
    for ids in prompts:
        with torch.no_grad():
            logits = m(torch.tensor([ids])).logits[0].double()
        spread.append(logits.std(-1).mean().item())
        lp = torch.log_softmax(logits, -1).float().numpy()
        vocab = lp.shape[1]
        for pos, row in enumerate(lp):
            best = np.argsort(-row, kind="stable")[:4]
            out += best.astype("<u2").tobytes() + row[best].astype("<f4").tobytes()
            out += row[(31 * pos + cols) % vocab].astype("<f4").tobytes()
    return out, min(spread)


def write(name, doc, m):
    data, spread = records(m, doc["prompts"])
    assert spread >= 1, (name, spread)
    with open(os.path.join(OUT, name + ".bin"), "wb") as f:
        f.write(data)
    with open(os.path.join(OUT, name + ".json"), "w") as f:
        f.write("{" + ",\n ".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in doc.items())
                + "}\n")
    print(f"{name}: {len(data)} bytes, logit spread {spread:.2f}")


def main():
    os.makedirs(OUT, exist_ok=True)
    torch.manual_seed(0)
    every = variants()
    want = sys.argv[1:] or [*every, "demo", "demo-qwen3"]
    for name in want:
        if name in every:
            config, tensors = every[name]
            doc = dict(config=config, tensors=tensors, prompts=prompts_of(config["vocab_size"], PROMPT_LENGTHS))
            write(name, doc, load_reference(config, dequantised(tensors)))
            continue
        src = os.path.join(ROOT, "configs/models", name)
        with open(os.path.join(src, "config.json")) as f:
            config = json.load(f)
        weights = {k: v.float() for k, v in load_file(os.path.join(src, "model.safetensors")).items()}
        longest = (config.get("rope_scaling") or {}).get("original_max_position_embeddings", 300) + 76
        with open(os.path.abspath(__file__), encoding="utf-8") as f:
            ids = Tokenizer.from_file(os.path.join(src, "tokenizer.json")).encode(f.read()).ids
        prompts = [ids[50:62], ids[200:270], ids[:longest]]
        raw = np.fromfile(os.path.join(src, "model.safetensors"), np.uint8)
        words = np.pad(raw, (0, -len(raw) % 8)).view("<u8")
        doc = dict(dir="configs/models/" + name, words=f"{int(words.sum(dtype=np.uint64)):016x}", prompts=prompts)
        write(name, doc, load_reference(config, weights))


main()
