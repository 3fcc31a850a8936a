#!/usr/bin/env python3
"""Goal: a real public model answers as its reference does. Method: greedy continuations of chat
prompts by `specd generate` and by transformers (fp32, eager) on the same bf16 weights must be the
same text; one prompt is long enough for several pages and prefill chunks, one has a system message,
one is raw text without the template.

environment: SPECD (build/specd), MODEL (build/models/SmolLM2-135M-Instruct)
"""
import os
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

SPECD = os.environ.get("SPECD", "build/specd")
MODEL = os.environ.get("MODEL", "build/models/SmolLM2-135M-Instruct")
TOKENS = 64
LONG = "Summarise the following list of facts in two sentences. " + " ".join(
    f"Fact {i}: the number {i} has the square {i * i} and is {'even' if i % 2 == 0 else 'odd'}." for i in range(1, 60))
CHATS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis in one paragraph.",
    "What is 12 + 30?",
    "Name three fruits and three animals.",
    "Translate 'good morning' to Spanish.",
    "Write a Python function that adds two numbers.",
    "Who wrote Hamlet?",
    "Give me a recipe for pancakes.",
    "Tell me a short story about a fox.",
    "What causes rain? Où est la gare? 雨はなぜ降るの？ 🌧️",
    "List the planets of the solar system.",
    LONG,
]
SYSTEM = "You are a pirate. Answer in one sentence."
RAW = "The quick brown fox jumps over the lazy dog. In 1969,"


def reference(model, tok, ids):
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False)[0][len(ids):].tolist()
    return tok.decode(out, skip_special_tokens=True)


def ours(prompt, *flags):
    cmd = [SPECD, "generate", "--model", MODEL, "--prompt", prompt, "--max-tokens", str(TOKENS), "--temperature", "0",
           "--log-level", "error", *flags]
    return subprocess.run(cmd, check=True, capture_output=True, text=True, timeout=300).stdout


def main():
    tok = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager").eval()
    cases = [([{"role": "user", "content": p}], p, ["--chat"]) for p in CHATS]
    cases.append(([{"role": "system", "content": SYSTEM}, {"role": "user", "content": CHATS[0]}], CHATS[0],
                  ["--chat", "--system", SYSTEM]))
    cases.append((None, RAW, []))
    bad = 0
    for messages, prompt, flags in cases:
        ids = tok(prompt)["input_ids"] if messages is None else tok.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
        want, got = reference(model, tok, ids), ours(prompt, *flags)
        same = want.strip() == got.strip()
        bad += not same
        print(f"{'same' if same else 'DIFFERS'}  {len(ids):5} tokens  {prompt[:50]!r}")
        if not same:
            print(f"  transformers: {want!r}\n  specd:        {got!r}")
    print(f"{len(cases) - bad} of {len(cases)} continuations of up to {TOKENS} tokens are the same")
    return 1 if bad else 0


sys.exit(main())
