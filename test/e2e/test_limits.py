"""Admission: full queue, lists as a whole, what can never fit, silence in the queue."""
import time

from harness import Server, together, until

LONG = {"prompt": "The shell", "max_tokens": 4000, "ignore_eos": True, "temperature": 0}


def test_queue_full():
    with Server("--max-num-seqs", 1, "--max-queued-requests", 2) as s:
        first = s.stream("/v1/completions", LONG)
        next(iter(first))
        waiting = [s.begin("/v1/completions", {**LONG, "stream": bool(i)}) for i in range(2)]
        until("both wait", lambda: s.metrics().get("specd_requests_waiting") == 2, 5)
        for stream in (False, True):
            r = s.post("/v1/completions", {**LONG, "stream": stream})
            e = r.error(429, code="queue_full")
            assert e["type"] == "rate_limit_error"
            assert 1 <= int(r.headers["retry-after"]) <= 120 and int(r.headers["retry-after-ms"]) > 0
        # a list is admitted as a whole or not at all
        s.post("/v1/completions", {**LONG, "prompt": ["a", "b"]}).error(429)
        assert s.metrics().get("specd_requests_waiting") == 2
        assert s.metrics().get("specd_requests_total", outcome="rejected_overload") == 3
        assert s.get("/health").status == 200, "a full queue is not ill health"
        for w in (first, *waiting):
            w.close()
        s.idle(3)
        assert s.complete("The", max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"] == 2


def test_queue_is_fair():
    """With two places, requests that wait are served in the order they came."""
    with Server("--max-num-seqs", 2) as s:
        ends = {}

        def one(i):
            time.sleep(0.05 * i)
            s.complete("The shell", max_tokens=60, ignore_eos=True, temperature=0)
            ends[i] = time.monotonic()

        together(8, one)
        order = sorted(ends, key=ends.get)
        assert all(abs(order.index(i) - i) <= 2 for i in range(8)), order


def test_never_fits():
    with Server("--kv-cache-tokens", 256, "--max-num-seqs", 4) as s:
        r = s.post("/v1/completions", {"prompt": [100 + i for i in range(300)], "max_tokens": 4, "ignore_eos": True})
        r.error(400)
        ok = s.complete([100 + i for i in range(200)], max_tokens=4, ignore_eos=True)
        assert ok["usage"]["completion_tokens"] == 4


def test_max_model_len():
    with Server("--max-model-len", 128) as s:
        assert s.get("/v1/models/demo").json()["max_model_len"] == 128
        s.post("/v1/completions", {"prompt": [100] * 128, "max_tokens": 1}).error(400, code="context_length_exceeded")
        r = s.complete([100] * 100, max_tokens=28, ignore_eos=True)
        assert r["choices"][0]["finish_reason"] == "length"
        # chat without a limit runs into the context's end: length, not an error
        r = s.chat("Hi", ignore_eos=True, temperature=0)
        assert r["usage"]["total_tokens"] == 128 and r["choices"][0]["finish_reason"] == "length"


def test_ping_in_the_queue():
    """A stream that waits gets a comment line, so that proxies keep it open."""
    with Server("--max-num-seqs", 1, "--sse-ping-interval", 1) as s:
        first = s.stream("/v1/completions", {**LONG, "max_tokens": 4000})
        next(iter(first))
        second = s.stream("/v1/completions", {**LONG, "max_tokens": 2})
        t = time.monotonic()
        assert second.resp.readline().startswith(b":")
        assert time.monotonic() - t < 5
        assert second.resp.readline() == b"\n"
        first.close()
        ev = second.all()
        assert ev[-1]["choices"][0]["finish_reason"] == "length"


def test_queue_timeout():
    with Server("--max-num-seqs", 1, "--queue-timeout", 1) as s:
        first = s.stream("/v1/completions", {**LONG, "max_tokens": 4000})
        next(iter(first))
        t = time.monotonic()
        e = s.post("/v1/completions", LONG).error(504, code="queue_timeout")
        assert e["type"] == "timeout_error" and 0.8 < time.monotonic() - t < 4
        first.close()
        s.idle(3)


def test_connections_beyond_the_limit():
    with Server("--max-connections", 20) as s:
        import socket
        idle = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(15)]
        assert s.get("/health").status == 200
        for c in idle:
            c.close()
        assert s.complete("The", max_tokens=1)["choices"]


def test_many_connections():
    """300 idle connections beside one that works."""
    import socket
    with Server() as s:
        idle = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(300)]
        assert s.complete("The", max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4
        for c in idle:
            c.close()
        deadline = time.monotonic() + 5
        while s.metrics().get("specd_http_connections") > 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
