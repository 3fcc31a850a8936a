#!/usr/bin/env python3
"""Golden rows of the drafters that share the target's states: the next-token layer (MTP) of
configs/models/demo and the EAGLE-3 layer of configs/models/demo-qwen3-eagle3.

usage: make_draft_goldens.py [mtp] [eagle3]      needs torch, transformers, safetensors, numpy

The target runs in transformers (fp32, eager, CPU); the drafters are computed here, one row after the
other with a list of keys, from the published descriptions and the stored tensors. Both are checked
against a second implementation before anything is written: MTP against transformers' own DeepSeek-V3
layer given the same weights, EAGLE-3 against the training code. Layout of what is written and the
conventions: test/data/draft/README.md. Make it again when one of the models changes.
"""
import copy
import json
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT + "/scripts/train")
OUT = ROOT + "/test/data/draft/"
MODELS = "configs/models/"
TOKENS, STEPS, TOP, COLS = 48, 2, 4, 8
TEXT = ("<|im_start|>user\nWhat is 12 + 7?<|im_end|>\n<|im_start|>assistant\n12 + 7 = 19.<|im_end|>\n"
        "<|im_start|>user\nWhat is a server?<|im_end|>\n<|im_start|>assistant\nA server is a program that accepts a "
        "connection and returns the result of the request.")


def words(path):
    """Sum of the file's 64-bit words: tells that a model changed (test/model/gen.c does the same)."""
    raw = np.fromfile(path, np.uint8)
    return f"{int(np.pad(raw, (0, -len(raw) % 8)).view('<u8').sum(dtype=np.uint64)):016x}"


def weights(folder):
    with open(f"{ROOT}/{MODELS}{folder}/config.json") as f:
        return json.load(f), {k: v.float() if v.is_floating_point() else v
                              for k, v in load_file(f"{ROOT}/{MODELS}{folder}/model.safetensors").items()}


def norm(x, w, eps):
    return x / torch.sqrt((x * x).mean() + eps) * w


class Mtp:
    """DeepSeek-V3's next-token layer, one row a call. MLA in its plain form: keys and values per head."""

    def __init__(self):
        self.c, self.w = weights("demo")
        c, r = self.c, self.c["rope_scaling"]
        self.keys, self.vals = [], []
        d, base, log = c["qk_rope_head_dim"], c["rope_theta"], np.log
        inv = base ** (-np.arange(0, d, 2) / d)
        turn = lambda rot: d * log(r["original_max_position_embeddings"] / (rot * 2 * np.pi)) / (2 * log(base))
        lo, hi = max(np.floor(turn(r["beta_fast"])), 0), min(np.ceil(turn(r["beta_slow"])), d - 1)
        ramp = np.clip((np.arange(d // 2) - lo) / max(hi - lo, 0.001), 0, 1)
        self.inv = torch.tensor(inv / r["factor"] * ramp + inv * (1 - ramp))
        ms = lambda m: 1 if r["factor"] <= 1 else 0.1 * m * log(r["factor"]) + 1
        self.size = ms(r["mscale"]) / ms(r["mscale_all_dim"])               # of cos and sin
        self.scale = (c["qk_nope_head_dim"] + d) ** -0.5 * ms(r["mscale_all_dim"]) ** 2

    def t(self, name):
        return self.w[f"model.layers.{self.c['num_hidden_layers']}.{name}.weight"]

    def rope(self, x, pos):                                                 # pairs (2i, 2i+1)
        a = pos * self.inv
        cos, sin = (a.cos() * self.size).float(), (a.sin() * self.size).float()
        out = torch.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 1::2] * cos + x[..., 0::2] * sin
        return out

    def attention(self, y, pos):
        c, a = self.c, "self_attn."
        n, dn, dv = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
        q = (self.t(a + "q_b_proj") @ norm(self.t(a + "q_a_proj") @ y, self.t(a + "q_a_layernorm"), 1e-6)).view(n, -1)
        kv = self.t(a + "kv_a_proj_with_mqa") @ y
        latent = norm(kv[:c["kv_lora_rank"]], self.t(a + "kv_a_layernorm"), 1e-6)
        kpe = self.rope(kv[c["kv_lora_rank"]:], pos)
        up = (self.t(a + "kv_b_proj") @ latent).view(n, dn + dv)
        self.keys.append(torch.cat((up[:, :dn], kpe.expand(n, -1)), 1))
        self.vals.append(up[:, dn:])
        q = torch.cat((q[:, :dn], self.rope(q[:, dn:], pos)), 1)
        p = torch.softmax(torch.einsum("hd,jhd->hj", q, torch.stack(self.keys)) * self.scale, 1)
        return self.t(a + "o_proj") @ torch.einsum("hj,jhd->hd", p, torch.stack(self.vals)).flatten()

    def ffn(self, y, p):
        return self.t(p + "down_proj") @ (F.silu(self.t(p + "gate_proj") @ y) * (self.t(p + "up_proj") @ y))

    def moe(self, y):
        c = self.c
        s = torch.sigmoid(self.t("mlp.gate") @ y)
        pick = s + self.w[f"model.layers.{c['num_hidden_layers']}.mlp.gate.e_score_correction_bias"]
        group = pick.view(c["n_group"], -1).sort(1, descending=True)[0][:, :2].sum(1)
        for g in group.sort()[1][:c["n_group"] - c["topk_group"]].tolist():
            pick.view(c["n_group"], -1)[g] = -torch.inf
        chosen = pick.sort(descending=True)[1][:c["num_experts_per_tok"]]
        w = s[chosen] / (s[chosen].sum() + 1e-20) * c["routed_scaling_factor"]
        return self.ffn(y, "mlp.shared_experts.") + sum(v * self.ffn(y, f"mlp.experts.{e}.")
                                                        for v, e in zip(w, chosen.tolist()))

    def row(self, token, feature, pos):
        eps = self.c["rms_norm_eps"]
        e = norm(self.w["model.embed_tokens.weight"][token], self.t("enorm"), eps)
        x = self.t("eh_proj") @ torch.cat((e, norm(feature, self.t("hnorm"), eps)))
        x = x + self.attention(norm(x, self.t("input_layernorm"), eps), pos)
        x = x + self.moe(norm(x, self.t("post_attention_layernorm"), eps))
        return norm(x, self.t("shared_head.norm"), eps)                     # also the next feature

    def logits(self, out):
        return self.w["model.embed_tokens.weight"] @ out

    def target_id(self, i):
        return i

    def check(self, hf, ids, feat, out):
        """The same layer built from transformers' parts."""
        layer = copy.deepcopy(hf.model.layers[-1])
        p = f"model.layers.{self.c['num_hidden_layers']}."
        sd = layer.state_dict()
        for k in sd:
            if k.endswith("mlp.experts.gate_up_proj") or k.endswith("mlp.experts.down_proj"):
                one = lambda n: torch.stack([self.w[f"{p}mlp.experts.{e}.{n}.weight"] for e in range(sd[k].shape[0])])
                sd[k] = torch.cat((one("gate_proj"), one("up_proj")), 1) if "gate_up" in k else one("down_proj")
            else:
                sd[k] = self.w[p + k]
        layer.load_state_dict(sd)
        eps = self.c["rms_norm_eps"]
        x = torch.stack([self.t("eh_proj") @ torch.cat((norm(self.w["model.embed_tokens.weight"][t], self.t("enorm"), eps),
                                                        norm(h, self.t("hnorm"), eps))) for t, h in zip(ids[1:], feat)])[None]
        pos = torch.arange(x.shape[1])[None]
        mask = torch.full((x.shape[1],) * 2, -torch.inf).triu(1)[None, None]
        y = layer(x, attention_mask=mask, position_ids=pos, position_embeddings=hf.model.rotary_emb(x, pos))
        y = (y[0] if isinstance(y, tuple) else y).reshape(x.shape[1:])
        return (torch.stack([norm(r, self.t("shared_head.norm"), eps) for r in y]) - out).abs().max().item()


class Eagle3:
    """The EAGLE-3 layer, one row a call."""

    def __init__(self):
        self.c, self.w = weights("demo-qwen3-eagle3")
        self.embed = weights("demo-qwen3")[1]["model.embed_tokens.weight"]
        self.keys, self.vals = [], []
        d = self.c["head_dim"]
        self.inv = self.c["rope_theta"] ** -(torch.arange(0, d, 2, dtype=torch.float64) / d)

    def rope(self, x, pos):                                                 # pairs (i, i + d/2)
        cos, sin = (pos * self.inv).cos().float(), (pos * self.inv).sin().float()
        a, b = x[:, :x.shape[1] // 2], x[:, x.shape[1] // 2:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), 1)

    def row(self, token, feature, pos):
        c, eps, t = self.c, self.c["rms_norm_eps"], lambda n: self.w[f"midlayer.{n}.weight"]
        f = self.w["fc.weight"] @ feature if feature.shape[0] == 3 * c["target_hidden_size"] else feature
        y = torch.cat((norm(self.embed[token], t("input_layernorm"), eps), norm(f, t("hidden_norm"), eps)))
        q, k, v = ((t(f"self_attn.{n}_proj") @ y).view(-1, c["head_dim"]) for n in "qkv")
        self.keys.append(self.rope(k, pos))
        self.vals.append(v)
        q, out, per = self.rope(q, pos), [], c["num_attention_heads"] // c["num_key_value_heads"]
        for h in range(c["num_attention_heads"]):
            p = torch.softmax(torch.stack([k[h // per] @ q[h] for k in self.keys]) * c["head_dim"] ** -0.5, 0)
            out.append(p @ torch.stack([v[h // per] for v in self.vals]))
        x = f + t("self_attn.o_proj") @ torch.cat(out)
        y = norm(x, t("post_attention_layernorm"), eps)
        return x + t("mlp.down_proj") @ (F.silu(t("mlp.gate_proj") @ y) * (t("mlp.up_proj") @ y))   # the next feature

    def logits(self, out):
        return self.w["lm_head.weight"] @ norm(out, self.w["norm.weight"], self.c["rms_norm_eps"])

    def target_id(self, i):
        return i + int(self.w["d2t"][i])

    def check(self, hf, ids, feat, out):
        import eagle3 as E
        m, e3 = E.load_target(), E.load_draft(ROOT + "/" + MODELS + "demo-qwen3-eagle3")
        mine = E.states(m, ids[None])[1][0]
        rows = e3.depths(m, ids[None], mine[None, :-1], 1)[0][0]
        return max((mine - feat).abs().max().item() / feat.abs().max().item(), (rows - out).abs().max().item())


def make(name, target, folder, draft, feature_of):
    src = f"{ROOT}/{MODELS}{target}"
    hf = AutoModelForCausalLM.from_pretrained(src, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.tensor(Tokenizer.from_file(src + "/tokenizer.json").encode(TEXT, add_special_tokens=False).ids[:TOKENS])
    assert len(ids) == TOKENS
    feat = feature_of(hf(ids[None], output_hidden_states=True))
    out = torch.stack([draft.row(ids[i], feat[i - 1], i - 1) for i in range(1, TOKENS)])
    worst = draft.check(hf, ids, feat[:TOKENS], out)
    assert worst < 1e-4, worst
    lp = torch.stack([torch.log_softmax(draft.logits(o).double(), 0).float() for o in out])
    top = [np.argsort(-r.numpy(), kind="stable")[:TOP] for r in lp]
    cols = (31 * torch.arange(TOKENS - 1)[:, None] + 17 * torch.arange(COLS)) % lp.shape[1]
    chain_tok, chain_out, chain_lp = [], [], [lp[-1]]
    for s in range(STEPS):
        chain_tok.append(draft.target_id(int(chain_lp[-1].argmax())))
        chain_out.append(draft.row(chain_tok[-1], chain_out[-1] if s else out[-1], TOKENS - 1 + s))
        chain_lp.append(torch.log_softmax(draft.logits(chain_out[-1]).double(), 0).float())
    data = dict(tokens=ids.int(), feature=feat.contiguous(), out=out,
                top_id=torch.tensor([[draft.target_id(int(i)) for i in r] for r in top]).int(),
                top_lp=torch.stack([r[torch.from_numpy(t)] for r, t in zip(lp, top)]), col_lp=lp.gather(1, cols),
                chain_token=torch.tensor(chain_tok).int(), chain_out=torch.stack(chain_out), chain_lp=torch.stack(chain_lp))
    os.makedirs(OUT, exist_ok=True)
    save_file(data, OUT + name + ".safetensors")
    doc = dict(target=MODELS + target, target_words=words(src + "/model.safetensors"), draft=MODELS + folder,
               draft_words=words(f"{ROOT}/{MODELS}{folder}/model.safetensors"), text=TEXT)
    with open(OUT + name + ".json", "w") as f:
        f.write("{" + ",\n ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in doc.items()) + "}\n")
    agree = sum(int(r[0]) == int(t) for r, t in zip(data["top_id"][:-1], ids[2:]))
    print(f"{name}: {os.path.getsize(OUT + name + '.safetensors')} bytes, second implementation within {worst:.1e}, "
          f"best token right in {agree} of {TOKENS - 2} rows, chain {chain_tok}")


@torch.no_grad()
def main():
    want = sys.argv[1:] or ["mtp", "eagle3"]
    if "mtp" in want:
        make("mtp", "demo", "demo", Mtp(), lambda o: o.hidden_states[-1][0])
    if "eagle3" in want:
        d = Eagle3()
        ids = d.c["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        make("eagle3", "demo-qwen3", "demo-qwen3-eagle3", d, lambda o: torch.cat([o.hidden_states[i][0] for i in ids], 1))


main()
