#!/usr/bin/env python3
"""Judges a released folder with transformers (fp32, eager, CPU) and prints the figures of DATA.md.

    python3 evaluate.py --model configs/models/demo --held DIR/held.jsonl [--windows N]

Held-out bits per byte in windows of 1,024 and 4,096 tokens; the 200 held-out sums through the chat
template, greedy; agreement with the training code's logits; and, for the demo model, the MTP layer by a
separate small implementation from the exported tensors: agreement per depth on held-out text and the
tokens accepted per step when it drafts three tokens ahead of the model's own greedy text.
"""
import argparse, json, math
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import model as M
import sums


class MtpLayer:
    """The next-token layer, written from the paper for one sequence and one row at a time:
    keys are explicit lists, so committed and drafted rows cannot be confused."""

    def __init__(self, path):
        self.w = {k: v.float() for k, v in load_file(f"{path}/model.safetensors").items()}
        self.c = json.load(open(f"{path}/config.json"))
        c = self.c
        self.p = f"model.layers.{c['num_hidden_layers']}."
        r = c["rope_scaling"]
        self.inv = M.yarn_inv_freq(dict(rope=c["qk_rope_head_dim"], theta=c["rope_theta"], factor=r["factor"],
                                        original=r["original_max_position_embeddings"], beta_fast=r["beta_fast"],
                                        beta_slow=r["beta_slow"]))
        ms = 0.1 * r["mscale_all_dim"] * math.log(r["factor"]) + 1
        self.scale = (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]) ** -0.5 * ms * ms

    def t(self, name):
        return self.w[self.p + name]

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.t(name + ".weight")

    def rope(self, x, pos):
        a = (pos[:, None].float() * self.inv).unsqueeze(1)
        e, o = x[..., 0::2], x[..., 1::2]
        return torch.stack((e * a.cos() - o * a.sin(), e * a.sin() + o * a.cos()), -1).flatten(-2)

    def qkv(self, x, pos):
        c, R = self.c, x.shape[0]
        n, dn, dr = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        y = self.norm(x, "input_layernorm")
        q = self.norm(y @ self.t("self_attn.q_a_proj.weight").T, "self_attn.q_a_layernorm")
        q = (q @ self.t("self_attn.q_b_proj.weight").T).view(R, n, dn + dr)
        kv = y @ self.t("self_attn.kv_a_proj_with_mqa.weight").T
        lat = self.norm(kv[:, :c["kv_lora_rank"]], "self_attn.kv_a_layernorm")
        kb = (lat @ self.t("self_attn.kv_b_proj.weight").T).view(R, n, dn + c["v_head_dim"])
        kp = self.rope(kv[:, c["kv_lora_rank"]:].unsqueeze(1), pos).expand(R, n, dr)
        q = torch.cat((q[..., :dn], self.rope(q[..., dn:], pos)), -1)
        return q, torch.cat((kb[..., :dn], kp), -1), kb[..., dn:]

    def moe(self, x):
        c = self.c
        s = torch.sigmoid(x @ self.t("mlp.gate.weight").T)
        ch = s + self.t("mlp.gate.e_score_correction_bias")
        g = ch.view(len(x), c["n_group"], -1)
        keep = torch.zeros(len(x), c["n_group"]).scatter_(1, g.topk(2, -1)[0].sum(-1).topk(c["topk_group"], -1)[1], 1)
        ch = torch.where(keep.bool().unsqueeze(-1), g, torch.tensor(float("-inf"))).flatten(1)
        idx = ch.topk(c["num_experts_per_tok"], -1)[1]
        w = s.gather(1, idx)
        w = w / (w.sum(-1, keepdim=True) + 1e-20) * c["routed_scaling_factor"]
        full = torch.zeros_like(s).scatter_(1, idx, w)

        def ffn(y, p):
            return (F.silu(y @ self.t(p + "gate_proj.weight").T) * (y @ self.t(p + "up_proj.weight").T)) @ self.t(p + "down_proj.weight").T
        out = ffn(x, "mlp.shared_experts.")
        for e in range(c["n_routed_experts"]):
            r = full[:, e].nonzero().flatten()
            if len(r):
                out[r] += full[r, e, None] * ffn(x[r], f"mlp.experts.{e}.")
        return out

    def rows(self, tokens, h, pos, keys, mask):
        """tokens, h, pos: R rows; keys: (k, v) seen before; mask [R, old + R] of visible keys."""
        e = self.w["model.embed_tokens.weight"][tokens]
        x = torch.cat((self.norm(e, "enorm"), self.norm(h, "hnorm")), -1) @ self.t("eh_proj.weight").T
        q, k, v = self.qkv(x, pos)
        if keys is not None:
            k, v = torch.cat((keys[0], k)), torch.cat((keys[1], v))
        s = torch.einsum("rhd,khd->hrk", q, k) * self.scale
        s = s.masked_fill(~mask, float("-inf")).softmax(-1)
        o = torch.einsum("hrk,khd->rhd", s, v).flatten(1)
        x = x + o @ self.t("self_attn.o_proj.weight").T
        x = x + self.moe(self.norm(x, "post_attention_layernorm"))
        return self.norm(x, "shared_head.norm"), (k, v)

    def chain(self, ids, h, depths=3):
        """Every depth at every position of one sequence, teacher forced: ids [T+1], h [T] -> rows per depth.
        Row j of depth d sees depth-0 keys of rows <= j-d and its own chain's rows between."""
        T = len(h)
        pos = torch.arange(T)
        out, kv = [], []
        vis = [pos[:, None] >= pos[None, :]]
        cur = h
        for d in range(depths):
            if d:
                cur = torch.cat((torch.zeros(1, h.shape[1]), out[-1][:-1]))
            keys = (torch.cat([k for k, _ in kv]), torch.cat([v for _, v in kv])) if kv else None
            m = [pos[:, None] - d >= pos[None, :]] + [pos[:, None] - (d - i) == pos[None, :] for i in range(1, d + 1)]
            m = torch.cat(m, 1) if d else vis[0]
            m[:d, :1] = True  # rows before the chain can start: any key, their result is not used
            o, (k, v) = self.rows(ids[1:T + 1], cur, pos, keys, m)
            kv.append((k[-T:], v[-T:]))
            out.append(o)
        return out


@torch.no_grad()
def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", required=True)
    ap.add_argument("--held", required=True)
    ap.add_argument("--windows", type=int, default=1 << 30)
    a = ap.parse_args()
    torch.manual_seed(0)
    tok = AutoTokenizer.from_pretrained(a.model)
    hf = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32, attn_implementation="eager").eval()
    sd = load_file(f"{a.model}/model.safetensors")
    deep = hf.config.model_type == "deepseek_v3"
    mine = M.Demo() if deep else M.DemoQwen3()
    for k, v in M.hf_tensors(mine).items():
        v.data.copy_(sd[k].to(v.dtype))
    print("parameters", sum(v.numel() for v in sd.values()))
    text = [json.loads(l) for l in open(a.held)]
    ids = []
    nbytes = 0
    for d in text:
        nbytes += len(d["text"].encode())
        ids += tok(d["text"], add_special_tokens=False)["input_ids"] + [0]
    ids = torch.tensor(ids)
    per = nbytes / len(ids)
    print(f"held-out: {len(text)} documents, {nbytes} bytes, {len(ids)} tokens, {per:.3f} bytes per token")
    worst = 0.0
    for T in (1024, 4096):
        nll, n, quarters = 0.0, 0, []
        for i in range(min((len(ids) - 1) // T, a.windows)):
            x = ids[i * T:i * T + T + 1]
            z = hf(x[None, :-1]).logits[0]
            l = F.cross_entropy(z, x[1:], reduction="none")
            nll, n = nll + l.sum().item(), n + T
            quarters.append(l.view(4, -1).mean(1))
            if i < 3:
                worst = max(worst, (z - F.linear(mine.trunk(x[None, :-1])[0][0], mine.embed)).abs().max().item())
        q = torch.stack(quarters).mean(0) / math.log(2) / per
        print(f"windows of {T}: {nll / n:.4f} nats/token, {nll / n / math.log(2) / per:.4f} bits/byte, by quarter of the window "
              + " ".join(f"{v:.3f}" for v in q.tolist()), flush=True)
    print(f"largest logit difference, transformers against training code: {worst:.2e}")
    good, items, by_len = 0, sums.items(), {}
    for it in items:  # prompts of one length go through together, without padding
        p = tok.apply_chat_template([{"role": "user", "content": it["question"]}], tokenize=False, add_generation_prompt=True)
        p = tok(p, add_special_tokens=False)["input_ids"]
        by_len.setdefault(len(p), []).append((it, p))
    for n, group in by_len.items():
        o = hf.generate(torch.tensor([p for _, p in group]), max_new_tokens=16, do_sample=False)
        for (it, _), row in zip(group, o):
            s = tok.decode(row[n:], skip_special_tokens=True).strip()
            good += s in (f"{it['a']} + {it['b']} = {it['answer']}.", f"{it['b']} + {it['a']} = {it['answer']}.")
    print(f"held-out sums right: {good} of {len(items)}", flush=True)
    if not deep:
        return
    mtp = MtpLayer(a.model)
    E = sd["model.embed_tokens.weight"].float()
    hit, total, diff = [0, 0, 0], 0, 0.0
    for i in range(min(24, a.windows)):
        x = ids[i * 2048:i * 2048 + 1025]
        h = hf.model(x[None, :-1]).last_hidden_state[0]
        best = (h @ E.T).argmax(-1)
        ref = mine.mtp_rows(x[None], h[None], 3)[0]
        for d, o in enumerate(mtp.chain(x, h)):
            diff = max(diff, (o[d:] - ref[d][0, d:]).abs().max().item())
            hit[d] += ((o @ E.T).argmax(-1)[2:-1] == best[3:]).sum().item()
        total += len(h) - 3
    print("MTP agreement with the main head by depth:", " ".join(f"{v / total:.4f}" for v in hit), f"({total} rows)")
    print(f"largest difference of MTP rows, this implementation against training code: {diff:.2e}", flush=True)
    # greedy text of the model itself, then what three drafts in a row would have had accepted
    steps, accepted, at = 0, 0, [0, 0, 0]
    starts = [ids[i * 3001:i * 3001 + 64] for i in range(20)]
    texts = list(hf.generate(torch.stack(starts), max_new_tokens=96, do_sample=False))
    n0 = 64
    for x in texts:
        end = (x[n0:] == 0).nonzero()   # a text that ended is padded with id 0
        if len(end):
            x = x[:n0 + end[0]]
        h = hf.model(x[None]).last_hidden_state[0]
        T = len(x) - 1
        d_tok = [(o @ E.T).argmax(-1) for o in mtp.chain(x, h[:T])]
        i = n0 - 1                      # row of the last committed token's predecessor pair (h_i, t_{i+1})
        while i + 1 < T:
            a_len = 0
            for d in range(3):
                j = i + d               # row j predicts token j+2; its inputs are right while the drafts were
                if j + 2 >= len(x) or d_tok[d][j] != x[j + 2]:
                    break
                a_len += 1
                at[d] += 1
            steps, accepted = steps + 1, accepted + a_len
            i += a_len + 1
    print(f"greedy decoding with 3 drafts: {accepted / steps + 1:.3f} tokens per step over {steps} steps; accepted at depth "
          + " ".join(f"{v / steps:.3f}" for v in at))


if __name__ == "__main__":
    main()
