#!/usr/bin/env python3
"""Distils demo-draft, a small independent draft model, from demo-qwen3's logits on the CPU.

    python3 draft.py train --data DIR --out FILE.pt --seconds S [--resume FILE.pt]     alone or under torchrun
    python3 draft.py export --out FOLDER FILE.pt
    python3 draft.py evaluate --draft FOLDER --data DIR

Qwen3 with the target's tokenizer, half its width and a third of its layers. Embeddings start from the
best 96 directions of the target's (singular values), the rest from noise. The loss is the cross entropy
with the target's distribution, 0.9, and with its best token, 0.1. Texts as for the EAGLE-3 drafter.
"""
import argparse, json, math, os, shutil, time
import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import eagle3 as E
import export as X
import model as M
import train as TR

DRAFT = dict(M.QWEN3, hidden=96, layers=2, ffn=256, heads=4, kv_heads=2, head_dim=32)
HARD = 0.1


def loss_of(s, m, ids):
    with torch.no_grad():
        z = F.linear(E.states(m, ids)[0], m.embed)
        p = torch.softmax(z, -1).mul_(1 - HARD)
        best = z.argmax(-1, keepdim=True)
        p.scatter_add_(-1, best, torch.full_like(best, HARD, dtype=p.dtype))
    lp = torch.log_softmax(F.linear(s.trunk(ids)[0], s.embed), -1)
    agree = (lp.detach().argmax(-1, keepdim=True) == best).float().mean().item()
    return -(p * lp).sum(-1).mean(), agree


def train(a):
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if ranks > 1:
        dist.init_process_group("gloo")
    m, s, batches = E.load_target(), M.DemoQwen3(DRAFT), E.Batches(a, a.seed * 100 + 50 + rank)
    seen = spent = 0
    with torch.no_grad():
        v = torch.linalg.svd(m.embed, full_matrices=False)[2][:DRAFT["hidden"]]
        s.embed.copy_(m.embed @ v.T)
        s.norm.fill_(m.norm.pow(2).mean().sqrt())
    if a.resume:
        ck = torch.load(a.resume)
        s.load_state_dict(ck["weights"])
        seen, spent = ck["seen"], ck["spent"]
    small = {n for n, p in s.named_parameters() if p.ndim < 2 or n == "embed"}
    muon = TR.Muon([p for n, p in s.named_parameters() if n not in small], wd=0.02)
    adam = torch.optim.AdamW([p for n, p in s.named_parameters() if n in small], lr=a.adam_lr, betas=(0.9, 0.95),
                             weight_decay=0.0)
    t0 = last = saved = time.time()
    step, log = 0, []

    def save():
        if rank == 0:
            torch.save(dict(weights=s.state_dict(), seen=seen, spent=spent + time.time() - t0), a.out)

    while True:
        frac = torch.tensor((time.time() - t0) / a.seconds)
        if ranks > 1:
            dist.broadcast(frac, 0)
        frac = frac.item()
        if frac >= 1:
            break
        lr = min(1.0, (step + 1) / 30) * min(1.0, (1 - frac) / a.decay + 0.02)
        T = 2048 if step % 64 == 63 else 1024 if step % 16 == 15 else 512 if step % 8 == 3 else 256
        ids = batches.next(max(a.tokens // ranks, T), T)[:, :T]
        loss, agree = loss_of(s, m, ids)
        loss.backward()
        if ranks > 1:
            E.mean_of_ranks(list(s.parameters()))
        nn.utils.clip_grad_norm_(s.parameters(), 1.0)
        muon.step(a.lr * lr)
        for g in adam.param_groups:
            g["lr"] = a.adam_lr * lr
        adam.step()
        for p in s.parameters():
            p.grad = None
        step, seen = step + 1, seen + ids.numel() * ranks
        log.append((loss.item(), agree))
        if rank == 0 and (time.time() - last > 20 or step == 5):
            v = np.mean(log, 0)
            log, last = [], time.time()
            assert math.isfinite(v[0])
            print(f"step {step} {last - t0:.0f}s lr {lr:.2f} {seen / 1e6:.2f} Mtok loss {v[0]:.3f} agree {v[1]:.3f}", flush=True)
        if time.time() - saved > 150:
            saved = time.time()
            save()
    save()


def export(a):
    s, ck = M.DemoQwen3(DRAFT), torch.load(a.file)
    s.load_state_dict(ck["weights"])
    os.makedirs(a.out, exist_ok=True)
    out = {k: v.detach().bfloat16().contiguous() for k, v in M.hf_tensors(s).items()}
    save_file(out, a.out + "/model.safetensors", metadata={"format": "pt"})
    with open(a.out + "/config.json", "w") as f:
        f.write(json.dumps(dict(sorted(X.qwen3_config(DRAFT).items())), indent=2) + "\n")
    for n in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(f"{E.TARGET}/{n}", f"{a.out}/{n}")
    print(f"{sum(v.numel() for v in out.values())} parameters, {ck['seen'] / 1e6:.1f} M tokens, {ck['spent']:.0f} s")


@torch.no_grad()
def evaluate(a):
    m, s, held = E.load_target(), M.DemoQwen3(DRAFT), TR.load_bin(a.data, "held").long()
    sd = load_file(a.draft + "/model.safetensors")
    for k, v in M.hf_tensors(s).items():
        v.data.copy_(sd[k].float())
    best = lambda ids: F.linear(s.trunk(ids)[0], s.embed).argmax(-1)[0]
    for T, n in ((1024, a.windows), (4096, a.windows // 4)):
        hit = [(best(x) == F.linear(E.states(m, x)[0], m.embed).argmax(-1)[0]).float().mean().item()
               for x in (held[None, i * 4097:i * 4097 + T] for i in range(n))]
        print(f"agreement with the target's greedy choice, windows of {T}, teacher forced: {np.mean(hit):.4f} ({n * T} rows)", flush=True)
    for name, prompts, new, stops in E.tasks(a, held):
        E.report(name, m, prompts, new, stops, lambda x: [best(x[None, :-1]).tolist()[1:]] * E.DEPTHS)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=1)
    sub = ap.add_subparsers(required=True)
    p = sub.add_parser("train")
    p.add_argument("--data", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, required=True)
    p.add_argument("--resume")
    p.add_argument("--tokens", type=int, default=2048, help="in a batch, over all ranks")
    p.add_argument("--own", type=float, default=0.5, help="share of the target's own text in batches of windows <= 256")
    p.add_argument("--decay", type=float, default=0.5, help="share of the time in which the rates fall")
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--adam-lr", type=float, default=0.002)
    p.set_defaults(run=train)
    p = sub.add_parser("export")
    p.add_argument("--out", required=True)
    p.add_argument("file")
    p.set_defaults(run=export)
    E.evaluate_arguments(sub.add_parser("evaluate")).set_defaults(run=evaluate)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    a.run(a)


if __name__ == "__main__":
    main()
