#!/usr/bin/env python3
"""Trains one demo model inside a fixed number of seconds and writes its weights.

    python3 train.py --model demo|qwen3 --data DIR --out DIR --seconds 500 [--resume FILE...]

Warm-up, stable and decay phases are shares of the time given; the last phase also trains on sequences of
4,096 tokens. Muon (Jordan et al., 2024) for the matrices, AdamW for the rest. Master weights are fp32,
products bf16. Balance between experts comes from the routing bias alone (DeepSeek-V3 report, §2.1.2).
Checkpoints hold fp32 masters in pieces under 16 MB; export.py turns them into the released files.
"""
import argparse, json, lzma, math, os, sys, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import model as M
import sums

EOT, IM_START, IM_END = 0, 1, 2
DEPTHS = 3
MTP_WEIGHT = (0.30, 0.20, 0.15)


def load_bin(d, name):
    p = f"{d}/{name}.bin"
    raw = open(p, "rb").read() if os.path.exists(p) else lzma.open(p + ".xz").read()
    return torch.from_numpy(np.frombuffer(raw, dtype=np.uint16).astype(np.int32))


class Data:
    """Random windows on the device: text from anywhere or from a document's start, chats from a start."""

    def __init__(self, d, dev, seed):
        self.dev = dev
        self.g = torch.Generator(device=dev).manual_seed(seed)
        self.text, self.chat = load_bin(d, "train").to(dev), load_bin(d, "chat").to(dev)
        self.held = load_bin(d, "held").to(dev)
        self.text_start = (self.text == EOT).nonzero().flatten() + 1
        self.chat_start = (self.chat == EOT).nonzero().flatten() + 1

    def rows(self, a, starts, n, T):
        return a[(starts.clamp(max=len(a) - T - 1)[:, None] + torch.arange(T, device=self.dev)[None])]

    def batch(self, B, T, chat_share):
        nc = int(B * chat_share)
        nt = B - nc
        r = lambda hi, n: torch.randint(0, hi, (n,), device=self.dev, generator=self.g)
        s = r(len(self.text) - T - 1, nt)
        s[: nt // 2] = self.text_start[r(len(self.text_start), nt // 2)]
        x = self.rows(self.text, s, nt, T)
        c = self.rows(self.chat, self.chat_start[r(len(self.chat_start), nc)], nc, T)
        return torch.cat((x, c)).long()


def newton_schulz(g):
    """Quintic iteration towards the orthogonal factor of each matrix of a stack [n, r, c]."""
    x = g.bfloat16()
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if flip else x


class Muon:
    def __init__(self, params, momentum=0.95, wd=0.1):
        groups = {}
        for p in params:
            groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.groups = list(groups.values())
        self.mom = [torch.zeros(sum(p.numel() // (p.shape[-1] * p.shape[-2]) for p in g), *g[0].shape[-2:],
                                device=g[0].device) for g in self.groups]
        self.momentum, self.wd, self.ns = momentum, wd, newton_schulz

    @torch.no_grad()
    def step(self, lr):
        for ps, m in zip(self.groups, self.mom):
            g = torch.cat([p.grad.reshape(-1, *p.shape[-2:]) for p in ps])
            m.lerp_(g, 1 - self.momentum)
            u = self.ns(torch.lerp(g, m, self.momentum)).float()
            u = u * max(1.0, u.shape[-2] / u.shape[-1]) ** 0.5
            at = 0
            for p in ps:
                n = p.numel() // (p.shape[-1] * p.shape[-2])
                p.mul_(1 - lr * self.wd).add_(u[at:at + n].view_as(p), alpha=-lr)
                at += n


def head_ce(h, E, y):
    """Mean cross entropy of the rows and their logits (the teacher of the draft depths)."""
    z = F.linear(h, E)
    return F.cross_entropy(z.float().flatten(0, 1), y.flatten()), z


def draft_ce(h, E, y, teacher, mask):
    """0.7 x the main head's distribution + 0.3 x the token that came, over rows where mask is 1."""
    z = F.linear(h, E).float()
    lse = torch.logsumexp(z, -1)
    p = torch.softmax(teacher.float(), -1)
    soft = lse - (p * z).sum(-1)
    hard = lse - z.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return ((0.7 * soft + 0.3 * hard) * mask).sum() / mask.sum()


def loss_of(m, ids, fns):
    """ids [B,T+1] -> training loss, main loss, draft losses, expert counts."""
    T = ids.shape[1] - 1
    h, counts = m.trunk(ids[:, :T])
    main, z = fns["head"](h, m.embed, ids[:, 1:])
    if not isinstance(m, M.Demo):
        return main, main.detach(), [], counts
    outs, mc = m.mtp_rows(ids, h, DEPTHS)
    teacher = torch.roll(z.detach(), -1, 1)   # the main head's row j+1 predicts what draft row j predicts
    nxt = torch.roll(ids[:, 1:], -1, 1)
    rows = torch.arange(T, device=ids.device)
    loss, parts = main, []
    for d, o in enumerate(outs):
        mask = ((rows >= d) & (rows < T - 1)).float().expand(ids.shape[0], T)
        l = fns["draft"](o, m.embed, nxt, teacher, mask)
        loss = loss + MTP_WEIGHT[d] * l
        parts.append(l.detach())
    return loss, main.detach(), parts, counts + [mc]


@torch.no_grad()
def update_bias(routers, counts, rate):
    """Sign step towards equal load; the least bias stays 0, so score + bias is always positive."""
    worst = 0.0
    for r, c in zip(routers, counts):
        c = c.float()
        r.bias += rate * torch.sign(c.mean() - c)
        r.bias -= r.bias.min()
        worst = torch.maximum(c.max() / c.mean(), torch.as_tensor(worst, device=c.device))
    return worst


def save(m, path, pieces, dtype=None):
    sd = {k: (v.detach().cpu() if dtype is None or k.endswith("correction_bias") else v.detach().to(dtype).cpu()).clone()
          for k, v in M.hf_tensors(m).items()}
    keys = sorted(sd)
    total, at, piece = sum(v.numel() for v in sd.values()), 0, [dict() for _ in range(pieces)]
    for k in keys:
        piece[min(at * pieces // total, pieces - 1)][k] = sd[k]
        at += sd[k].numel()
    for i, p in enumerate(piece):
        torch.save(p, f"{path}.{i}.pt")


@torch.no_grad()
def restore(m, files):
    sd = {}
    for f in files:
        sd.update(torch.load(f, map_location="cpu"))
    mine = M.hf_tensors(m)
    assert sorted(sd) == sorted(mine), "checkpoint and model differ"
    for k, v in mine.items():
        v.data.copy_(sd[k].to(v.dtype))


@torch.no_grad()
def greedy(m, tok, prompts, new=24):
    dev = m.embed.device
    rows = [tok.encode(p, add_special_tokens=False).ids for p in prompts]
    n = torch.tensor([len(r) for r in rows], device=dev)
    ids = torch.zeros(len(rows), int(n.max()) + new, dtype=torch.long, device=dev)
    for i, r in enumerate(rows):
        ids[i, :len(r)] = torch.tensor(r)
    start, at = n.clone(), torch.arange(len(rows), device=dev)
    for _ in range(new):
        h, _ = m.trunk(ids[:, :int(n.max())])
        ids[at, n] = F.linear(h[at, n - 1], m.embed).argmax(-1)
        n = n + 1
    out = []
    for i in range(len(rows)):
        r = ids[i, start[i]:n[i]].tolist()
        cut = [j for j, t in enumerate(r) if t in (IM_END, EOT)]
        out.append(tok.decode(r[:cut[0]] if cut else r, skip_special_tokens=False))
    return out


@torch.no_grad()
def evaluate(m, data, tok, windows=64):
    """Quick figures on the device; evaluate.py makes the released ones from the exported files."""
    res = {}
    for T in (1024, 4096):
        n = min(len(data.held) // T - 1, windows * 1024 // T)
        ids = torch.stack([data.held[i * T:i * T + T + 1] for i in range(n)]).long()
        nll, agree = [], [[] for _ in range(DEPTHS)]
        for x in ids.split(max(1, 16384 // T)):
            h, _ = m.trunk(x[:, :T])
            z = F.linear(h, m.embed)
            nll.append(F.cross_entropy(z.float().flatten(0, 1), x[:, 1:].flatten(), reduction="none").view(len(x), -1))
            if isinstance(m, M.Demo):
                best = z.argmax(-1)[:, 1:]
                for d, o in enumerate(m.mtp_rows(x, h, DEPTHS)[0]):
                    agree[d].append((F.linear(o, m.embed).argmax(-1)[:, d:-1] == best[:, d:]).float().mean())
        nll = torch.cat(nll)
        res[f"nats_per_token_{T}"] = nll.mean().item()
        if T == 4096:
            res["nats_by_quarter_4096"] = [q.mean().item() for q in nll.chunk(4, 1)]
        if isinstance(m, M.Demo):
            res[f"mtp_agreement_{T}"] = [torch.stack(a).mean().item() for a in agree]
    items = sums.items()
    ask = [f"<|im_start|>user\n{i['question']}<|im_end|>\n<|im_start|>assistant\n" for i in items]
    got = greedy(m, tok, ask)
    res["sums"] = sum(f"= {i['answer']}." in g for i, g in zip(items, got)) / len(items)
    res["sum_samples"] = got[:4]
    chat = ["Who are you?", "Hello", "What is a dog?", "What is a socket?", "Explain the WHERE clause.", "What is 7 + 5?"]
    res["chat"] = list(zip(chat, greedy(m, tok, [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in chat], 48)))
    text = ["The server ", "In the beginning ", "This function returns ", "## Installation\n\n"]
    res["text"] = list(zip(text, greedy(m, tok, text, 64)))
    return res


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", choices=["demo", "qwen3"], required=True)
    ap.add_argument("--data", required=True)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--seconds", type=float, required=True)
    ap.add_argument("--resume", nargs="*", default=[])
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--tokens", type=int, default=65536)
    ap.add_argument("--seq", type=int, default=1024)
    ap.add_argument("--long", type=int, default=4096)
    ap.add_argument("--decay", type=float, default=0.25, help="share of the time for the last, long phase")
    ap.add_argument("--chat", type=float, default=0.35)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--adam-lr", type=float, default=0.003)
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--max-steps", type=int, default=1 << 30)
    ap.add_argument("--no-eval", action="store_true")
    ap.add_argument("--seen", type=float, default=0, help="million tokens seen before --resume")
    a = ap.parse_args()
    t_start = time.time()
    dev = torch.device(a.device)
    torch.manual_seed(a.seed)
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(a.tokenizer)
    log = open(f"{a.out}/{a.model}.log", "a")

    def say(*x):
        line = " ".join(str(v) for v in x)
        print(a.model, line, flush=True)
        print(line, file=log, flush=True)

    m = (M.Demo() if a.model == "demo" else M.DemoQwen3()).to(dev)
    if a.resume:
        restore(m, a.resume)
    say("parameters", sum(p.numel() for p in m.parameters()))
    fns = {"head": head_ce, "draft": draft_ce}
    if a.compile:
        torch._dynamo.config.cache_size_limit = 64
        torch._dynamo.config.suppress_errors = True
        torch._dynamo.config.automatic_dynamic_shapes = False
        for b in m.blocks:
            b.forward = torch.compile(b.forward, dynamic=False)
        if isinstance(m, M.Demo):
            m.mtp.step = torch.compile(m.mtp.step, dynamic=False)
        fns = {k: torch.compile(f, dynamic=False) for k, f in fns.items()}
    matrices = [p for n, p in m.named_parameters() if p.ndim >= 2 and n != "embed" and not n.endswith(".gate")]
    rest = [p for n, p in m.named_parameters() if p.ndim < 2 or n == "embed" or n.endswith(".gate")]
    muon = Muon(matrices)
    if a.compile:
        muon.ns = torch.compile(newton_schulz, dynamic=False)
    adam = torch.optim.AdamW(rest, lr=a.adam_lr, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=dev.type == "cuda")
    data = Data(a.data, dev, a.seed)
    pieces = 2 if a.model == "demo" else 1

    def run_step(T, lr_scale, share):
        ids = data.batch(a.tokens // T, T + 1, share)
        with torch.autocast(dev.type, torch.bfloat16):
            loss, main_l, parts, counts = loss_of(m, ids, fns)
        loss.backward()
        gn = nn.utils.clip_grad_norm_(m.parameters(), 1.0, foreach=True)
        if lr_scale > 0:
            muon.step(a.lr * lr_scale)
            for g in adam.param_groups:
                g["lr"] = a.adam_lr * lr_scale
            adam.step()
        worst = update_bias(m.routers(), counts, 0.001 * min(1.0, 2 * lr_scale)) if counts else 0.0
        for p in m.parameters():
            p.grad = None
        return main_l, parts, gn, worst

    for T in (a.long, a.seq):  # compile both shapes before the clock of the schedule starts
        run_step(T, 0.0, a.chat)
        if dev.type == "cuda":
            torch.cuda.synchronize()
        say(f"warm {T}: {time.time() - t_start:.1f} s, {torch.cuda.max_memory_allocated() / 2**30 if dev.type == 'cuda' else 0:.1f} GiB")
    t0 = time.time()
    end = t_start + a.seconds
    step, decaying, last = 0, False, t0
    while step < a.max_steps:
        now = time.time()
        frac = (now - t0) / (end - t0)
        if frac >= 1:
            break
        warm = min(1.0, (step + 1) / (100 if not a.resume else 40))
        if frac < 1 - a.decay:
            T, scale = a.seq, warm
        else:
            if not decaying:
                say(f"decay begins at step {step}")
                save(m, f"{a.out}/{a.model}-stable", pieces)
                decaying = True
            T, scale = a.long, warm * max(0.0, (1 - frac) / a.decay)
        main_l, parts, gn, worst = run_step(T, scale, a.chat)
        step += 1
        if step % 25 == 0:
            l = main_l.item()
            if not math.isfinite(l):
                say("loss is not finite")
                sys.exit(1)
            if step % 100 == 0 or time.time() - last > 15:
                last = time.time()
                say(f"step {step} T {T} t {last - t0:.0f}s loss {l:.4f} mtp {[round(p.item(), 3) for p in parts]} "
                    f"gn {gn.item():.2f} load {float(worst):.2f} {step * a.tokens / (last - t0) / 1e6:.2f} Mtok/s")
    say(f"done: {step} steps, {a.seen + step * a.tokens / 1e6:.1f} M tokens in all, {time.time() - t0:.0f} s")
    save(m, f"{a.out}/{a.model}-final", 1, torch.bfloat16)
    for k, v in M.hf_tensors(m).items():  # judge what is released: weights rounded to bf16, fp32 arithmetic
        if not k.endswith("correction_bias"):
            v.data.copy_(v.data.bfloat16())
    for b in m.blocks:
        b.__dict__.pop("forward", None)
    if isinstance(m, M.Demo):
        m.mtp.__dict__.pop("step", None)
    if a.no_eval:
        return
    res = evaluate(m, data, tok)
    say(json.dumps(res, indent=1))


if __name__ == "__main__":
    main()
