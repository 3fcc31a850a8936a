"""Clients that leave, and clients that read slowly: their work goes, nobody else notices."""
import json
import random
import socket
import struct
import threading
import time

import pytest

from harness import SLOW, Server, stream_texts, together, until

LONG = {"prompt": "The shell reads its input from", "max_tokens": 3000, "ignore_eos": True, "temperature": 0}


def http(body, stream=True):
    data = json.dumps({**body, "stream": stream}).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)) + data


def open_stream(server, body, stream=True, rcvbuf=None):
    s = socket.socket()
    if rcvbuf:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    s.settimeout(60)
    s.connect(("127.0.0.1", server.port))
    s.sendall(http(body, stream))
    return s


def leave(s, how):
    if how == "rst":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def read_events(s, n):
    got = b""
    while got.count(b"\ndata: ") < n:
        k = s.recv(65536)
        assert k, got[-300:]
        got += k


def aborted(server):
    return server.metrics().get("specd_requests_total", outcome="abort_client")


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("stream", [True, False])
def test_one_leaves(server, how, stream):
    """Gone within a second, streaming or not; the other one goes on."""
    before = aborted(server)
    other = server.stream("/v1/completions", {**LONG, "max_tokens": 400})
    s = open_stream(server, LONG, stream)
    if stream:
        read_events(s, 3)
    else:
        time.sleep(0.3)
    leave(s, how)
    t = time.monotonic()
    while aborted(server) == before:
        assert time.monotonic() - t < 1.0, "the work of a client that left goes on"
        time.sleep(0.01)
    assert len(other.all()) > 0
    server.idle(2)


def test_leave_while_queued_and_in_prefill():
    """One place: the second request waits, and leaves the queue without ever running."""
    with Server("--max-num-seqs", 1, "--max-num-batched-tokens", 16) as s:
        first = open_stream(s, LONG)
        read_events(first, 2)
        waiting = [open_stream(s, LONG, stream=bool(i & 1)) for i in range(6)]
        time.sleep(0.5)
        assert s.metrics().get("specd_requests_waiting") == 6
        for i, w in enumerate(waiting):
            leave(w, ("fin", "rst")[i % 2])
        deadline = time.monotonic() + 2
        while s.metrics().get("specd_requests_waiting"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert s.metrics().get("specd_client_disconnects_total", phase="queue") == 6
        assert s.metrics().get("specd_requests_running") == 1, "the running one is not touched"
        leave(first, "fin")
        s.idle(2)
        # in prefill: a long prompt in chunks of 16
        p = open_stream(s, {**LONG, "prompt": list(range(100, 3600)), "max_tokens": 400})
        time.sleep(0.15)
        leave(p, "rst")
        s.idle(2)
        m = s.metrics()
        assert m.get("specd_client_disconnects_total", phase="prefill") == 1
        assert m.get("specd_requests_total", outcome="abort_client") == 8


@pytest.mark.release
def test_500_leave(server):
    """500 clients leave in every phase by FIN and RST; nothing stays behind."""
    before = server.metrics()
    rng = random.Random(7)
    plan = [(rng.choice(["none", "head", "events", "events", "sleep"]), rng.choice(["fin", "rst"])) for _ in range(500)]
    lock = threading.Lock()
    todo = list(enumerate(plan))

    def worker(_):
        while True:
            with lock:
                if not todo:
                    return
                i, (when, how) = todo.pop()
            s = open_stream(server, {**LONG, "prompt": LONG["prompt"] + f" {i}", "max_tokens": 200 + i})
            if when == "head":
                s.recv(20)
            elif when == "events":
                read_events(s, 1 + i % 5)
            elif when == "sleep":
                time.sleep(0.02)
            leave(s, how)

    together(25, worker)
    server.idle(3)
    m = server.metrics()
    seen = m.get("specd_requests_total") - before.get("specd_requests_total")
    ended = m.get("specd_requests_total", outcome="abort_client") - before.get("specd_requests_total", outcome="abort_client")
    print(f"{seen:.0f} of 500 requests arrived before their client reset the connection, {ended:.0f} were cut off")
    assert 400 <= seen <= 500 and ended >= seen - 10
    probe = server.complete("The", max_tokens=4, temperature=0, ignore_eos=True)
    assert probe["usage"]["completion_tokens"] == 4
    assert m.get("process_open_fds") < 60


def test_list_and_n_leave_as_one(server):
    for body in ({**LONG, "n": 4, "temperature": 1.0}, {**LONG, "prompt": ["a", "b", "c"]}):
        before = aborted(server)
        s = open_stream(server, body)
        read_events(s, 4)
        leave(s, "fin")
        server.idle(2)
        assert aborted(server) == before + 1


def test_half_close(server):
    """A client that ends its sending side counts as gone (documented)."""
    s = open_stream(server, LONG)
    read_events(s, 2)
    s.shutdown(socket.SHUT_WR)
    server.idle(2)
    s.close()


@pytest.mark.release
def test_slow_readers_delay_nobody():
    """Streams that are not read are paused, not buffered; the others end meanwhile; and who reads
    again gets the rest."""
    with Server("--stream-buffer", 16384, "--max-num-seqs", 32) as s:
        fast = {**LONG, "max_tokens": 100}
        t = time.monotonic()
        alone = s.stream("/v1/completions", fast).all()
        t_alone = time.monotonic() - t
        big = {**LONG, "max_tokens": 600, "logprobs": 20, "n": 4, "temperature": 1.0}  # several MB, more than sockets hold
        slow = [open_stream(s, {**big, "seed": i}, rcvbuf=2048) for i in range(3)]
        for c in slow:
            read_events(c, 1)

        def quiet():
            a = s.metrics()
            time.sleep(0.3 * SLOW)
            b = s.metrics()
            return b.get("specd_stream_buffered_bytes") > 0 and all(
                a.get(k) == b.get(k) for k in ("specd_generation_tokens_total", "specd_stream_buffered_bytes"))

        until("all unread streams are paused", quiet, 30, every=0.01)
        m = s.metrics()
        held = m.get("specd_stream_buffered_bytes")
        assert 0 < held < 3 * 4 * 16384, "what is not read is not buffered without end"
        assert m.get("specd_requests_running") + m.get("specd_requests_waiting") > 0, "they are not over"
        t = time.monotonic()
        again = s.stream("/v1/completions", fast).all()
        t_beside = time.monotonic() - t
        assert stream_texts(again) == stream_texts(alone)
        print(f"{t_alone:.2f} s alone, {t_beside:.2f} s beside 3 unread streams; {held:.0f} bytes buffered")
        assert t_beside < 3 * t_alone + SLOW
        c, got = slow[0], b""
        end = time.monotonic() + 60
        while b"data: [DONE]" not in got[-64:] and time.monotonic() < end:
            k = c.recv(1 << 20)
            assert k
            got += k
        assert b"data: [DONE]" in got[-64:]
        assert got.count(b'"finish_reason":"length"') == 4
        assert s.metrics().get("specd_stream_paused_seconds_total") > 0
        for c in slow:
            leave(c, "rst")
        s.idle(3)


def test_slow_client_is_cut():
    with Server("--stream-buffer", 4096, "--slow-client-timeout", 1, "--max-num-seqs", 4) as s:
        c = open_stream(s, {**LONG, "max_tokens": 4000, "logprobs": 10}, rcvbuf=2048)
        read_events(c, 1)
        deadline = time.monotonic() + 20
        while s.metrics().get("specd_requests_running") + s.metrics().get("specd_requests_waiting"):
            assert time.monotonic() < deadline, "a reader that never reads keeps its place"
            time.sleep(0.1)
        c.close()
        s.idle(3)
        m = s.metrics()
        assert m.get("specd_requests_total", outcome="abort_timeout") + m.get("specd_requests_total", outcome="length") == 1
