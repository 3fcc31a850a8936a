#!/usr/bin/env python3
"""Trains an EAGLE-3 drafter for demo-qwen3 on the CPU, writes it in the public layout, and judges it.

    python3 eagle3.py generate --data DIR --rows N               continuations by the target itself -> DIR/own.bin
    python3 eagle3.py train --data DIR --out FILE.pt --seconds S [--resume FILE.pt]     alone or as
        torchrun --nproc-per-node 2 eagle3.py train ...           one thread each: on a shared CPU faster than two threads
    python3 eagle3.py export --out FOLDER FILE.pt                config.json, model.safetensors (bf16)
    python3 eagle3.py evaluate --draft FOLDER --data DIR         on held-out text, weights as released

One layer (Li et al., 2025, "EAGLE-3") over three states of the target's residual stream: row j takes
token j+1 and the states of token j, sits at rope position j, predicts token j+2. Depth d > 0 takes, in
place of fused states, the layer's own output of row j-1 at depth d-1, before the norm. Training unrolls
three depths under exactly the visibility of decoding (model.attend_committed): row j of depth d sees the
depth-0 keys of rows <= j-d, whose states were the target's, and after these its own chain's keys. The
paper lets deeper rows attend the same way; its mask is written differently.

Loss: 0.85 x cross entropy with the target's distribution at the same place, kept on the draft vocabulary
without renormalising (a row counts by the mass it keeps), + 0.15 x the target's best token where the
draft vocabulary has it; depths weigh 1, 0.8, 0.64.
"""
import argparse, json, math, os, time
import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import model as M
import train as TR

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = ROOT + "/configs/models/demo-qwen3"
LAYERS = (1, 3, 5)      # the states before these layers, as indices of transformers' hidden_states
DRAFT_VOCAB = 2048
DEPTHS = 3
DEPTH_WEIGHT = (1.0, 0.8, 0.64)
HARD = 0.15
ALWAYS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *"0123456789")


def load_target():
    m = M.DemoQwen3()
    sd = load_file(TARGET + "/model.safetensors")
    for k, v in M.hf_tensors(m).items():
        v.data.copy_(sd[k].float())
    return m.requires_grad_(False)


@torch.no_grad()
def states(m, ids):
    """-> rows after the final norm, the three states side by side."""
    T, got = ids.shape[1], []
    x = F.embedding(ids, m.embed)
    for i, b in enumerate(m.blocks):
        if i in LAYERS:
            got.append(x)
        x, _ = b(x, m.cos[:T], m.sin[:T])
    return M.rms(x, m.norm), torch.cat(got, -1)


class Eagle3(nn.Module):
    def __init__(self, c=M.QWEN3):
        super().__init__()
        self.c = c
        H, d, one = c["hidden"], c["head_dim"], lambda: nn.Parameter(torch.ones(c["hidden"]))
        self.fc = M.param(H, 3 * H)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm, self.norm = one(), one(), one(), one()
        self.q_proj, self.k_proj = M.param(c["heads"] * d, 2 * H), M.param(c["kv_heads"] * d, 2 * H)
        self.v_proj, self.o_proj = M.param(c["kv_heads"] * d, 2 * H), M.param(H, c["heads"] * d)
        self.mlp = M.MLP(H, c["ffn"])
        self.lm_head = M.param(DRAFT_VOCAB, H)
        self.register_buffer("hot", torch.arange(DRAFT_VOCAB))   # draft id -> target id, ascending

    def names(self):
        out = {"fc.weight": self.fc, "norm.weight": self.norm, "lm_head.weight": self.lm_head}
        for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            out[f"midlayer.{n}.weight"] = getattr(self, n)
        for n in ("q_proj", "k_proj", "v_proj", "o_proj"):
            out[f"midlayer.self_attn.{n}.weight"] = getattr(self, n)
        for n in ("gate_proj", "up_proj", "down_proj"):
            out[f"midlayer.mlp.{n}.weight"] = getattr(self.mlp, n)
        return out

    @torch.no_grad()
    def start_from(self, m, ids):
        """The target's last layer, norm and head as they are; the new half of the inputs small. Qwen3's
        head norms do not exist here: their weights and the mean inverse norm go into q and k."""
        b, H, d = m.blocks[-1], self.c["hidden"], self.c["head_dim"]
        self.fc.zero_()
        self.fc[:, 2 * H:] = torch.eye(H)
        self.hidden_norm.copy_(b.input_layernorm)
        self.post_attention_layernorm.copy_(b.post_attention_layernorm)
        self.norm.copy_(m.norm)
        self.lm_head.copy_(m.embed[self.hot])
        self.o_proj.copy_(b.o_proj)
        for n in ("gate_proj", "up_proj", "down_proj"):
            getattr(self.mlp, n).copy_(getattr(b.mlp, n))
        y = M.rms(states(m, ids)[1][..., 2 * H:], b.input_layernorm)
        for w, src, norm in ((self.q_proj, b.q_proj, b.q_norm), (self.k_proj, b.k_proj, b.k_norm),
                             (self.v_proj, b.v_proj, None)):
            w.mul_(0.3)
            if norm is None:
                w[:, H:] = src
                continue
            z = F.linear(y, src).unflatten(-1, (-1, d))
            scale = z.pow(2).mean(-1).rsqrt().mean((0, 1))                  # one per head
            w[:, H:] = (src.view(-1, d, H) * norm[None, :, None] * scale[:, None, None]).flatten(0, 1)

    def step(self, e, f, cos, sin, chain):
        """e: embedding of token j+1; f: fused states, or the output before. -> output before the norm."""
        c, (B, T, _) = self.c, f.shape
        y = torch.cat((M.rms(e, self.input_layernorm), M.rms(f, self.hidden_norm)), -1)
        g, d = c["heads"] // c["kv_heads"], c["head_dim"]
        q = M.rope_half(F.linear(y, self.q_proj).view(B, T, -1, d), cos, sin).transpose(1, 2)
        k = M.rope_half(F.linear(y, self.k_proj).view(B, T, -1, d), cos, sin).transpose(1, 2).repeat_interleave(g, 1)
        v = F.linear(y, self.v_proj).view(B, T, -1, d).transpose(1, 2).repeat_interleave(g, 1)
        if not chain:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            wide = lambda x: F.pad(x, (0, 8))                               # a spare column for the sink
            own = [(torch.roll(a, len(chain) - i, 2), wide(torch.roll(b, len(chain) - i, 2)))
                   for i, (a, b) in enumerate(chain) if i > 0] + [(k, wide(v))]
            own = [(wide(a), b) for a, b in own]
            o = M.attend_committed(wide(q), wide(chain[0][0]), wide(chain[0][1]), own, len(chain), d, d ** -0.5)[..., :d]
        x = f + F.linear(o.transpose(1, 2).flatten(2), self.o_proj)
        return x + self.mlp(M.rms(x, self.post_attention_layernorm)), chain + [(k, v)]

    def depths(self, m, ids, feat, n):
        """ids [B,T+1], feat [B,T,3H] -> the layer's output for every depth and row."""
        T = feat.shape[1]
        e = F.embedding(ids[:, 1:T + 1], m.embed)
        f, chain, out = F.linear(feat, self.fc), [], []
        for d in range(n):
            x, chain = self.step(e, f if d == 0 else torch.roll(out[-1], 1, 1), m.cos[:T], m.sin[:T], chain)
            out.append(x)
        return out

    def logits(self, x):
        return F.linear(M.rms(x, self.norm), self.lm_head)


def loss_of(e3, m, ids, depths=DEPTHS):
    T = ids.shape[1] - 1
    h, feat = states(m, ids[:, :T])
    with torch.no_grad():
        z = torch.roll(F.linear(h, m.embed), -1, 1)                         # what the target says of token j+2
        p = torch.softmax(z, -1)[..., e3.hot]
        where = torch.full((m.embed.shape[0],), -1)
        where[e3.hot] = torch.arange(DRAFT_VOCAB)
        best = where[z.argmax(-1)]
        p = p * (1 - HARD)
        p.scatter_add_(-1, best.clamp(min=0).unsqueeze(-1), (HARD * (best >= 0)).unsqueeze(-1))
    rows = torch.arange(T)
    total, parts, hits = 0.0, [], []
    for d, x in enumerate(e3.depths(m, ids, feat, depths)):
        lp = torch.log_softmax(e3.logits(x), -1)
        mask = ((rows >= d) & (rows < T - 1)).float()
        l = -((p * lp).sum(-1) * mask).sum() / (mask.sum() * len(ids))
        total = total + DEPTH_WEIGHT[d] * l
        parts.append(l.item())
        hits.append((((lp.detach().argmax(-1) == best) * mask).sum() / (mask.sum() * len(ids))).item())
    return total, parts, hits


# ---- text ----

def hot_tokens(a):
    """The draft vocabulary: the tokens that training text holds most often, in the shares of a batch."""
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(TARGET + "/tokenizer.json")
    n = sum(share * np.bincount(TR.load_bin(a.data, name).numpy(), minlength=4096) / os.path.getsize(f"{a.data}/{name}.bin")
            for name, share in (("train", 0.65), ("chat", 0.35)))
    n[[tok.token_to_id(t) for t in ALWAYS]] = np.inf
    hot = np.sort(np.argsort(-n, kind="stable")[:DRAFT_VOCAB])
    kept = {name: np.isin(TR.load_bin(a.data, name).numpy(), hot).mean() for name in ("train", "chat", "held")}
    print("draft vocabulary holds", {k: round(float(v), 4) for k, v in kept.items()}, "of the tokens")
    return torch.from_numpy(hot)


@torch.no_grad()
def continue_text(m, ids, new, pick):
    """ids [B,P] -> [B,P+new]; pick: logits -> tokens. Keys and values are kept."""
    c, d = m.c, m.c["head_dim"]
    B, P = ids.shape
    kv = [torch.empty(2, B, c["kv_heads"], P + new, d) for _ in m.blocks]
    out, at, cur = ids, 0, ids
    while True:
        n = cur.shape[1]
        x, cos, sin = F.embedding(cur, m.embed), m.cos[at:at + n], m.sin[at:at + n]
        for b, c_kv in zip(m.blocks, kv):
            y = M.rms(x, b.input_layernorm)
            head = lambda w: F.linear(y, w).view(B, n, -1, d)
            q = M.rope_half(M.rms(head(b.q_proj), b.q_norm), cos, sin).transpose(1, 2)
            c_kv[0, :, :, at:at + n] = M.rope_half(M.rms(head(b.k_proj), b.k_norm), cos, sin).transpose(1, 2)
            c_kv[1, :, :, at:at + n] = head(b.v_proj).transpose(1, 2)
            k, v = c_kv[:, :, :, :at + n]
            if n > 1:
                o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
            else:                              # one row: the heads of a group are the rows of one product
                w = torch.softmax(q.view(B, c["kv_heads"], -1, d) @ k.mT * d ** -0.5, -1)
                o = (w @ v).view(B, 1, -1)
            x = x + F.linear(o, b.o_proj)
            x = x + b.mlp(M.rms(x, b.post_attention_layernorm))
        at += n
        cur = pick(F.linear(M.rms(x[:, -1], m.norm), m.embed)).view(B, 1)
        out = torch.cat((out, cur), 1)
        if out.shape[1] == P + new:
            return out


OWN_ROW = 257


def generate(a):
    m, data = load_target(), TR.Data(a.data, torch.device("cpu"), a.seed)
    t0 = time.time()
    for i in range(a.rows // 256):
        p = (16, 32, 64, 128)[i % 4]
        ids = data.batch(256, p, 0.3)
        cold = torch.rand(256, 1) < 0.6       # most rows greedy, the others sampled
        pick = lambda z: torch.where(cold[:, 0], z.argmax(-1), torch.multinomial(torch.softmax(z, -1), 1)[:, 0])
        rows = continue_text(m, ids, OWN_ROW - p, pick).numpy().astype(np.uint16)
        with open(f"{a.data}/own.bin", "ab") as f:
            f.write(rows.tobytes())
        print(f"{(i + 1) * 256} rows, {time.time() - t0:.0f} s, {time.process_time():.0f} s of processor", flush=True)


class Batches:
    def __init__(self, a, seed):
        self.data, self.share = TR.Data(a.data, torch.device("cpu"), seed), a.own
        self.path = a.data + "/own.bin"

    def next(self, tokens, T):
        n = tokens // T
        own = int(n * self.share) if T < OWN_ROW else 0
        x = self.data.batch(n - own, T + 1, 0.3)
        if own:
            rows = np.memmap(self.path, np.uint16, "r")                     # may still be growing
            rows = rows[:len(rows) // OWN_ROW * OWN_ROW].reshape(-1, OWN_ROW)
            pick = torch.randint(len(rows), (own,), generator=self.data.g)
            x = torch.cat((x, torch.from_numpy(rows[pick.numpy()].astype(np.int64))[:, :T + 1]))
        return x


# ---- commands ----

def mean_of_ranks(params):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    for p, g in zip(params, flat.div_(dist.get_world_size()).split([p.numel() for p in params])):
        p.grad.copy_(g.view_as(p))


def train(a):
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if ranks > 1:
        dist.init_process_group("gloo")
    m, e3, batches = load_target(), Eagle3(), Batches(a, a.seed * 100 + rank)
    seen = spent = 0
    if a.resume:
        ck = torch.load(a.resume)
        e3.load_state_dict(ck["weights"])
        seen, spent = ck["seen"], ck["spent"]
    else:
        e3.hot.copy_(hot_tokens(a))
        e3.start_from(m, Batches(a, a.seed).next(4096, 256)[:, :256])
    small = {"lm_head"} | {n for n, p in e3.named_parameters() if p.ndim < 2}
    muon = TR.Muon([p for n, p in e3.named_parameters() if n not in small], wd=0.02)
    adam = torch.optim.AdamW([p for n, p in e3.named_parameters() if n in small], lr=a.adam_lr, betas=(0.9, 0.95),
                             weight_decay=0.0)
    t0 = last = saved = time.time()
    step, log, decaying = 0, [], False

    def save(path):
        if rank == 0:
            torch.save(dict(weights=e3.state_dict(), seen=seen, spent=spent + time.time() - t0), path)

    while True:
        frac = torch.tensor((time.time() - t0) / a.seconds)
        if ranks > 1:
            dist.broadcast(frac, 0)
        frac = frac.item()
        if frac >= 1:
            break
        if frac > 1 - a.decay and not decaying:
            save(a.out.replace(".pt", "-stable.pt"))
            decaying = True
        lr = min(1.0, (step + 1) / 30) * min(1.0, (1 - frac) / a.decay + 0.02)
        T = 4096 if step % 64 == 63 else 2048 if step % 32 == 31 else 1024 if step % 16 == 15 else 512 if step % 8 == 3 else 256
        ids = batches.next(max(a.tokens // ranks, T), T)
        loss, parts, hits = loss_of(e3, m, ids, 1 if frac < a.single else DEPTHS)
        loss.backward()
        if ranks > 1:
            mean_of_ranks(list(e3.parameters()))
        nn.utils.clip_grad_norm_(e3.parameters(), 1.0)
        muon.step(a.lr * lr)
        for g in adam.param_groups:
            g["lr"] = a.adam_lr * lr
        adam.step()
        for p in e3.parameters():
            p.grad = None
        step, seen = step + 1, seen + ids.shape[0] * T * ranks
        log.append(parts + [math.nan] * (DEPTHS - len(parts)) + hits + [math.nan] * (DEPTHS - len(hits)))
        if rank == 0 and (time.time() - last > 20 or step == 5):
            v = np.mean(log, 0)
            log, last = [], time.time()
            assert math.isfinite(v[0])
            print(f"step {step} {last - t0:.0f}s lr {lr:.2f} {seen / 1e6:.2f} Mtok loss", *(f"{x:.3f}" for x in v[:DEPTHS]), "agree",
                  *(f"{x:.3f}" for x in v[DEPTHS:]), flush=True)
        if time.time() - saved > 150:
            saved = time.time()
            save(a.out)
    save(a.out)


def config(c=M.QWEN3):
    return dict(architectures=["LlamaForCausalLMEagle3"], model_type="llama", attention_bias=False, bos_token_id=None,
                eos_token_id=2, pad_token_id=0, hidden_act="silu", hidden_size=c["hidden"], target_hidden_size=c["hidden"],
                intermediate_size=c["ffn"], num_hidden_layers=1, num_attention_heads=c["heads"],
                num_key_value_heads=c["kv_heads"], head_dim=c["head_dim"], max_position_embeddings=c["max_pos"],
                rms_norm_eps=c["eps"], rope_theta=c["theta"], rope_scaling=None, vocab_size=c["vocab"],
                draft_vocab_size=DRAFT_VOCAB, tie_word_embeddings=False, norm_before_residual=False,
                torch_dtype="bfloat16", eagle_config=dict(eagle_aux_hidden_state_layer_ids=list(LAYERS),
                                                          use_aux_hidden_state=True))


def export(a):
    e3, ck = Eagle3(), torch.load(a.file)
    e3.load_state_dict(ck["weights"])
    out = {k: v.detach().bfloat16().contiguous() for k, v in e3.names().items()}
    assert all(torch.isfinite(v.float()).all() for v in out.values())
    out["d2t"] = e3.hot - torch.arange(DRAFT_VOCAB)
    out["t2d"] = torch.zeros(e3.c["vocab"], dtype=torch.bool).scatter_(0, e3.hot, True)
    os.makedirs(a.out, exist_ok=True)
    save_file(out, a.out + "/model.safetensors", metadata={"format": "pt"})
    with open(a.out + "/config.json", "w") as f:
        f.write(json.dumps(dict(sorted(config().items())), indent=2) + "\n")
    print(f"{sum(v.numel() for k, v in out.items() if k not in ('d2t', 't2d'))} parameters, "
          f"{ck['seen'] / 1e6:.1f} M tokens, {ck['spent']:.0f} s")


def load_draft(folder):
    e3, sd = Eagle3(), load_file(folder + "/model.safetensors")
    for k, v in e3.names().items():
        v.data.copy_(sd[k].float())
    e3.hot.copy_(torch.arange(DRAFT_VOCAB) + sd["d2t"])
    return e3.requires_grad_(False)


def emitted(best, x, start):
    """Greedy decoding of x (the target's own text) from index `start` on with drafts best[d][j] of token
    j+2 -> steps, accepted per depth. Row j of depth d had the true tokens while the drafts before it held."""
    steps, at, i = 0, [0] * DEPTHS, start - 1
    while i + 2 < len(x):
        n = 0
        while n < DEPTHS and i + n + 2 < len(x) and best[n][i + n] == x[i + n + 2]:
            at[n] += 1
            n += 1
        steps, i = steps + 1, i + n + 1
    return steps, at


def tasks(a, held):
    """(name, prompts of one length each, tokens to write, ids that end a text)"""
    import sums
    from transformers import AutoTokenizer
    starts = torch.stack([held[i * 3001:i * 3001 + 64] for i in range(a.texts)])
    yield "the 20 held-out texts of evaluate.py", [starts[:20]], 96, (0,)
    if a.texts > 20:
        yield f"{a.texts} held-out texts", [starts], 96, (0,)
    tok = AutoTokenizer.from_pretrained(TARGET)
    ask = [tok.apply_chat_template([dict(role="user", content=it["question"])], tokenize=False, add_generation_prompt=True)
           for it in sums.items()[:a.sums]]
    yield f"{a.sums} held-out sums", [torch.tensor([tok(q, add_special_tokens=False)["input_ids"]]) for q in ask], 24, (0, 2)


def report(name, m, prompts, new, stops, drafts_of):
    """Greedy continuations by the target; drafts_of(text) -> drafts for emitted()."""
    steps, at = 0, [0] * DEPTHS
    for p in prompts:
        n0 = p.shape[1]
        for x in continue_text(m, p, new, lambda z: z.argmax(-1)):
            end = [i for i in range(n0, len(x)) if x[i] in stops]
            x = x[:end[0] + 1] if end else x
            s, k = emitted(drafts_of(x), x.tolist(), n0)
            steps, at = steps + s, [u + v for u, v in zip(at, k)]
    print(f"{name}: {sum(at) / steps + 1:.3f} tokens per step over {steps} steps; accepted at depth",
          " ".join(f"{v / steps:.3f}" for v in at), flush=True)


@torch.no_grad()
def evaluate(a):
    m, e3, held = load_target(), load_draft(a.draft), TR.load_bin(a.data, "held").long()
    for T, n in ((1024, a.windows), (4096, a.windows // 4)):
        hit, total = torch.zeros(DEPTHS), 0
        for i in range(n):
            x = held[None, i * 4097:i * 4097 + T + 1]
            h, feat = states(m, x[:, :T])
            best = F.linear(h, m.embed).argmax(-1)[0]
            for d, o in enumerate(e3.depths(m, x, feat, DEPTHS)):
                hit[d] += (e3.hot[e3.logits(o[0]).argmax(-1)][DEPTHS - 1:-1] == best[DEPTHS:]).sum()
            total += T - DEPTHS
        print(f"agreement with the target's greedy choice, windows of {T}, teacher forced:",
              " ".join(f"{v / total:.4f}" for v in hit.tolist()), f"({total} rows)", flush=True)

    def drafts_of(x):
        _, feat = states(m, x[None, :-1])
        return [e3.hot[e3.logits(o[0]).argmax(-1)].tolist() for o in e3.depths(m, x[None], feat, DEPTHS)]
    for name, prompts, new, stops in tasks(a, held):
        report(name, m, prompts, new, stops, drafts_of)


def evaluate_arguments(p):
    p.add_argument("--draft", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--windows", type=int, default=24)
    p.add_argument("--texts", type=int, default=60, help="at most 63")
    p.add_argument("--sums", type=int, default=100)
    return p


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--seed", type=int, default=1)
    sub = ap.add_subparsers(required=True)
    p = sub.add_parser("generate")
    p.add_argument("--data", required=True)
    p.add_argument("--rows", type=int, default=8192)
    p.set_defaults(run=generate)
    p = sub.add_parser("train")
    p.add_argument("--data", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, required=True)
    p.add_argument("--resume")
    p.add_argument("--single", type=float, default=0.3, help="share of the time at depth 1 alone")
    p.add_argument("--tokens", type=int, default=2048, help="in a batch, over all ranks")
    p.add_argument("--own", type=float, default=0.5, help="share of the target's own text in batches of windows <= 256")
    p.add_argument("--decay", type=float, default=0.4, help="share of the time in which the rates fall")
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument("--adam-lr", type=float, default=0.001)
    p.set_defaults(run=train)
    p = sub.add_parser("export")
    p.add_argument("--out", required=True)
    p.add_argument("file")
    p.set_defaults(run=export)
    evaluate_arguments(sub.add_parser("evaluate")).set_defaults(run=evaluate)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    a.run(a)


if __name__ == "__main__":
    main()
