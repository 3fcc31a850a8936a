#!/usr/bin/env python3
"""Tokens a second with speculation against without, by number of streams.

Two servers run, one of them with the flags after `--`; each pair of measurements sends the same
requests to the one, then to the other (in turn first), so that a noisy machine hits both. Printed:
the median ratio of the pairs, its quartiles, the median rates, and whether the texts were equal.

    scripts/bench_speculation.py --model configs/models/demo --text FILE -- --speculative auto
"""
import argparse
import concurrent.futures
import http.client
import json
import re
import statistics
import subprocess
import sys
import time


def start(binary, model, flags):
    p = subprocess.Popen([binary, "serve", "--model", model, "--port", "0", *flags], stderr=subprocess.PIPE, text=True)
    port = None
    for line in p.stderr:
        found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
        port = int(found.group(1)) if found else port
        if "server: ready" in line:
            break
    if not port or p.poll() is not None:
        sys.exit(f"the server with {flags} did not start")
    return p, port


def complete(port, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = json.loads(c.getresponse().read())
    c.close()
    if "choices" not in r:
        sys.exit(f"refused: {r}")
    return r


def measure(port, bodies, streams):
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(lambda b: complete(port, b), bodies))
    seconds = time.monotonic() - begin
    usage = [a["usage"] for a in answers]
    verifies = sum(u.get("speculation", {}).get("verifies", 0) for u in usage)
    accepted = sum(u.get("speculation", {}).get("accepted", 0) for u in usage)
    length = 1 + accepted / verifies if verifies else 1
    return sum(u["completion_tokens"] for u in usage) / seconds, [a["choices"][0]["text"] for a in answers], length


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--binary", default="build/specd")
    a.add_argument("--model", required=True)
    a.add_argument("--text", required=True, help="a text whose parts are the prompts")
    a.add_argument("--streams", default="1,8,32,64")
    a.add_argument("--pairs", type=int, default=7)
    a.add_argument("--tokens", type=int, default=128)
    a.add_argument("--temperature", type=float, default=0)
    a.add_argument("flags", nargs="*")
    a = a.parse_args()
    text = open(a.text, encoding="utf-8").read()
    off, on = start(a.binary, a.model, []), start(a.binary, a.model, a.flags)
    try:
        for streams in map(int, a.streams.split(",")):
            n = max(streams, 4)
            step = max(1, (len(text) - 300) // n)
            bodies = [{"prompt": text[i * step:i * step + 250], "max_tokens": a.tokens, "temperature": a.temperature,
                       "seed": i} for i in range(n)]
            for server in (off, on):
                measure(server[1], bodies, streams)
            rates, equal, length = [], True, 0
            for k in range(a.pairs):
                order = (off, on) if k % 2 == 0 else (on, off)
                got = {s[1]: measure(s[1], bodies, streams) for s in order}
                rates.append((got[off[1]][0], got[on[1]][0]))
                equal = equal and got[off[1]][1] == got[on[1]][1]
                length = got[on[1]][2]
            ratio = sorted(y / x for x, y in rates)
            q = statistics.quantiles(ratio, n=4)
            print(json.dumps({"streams": streams, "ratio": round(statistics.median(ratio), 3),
                              "quartiles": [round(q[0], 3), round(q[2], 3)],
                              "off_tok_s": round(statistics.median(x for x, _ in rates)),
                              "on_tok_s": round(statistics.median(y for _, y in rates)),
                              "tokens_a_verify": round(length, 2), "same_texts": equal}), flush=True)
    finally:
        for p, _ in (off, on):
            p.terminate()
            p.wait()


if __name__ == "__main__":
    main()
