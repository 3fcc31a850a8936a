#!/usr/bin/env python3
"""The two demo architectures as plain PyTorch modules for training, and their Hugging Face names.

Demo: DeepSeek-V3 (MLA, sigmoid + bias routing in groups, shared expert, YaRN, one MTP layer).
DemoQwen3: Qwen3 dense. The maths follows the transformers implementations; at these widths all
experts are computed as one wide MLP whose hidden units are weighted per expert (0 where not chosen).
The MTP layer runs recurrently: row j of every depth consumes token j+1 at rope position j, its hidden
input is the target's post-final-norm row j (depth 0) or the row j-1 output of the depth before
(after shared_head.norm), its keys are depth 0's for committed rows and its own chain's after that.
"""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

DEMO = dict(vocab=4096, hidden=192, layers=5, dense_layers=1, dense_ffn=896, experts=16, topk=4, groups=4, topk_group=2,
            moe_ffn=48, heads=8, q_lora=96, kv_lora=64, nope=32, rope=16, vdim=32, scaling=1.5, eps=1e-6,
            theta=10000.0, factor=4.0, original=1024, max_pos=4096, beta_fast=32, beta_slow=1)
QWEN3 = dict(vocab=4096, hidden=192, layers=6, ffn=400, heads=8, kv_heads=2, head_dim=32, eps=1e-6, theta=100000.0,
             max_pos=4096)


def rms(x, w, eps=1e-6):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y * w).to(x.dtype)


def param(*shape, std=None):
    return nn.Parameter(torch.randn(*shape) * (std if std is not None else shape[-1] ** -0.5))


def yarn_inv_freq(c):
    """YaRN frequencies (Peng et al., 2023): interpolated below the ramp, kept above it."""
    d, base = c["rope"], c["theta"]
    f = base ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    extra, inter = 1 / f, 1 / (c["factor"] * f)
    dim = lambda rot: d * math.log(c["original"] / (rot * 2 * math.pi)) / (2 * math.log(base))
    lo, hi = max(math.floor(dim(c["beta_fast"])), 0), min(math.ceil(dim(c["beta_slow"])), d - 1)
    ramp = ((torch.arange(d // 2, dtype=torch.float64) - lo) / max(hi - lo, 0.001)).clamp(0, 1)
    return (inter * ramp + extra * (1 - ramp)).float()


def rope_table(inv, n, device):
    ang = torch.outer(torch.arange(n, device=device).float(), inv.to(device))
    return ang.cos(), ang.sin()


def rope_pairs(x, cos, sin):
    """Interleaved layout: (x0, x1), (x2, x3), ... rotate together. x [B,T,h,d], cos [T,d/2]."""
    y = x.float().unflatten(-1, (-1, 2))
    a, b = y[..., 0], y[..., 1]
    c, s = cos[None, :, None], sin[None, :, None]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2).to(x.dtype)


def rope_half(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    c, s = cos[None, :, None], sin[None, :, None]
    return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)


class MLA(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        H, n = c["hidden"], c["heads"]
        self.q_a_proj = param(c["q_lora"], H)
        self.q_a_layernorm = nn.Parameter(torch.ones(c["q_lora"]))
        self.q_b_proj = param(n * (c["nope"] + c["rope"]), c["q_lora"])
        self.kv_a_proj_with_mqa = param(c["kv_lora"] + c["rope"], H)
        self.kv_a_layernorm = nn.Parameter(torch.ones(c["kv_lora"]))
        self.kv_b_proj = param(n * (c["nope"] + c["vdim"]), c["kv_lora"])
        self.o_proj = param(H, n * c["vdim"], std=0.0)
        ms = 0.1 * math.log(c["factor"]) + 1.0
        self.scale = (c["nope"] + c["rope"]) ** -0.5 * ms * ms

    def qkv(self, x, cos, sin):
        """-> q, k [B,n,T,nope+rope], v padded to the same width (flash kernels want one width)."""
        c, (B, T, _) = self.c, x.shape
        n = c["heads"]
        q = F.linear(rms(F.linear(x, self.q_a_proj), self.q_a_layernorm), self.q_b_proj).view(B, T, n, -1)
        qn, qp = q.split([c["nope"], c["rope"]], -1)
        kv = F.linear(x, self.kv_a_proj_with_mqa)
        lat, kp = kv.split([c["kv_lora"], c["rope"]], -1)
        kb = F.linear(rms(lat, self.kv_a_layernorm), self.kv_b_proj).view(B, T, n, -1)
        kn, v = kb.split([c["nope"], c["vdim"]], -1)
        q = torch.cat((qn, rope_pairs(qp, cos, sin)), -1).transpose(1, 2)
        kp = rope_pairs(kp.unsqueeze(2), cos, sin).expand(B, T, n, c["rope"])
        k = torch.cat((kn, kp), -1).transpose(1, 2)
        v = F.pad(v, (0, c["nope"] + c["rope"] - c["vdim"])).transpose(1, 2)
        return q, k, v

    def out(self, o):
        o = o[..., :self.c["vdim"]].transpose(1, 2).flatten(2)
        return F.linear(o, self.o_proj)


def attend_committed(q, k0, v0, own, depth, vdim, scale):
    """Attention of draft depth `depth` >= 1: row j sees depth 0's keys of rows <= j-depth and the
    chain's own keys in `own` (one per row). Flash attention gives no differentiable LSE, so `depth` sink
    keys of score 0 stand in front: their value is 1 in column `vdim`, which returns the softmax mass."""
    B, n, T, D = q.shape
    ks = torch.cat((k0.new_zeros(B, n, depth, D), k0[:, :, :T - depth]), 2)
    sink = F.one_hot(torch.tensor(vdim, device=q.device), D).to(v0.dtype).expand(B, n, depth, D)
    vs = torch.cat((sink, v0[:, :, :T - depth]), 2)
    o = F.scaled_dot_product_attention(q, ks, vs, is_causal=True, scale=scale).float()
    mass = o[..., vdim:vdim + 1]
    num, den, u = o, 1 - mass, mass / depth      # u = 1 / (Z + depth), Z of the committed keys
    for k, v in own:
        e = u * torch.exp(((q.float() * k.float()).sum(-1, keepdim=True) * scale).clamp(max=60))
        num, den = num + e * v.float(), den + e
    return (num / den.clamp(min=1e-6)).to(q.dtype)


class MoE(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        H, E, W = c["hidden"], c["experts"], c["moe_ffn"]
        self.gate = param(E, H)
        self.register_buffer("bias", torch.zeros(E))
        self.e_gate, self.e_up = param(E, W, H), param(E, W, H)
        self.e_down = param(E, W, H, std=0.0)   # stored transposed: [expert, width, hidden]
        self.s_gate, self.s_up, self.s_down = param(W, H), param(W, H), param(H, W, std=0.0)

    def route(self, x):
        """-> weights [..., E] (0 where not chosen), chosen mask. Ranks by counting, which fuses well."""
        c = self.c
        with torch.autocast(x.device.type, enabled=False):
            s = torch.sigmoid(F.linear(x.float(), self.gate.float()))
            with torch.no_grad():
                ch = s + self.bias
                g = ch.unflatten(-1, (c["groups"], -1))
                n = g.shape[-1]
                below = torch.arange(n, device=x.device)
                earlier = below[:, None] > below[None, :]      # ties go to the lower index
                rk = ((g[..., None, :] > g[..., :, None]) | ((g[..., None, :] == g[..., :, None]) & earlier)).sum(-1)
                gs = (g * (rk < 2)).sum(-1)
                ng = torch.arange(c["groups"], device=x.device)
                ge = ng[:, None] > ng[None, :]
                grk = ((gs[..., None, :] > gs[..., :, None]) | ((gs[..., None, :] == gs[..., :, None]) & ge)).sum(-1)
                ch = torch.where((grk < c["topk_group"]).unsqueeze(-1), g, torch.full_like(g, -1e9)).flatten(-2)
                ne = torch.arange(c["experts"], device=x.device)
                ee = ne[:, None] > ne[None, :]
                erk = ((ch[..., None, :] > ch[..., :, None]) | ((ch[..., None, :] == ch[..., :, None]) & ee)).sum(-1)
                pick = erk < c["topk"]
            w = s * pick
            w = w / (w.sum(-1, keepdim=True) + 1e-20) * c["scaling"]
        return w, pick

    def forward(self, x):
        w, pick = self.route(x)
        E, W, H = self.e_gate.shape
        a = F.silu(F.linear(x, self.e_gate.view(E * W, H))) * F.linear(x, self.e_up.view(E * W, H))
        a = (a.unflatten(-1, (E, W)) * w.unsqueeze(-1).to(a.dtype)).flatten(-2)
        y = F.linear(a, self.e_down.view(E * W, H).t())
        y = y + F.linear(F.silu(F.linear(x, self.s_gate)) * F.linear(x, self.s_up), self.s_down)
        return y, pick.flatten(0, -2).sum(0)


class MLP(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.gate_proj, self.up_proj = param(ffn, hidden), param(ffn, hidden)
        self.down_proj = param(hidden, ffn, std=0.0)

    def forward(self, x):
        return F.linear(F.silu(F.linear(x, self.gate_proj)) * F.linear(x, self.up_proj), self.down_proj)


class DeepBlock(nn.Module):
    def __init__(self, c, dense):
        super().__init__()
        self.attn = MLA(c)
        self.input_layernorm = nn.Parameter(torch.ones(c["hidden"]))
        self.post_attention_layernorm = nn.Parameter(torch.ones(c["hidden"]))
        self.mlp = MLP(c["hidden"], c["dense_ffn"]) if dense else MoE(c)
        self.dense = dense

    def ffn(self, x):
        y = rms(x, self.post_attention_layernorm)
        if self.dense:
            return x + self.mlp(y), None
        y, cnt = self.mlp(y)
        return x + y, cnt

    def forward(self, x, cos, sin):
        q, k, v = self.attn.qkv(rms(x, self.input_layernorm), cos, sin)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.attn.scale)
        return self.ffn(x + self.attn.out(o))


class MTP(nn.Module):
    """One next-token layer; step() runs one depth over all rows."""

    def __init__(self, c):
        super().__init__()
        H = c["hidden"]
        self.c = c
        self.enorm, self.hnorm = nn.Parameter(torch.ones(H)), nn.Parameter(torch.ones(H))
        self.eh_proj = param(H, 2 * H)
        self.block = DeepBlock(c, False)
        self.norm = nn.Parameter(torch.ones(H))   # shared_head.norm

    def step(self, emb, h, cos, sin, chain):
        x = F.linear(torch.cat((rms(emb, self.enorm), rms(h, self.hnorm)), -1), self.eh_proj)
        a = self.block.attn
        q, k, v = a.qkv(rms(x, self.block.input_layernorm), cos, sin)
        if not chain:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=a.scale)
            nxt = [(k, v)]
        else:
            d = len(chain)
            # chain[0] is depth 0's keys; the others were written one row earlier each
            own = [(torch.roll(kk, d - i, 2), torch.roll(vv, d - i, 2)) for i, (kk, vv) in enumerate(chain) if i > 0]
            o = attend_committed(q, chain[0][0], chain[0][1], own + [(k, v)], d, self.c["vdim"], a.scale)
            nxt = chain + [(k, v)]
        x, cnt = self.block.ffn(x + a.out(o))
        return rms(x, self.norm), cnt, nxt


class Demo(nn.Module):
    def __init__(self, c=DEMO):
        super().__init__()
        self.c = c
        self.embed = param(c["vocab"], c["hidden"], std=0.02)
        self.blocks = nn.ModuleList(DeepBlock(c, i < c["dense_layers"]) for i in range(c["layers"]))
        self.norm = nn.Parameter(torch.ones(c["hidden"]))
        self.mtp = MTP(c)
        cos, sin = rope_table(yarn_inv_freq(c), c["max_pos"], "cpu")
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def trunk(self, ids):
        """-> post-final-norm hidden rows, expert counts per MoE layer."""
        T = ids.shape[1]
        x = F.embedding(ids, self.embed)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        counts = []
        for b in self.blocks:
            x, cnt = b(x, self.cos[:T], self.sin[:T])
            if cnt is not None:
                counts.append(cnt)
        return rms(x, self.norm), counts

    def mtp_rows(self, ids, h, depths):
        """ids [B,T+1]; h [B,T,H] -> per depth the rows predicting token j+2, and the expert counts."""
        T = h.shape[1]
        emb = F.embedding(ids[:, 1:T + 1], self.embed).to(h.dtype)
        outs, total, chain = [], None, []
        for d in range(depths):
            h, cnt, chain = self.mtp.step(emb, h if d == 0 else torch.roll(h, 1, 1), self.cos[:T], self.sin[:T], chain)
            outs.append(h)
            total = cnt if total is None else total + cnt
        return outs, total

    def routers(self):
        return [b.mlp for b in self.blocks if not b.dense] + [self.mtp.block.mlp]


class QwenBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        H, d = c["hidden"], c["head_dim"]
        self.input_layernorm, self.post_attention_layernorm = nn.Parameter(torch.ones(H)), nn.Parameter(torch.ones(H))
        self.q_proj, self.k_proj = param(c["heads"] * d, H), param(c["kv_heads"] * d, H)
        self.v_proj, self.o_proj = param(c["kv_heads"] * d, H), param(H, c["heads"] * d, std=0.0)
        self.q_norm, self.k_norm = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.mlp = MLP(H, c["ffn"])

    def forward(self, x, cos, sin):
        c, (B, T, _) = self.c, x.shape
        y = rms(x, self.input_layernorm)
        q = rope_half(rms(F.linear(y, self.q_proj).view(B, T, c["heads"], -1), self.q_norm), cos, sin).transpose(1, 2)
        k = rope_half(rms(F.linear(y, self.k_proj).view(B, T, c["kv_heads"], -1), self.k_norm), cos, sin).transpose(1, 2)
        v = F.linear(y, self.v_proj).view(B, T, c["kv_heads"], -1).transpose(1, 2)
        g = c["heads"] // c["kv_heads"]
        o = F.scaled_dot_product_attention(q, k.repeat_interleave(g, 1), v.repeat_interleave(g, 1), is_causal=True)
        x = x + F.linear(o.transpose(1, 2).flatten(2), self.o_proj)
        return x + self.mlp(rms(x, self.post_attention_layernorm)), None


class DemoQwen3(nn.Module):
    def __init__(self, c=QWEN3):
        super().__init__()
        self.c = c
        self.embed = param(c["vocab"], c["hidden"], std=0.02)
        self.blocks = nn.ModuleList(QwenBlock(c) for _ in range(c["layers"]))
        self.norm = nn.Parameter(torch.ones(c["hidden"]))
        d = c["head_dim"]
        inv = 1.0 / (c["theta"] ** (torch.arange(0, d, 2).float() / d))
        cos, sin = rope_table(inv, c["max_pos"], "cpu")
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    trunk = Demo.trunk

    def routers(self):
        return []


def hf_tensors(m):
    """Hugging Face names and shapes of every stored tensor."""
    out = {"model.embed_tokens.weight": m.embed, "model.norm.weight": m.norm}

    def deep(p, b):
        out[p + "input_layernorm.weight"] = b.input_layernorm
        out[p + "post_attention_layernorm.weight"] = b.post_attention_layernorm
        for n in ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"):
            out[p + f"self_attn.{n}.weight"] = getattr(b.attn, n)
        if b.dense:
            for n in ("gate_proj", "up_proj", "down_proj"):
                out[p + f"mlp.{n}.weight"] = getattr(b.mlp, n)
            return
        out[p + "mlp.gate.weight"] = b.mlp.gate
        out[p + "mlp.gate.e_score_correction_bias"] = b.mlp.bias
        for n in ("gate", "up", "down"):
            out[p + f"mlp.shared_experts.{n}_proj.weight"] = getattr(b.mlp, "s_" + n)
            for e in range(m.c["experts"]):
                w = getattr(b.mlp, "e_" + n)[e]
                out[p + f"mlp.experts.{e}.{n}_proj.weight"] = w.t() if n == "down" else w
    if isinstance(m, Demo):
        for i, b in enumerate(m.blocks):
            deep(f"model.layers.{i}.", b)
        p = f"model.layers.{m.c['layers']}."
        deep(p, m.mtp.block)
        out[p + "enorm.weight"], out[p + "hnorm.weight"] = m.mtp.enorm, m.mtp.hnorm
        out[p + "eh_proj.weight"], out[p + "shared_head.norm.weight"] = m.mtp.eh_proj, m.mtp.norm
    else:
        for i, b in enumerate(m.blocks):
            p = f"model.layers.{i}."
            for n in ("input_layernorm", "post_attention_layernorm"):
                out[p + n + ".weight"] = getattr(b, n)
            for n in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"):
                out[p + f"self_attn.{n}.weight"] = getattr(b, n)
            for n in ("gate_proj", "up_proj", "down_proj"):
                out[p + f"mlp.{n}.weight"] = getattr(b.mlp, n)
    return out
