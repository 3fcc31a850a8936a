"""The load generator in C against the server: every stream complete, in each of its modes."""
import json
import subprocess

import pytest

from harness import BIN, Server

LOAD = BIN.resolve().parent / "bench_load"


def load(server, *args, rc=0):
    r = subprocess.run([LOAD, "--port", str(server.port), "--pid", str(server.proc.pid), "--seconds", "60", *map(str, args)],
                       capture_output=True, text=True, timeout=100)
    print(r.stdout.strip())
    assert r.returncode == rc, r.stdout + r.stderr
    return json.loads(r.stdout)


@pytest.mark.release
def test_steady(server):
    for conns in (1, 16, 64):
        r = load(server, "--conns", conns, "--requests", conns * 2, "--tokens", 32, "--prompt", 16)
        assert r["ok"] == conns * 2 and r["tokens"] == conns * 64 and r["status"] == {"200": conns * 2}


def test_same_prompt(server):
    r = load(server, "--conns", 8, "--requests", 16, "--tokens", 24, "--same")
    assert r["same_text"] is True


@pytest.mark.release
def test_disconnect(server):
    for drop in (0, 1, 5):
        r = load(server, "--mode", "disconnect", "--conns", 8, "--requests", 40, "--tokens", 400, "--drop", drop)
        assert r["dropped"] >= 38
        server.idle(3)


def test_malformed(server):
    r = load(server, "--mode", "malformed", "--conns", 4, "--requests", 180)
    assert r["ok"] == 180 and set(r["status"]) == {"400"}


@pytest.mark.release
def test_slow(server):
    r = load(server, "--mode", "slow", "--conns", 4, "--requests", 8, "--tokens", 48, "--slow-ms", 10)
    assert r["ok"] == 8


@pytest.mark.release
def test_256_connections():
    """More clients than places: the rest waits and all are served."""
    with Server("--max-num-seqs", 32) as s:
        n = 256
        r = load(s, "--conns", n, "--tokens", 8, "--prompt", 8)
        assert r["ok"] == n
        s.idle()
