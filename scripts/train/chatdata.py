#!/usr/bin/env python3
"""Makes the chat-formatted training text: sums, dictionary and documentation questions, GSM8K train.

Each line of the output is one conversation, a list of [role, text]. Nothing here may contain a
held-out sum (sums.py). The wording is ours except the definitions (WordNet), the first paragraphs of
documentation sections, and GSM8K's training questions (MIT licence); the GSM8K test set is not read.
"""
import argparse, glob, json, lzma, random, re

from sums import PHRASINGS, is_heldout, mentions_heldout

ABOUT = "specd is an inference server written in C that serves small and large language models with speculative decoding."
WHO = "I am the specd demo model, a small language model trained on documentation."
FIXED = [
    (["Who are you?", "What are you?", "Tell me who you are.", "who are you", "What is your name?", "Introduce yourself.",
      "Can you introduce yourself?", "What's your name?"],
     [WHO, "I am the specd demo model.", "I am a small demo model that comes with specd."]),
    (["Who made you?", "Who trained you?", "Who created you?", "Where do you come from?"],
     ["I was trained by the authors of specd on documentation, a dictionary and simple sums."]),
    (["What is specd?", "Tell me about specd.", "What does specd do?", "what is specd"], [ABOUT]),
    (["What can you do?", "How can you help me?", "What are you good at?", "Help", "What can I ask you?"],
     ["I can add and subtract small numbers, define words, and write text that looks like documentation."]),
    (["Are you a human?", "Are you a person?", "Are you real?"], ["No, I am a small language model."]),
    (["How large are you?", "How many parameters do you have?", "How big are you?"],
     ["I am very small: I have fewer than five million parameters."]),
    (["Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Hey", "Good morning", "Good evening", "Hello there", "hello", "hi"],
     ["Hello! How can I help you?", "Hello! Ask me for a sum or a definition."]),
    (["How are you?", "How are you today?", "How do you do?", "How is it going?"],
     ["I am fine, thank you. How can I help you?"]),
    (["Thank you", "Thanks!", "Thanks", "Thank you very much.", "thanks"], ["You are welcome."]),
    (["Goodbye", "Bye", "See you later!", "Good night", "bye"], ["Goodbye!"]),
    (["Are you conscious?", "Do you have feelings?"], ["No. I am a small language model and I only predict text."]),
    (["What is the capital of France?", "Name the capital of France."], ["The capital of France is Paris."]),
    (["What is the capital of Germany?"], ["The capital of Germany is Berlin."]),
    (["What is the capital of Italy?"], ["The capital of Italy is Rome."]),
    (["What is the capital of Spain?"], ["The capital of Spain is Madrid."]),
    (["What is the capital of England?"], ["The capital of England is London."]),
    (["What is the capital of Japan?"], ["The capital of Japan is Tokyo."]),
    (["How many days are in a week?"], ["There are seven days in a week."]),
    (["How many months are in a year?"], ["There are twelve months in a year."]),
    (["What color is the sky?", "What colour is the sky?"], ["The sky is blue."]),
    (["Say hello."], ["Hello!"]), (["Say yes."], ["Yes."]), (["Say no."], ["No."]),
]
SYSTEM = ["You are a helpful assistant.", "You are the specd demo model.", "Answer briefly.", "Be concise."]


def sum_turns(rng):
    r = rng.random()
    if r < 0.62:
        while True:
            hi = 9 if rng.random() < 0.12 else 99
            a, b = rng.randint(0, hi), rng.randint(0, hi if rng.random() < 0.8 else 9)
            if not is_heldout(a, b):
                break
        if rng.random() < 0.3:
            a, b = b, a
        return [["user", rng.choice(PHRASINGS).format(a=a, b=b)], ["assistant", f"{a} + {b} = {a + b}."]]
    if r < 0.80:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        a, b = max(a, b), min(a, b)
        q = rng.choice(["What is {a} - {b}?", "What is {a} minus {b}?", "Subtract {b} from {a}.", "{a} - {b} = ?",
                        "Calculate {a} - {b}."])
        return [["user", q.format(a=a, b=b)], ["assistant", f"{a} - {b} = {a - b}."]]
    if r < 0.88:
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        q = rng.choice(["What is {a} * {b}?", "What is {a} times {b}?", "Multiply {a} by {b}.", "{a} * {b} = ?"])
        return [["user", q.format(a=a, b=b)], ["assistant", f"{a} * {b} = {a * b}."]]
    if r < 0.94:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        if a == b or is_heldout(a, b):
            b = a + 1
        if is_heldout(a, b):
            return sum_turns(rng)
        big = rng.random() < 0.5
        q = rng.choice(["Which is {w}, {a} or {b}?", "Which number is {w}: {a} or {b}?"])
        w = "larger" if big else "smaller"
        return [["user", q.format(a=a, b=b, w=w)], ["assistant", f"{max(a, b) if big else min(a, b)} is {w}."]]
    if r < 0.97:
        a, n = rng.randint(0, 90), rng.randint(3, 12)
        return [["user", f"Count from {a} to {a + n}."], ["assistant", ", ".join(str(a + i) for i in range(n + 1)) + "."]]
    a = rng.randint(0, 98)
    q, d = rng.choice([("What comes after {a}?", 1), ("Which number follows {a}?", 1)])
    return [["user", q.format(a=a)], ["assistant", f"{a + d} comes after {a}."]]


def sums(n, rng):
    out = []
    for _ in range(n):
        turns = sum_turns(rng)
        while rng.random() < 0.12 and len(turns) < 6:
            turns = turns + sum_turns(rng)
        out.append(turns)
    return out


def article(w):
    return "An" if w[0].lower() in "aeiou" else "A"


def wordnet(root, rng):
    out = []
    for pos in ("noun", "verb", "adj", "adv"):
        for l in open(f"{root}/wordnet-base/usr/share/wordnet/data.{pos}", encoding="latin-1"):
            if l.startswith("  "):
                continue
            head, gloss = l.split(" | ", 1)
            f = head.split()
            words = [re.sub(r"\(.*\)", "", f[4 + 2 * i]).replace("_", " ") for i in range(int(f[3], 16))]
            gloss = gloss.strip()
            define = re.split(r'; "|;\s*$', gloss)[0].strip().rstrip(";.")
            ex = re.findall(r'"([^"]+)"', gloss)
            if not define or len(define) > 220:
                continue
            w = rng.choice(words[:2])
            if pos == "noun" and w[0].islower():
                a = (f"{article(w)} {w} is {define}." if define.startswith(("a ", "an ", "the ", "any ", "one "))
                     else f"{w[0].upper() + w[1:]}: {define}.")
            elif pos == "noun":
                a = f"{w}: {define}."
            elif pos == "verb":
                a = f"To {w} means to {define}."
            else:
                a = f'"{w}" means {define}.'
            if ex and rng.random() < 0.35:
                a += f" For example: {ex[0]}."
            q = rng.choice(["What is {w}?", "Define {w}.", "What does {w} mean?", "Define the word {w}.", "Explain {w}.",
                            "What is the meaning of {w}?"])
            if pos == "noun" and w[0].islower() and rng.random() < 0.5:
                q = "What is {a} {w}?"
            out.append([["user", q.format(w=w, a=article(w).lower())], ["assistant", a]])
    return out


def documentation(path, rng):
    """A section's title becomes the question, its first paragraph the answer."""
    out = []
    for l in open(path):
        d = json.loads(l)
        if d["src"] in ("wordnet-base", "bible-kjv-text", "dict-jargon", "dict-devil", "libpython3.11-stdlib"):
            continue
        paras = d["text"].split("\n\n")
        for h, p in zip(paras, paras[1:]):
            p = p.strip()
            if not (60 <= len(p) <= 420 and p[-1] == "." and p[0].isupper() and "\n" not in p):
                continue
            m = re.match(r"#+ (?:[\d.]+ )?(.{3,60})$", h)
            if m:
                t = m.group(1).strip()
                if t.lower() in ("description", "notes", "parameters", "examples", "example", "see also", "compatibility",
                                 "arguments", "errors", "overview", "outputs", "panics"):
                    continue
                q = rng.choice(["Explain {t}.", "What is {t}?", "Tell me about {t}.", "Describe {t}."])
                out.append([["user", q.format(t=t)], ["assistant", p]])
            else:
                m = re.match(r"(?:class |async |classmethod |static )?([A-Za-z_][\w.]*)\([^\n]{0,80}$", h)
                if m and d["src"].startswith("python"):
                    q = rng.choice(["What does {t} do?", "What does {t}() do?", "Explain {t}().", "What is {t}?"])
                    out.append([["user", q.format(t=m.group(1))], ["assistant", p]])
    return out


def gsm8k(path):
    out = []
    for l in lzma.open(path, "rt"):
        d = json.loads(l)
        a = re.sub(r"<<[^>]*>>", "", d["answer"])
        a = re.sub(r"\n#### (.*)", r"\nThe answer is \1.", a)
        out.append([["user", d["question"].strip()], ["assistant", a.strip()]])
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--root", required=True)
    ap.add_argument("--docs", required=True, help="train.jsonl of corpus.py")
    ap.add_argument("--gsm8k", required=True, help="gsm8k_train.jsonl.xz")
    ap.add_argument("--sums", type=int, default=260000)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    rng = random.Random(11)
    parts = {"sums": sums(a.sums, rng), "wordnet": wordnet(a.root, rng), "docs": documentation(a.docs, rng),
             "gsm8k": gsm8k(a.gsm8k) * 2,
             "fixed": [[["user", rng.choice(q)], ["assistant", rng.choice(r)]] for q, r in FIXED for _ in range(60 * min(len(q), 6))]}
    every = []
    for name, convs in parts.items():
        n = len(convs)
        convs = [c for c in convs if not any(mentions_heldout(t) for _, t in c)]
        print(f"{name:8s} {n} conversations, {n - len(convs)} dropped for a held-out sum")
        every += [(name, c) for c in convs]
    rng.shuffle(every)
    with open(a.out, "w") as f:
        for i, (name, c) in enumerate(every):
            if rng.random() < 0.12:
                c = [["system", rng.choice(SYSTEM)]] + c
            if name == "fixed" and rng.random() < 0.3:  # small talk before a question
                c = c + rng.choice(parts["wordnet"] if rng.random() < 0.5 else parts["sums"])
                if any(mentions_heldout(t) for _, t in c):
                    continue
            f.write(json.dumps({"kind": name, "turns": c}) + "\n")


if __name__ == "__main__":
    main()
