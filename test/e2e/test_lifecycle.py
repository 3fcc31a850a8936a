"""Start, readiness, drain, exit codes."""
import json
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from harness import BIN, DEMO, ROOT, SLOW, Server, free_port, stream_texts, until

LONG = {"prompt": "The shell reads", "max_tokens": 300, "ignore_eos": True, "temperature": 0}


def test_drain_finishes_streams():
    s = Server("--drain-timeout", 30)
    with s:
        job = {**LONG, "max_tokens": 300 if SLOW > 5 else 1200}
        want = stream_texts(s.stream("/v1/completions", job).all())
        st = s.stream("/v1/completions", job)
        it = iter(st)
        first = [next(it), next(it)]
        s.term()
        until("it drains", lambda: s.metrics().get("specd_draining") == 1, 3, every=0.001)
        r = s.post("/v1/completions", LONG)
        assert r.error(503, code="shutting_down")["type"] == "unavailable_error"
        assert int(r.headers["retry-after"]) > 0
        s.get("/health").error(503, code="shutting_down")
        assert s.get("/metrics").status == 200 and s.metrics().get("specd_draining") == 1
        rest = list(it)
        assert st.done and stream_texts(first + rest) == want
        st.close()
        assert s.wait(10) == 0
    with pytest.raises(OSError):
        s.get("/health", timeout=1)


def test_drain_finishes_what_waits():
    with Server("--max-num-seqs", 1, "--drain-timeout", 60) as s:
        a = s.stream("/v1/completions", LONG)
        next(iter(a))
        got = []
        t = threading.Thread(target=lambda: got.append(s.post("/v1/completions", {**LONG, "max_tokens": 20})))
        t.start()
        until("it waits", lambda: s.metrics().get("specd_requests_waiting") == 1, 5)
        s.term()
        a.all()
        t.join(30)
        assert got[0].status == 200 and got[0].json()["usage"]["completion_tokens"] == 20
        assert s.wait() == 0


def test_drain_cuts_off():
    """At --drain-timeout each stream that is left ends with an error event, a whole answer with 503."""
    with Server("--drain-timeout", 1) as s:
        endless = {**LONG, "max_tokens": 4000}
        st = s.stream("/v1/completions", endless)
        next(iter(st))
        got = []
        t = threading.Thread(target=lambda: got.append(s.post("/v1/completions", endless)))
        t.start()
        until("both run", lambda: s.metrics().get("specd_requests_running") == 2, 5)
        t0 = time.monotonic()
        s.term()
        ev = list(st)
        assert st.done, "[DONE] follows the error"
        assert "error" in ev[-1] and ev[-1]["error"]["code"] == "shutting_down", ev[-1]
        assert not any(c["finish_reason"] for e in ev[:-1] for c in e["choices"])
        t.join(10)
        got[0].error(503, code="shutting_down")
        assert s.wait(10) == 0
        assert 0.8 < time.monotonic() - t0 < 8 * SLOW


def test_second_signal_ends_now():
    with Server("--drain-timeout", 600) as s:
        st = s.stream("/v1/completions", {**LONG, "max_tokens": 4000})
        next(iter(st))
        s.term()
        time.sleep(0.3)
        s.term(signal.SIGINT)
        assert s.wait(10) == 0
        st.close()


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_idle_exit(sig):
    with Server() as s:
        t = time.monotonic()
        s.term(sig)
        assert s.wait(5) == 0
        assert time.monotonic() - t < 3 * SLOW


def test_idle_connections_do_not_hold_the_exit():
    with Server() as s:
        idle = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(5)]
        c = s.connect()
        c.request("GET", "/health")
        c.getresponse().read()
        s.term()
        assert s.wait(5) == 0
        for i in idle:
            i.close()
        c.close()


def slow_model(tmp):
    """A copy of the demo that takes about a second to load: its tokenizer.json is mostly blanks."""
    d = tmp / "demo"
    shutil.copytree(DEMO, d)
    with open(d / "tokenizer.json", "ab") as f:
        for _ in range(100):
            f.write(b" " * (1 << 20))
    return d


def test_loading(tmp_path):
    """The port answers while the model loads: 503 with the reason; work is refused, not queued."""
    s = Server(model=slow_model(tmp_path), wait=False)
    try:
        def answers():
            try:
                return s.get("/health", timeout=2)
            except OSError:
                return None
        until("the port is open", answers, 10, every=0.002).error(503, code="model_loading")
        r = s.post("/v1/completions", LONG)
        assert r.error(503, code="model_loading")["type"] == "unavailable_error" and int(r.headers["retry-after"]) > 0
        models = s.get("/v1/models")
        assert models.status == 503 or models.json()["data"] == [] or s.get("/health").status == 200
        assert s.get("/health/live").status == 200 and s.get("/version").status == 200
        m = s.metrics()
        assert m.get("specd_requests_total", outcome="rejected_unready") == 1
        s.ready()
        assert s.metrics().get("specd_ready") == 1
        assert s.complete("The", max_tokens=1)["choices"]
        s.stop()
    finally:
        s.kill()


def test_bad_model(tmp_path):
    """A model that does not load ends the server with 1 and a sentence."""
    for what, name in ((lambda d: (d / "config.json").write_text("{"), "config.json"),
                       (lambda d: (d / "model.safetensors").write_bytes(b"\x10"), "model.safetensors"),
                       (lambda d: (d / "tokenizer.json").unlink(), "tokenizer.json")):
        d = tmp_path / name
        shutil.copytree(DEMO, d)
        what(d)
        r = subprocess.run([BIN, "serve", "--model", d, "--port", str(free_port())], capture_output=True, text=True, timeout=60)
        assert r.returncode == 1, (name, r.stderr)
        assert name in r.stderr, r.stderr


def test_usage_errors():
    for args, says in ((["serve"], "model"), (["serve", "--model", "/no/such"], "/no/such"), (["serve", "--nope", "1"], "nope"),
                       (["serve", "--model", DEMO, "--port", "x"], "port"), (["serve", "--model", DEMO, "--port", "70000"], "port"),
                       (["nonsense"], ""), ([], "")):
        r = subprocess.run([BIN, *args], capture_output=True, text=True, timeout=60)
        assert r.returncode == (1 if "/no/such" in says else 2), (args, r.returncode, r.stderr)
        assert says in r.stderr


def test_port_in_use(server):
    r = subprocess.run([BIN, "serve", "--model", DEMO, "--port", str(server.port)], capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and str(server.port) in r.stderr
    assert server.get("/health").status == 200


def test_config_file(tmp_path):
    f = tmp_path / "specd.json"
    f.write_text(json.dumps({"model": str(DEMO), "max-model-len": 200, "served-model-name": ["x"], "port": 1}))
    with Server("--config", f, "--max-num-seqs", 3) as s:  # flags win over the file
        card = s.get("/v1/models").json()["data"][0]
        assert card["id"] == "x" and card["max_model_len"] == 200
    for bad, says in (({"no-such": 1}, "no-such"), ({"port": "x"}, "port"), ([], "")):
        f.write_text(json.dumps(bad))
        r = subprocess.run([BIN, "serve", "--model", DEMO, "--config", f], capture_output=True, text=True, timeout=60)
        assert r.returncode == 2 and says in r.stderr, (bad, r.stderr)


def test_notify(tmp_path):
    """READY=1 comes when requests are taken, STOPPING=1 at the drain."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as n:
        n.bind(path)
        n.settimeout(30 * SLOW)
        with Server(env={"NOTIFY_SOCKET": path}) as s:
            seen = ""
            while "READY=1" not in seen:
                seen += n.recv(4096).decode() + "\n"
            assert s.get("/health").status == 200
            s.term()
            while "STOPPING=1" not in seen:
                seen += n.recv(4096).decode() + "\n"
            assert s.wait(10) == 0


def test_file_limit():
    with Server() as s:
        soft, hard = [line.split()[3:5] for line in open(f"/proc/{s.proc.pid}/limits") if line.startswith("Max open files")][0]
        assert soft == hard


def test_no_template(tmp_path):
    """Without a chat template the server starts; only chat says so."""
    d = tmp_path / "plain"
    shutil.copytree(DEMO, d)
    c = json.loads((d / "tokenizer_config.json").read_text())
    del c["chat_template"]
    (d / "tokenizer_config.json").write_text(json.dumps(c))
    with Server(model=d) as s:
        assert s.complete("The", max_tokens=1)["model"] == "plain"
        e = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}).error(400)
        assert "template" in e["message"]


def test_cli():
    """generate, tokenize, bench, version and help of the same binary."""
    def run(*args, **kw):
        return subprocess.run([BIN, *map(str, args)], capture_output=True, text=True, timeout=110, cwd=ROOT, **kw)

    assert run("version").stdout.startswith("specd ")
    r = run("generate", "--model", DEMO, "--prompt", "The shell reads", "--max-tokens", 12, "--temperature", 0)
    assert r.returncode == 0 and r.stdout.strip(), r.stderr
    again = run("generate", "--model", DEMO, "--prompt", "The shell reads", "--max-tokens", 12, "--temperature", 0)
    assert again.stdout == r.stdout
    ranks = run("generate", "--model", DEMO, "--prompt", "The shell reads", "--max-tokens", 12, "--temperature", 0,
                "--tensor-parallel-size", 2)
    assert ranks.stdout == r.stdout, ranks.stderr
    odd = run("generate", "--model", DEMO, "--prompt", "x", "--tensor-parallel-size", 3)
    assert odd.returncode != 0 and "'num_attention_heads' 8" in odd.stderr and "3 ranks" in odd.stderr
    chat = run("generate", "--model", DEMO, "--chat", "--prompt", "What is 12 + 30?", "--max-tokens", 24, "--temperature", 0)
    assert chat.returncode == 0 and chat.stdout.strip()
    t = run("tokenize", "--model", DEMO, input="Hello world")
    assert t.returncode == 0
    assert len(t.stdout.split()) >= 2
    b = run("bench", "--model", DEMO, "--prompt-len", "16", "--output-len", "8", "--concurrency", "2")
    assert b.returncode == 0, b.stderr
    assert all(isinstance(json.loads(line), dict) for line in b.stdout.splitlines()) and b.stdout
    for more, layers in (["--tensor-parallel-size", 2], 5), (["--speculative", "mtp"], 6):
        t = run("bench", "--model", DEMO, "--prompt-len", 16, "--output-len", 8, "--concurrency", "1,3", "--op-times", "on", *more)
        lines = [json.loads(line) for line in t.stdout.splitlines()]
        assert len(lines) == 2, t.stderr
        for part in [line[p] for line in lines for p in ("decode_ops", "prefill_ops")]:
            ops = {o["op"]: o for o in part}
            assert {"proj", "attention", "mlp", "moe_ffn", "sample", "accept"} <= ops.keys()
            assert ops["sample"]["calls"] == 1 and ops["attention"]["calls"] >= layers
            assert abs(sum(o["share"] for o in part) - 1) < 0.02
            assert [o["us"] for o in part] == sorted((o["us"] for o in part), reverse=True)
    h = run("serve", "--help")
    assert h.returncode == 0 and "--max-num-seqs" in h.stdout and "--drain-timeout" in h.stdout
    assert run("generate", "--model", DEMO).returncode == 2
