"""Speculation changes how many tokens a step yields, and nothing a client can read but the counts.

The reference is a server that drafts nothing. Beside it: chains and trees of every kind of drafter,
and prompt lookup; requests pick among them with the field "speculation".
"""
import socket
import struct

import openai
import pytest

from harness import DEMO, Server, finishes, stream_texts, together, until

WORDS = "The kernel reads a file and writes the result to another one before it ends".split()
CHAT = [{"role": "user", "content": "What is 23 + 45?"}]
TREE = ("--spec-steps", 3, "--spec-topk", 3, "--spec-tokens", 12)
QWEN = DEMO.parent / "demo-qwen3"
EAGLE = DEMO.parent / "demo-qwen3-eagle3"
METHODS = {
    "mtp": (DEMO, "--speculative", "mtp"),
    "mtp tree": (DEMO, "--speculative", "mtp", *TREE),
    "ngram": (DEMO, "--speculative", "ngram"),
    "draft-model": (DEMO, "--speculative", "draft-model", "--draft", QWEN),
    "eagle3": (QWEN, "--speculative", "eagle3", "--draft", EAGLE),
    "eagle3 tree": (QWEN, "--speculative", "eagle3", "--draft", EAGLE, *TREE),
}


def start(method, *flags):
    model, *own = METHODS[method]
    return Server(*own, *flags, model=model)


@pytest.fixture(scope="module")
def offs():
    with Server("--speculative", "off") as a, Server("--speculative", "off", model=QWEN) as b:
        yield {DEMO: a, QWEN: b}
        a.idle()
        b.idle()


@pytest.fixture(scope="module")
def off(offs):
    return offs[DEMO]


@pytest.fixture(scope="module", params=list(METHODS))
def pair(request, offs):
    """A server without drafts, and one of the same model with them."""
    with start(request.param) as s:
        yield offs[METHODS[request.param][0]], s
        s.idle()


@pytest.fixture(scope="module")
def mtp():
    with start("mtp") as s:
        yield s
        s.idle()


def prompt(i):
    return " ".join(WORDS[(i + j) % len(WORDS)] for j in range(4 + i * 7 % 40))


SAMPLING = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 30, "frequency_penalty": 0.5},
    {"temperature": 1.3, "top_p": 0.9, "repetition_penalty": 1.2},
    {"temperature": 0.7, "min_p": 0.05, "presence_penalty": 0.3},
    {"temperature": 0, "logit_bias": {"13": 4, "300": -100}},
    {"temperature": 0, "repetition_penalty": 1.3, "ignore_eos": False, "min_tokens": 12},
]


def bodies(n, tokens=32):
    return [{"prompt": prompt(i), "max_tokens": tokens - i % 5, "seed": 500 + i, "ignore_eos": True, "return_token_ids": True,
             **SAMPLING[i % len(SAMPLING)]} for i in range(n)]


def answer(server, body, path="/v1/completions", **speculation):
    """What must not depend on drafts: the choices, and the usage without its counts."""
    r = server.ok(path, {**body, "speculation": speculation} if speculation else body)
    spec = r["usage"].pop("speculation", None)
    return (r["choices"], r["usage"]), spec


def same(off, on, body, path="/v1/completions", **speculation):
    want, none = answer(off, body, path)
    got, spec = answer(on, body, path, **speculation)
    assert none is None, "counts of drafts where nothing drafts"
    assert got == want, body
    return spec


# ---- the same text ----

def test_samplings(pair):
    off, on = pair
    drafted = accepted = 0
    for b in bodies(28):
        spec = same(off, on, b)
        drafted += spec["drafted"]
        accepted += spec["accepted"]
    assert 0 < accepted < drafted, "nothing was accepted or everything was: this proves less than it should"


@pytest.mark.parametrize("speculation", [{"mode": "off"}, {"mode": "auto"}, {"mode": "mtp"}, {"mode": "ngram"}, {"max": 0}, {"max": 1},
                                         {"mode": "ngram", "max": 2}, {"mode": "auto", "max": 63}])
def test_modes_of_a_request(off, mtp, speculation):
    for b in bodies(7, 48):
        spec = same(off, mtp, b, **speculation)
        if speculation.get("mode") == "off" or speculation.get("max") == 0:
            assert spec is None, "no drafts were possible"
        else:
            assert spec["drafted"] <= spec["verifies"] * min(speculation.get("max", 3), 3)


def test_logprobs(pair):
    off, on = pair
    for b in bodies(7, 24):
        same(off, on, {**b, "logprobs": 3})
        same(off, on, {**b, "logprobs": 0, "echo": True})
        same(off, on, {"messages": CHAT, "max_tokens": 20, "seed": b["seed"], "temperature": b["temperature"], "logprobs": True,
                       "top_logprobs": 4}, "/v1/chat/completions")


def test_choices_and_prompts(pair):
    off, on = pair
    same(off, on, {"prompt": prompt(3), "n": 5, "seed": 7, "temperature": 1, "max_tokens": 30})
    same(off, on, {"prompt": [prompt(i) for i in range(4)], "n": 2, "seed": 9, "temperature": 0.9, "max_tokens": 25})
    same(off, on, {"messages": CHAT, "n": 3, "seed": 1, "temperature": 1, "max_tokens": 30}, "/v1/chat/completions")


def test_every_end(pair):
    """Length and stop strings at every place of a block of accepted drafts, greedy text that is easy to draft."""
    off, on = pair
    base = {"prompt": "The kernel reads a file", "temperature": 0, "ignore_eos": True, "return_token_ids": True, "logprobs": 1}
    text = off.complete(**{**base, "max_tokens": 40})["choices"][0]["text"]
    for n in range(1, 14):
        spec = same(off, on, {**base, "max_tokens": n})
        assert (spec["mean_accepted_length"] is None) == (spec["verifies"] == 0)
    for at in range(4, 40, 3):
        stop = text[at:at + 3]
        for include in (False, True):
            same(off, on, {**base, "max_tokens": 60, "stop": [stop, "never"], "include_stop_str_in_output": include})
    ids = off.complete(**{**base, "max_tokens": 40})["choices"][0]["token_ids"]
    for stop_id in ids[:6]:
        same(off, on, {**base, "max_tokens": 40, "stop_token_ids": [stop_id]})
        same(off, on, {**base, "max_tokens": 40, "stop_token_ids": [stop_id], "min_tokens": 9})


def test_near_the_limit(off):
    """Prompts that leave room for 0 to 6 tokens beside drafts that would reach past the context."""
    with Server("--speculative", "off", "--max-model-len", 48) as a, start("mtp tree", "--max-model-len", 48) as b:
        words = off.tokens(" ".join(WORDS * 8))
        for left in range(1, 8):
            for max_tokens in range(1, left + 1):
                same(a, b, {"prompt": words[:48 - left], "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True})
        b.post("/v1/completions", {"prompt": words[:48], "max_tokens": 1}).error(400, "prompt", "context_length_exceeded")


def test_one_step_in_flight(off):
    with start("mtp", "--overlap", "off", "--max-num-batched-tokens", 16, "--threads", 1) as s:
        for b in bodies(7):
            same(off, s, b)


def test_streams(pair):
    off, on = pair
    for i, b in enumerate(bodies(7, 40)):
        want, _ = answer(off, b)
        ev = on.stream("/v1/completions", {**b, "stream_options": {"include_usage": True, "continuous_usage_stats": i % 2 == 1}}).all()
        assert stream_texts(ev)[0] == want[0][0]["text"]
        assert finishes(ev)[0] == want[0][0]["finish_reason"]
        ids = [t for e in ev for c in e["choices"] for t in c.get("token_ids", [])]
        assert ids == want[0][0]["token_ids"]
        usage = ev[-1]["usage"]
        assert set(usage.pop("speculation")) == {"verifies", "drafted", "accepted", "mean_accepted_length"}
        assert usage == want[1]
        assert all("speculation" not in (e.get("usage") or {}) for e in ev[:-1])
        if i % 2:
            grows = [e["usage"]["completion_tokens"] for e in ev[:-1]]
            assert grows == sorted(grows)


# ---- together ----

def stream_text(server, body, **speculation):
    ev = server.stream("/v1/completions", {**body, "stream_options": {"include_usage": True},
                                           **({"speculation": speculation} if speculation else {})}, timeout=110).all()
    assert ev[-1]["usage"]["completion_tokens"] == body["max_tokens"]
    return stream_texts(ev)[0]


@pytest.mark.release
def test_parallel_streams(off):
    """64 at once, of every mode, with and without enough pages, equal to what each is alone without drafts."""
    jobs = [{**b, "ignore_eos": True} for b in bodies(64, 40)]
    modes = [{}, {"mode": "mtp"}, {"mode": "ngram"}, {"mode": "off"}, {"max": 1}]
    alone = [stream_text(off, b) for b in jobs]
    assert len(set(alone)) > 32
    preempted = 0
    for flags in ((), ("--kv-cache-tokens", 384), (*TREE, "--kv-cache-tokens", 512)):
        with start("mtp", "--max-num-seqs", 64, *flags) as s:
            got = together(64, lambda i: stream_text(s, jobs[i], **modes[i % len(modes)]))
            assert got == alone, [i for i in range(64) if got[i] != alone[i]]
            s.idle()
            m = s.metrics()
            preempted += m.get("specd_preemptions_total")
            assert m.get("specd_generation_tokens_total") == sum(b["max_tokens"] for b in jobs)
            assert m.get("specd_spec_accepted_tokens_total", method="model") > 0
            assert m.get("specd_spec_accepted_tokens_total", method="ngram") > 0
    assert preempted > 0, "nothing was preempted, so this run proves less than it should"


def test_clients_that_leave(pair):
    """In prefill, between drafts, at the end: nothing stays in use, and who stays reads the same text."""
    off, on = pair
    body = {"prompt": prompt(5), "max_tokens": 300, "temperature": 0, "ignore_eos": True}
    want = stream_text(off, {**body, "max_tokens": 200})
    left = on.metrics().get("specd_requests_total", outcome="abort_client")

    def one(i):
        if i % 4 == 0:
            return stream_text(on, {**body, "max_tokens": 200})
        s = on.stream("/v1/completions", {**body, "max_tokens": 3000, "prompt": prompt(i)})
        for n, _ in enumerate(s):
            if n >= i % 11:
                break
        sock = s.conn.sock or s.resp.fp.raw._sock
        if i % 2:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
        return want

    assert together(24, one) == [want] * 24
    until("all that left are counted", lambda: on.metrics().get("specd_requests_total", outcome="abort_client") == left + 18)
    on.idle()
    assert stream_text(on, {**body, "max_tokens": 200}) == want


# ---- the field, the counts, the metrics ----

@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_field(off, mtp, path):
    base = {"messages": CHAT, "max_tokens": 4} if "chat" in path else {"prompt": "x", "max_tokens": 4}
    wrong = [("off", "speculation"), (1, "speculation"), ([], "speculation"), ({"mode": 1}, "speculation.mode"),
             ({"mode": "Off"}, "speculation.mode"), ({"mode": ""}, "speculation.mode"), ({"mode": "dflash"}, "speculation.mode"),
             ({"max": -1}, "speculation.max"), ({"max": 64}, "speculation.max"), ({"max": "3"}, "speculation.max"),
             ({"max": 1.5}, "speculation.max"), ({"max": True}, "speculation.max"), ({"mode": "off", "depth": 2}, "speculation.depth")]
    for value, param in wrong:
        for s in (off, mtp):
            s.post(path, {**base, "speculation": value}).error(400, param)
    for value in (None, {}, {"mode": "off"}, {"mode": "auto"}, {"mode": None, "max": None}, {"max": 0}, {"max": 63}, {"max": 2.0}):
        for s in (off, mtp):
            s.ok(path, {**base, "speculation": value})
    # a method that is not there: both sides are named
    for mode in ("eagle3", "draft-model"):
        e = mtp.post(path, {**base, "speculation": {"mode": mode}}).error(400, "speculation.mode", says=f"'{mode}'")
        assert "'mtp'" in e["message"] and "'ngram'" in e["message"]
    for mode in ("mtp", "ngram"):
        e = off.post(path, {**base, "speculation": {"mode": mode}}).error(400, "speculation.mode", says=f"'{mode}'")
        assert "runs 'off'" in e["message"]
    for mode in ("mtp", "ngram"):
        mtp.ok(path, {**base, "speculation": {"mode": mode}})


def test_counts(mtp):
    """emitted = 1 + the sum over verifies of accepted + 1, for every request that nothing trims."""
    before = mtp.metrics()
    total = dict.fromkeys(("verifies", "drafted", "accepted", "tokens"), 0)
    for b in bodies(14, 30):
        r = mtp.ok("/v1/completions", {**b, "n": 1 + b["seed"] % 3})
        u, s = r["usage"], r["usage"]["speculation"]
        n = len(r["choices"])
        if all(c["finish_reason"] == "length" for c in r["choices"]):
            assert u["completion_tokens"] == n + s["verifies"] + s["accepted"]
        assert s["mean_accepted_length"] == pytest.approx(1 + s["accepted"] / s["verifies"], rel=1e-6)
        assert 1 <= s["mean_accepted_length"] <= 4 and s["accepted"] <= s["drafted"] <= 3 * s["verifies"]
        for k in ("verifies", "drafted", "accepted"):
            total[k] += s[k]
        total["tokens"] += u["completion_tokens"]
    mtp.idle()
    after = mtp.metrics()

    def grown(name, **labels):
        return after.get(name, **labels) - before.get(name, **labels)

    model = {"method": "model"}
    assert grown("specd_spec_verify_total", **model) == total["verifies"]
    assert grown("specd_spec_drafted_tokens_total", **model) == total["drafted"]
    assert grown("specd_spec_accepted_tokens_total", **model) == total["accepted"]
    assert grown("specd_spec_verify_rows_total", **model) == total["verifies"] + total["drafted"]
    assert grown("specd_generation_tokens_total") == total["tokens"]
    for name in ("verify", "drafted_tokens", "accepted_tokens", "verify_rows", "position_drafted"):
        assert grown(f"specd_spec_{name}_total", method="ngram") == 0, name
    at = [(grown("specd_spec_position_drafted_total", position=str(p), **model),
           grown("specd_spec_position_accepted_total", position=str(p), **model)) for p in range(1, 16)]
    assert sum(d for d, _ in at) == total["drafted"], "a chain has one draft at each depth"
    assert sum(a for _, a in at) == total["accepted"]
    assert all(a <= d for d, a in at) and at == sorted(at, reverse=True) and at[3] == (0, 0)
    assert grown("specd_spec_accepted_length_count", **model) == total["verifies"]
    assert grown("specd_spec_accepted_length_sum", **model) == total["verifies"] + total["accepted"]
    for p in range(1, 4):
        assert grown("specd_spec_accepted_length_bucket", le=str(p), **model) == total["verifies"] - at[p - 1][1]
    for part in ("verify", "accept", "extend", "draft"):
        assert grown("specd_spec_part_seconds_total", part=part) > 0, part


def test_self_check_is_in_no_metric():
    """Also not its last step, which may come back after the check's last answer."""
    names = ("specd_engine_steps_total", "specd_engine_step_seconds_count", "specd_engine_step_tokens_count", "specd_spec_",
             "specd_prompt_tokens_total", "specd_generation_tokens_total")
    for _ in range(4):
        with start("mtp") as s:
            counts = [line for line in s.get("/metrics").text.splitlines() if line.startswith(names)]
            assert len(counts) > 20 and not [c for c in counts if not c.endswith(" 0")]


def test_every_method_by_its_name(pair):
    _, on = pair
    name = on.metrics().series["specd_config_info"][0][0]["spec_method"]
    r = on.complete(prompt(2), max_tokens=20, temperature=0, speculation={"mode": name})
    assert r["usage"]["speculation"]["verifies"] > 0
    for other in {"mtp", "eagle3", "draft-model"} - {name}:
        e = on.post("/v1/completions", {"prompt": "x", "speculation": {"mode": other}}).error(400, "speculation.mode", says=f"'{other}'")
        assert f"runs '{name}'" in e["message"]


def test_lookup_is_counted_apart(mtp):
    before = mtp.metrics()
    s = mtp.complete("One two three. One two three. One two", max_tokens=40, temperature=0, ignore_eos=True,
                     speculation={"mode": "ngram"})["usage"]["speculation"]
    after = mtp.metrics()
    assert s["accepted"] > 0
    for name, value in (("verify", s["verifies"]), ("drafted_tokens", s["drafted"]), ("accepted_tokens", s["accepted"])):
        name = f"specd_spec_{name}_total"
        assert after.get(name, method="ngram") - before.get(name, method="ngram") == value
        assert after.get(name, method="model") == before.get(name, method="model")


def test_config_info(off, mtp):
    assert off.metrics().get("specd_config_info", spec_method="off") == 1
    assert mtp.metrics().get("specd_config_info", spec_method="mtp") == 1


def test_official_client(mtp):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{mtp.port}/v1", api_key="none", max_retries=0, timeout=60) as c:
        r = c.completions.create(model="demo", prompt=prompt(1), max_tokens=20, temperature=0, extra_body={"speculation": {"max": 2}})
        assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
        assert r.usage.model_extra["speculation"]["verifies"] >= 1
        last = None
        for last in c.chat.completions.create(model="demo", messages=CHAT, max_tokens=20, stream=True,
                                              stream_options={"include_usage": True}):
            pass
        assert last.usage.model_extra["speculation"]["drafted"] >= 0
        with pytest.raises(openai.BadRequestError) as e:
            c.completions.create(model="demo", prompt="x", extra_body={"speculation": {"mode": "eagle3"}})
        assert e.value.param == "speculation.mode"
