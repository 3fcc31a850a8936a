#!/usr/bin/env python3
"""The 200 held-out sums: a seeded list that no training text may contain, in either order.

`python3 sums.py OUT.json` writes it. Imported by corpus.py and chatdata.py to keep the pairs out,
and by evaluate.py and the server's tests to ask them.
"""
import json, random, re, sys

PHRASINGS = ["What is {a} + {b}?", "What is {a} plus {b}?", "Calculate {a} + {b}.", "{a} + {b} = ?",
             "How much is {a} plus {b}?", "Add {a} and {b}.", "Compute {a} + {b}", "Please add {a} and {b}."]


def heldout():
    """200 unordered pairs out of 0..99: 20 with two one-digit numbers or one, 180 mostly two-digit."""
    rng = random.Random(20240607)
    pairs = []
    seen = set()
    while len(pairs) < 200:
        small = len(pairs) < 40
        a, b = (rng.randint(1, 9), rng.randint(1, 99)) if small else (rng.randint(10, 99), rng.randint(10, 99))
        if small and len(pairs) < 10:
            b = rng.randint(1, 9)
        key = (min(a, b), max(a, b))
        if key in seen:
            continue
        seen.add(key)
        pairs.append((a, b))
    return pairs


HELD = {(min(a, b), max(a, b)) for a, b in heldout()}
_PAT = re.compile(r"(?<![\d.,])(\d{1,2})\s*(?:\+|plus|and)\s*(\d{1,2})(?![\d.,]*\d)")


def is_heldout(a, b):
    return (min(a, b), max(a, b)) in HELD


def mentions_heldout(text):
    """True where "a + b", "a plus b" or "a and b" of a held-out pair occurs in the text."""
    for m in _PAT.finditer(text):
        if is_heldout(int(m.group(1)), int(m.group(2))):
            return True
    return False


def items():
    rng = random.Random(5)
    return [{"a": a, "b": b, "answer": a + b, "question": rng.choice(PHRASINGS).format(a=a, b=b)} for a, b in heldout()]


if __name__ == "__main__":
    json.dump(items(), open(sys.argv[1], "w"), indent=0)
