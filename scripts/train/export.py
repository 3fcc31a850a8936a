#!/usr/bin/env python3
"""Turns a checkpoint of train.py into a released folder: model.safetensors (bf16) and the JSON files.

    python3 export.py --model demo|qwen3 --out configs/models/demo CHECKPOINT.pt...
"""
import argparse, json
import torch
from safetensors.torch import save_file

import model as M

COMMON = {"attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0,
          "hidden_act": "silu", "initializer_range": 0.02, "rms_norm_eps": 1e-06, "tie_word_embeddings": True,
          "torch_dtype": "bfloat16", "use_cache": True}


def demo_config(c=M.DEMO):
    return dict(COMMON, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", vocab_size=c["vocab"],
                hidden_size=c["hidden"], intermediate_size=c["dense_ffn"], moe_intermediate_size=c["moe_ffn"],
                num_hidden_layers=c["layers"], num_nextn_predict_layers=1, first_k_dense_replace=c["dense_layers"],
                moe_layer_freq=1, num_attention_heads=c["heads"], num_key_value_heads=c["heads"],
                q_lora_rank=c["q_lora"], kv_lora_rank=c["kv_lora"], qk_nope_head_dim=c["nope"], qk_rope_head_dim=c["rope"],
                v_head_dim=c["vdim"], n_routed_experts=c["experts"], n_shared_experts=1, num_experts_per_tok=c["topk"],
                n_group=c["groups"], topk_group=c["topk_group"], topk_method="noaux_tc", scoring_func="sigmoid",
                norm_topk_prob=True, routed_scaling_factor=c["scaling"], max_position_embeddings=c["max_pos"],
                rope_theta=c["theta"], rope_interleave=True,
                rope_scaling={"type": "yarn", "factor": c["factor"], "beta_fast": c["beta_fast"], "beta_slow": c["beta_slow"],
                              "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": c["original"]})


def qwen3_config(c=M.QWEN3):
    return dict(COMMON, architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=c["vocab"],
                hidden_size=c["hidden"], intermediate_size=c["ffn"], num_hidden_layers=c["layers"],
                num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"], head_dim=c["head_dim"],
                max_position_embeddings=c["max_pos"], rope_theta=c["theta"], rope_scaling=None,
                use_sliding_window=False, sliding_window=None, max_window_layers=c["layers"])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", choices=["demo", "qwen3"], required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--config-only", action="store_true")
    ap.add_argument("files", nargs="*")
    a = ap.parse_args()
    cfg = demo_config() if a.model == "demo" else qwen3_config()
    json.dump(dict(sorted(cfg.items())), open(f"{a.out}/config.json", "w"), indent=2)
    json.dump({"do_sample": False, "eos_token_id": [2, 0], "pad_token_id": 0}, open(f"{a.out}/generation_config.json", "w"), indent=2)
    for f in ("config.json", "generation_config.json"):
        open(f"{a.out}/{f}", "a").write("\n")
    if a.config_only:
        return
    sd = {}
    for f in a.files:
        sd.update(torch.load(f, map_location="cpu"))
    want = M.hf_tensors(M.Demo() if a.model == "demo" else M.DemoQwen3())
    assert sorted(sd) == sorted(want)
    out = {}
    for k, v in sd.items():
        assert v.shape == want[k].shape and torch.isfinite(v.float()).all(), k
        if k.endswith("e_score_correction_bias"):
            assert v.min() >= 0, "a negative bias would let the -inf and the 0.0 form of the group mask differ"
            out[k] = v.float().contiguous()
        else:
            out[k] = v.to(torch.bfloat16).contiguous()
    save_file(out, f"{a.out}/model.safetensors", metadata={"format": "pt"})
    print(sum(v.numel() for v in out.values()), "parameters")


if __name__ == "__main__":
    main()
