"""The HTTP layer as curl and plain sockets see it: headers, framing, methods, versions, limits."""
import json
import subprocess
import time

import pytest

from harness import Server

BODY = '{"prompt":"The","max_tokens":4,"temperature":0}'


def curl(server, *args, path="/v1/completions", stdin=None):
    r = subprocess.run(["curl", "-sS", "-i", "--max-time", "60", *args, f"http://127.0.0.1:{server.port}{path}"],
                       input=stdin, capture_output=True, timeout=90)
    assert r.returncode == 0, r.stderr
    head, _, body = r.stdout.partition(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {k.lower(): v for k, v in (h.split(": ", 1) for h in lines[1:])}
    return int(lines[0].split()[1]), headers, body


def test_curl(server):
    code, headers, body = curl(server, "-H", "Content-Type: application/json", "-d", BODY)
    assert code == 200 and headers["content-type"] == "application/json"
    assert json.loads(body)["object"] == "text_completion"
    assert headers["x-request-id"]


def test_curl_stream(server):
    code, headers, body = curl(server, "-N", "-H", "Content-Type: application/json", "-d", BODY[:-1] + ',"stream":true}')
    assert code == 200
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache" and headers["x-accel-buffering"] == "no"
    assert headers["transfer-encoding"] == "chunked"
    events = body.decode().split("\n\n")
    assert events[-1] == "" and events[-2] == "data: [DONE]"
    for e in events[:-2]:
        assert e.startswith("data: {") and "\n" not in e
        json.loads(e[6:])


def test_curl_http10(server):
    code, headers, body = curl(server, "-0", "-H", "Content-Type: application/json", "-d", BODY)
    assert code == 200 and json.loads(body)["choices"]
    code, headers, body = curl(server, "-0", "-H", "Content-Type: application/json", "-d", BODY[:-1] + ',"stream":true}')
    assert code == 200 and "transfer-encoding" not in headers
    assert body.endswith(b"data: [DONE]\n\n")


def test_curl_expect(server):
    """curl sends Expect: 100-continue with large bodies; it must not wait its second in vain."""
    big = json.dumps({"prompt": "a b " * 20, "max_tokens": 1, "user": "u" * 1500000})
    t = time.monotonic()
    code, _, _ = curl(server, "-H", "Content-Type: application/json", "-H", "Expect: 100-continue", "-d", "@-", stdin=big.encode())
    assert code == 200
    assert time.monotonic() - t < 10


def test_curl_form_type(server):
    """curl -d without -H sends the form type; the message tells what to add."""
    code, _, body = curl(server, "-d", BODY)
    assert code == 415
    assert "Content-Type: application/json" in json.loads(body)["error"]["message"]


def test_content_types(server):
    for t in ("application/json", "Application/JSON", "application/json; charset=UTF-8", "application/vnd.x+json", None):
        h = {"Content-Type": t} if t else {}
        head = "".join(f"{k}: {v}\r\n" for k, v in h.items())
        got = server.raw(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}Connection: close\r\n"
                         f"Content-Length: {len(BODY)}\r\n\r\n{BODY}".encode())
        assert got.startswith(b"HTTP/1.1 200"), (t, got[:300])
    for t in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json; charset=latin1"):
        server.post("/v1/completions", BODY.encode(), headers={"Content-Type": t}).error(415, code="unsupported_media_type")
    server.post("/v1/completions", BODY.encode(), headers={"Content-Encoding": "gzip"}).error(415)


def test_byte_order_mark(server):
    assert server.post("/v1/completions", b"\xef\xbb\xbf" + BODY.encode()).status == 200


@pytest.mark.parametrize("path", ["/health", "/version", "/metrics", "/v1/models", "/v1/models/demo"])
def test_head(server, path):
    g, h = server.get(path), server.request("HEAD", path)
    assert g.status == h.status == 200
    assert h.data == b""
    assert h.headers["content-type"] == g.headers["content-type"]
    if path != "/metrics":
        assert h.headers["content-length"] == str(len(g.data))


@pytest.mark.parametrize("method, path, allow", [
    ("GET", "/v1/completions", {"POST"}), ("GET", "/v1/chat/completions", {"POST"}), ("DELETE", "/v1/completions", {"POST"}),
    ("PUT", "/v1/chat/completions", {"POST"}), ("GET", "/tokenize", {"POST"}), ("GET", "/detokenize", {"POST"}),
    ("POST", "/health", {"GET", "HEAD"}), ("POST", "/version", {"GET", "HEAD"}), ("POST", "/metrics", {"GET", "HEAD"}),
    ("POST", "/v1/models", {"GET", "HEAD"}), ("DELETE", "/v1/models/demo", {"GET", "HEAD"}), ("HEAD", "/v1/completions", {"POST"}),
])
def test_method(server, method, path, allow):
    r = server.request(method, path, b"{}" if method in ("POST", "PUT") else None)
    assert r.status == 405
    if method != "HEAD":
        r.error(405, code="method_not_allowed")
    assert allow <= {a.strip() for a in r.headers["allow"].split(",")}


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/v2/completions", "/v1/v1/completions", "/v1/completionsx", "/v1/models/nope",
                                  "/v1/models/de", "/v1/models/demo/x", "/healthz2", "/..", "/../etc/passwd", "/v1/%2e%2e/health",
                                  "/metricsx", "//health", "/v1/embeddings", "/favicon.ico"])
def test_unknown_path(server, path):
    for method in ("GET", "POST"):
        r = server.request(method, path, b"{}" if method == "POST" else None)
        assert r.status in (404, 501) or (r.status == 405 and method == "POST" and "models" in path), (method, path, r.status)
        r.error(r.status)
        assert "/etc" not in r.json()["error"]["message"] or "/etc" in path


def test_trailing_slash_and_query(server):
    assert server.get("/health/").status == 200
    assert server.get("/v1/models/").status == 200
    assert server.post("/v1/completions?x=1", BODY.encode()).status == 200
    assert server.get("/health?verbose").status == 200


def test_request_id(server):
    r = server.get("/health", headers={"X-Request-Id": "abc.DEF-1:2_3"})
    assert r.headers["x-request-id"] == "abc.DEF-1:2_3"
    for bad in ("a b", "x" * 129, "é", "<script>"):
        r = server.get("/health", headers={"X-Request-Id": bad.encode("utf-8")})
        assert r.headers["x-request-id"] != bad and r.headers["x-request-id"]
    ids = {server.get("/health").headers["x-request-id"] for _ in range(20)}
    assert len(ids) == 20


def test_small_endpoints(server):
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/health/live").status == 200
    assert server.get("/version").json()["version"]
    models = server.get("/v1/models").json()
    assert models["object"] == "list"
    card = models["data"][0]
    assert card["id"] == "demo" and card["object"] == "model" and card["owned_by"] == "specd"
    assert card["max_model_len"] == 4096 and card["created"] > 0
    assert "/" not in (card.get("root") or ""), "no local path in a card"
    assert server.get("/v1/models/demo").json() == card
    assert server.get("/v1/models/%64emo").json() == card


def test_keep_alive_and_pipelining(server):
    c = server.connect()
    for _ in range(5):
        c.request("POST", "/v1/completions", BODY, {"Content-Type": "application/json"})
        r = c.getresponse()
        assert r.status == 200
        r.read()
    c.request("POST", "/v1/completions", "{", {"Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 400
    r.read()
    c.request("GET", "/health")
    assert c.getresponse().status == 200
    c.close()
    two = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    got = server.raw(two)
    assert got.count(b"HTTP/1.1 200") == 2 and b'"version"' in got


def test_chunked_upload(server):
    body = BODY.encode()
    parts = b"".join(b"%x\r\n%s\r\n" % (1, body[i:i + 1]) for i in range(len(body)))
    got = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
                     b"Connection: close\r\n\r\n" + parts + b"0\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200"), got[:200]


def test_slow_upload(server):
    import socket
    body = BODY.encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
        for i in range(0, len(body), 8):
            s.sendall(body[i:i + 8])
            time.sleep(0.02)
        assert s.recv(64).startswith(b"HTTP/1.1 200")


BROKEN = [
    ("no host", b"GET /health HTTP/1.1\r\n\r\n", (400,)),
    ("two lengths", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", (400,)),
    ("length and chunks", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", (400,)),
    ("gzip coding", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\nxxxx", (400, 501)),
    ("lower-case method", b"get /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", (400, 405, 501)),
    ("unknown method", b"BREW /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", (405, 501)),
    ("nul in path", b"GET /health%00x HTTP/1.1\r\nHost: x\r\n\r\n", (400, 404)),
    ("bad length", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n", (400,)),
    ("negative length", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", (400, 413)),
    ("huge length", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 99999999999999999999\r\n\r\n", (400, 413)),
    ("bad chunk", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", (400,)),
    ("version 3", b"GET /health HTTP/3.0\r\nHost: x\r\n\r\n", (400, 505)),
    ("http2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 405, 501, 505)),
    ("long uri", b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", (400, 414, 431)),
    ("large headers", b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 90000 + b"\r\n\r\n", (400, 413, 431)),
    ("many headers", b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20000 + b"\r\n", (400, 413, 431)),
    ("garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", (400, 405, 501, 505)),
]


@pytest.mark.parametrize("name, data, codes", BROKEN, ids=[b[0] for b in BROKEN])
def test_broken_http(server, name, data, codes):
    got = server.raw(data, timeout=5)
    # a connection that is closed without an answer is fine for what is not HTTP at all
    if got or name not in ("garbage", "http2 preface", "large headers", "many headers", "version 3"):
        assert int(got.split()[1]) in codes, (name, got[:300])
    assert server.get("/health").status == 200


def test_absolute_uri(server):
    assert server.raw(b"GET http://x/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_half_request_then_gone(server):
    import socket
    for data in (b"P", b"POST /v1/completions HTTP/1.1\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"prom"):
        s = socket.create_connection(("127.0.0.1", server.port))
        s.sendall(data)
        s.close()
    server.idle()


def test_body_limit():
    with Server("--max-body-size", 65536) as s:
        fits = json.dumps({"prompt": "a", "max_tokens": 1, "user": "u" * 60000})
        assert s.post("/v1/completions", fits.encode()).status == 200
        over = json.dumps({"prompt": "a", "max_tokens": 1, "user": "u" * 66000}).encode()
        s.post("/v1/completions", over).error(413, code="request_too_large")
        code, _, body = curl(s, "-H", "Content-Type: application/json", "-H", "Expect: 100-continue", "-d", "@-", stdin=over)
        assert code == 413 and json.loads(body)["error"]["code"] == "request_too_large"
        # chunked: no length is declared, so the limit is found while reading
        parts = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (over[i:i + 4096] for i in range(0, len(over), 4096)))
        got = s.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
                    b"Connection: close\r\n\r\n" + parts + b"0\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 413"), got[:200]
        # a large body without Expect is drained, so that the client reads the answer instead of a reset
        huge = b"x" * (3 << 20)
        s.post("/v1/completions", huge).error(413)
        assert s.get("/health").status == 200


# Long enough not to occur in a log by chance, as two letters did within random request ids.
KEY1, KEY2 = "first-api-key-for-tests", "second-api-key-for-tests"


def test_api_key():
    with Server("--api-key", KEY1, "--api-key", KEY2) as s:
        ok = [{"Authorization": "Bearer " + KEY1}, {"Authorization": "bearer " + KEY2}, {"X-Api-Key": KEY1}]
        no = [{}, {"Authorization": "Bearer " + KEY1[:-1]}, {"Authorization": "Bearer " + KEY1 + "1"}, {"Authorization": "Basic " + KEY1},
              {"Authorization": KEY1}, {"X-Api-Key": ""}, {"Authorization": "Bearer "}]
        for h in ok:
            assert s.post("/v1/completions", BODY.encode(), headers=h).status == 200, h
            assert s.get("/v1/models", headers=h).status == 200
        for h in no:
            for method, path in (("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("POST", "/tokenize"),
                                 ("POST", "/detokenize"), ("GET", "/v1/models"), ("GET", "/v1/models/demo")):
                r = s.request(method, path, BODY.encode() if method == "POST" else None, headers=h)
                e = r.error(401, code="invalid_api_key")
                assert e["type"] == "authentication_error" and r.headers["www-authenticate"].startswith("Bearer")
                assert KEY1 not in e["message"]
        for path in ("/health", "/version", "/metrics", "/health/live"):
            assert s.get(path).status == 200
        assert KEY1 not in s.tail(100000) and KEY2 not in s.tail(100000), "keys are never logged"


def test_served_names():
    with Server("--served-model-name", "a/b", "--served-model-name", "c") as s:
        assert [c["id"] for c in s.get("/v1/models").json()["data"]] == ["a/b", "c"]
        assert s.get("/v1/models/a/b").json()["id"] == "a/b"
        assert s.get("/v1/models/a%2Fb").json()["id"] == "a/b"
        assert s.complete("The", max_tokens=1)["model"] == "a/b"
        assert s.complete("The", max_tokens=1, model="c")["model"] == "c"
        s.post("/v1/completions", {"prompt": "x", "model": "demo"}).error(404, param="model", code="model_not_found")
