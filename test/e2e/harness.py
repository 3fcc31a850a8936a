"""Starts the real daemon on loopback and talks to it with the standard library only.

Every wait is bounded. A server is a child of this process and ends with it; only that child is ever
signalled. SPECD_BIN and SPECD_MODEL choose another binary or model directory.
"""
import ctypes
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("SPECD_BIN", ROOT / "build" / "specd"))
DEMO = Path(os.environ.get("SPECD_MODEL", ROOT / "configs" / "models" / "demo"))
JSON = {"Content-Type": "application/json"}
# sanitizers make everything slower; limits of time grow with it
SLOW = float(os.environ.get("SPECD_SLOW", "1"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def until(what, test, limit=10.0, every=0.02):
    """Polls test() until it is true; fails with the last value otherwise."""
    end = time.monotonic() + limit * SLOW
    while True:
        got = test()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit * SLOW:.0f} s: {what} (last: {got!r})")
        time.sleep(every)


class Reply:
    def __init__(self, status, headers, data):
        self.status, self.headers, self.data = status, headers, data

    @property
    def text(self):
        return self.data.decode("utf-8")

    def json(self):
        return json.loads(self.data)

    def error(self, status, param=None, code=None, says=None):
        """Checks that this is an error in the API's shape; returns the error object."""
        assert self.status == status, f"{self.status} instead of {status}: {self.data[:500]!r}"
        assert self.headers.get("content-type", "").startswith("application/json"), self.headers
        body = self.json()
        assert set(body) == {"error"}, body
        e = body["error"]
        assert {"message", "type", "param", "code"} <= set(e), e
        assert isinstance(e["message"], str) and e["message"], e
        assert isinstance(e["type"], str) and e["type"], e
        assert e["param"] is None or isinstance(e["param"], str), e
        assert e["code"] is None or isinstance(e["code"], str), e
        if param is not None:
            assert e["param"] == param, e
        if code is not None:
            assert e["code"] == code, e
        if says is not None:
            assert says in e["message"], e
        assert self.headers.get("x-request-id"), "no X-Request-Id on an error"
        return e


class Metrics:
    """A /metrics page: name -> list of (labels, value), and the text itself."""

    def __init__(self, text):
        self.text = text
        self.series = {}
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            m = re.fullmatch(r'([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)', line)
            assert m, f"not a sample line: {line!r}"
            labels = dict(re.findall(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"', m[2] or ""))
            self.series.setdefault(m[1], []).append((labels, float(m[3])))

    def get(self, name, **labels):
        """Sum over the series that bear these labels; a name that does not exist is an error."""
        assert name in self.series, f"no metric {name}"
        return sum(v for have, v in self.series[name] if all(have.get(k) == w for k, w in labels.items()))

    def busy(self):
        return {k: self.get(k) for k in ("specd_requests_running", "specd_requests_waiting",
                                         "specd_kv_cache_usage_ratio", "specd_queue_tokens",
                                         "specd_http_streams") if self.get(k)}


class Stream:
    """A running answer in server-sent events, with its framing checked line by line."""

    def __init__(self, conn, resp):
        self.conn, self.resp = conn, resp
        self.status, self.headers = resp.status, {k.lower(): v for k, v in resp.getheaders()}
        self.done = False  # [DONE] was seen
        self.comments = 0

    def __iter__(self):
        while True:
            line = self.resp.readline()
            if not line:
                return
            if line.startswith(b":"):
                self.comments += 1
                assert self.resp.readline() == b"\n"
                continue
            assert line.startswith(b"data: ") and line.endswith(b"\n") and b"\r" not in line, line
            assert self.resp.readline() == b"\n", "an event is one data line and a blank line"
            assert not self.done, f"after [DONE]: {line!r}"
            if line == b"data: [DONE]\n":
                self.done = True
                continue
            yield json.loads(line[6:].decode("utf-8"))

    def all(self):
        """Every event up to the end, which must be [DONE]."""
        try:
            out = list(self)
            assert self.done, "the stream ended without [DONE]"
            return out
        finally:
            self.close()

    def close(self):
        self.resp.close()
        self.conn.close()


class Server:
    def __init__(self, *args, model=DEMO, wait=True, env=None, log=None):
        self.port = free_port()
        self.args = [str(BIN), "serve", "--model", str(model), "--port", str(self.port), *map(str, args)]
        self.log = log or Path(os.environ.get("TMPDIR", "/tmp")) / f"specd-e2e-{os.getpid()}-{self.port}.log"
        self.out = open(self.log, "wb")
        self.proc = subprocess.Popen(self.args, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.out,
                                     env={**os.environ, **(env or {})}, preexec_fn=die_with_parent)
        self.name = Path(model).name
        if wait:
            try:
                self.ready()
            except BaseException:
                self.kill()
                raise

    def ready(self):
        def healthy():
            if self.proc.poll() is not None:
                raise AssertionError(f"the server ended with {self.proc.returncode}:\n{self.tail()}")
            try:
                return self.get("/health", timeout=5).status == 200
            except OSError:
                return False

        until("the server is ready", healthy, 60)

    def tail(self, n=4000):
        self.out.flush()
        return self.log.read_bytes()[-n:].decode("utf-8", "replace")

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)

    def request(self, method, path, body=None, headers=None, timeout=60):
        c = self.connect(timeout)
        try:
            if body is not None and not isinstance(body, (bytes, bytearray)):
                body = json.dumps(body).encode()
            h = dict(JSON if body is not None else {})
            h.update(headers or {})
            c.request(method, path, body, h)
            r = c.getresponse()
            return Reply(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
        finally:
            c.close()

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body, **kw)

    def ok(self, path, body, **kw):
        r = self.post(path, body, **kw)
        assert r.status == 200, f"{r.status}: {r.data[:600]!r}"
        return r.json()

    def complete(self, prompt, **kw):
        return self.ok("/v1/completions", {"prompt": prompt, **kw})

    def chat(self, content, **kw):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self.ok("/v1/chat/completions", {"messages": messages, **kw})

    def stream(self, path, body, headers=None, timeout=60):
        c = self.connect(timeout)
        c.request("POST", path, json.dumps({**body, "stream": True}).encode(), {**JSON, **(headers or {})})
        r = c.getresponse()
        if r.status != 200:
            data = r.read()
            c.close()
            raise AssertionError(f"{r.status}: {data[:500]!r}")
        s = Stream(c, r)
        assert s.headers["content-type"] == "text/event-stream; charset=utf-8", s.headers
        return s

    def begin(self, path, body):
        """Sends a request and does not wait for anything; close() of what is returned leaves."""
        c = self.connect()
        c.request("POST", path, json.dumps(body).encode(), JSON)
        return c

    def raw(self, data, timeout=10, shut=False):
        """Sends bytes as they are, returns all that comes back until the server closes or is silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout * SLOW) as s:
            s.sendall(data)
            if shut:
                s.shutdown(socket.SHUT_WR)
            got = b""
            try:
                while True:
                    k = s.recv(65536)
                    if not k:
                        break
                    got += k
            except (TimeoutError, ConnectionResetError):
                pass
            return got

    def metrics(self):
        r = self.get("/metrics")
        assert r.status == 200
        return Metrics(r.text)

    def idle(self, limit=10):
        until("nothing runs, waits or holds pages", lambda: not self.metrics().busy(), limit)

    def tokens(self, text, **kw):
        return self.ok("/tokenize", {"prompt": text, **kw})["tokens"]

    def term(self, sig=signal.SIGTERM):
        self.proc.send_signal(sig)

    def wait(self, limit=20):
        return self.proc.wait(limit * SLOW)

    def stop(self):
        """Ends the server in good order; its exit code has to be 0."""
        if self.proc.poll() is None:
            self.term()
            try:
                code = self.wait(45)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"did not end after SIGTERM:\n{self.tail()}") from None
        else:
            code = self.proc.returncode
        text = self.tail(20000)
        self.out.close()
        assert code == 0, f"exit code {code}:\n{text[-4000:]}"
        for bad in ("ERROR: AddressSanitizer", "runtime error:", "WARNING: ThreadSanitizer", "ERROR: LeakSanitizer"):
            assert bad not in text, text
        self.log.unlink()

    def kill(self):
        if self.proc.poll() is None:
            self.proc.kill()
            self.proc.wait(10)
        self.out.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:
            self.kill()


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def together(n, what):
    """what(i) for i in range(n), all started at once; returns the results in order."""
    gate = threading.Barrier(n)

    def one(i):
        gate.wait(30)
        return what(i)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(one, range(n)))


def stream_texts(events, key="text"):
    """Text by choice index, out of completion or chat chunks."""
    out = {}
    for e in events:
        for c in e["choices"]:
            piece = c["text"] if key == "text" else c["delta"].get("content") or ""
            out[c["index"]] = out.get(c["index"], "") + piece
    return out


def finishes(events):
    """finish_reason by choice index; each must come exactly once."""
    out = {}
    for e in events:
        for c in e["choices"]:
            if c["finish_reason"] is not None:
                assert c["index"] not in out, "two finish reasons for one choice"
                out[c["index"]] = c["finish_reason"]
    return out
