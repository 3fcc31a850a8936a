#!/usr/bin/env python3
"""Tokens a second with speculation over without, by number of streams.

One server runs for every side: `off`, and each method named by --sides. A round sends the same
requests to all of them, one after the other, in an order that rotates from round to round, so that
a noisy machine hits all. Each stream sends its next request when it has the answer to the last.
One line for every side and number of streams: median rates, the ratio to `off` of the same round
(median, quartiles, extremes), tokens a verify, and how many texts equal those of `off`. Lines that
begin with # say what ran. Flags after `--` go to every server.

    scripts/bench_speculation.py --model configs/models/demo --text test/data/heldout/jargon.txt --sides mtp,auto
"""
import argparse
import concurrent.futures
import http.client
import json
import re
import statistics
import subprocess
import sys
import threading
import time

local = threading.local()


def start(binary, model, flags):
    return subprocess.Popen([binary, "serve", "--model", model, "--port", "0", *flags], stderr=subprocess.PIPE, text=True)


def ready(p, flags):
    """The port, once the server takes requests; what it logs later is read and dropped."""
    port, up, log = None, False, []
    for line in p.stderr:
        log.append(line)
        found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
        port = int(found.group(1)) if found else port
        up = "server: ready" in line
        if up:
            break
    if not port or not up:
        sys.exit(f"the server with {flags} did not start:\n{''.join(log)}")
    threading.Thread(target=lambda: [None for _ in p.stderr], daemon=True).start()
    device = re.search(r"parameters, on (.*?): context", "".join(log))
    return port, device.group(1) if device else "?"


def complete(port, body):
    """A connection a thread and server is kept, so that connecting is no part of a figure."""
    pool = local.__dict__.setdefault("connections", {})
    c = pool.get(port) or pool.setdefault(port, http.client.HTTPConnection("127.0.0.1", port, timeout=600))
    c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    r = json.loads(c.getresponse().read())
    if "choices" not in r:
        raise SystemExit(f"refused: {r}")
    return r


def measure(pool, port, bodies):
    begin = time.monotonic()
    answers = list(pool.map(lambda b: complete(port, b), bodies))
    seconds = time.monotonic() - begin
    usage = [a["usage"] for a in answers]
    verifies = sum(u.get("speculation", {}).get("verifies", 0) for u in usage)
    accepted = sum(u.get("speculation", {}).get("accepted", 0) for u in usage)
    return {"rate": sum(u["completion_tokens"] for u in usage) / seconds,
            "texts": [a["choices"][0]["text"] for a in answers],
            "length": 1 + accepted / verifies if verifies else 1}


def bodies_of(a, text, streams):
    n = max(a.least, streams * a.turns)
    step = max(1, (len(text) - 300) // n)
    return [json.dumps({"prompt": text[i * step:i * step + 250], "max_tokens": a.tokens, "ignore_eos": True,
                        "temperature": a.temperature, "seed": i + 1}) for i in range(n)]


def rounds(a, ports, bodies, streams):
    sides = list(ports)
    got = []
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        for side in sides * a.warm: # auto needs a while to find its depth
            measure(pool, ports[side], bodies)
        for k in range(a.pairs):
            order = sides[k % len(sides):] + sides[:k % len(sides)]
            got.append({s: measure(pool, ports[s], bodies) for s in order})
    return got


def report(side, streams, got):
    ratio = sorted(r[side]["rate"] / r["off"]["rate"] for r in got)
    q = statistics.quantiles(ratio, n=4, method="inclusive") if len(ratio) > 1 else ratio * 3
    same = sum(x == y for r in got for x, y in zip(r[side]["texts"], r["off"]["texts"]))
    total = sum(len(r["off"]["texts"]) for r in got)
    print(f"{side:>12} {streams:>7} {statistics.median(r['off']['rate'] for r in got):>9.0f}"
          f" {statistics.median(r[side]['rate'] for r in got):>9.0f} {statistics.median(ratio):>6.3f}"
          f"  [{q[0]:.3f} {q[2]:.3f}] {ratio[0]:.3f}..{ratio[-1]:.3f}"
          f" {statistics.median(r[side]['length'] for r in got):>7.2f}  {same}/{total}", flush=True)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--binary", default="build/specd")
    a.add_argument("--model", required=True)
    a.add_argument("--draft", help="directory of the drafter, for the sides that speculate")
    a.add_argument("--text", required=True, help="a text whose parts are the prompts")
    a.add_argument("--sides", default="auto", help="values of --speculative that are compared with off")
    a.add_argument("--streams", default="1,8,32,64")
    a.add_argument("--pairs", type=int, default=7, help="rounds that count")
    a.add_argument("--warm", type=int, default=1, help="rounds before them")
    a.add_argument("--turns", type=int, default=3, help="requests a stream sends in a round")
    a.add_argument("--least", type=int, default=4, help="requests of a round, at least")
    a.add_argument("--tokens", type=int, default=128)
    a.add_argument("--temperature", type=float, default=0)
    a.add_argument("flags", nargs="*")
    a = a.parse_args()
    with open(a.text, encoding="utf-8") as f:
        text = f.read()
    draft = ["--draft", a.draft] if a.draft else []
    flags = {"off": a.flags}
    for side in a.sides.split(","):
        flags[side] = [*a.flags, "--speculative", side, *draft]
    servers, ports, began = {}, {}, time.monotonic()
    try:
        for side in flags: # one after the other: each takes its share of a GPU's free memory
            servers[side] = start(a.binary, a.model, flags[side])
            ports[side], device = ready(servers[side], flags[side])
        print(f"# {a.model} on {device}: {a.tokens} tokens, {a.pairs} rounds, ready in {time.monotonic() - began:.1f} s")
        print(f"# {'side':>10} {'streams':>7} {'off tok/s':>9} {'on tok/s':>9} {'ratio':>6}  [quartiles]   extremes    "
              "length  same texts", flush=True)
        for streams in map(int, a.streams.split(",")):
            got = rounds(a, ports, bodies_of(a, text, streams), streams)
            for side in list(ports)[1:]:
                report(side, streams, got)
        print(f"# {time.monotonic() - began:.0f} s in all")
    finally:
        for p in servers.values():
            p.terminate()
        for p in servers.values():
            p.wait()


if __name__ == "__main__":
    main()
