"""Every field of POST /v1/completions, and what stays equal whatever the way of asking."""
import json

import pytest

from harness import finishes, stream_texts

PROMPT = "The shell reads its input from"
GREEDY = dict(temperature=0, max_tokens=24, ignore_eos=True)


def both(server, body):
    """Asks without and with stream; checks that they agree; returns the whole answer."""
    r = server.ok("/v1/completions", body)
    ev = server.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}}).all()
    assert stream_texts(ev) == {c["index"]: c["text"] for c in r["choices"]}
    assert finishes(ev) == {c["index"]: c["finish_reason"] for c in r["choices"]}
    assert ev[-1]["choices"] == [] and ev[-1]["usage"] == r["usage"]
    for e in ev[:-1]:
        assert e["usage"] is None and len(e["choices"]) == 1
    for k in ("object", "model", "system_fingerprint"):
        assert {e[k] for e in ev} == {r[k]}
    assert len({e["id"] for e in ev}) == 1 and len({e["created"] for e in ev}) == 1
    stops = {c["index"]: c["stop_reason"] for e in ev for c in e["choices"] if c["finish_reason"]}
    assert stops == {c["index"]: c["stop_reason"] for c in r["choices"]}
    if body.get("logprobs") is not None:
        for c in r["choices"]:
            got = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
            for e in ev:
                for d in e["choices"]:
                    if d["index"] == c["index"] and d["logprobs"]:
                        for k, v in got.items():
                            v += d["logprobs"][k]
            assert got == c["logprobs"]
    return r


def test_shape(server):
    r = server.complete(PROMPT, **GREEDY)
    assert set(r) >= {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}
    c = r["choices"][0]
    assert c["index"] == 0 and c["logprobs"] is None and c["finish_reason"] == "length" and c["stop_reason"] is None
    assert r["usage"]["completion_tokens"] == 24
    assert r["usage"]["prompt_tokens"] == len(server.tokens(PROMPT))
    assert r["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_stream_equals_whole(server):
    for extra in ({}, {"seed": 5, "temperature": 1.0}, {"seed": 6, "temperature": 1.5, "top_k": 40, "top_p": 0.9},
                  {"n": 3, "seed": 1, "temperature": 1.0}, {"logprobs": 3}, {"logprobs": 0, "n": 2},
                  {"echo": True}, {"echo": True, "logprobs": 2}, {"echo": True, "n": 2, "logprobs": 1},
                  {"prompt": ["One day", PROMPT, "Sunday"]}, {"ignore_eos": False, "max_tokens": 60}):
        both(server, {"prompt": PROMPT, **GREEDY, **extra})


def test_greedy_repeats(server):
    a = server.complete(PROMPT, **GREEDY)["choices"][0]["text"]
    assert all(server.complete(PROMPT, **GREEDY)["choices"][0]["text"] == a for _ in range(3))
    assert server.complete(PROMPT, **{**GREEDY, "temperature": 1, "top_k": 1})["choices"][0]["text"] == a
    assert server.complete(PROMPT, **{**GREEDY, "temperature": 1.0, "top_p": 1e-6})["choices"][0]["text"] == a
    assert server.complete(PROMPT, **{**GREEDY, "temperature": 1.0, "min_p": 1.0})["choices"][0]["text"] == a


def test_seed(server):
    kw = {**GREEDY, "temperature": 1.5}
    texts = [server.complete(PROMPT, seed=s, **kw)["choices"][0]["text"] for s in range(6)]
    assert len(set(texts)) == 6
    assert [server.complete(PROMPT, seed=s, **kw)["choices"][0]["text"] for s in range(6)] == texts
    # choice i uses seed + i
    n = server.complete(PROMPT, seed=0, n=4, **kw)["choices"]
    assert [c["text"] for c in n] == texts[:4]
    # without a seed every answer differs
    assert len({server.complete(PROMPT, **kw)["choices"][0]["text"] for _ in range(4)}) == 4
    server.complete(PROMPT, seed=-(1 << 63), **kw)
    server.complete(PROMPT, seed=(1 << 63) - 1, **kw)


def test_token_ids_and_lists(server):
    ids = server.tokens(PROMPT)
    text = server.complete(PROMPT, **GREEDY)
    assert server.complete(ids, **GREEDY)["choices"][0]["text"] == text["choices"][0]["text"]
    other = "Sunday is"
    r = server.complete([ids, server.tokens(other)], n=2, seed=3, temperature=1.0, max_tokens=8)
    assert [c["index"] for c in r["choices"]] == [0, 1, 2, 3]
    assert r["usage"]["prompt_tokens"] == len(ids) + len(server.tokens(other))
    s = server.complete([PROMPT, other], n=2, seed=3, temperature=1.0, max_tokens=8)
    assert [c["text"] for c in s["choices"]] == [c["text"] for c in r["choices"]]
    assert len(server.complete(["a"] * 40, max_tokens=1)["choices"]) == 40


def test_special_tokens_in_prompt(server):
    """In a raw prompt special tokens are parsed; shown in the output only when asked for."""
    ids = server.tokens("<|im_start|>assistant\n")
    assert ids[0] == 1
    bias = {"logit_bias": {"1": 100}, "temperature": 0, "max_tokens": 3, "ignore_eos": True}
    assert server.complete("x", **bias)["choices"][0]["text"] == ""
    assert server.complete("x", skip_special_tokens=False, **bias)["choices"][0]["text"] == "<|im_start|>" * 3


def test_max_tokens(server):
    assert server.complete(PROMPT, temperature=0, ignore_eos=True)["usage"]["completion_tokens"] == 16
    assert server.complete(PROMPT, temperature=0, ignore_eos=True, max_tokens=None)["usage"]["completion_tokens"] == 16
    assert server.complete(PROMPT, max_tokens=1)["usage"]["completion_tokens"] == 1
    assert server.complete(PROMPT, max_tokens=5.0, ignore_eos=True)["usage"]["completion_tokens"] == 5
    r = server.complete(PROMPT, max_tokens=0, echo=True)
    assert r["choices"][0]["text"] == PROMPT and r["usage"]["completion_tokens"] == 0
    r = server.complete(PROMPT, max_tokens=0, echo=True, logprobs=1)
    assert r["choices"][0]["logprobs"]["token_logprobs"][0] is None
    assert len(r["choices"][0]["logprobs"]["tokens"]) == r["usage"]["prompt_tokens"]


def test_echo(server):
    plain = server.complete(PROMPT, **GREEDY)["choices"][0]["text"]
    r = server.complete(PROMPT, echo=True, **GREEDY)
    assert r["choices"][0]["text"] == PROMPT + plain
    ev = server.stream("/v1/completions", {"prompt": PROMPT, "echo": True, **GREEDY}).all()
    assert ev[0]["choices"][0]["text"].startswith(PROMPT)
    # stop strings act on what is generated, not on the echoed prompt
    r = server.complete(PROMPT, echo=True, stop=["shell"], **GREEDY)
    assert r["choices"][0]["text"].startswith(PROMPT)


@pytest.mark.release
def test_stop_at_every_place(server):
    """Each part of the text as a stop string: cut exactly before it, in both forms, never leaked."""
    full = server.complete(PROMPT, **GREEDY)["choices"][0]["text"]
    tried = 0
    for a in range(0, len(full) - 1, 3):
        for n in (1, 2, 5, 11):
            stop = full[a:a + n]
            if len(stop) < n:
                continue
            at = full.index(stop)
            r = server.complete(PROMPT, stop=stop, **GREEDY)["choices"][0]
            assert (r["text"], r["finish_reason"], r["stop_reason"]) == (full[:at], "stop", stop), (a, n)
            tried += 1
    assert tried > 60
    for a, n in ((0, 1), (0, 9), (7, 3), (20, 12), (len(full) - 2, 2)):
        both(server, {"prompt": PROMPT, "stop": full[a:a + n], **GREEDY})
        both(server, {"prompt": PROMPT, "stop": [full[a:a + n]], "include_stop_str_in_output": True, **GREEDY})
    stop = full[7:10]
    r = server.complete(PROMPT, stop=stop, include_stop_str_in_output=True, **GREEDY)["choices"][0]
    assert r["text"] == full[:full.index(stop) + 3]
    # a stop string that never completes is flushed at the end
    r = server.complete(PROMPT, stop=full[-3:] + "\x01", **GREEDY)["choices"][0]
    assert r["text"] == full and r["finish_reason"] == "length"
    # several: the earliest wins
    r = server.complete(PROMPT, stop=[full[20:24], full[5:8], "\x02"], **GREEDY)["choices"][0]
    assert r["text"] == full[:min(full.index(full[20:24]), full.index(full[5:8]))]


def test_stop_counts(server):
    """Usage ends with the token that completed the stop string."""
    r = server.complete(PROMPT, **GREEDY, logprobs=0)["choices"][0]
    tokens, text = r["logprobs"]["tokens"], r["text"]
    stop = text[9:13]
    end = text.index(stop) + len(stop)
    n, at = 0, 0
    while at < end:
        at += len(tokens[n])
        n += 1
    r = server.complete(PROMPT, stop=stop, logprobs=0, **GREEDY)
    assert r["usage"]["completion_tokens"] == n
    assert len(r["choices"][0]["logprobs"]["tokens"]) == n


def test_stop_token_ids(server):
    r = server.complete(PROMPT, logprobs=0, return_tokens_as_token_ids=False, **GREEDY)["choices"][0]
    ids = server.tokens(r["text"])
    first = ids[3]
    r = server.complete(PROMPT, stop_token_ids=[first], **GREEDY)
    assert r["choices"][0]["finish_reason"] == "stop" and r["choices"][0]["stop_reason"] == first
    assert r["usage"]["completion_tokens"] <= 4


def test_eos(server):
    bias = dict(logit_bias={"2": 100}, temperature=0, max_tokens=5)
    r = server.complete(PROMPT, **bias)
    assert r["choices"][0]["finish_reason"] == "stop" and r["choices"][0]["text"] == ""
    assert r["choices"][0]["stop_reason"] is None and r["usage"]["completion_tokens"] == 1
    r = server.complete(PROMPT, ignore_eos=True, **bias)
    assert r["choices"][0]["finish_reason"] == "length" and r["usage"]["completion_tokens"] == 5
    r = server.complete(PROMPT, min_tokens=3, **bias)
    assert r["usage"]["completion_tokens"] == 4 and r["choices"][0]["finish_reason"] == "stop"
    ev = server.stream("/v1/completions", {"prompt": PROMPT, **bias}).all()
    assert len(ev) == 1 and ev[0]["choices"][0]["text"] == "" and ev[0]["choices"][0]["finish_reason"] == "stop"


def test_logit_bias(server):
    ids = server.tokens(" yes")
    r = server.complete(PROMPT, logit_bias={str(ids[0]): 100}, **GREEDY)["choices"][0]
    assert server.tokens(r["text"])[:1] == ids[:1]
    first = server.tokens(server.complete(PROMPT, **GREEDY)["choices"][0]["text"])[0]
    r = server.complete(PROMPT, logit_bias={str(first): -100}, **GREEDY)["choices"][0]
    assert server.tokens(r["text"])[0] != first


def test_penalties(server):
    long = {**GREEDY, "max_tokens": 64}
    plain = server.complete("a a a a a a", **long)["choices"][0]["text"]
    for kw in ({"repetition_penalty": 1.5}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        assert server.complete("a a a a a a", **long, **kw)["choices"][0]["text"] != plain, kw


def test_logprobs(server):
    r = server.complete(PROMPT, logprobs=5, **GREEDY)["choices"][0]
    lp = r["logprobs"]
    assert "".join(lp["tokens"]) == r["text"]
    assert len(lp["tokens"]) == len(lp["token_logprobs"]) == len(lp["top_logprobs"]) == len(lp["text_offset"]) == 24
    at = 0
    for t, p, top, off in zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"], lp["text_offset"]):
        assert off == at and p <= 0 and len(top) == 5
        assert top[t] == p == max(top.values()), "greedy: the sampled token is the best one"
        at += len(t)
    # at temperature the sampled one is listed beside the k best
    r = server.complete(PROMPT, logprobs=1, max_tokens=16, temperature=2.0, seed=4, ignore_eos=True)["choices"][0]["logprobs"]
    assert any(len(top) == 2 for top in r["top_logprobs"])
    for t, p, top in zip(r["tokens"], r["token_logprobs"], r["top_logprobs"]):
        assert top[t] == p
    zero = server.complete(PROMPT, logprobs=0, **GREEDY)["choices"][0]["logprobs"]
    assert zero["token_logprobs"] == lp["token_logprobs"]


def test_logprobs_of_prompt(server):
    """Echoed log-probabilities by prefill equal those by decode: the text is continued greedily and read back."""
    r = server.complete(PROMPT, logprobs=1, **GREEDY)["choices"][0]
    ids = server.tokens(PROMPT)
    out = server.complete(ids, logprobs=1, **GREEDY, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["tokens"]
    out = [int(t.removeprefix("token_id:")) for t in out]
    back = server.complete(ids + out, echo=True, max_tokens=1, logprobs=1, temperature=0)["choices"][0]["logprobs"]
    assert back["token_logprobs"][0] is None and back["top_logprobs"][0] is None
    assert back["token_logprobs"][len(ids):-1] == r["logprobs"]["token_logprobs"]
    assert back["text_offset"] == sorted(back["text_offset"])


def test_neutral_values(server):
    """null is absent, unknown fields are ignored, neutral values of what we do not have pass."""
    plain = server.complete(PROMPT, **GREEDY)["choices"][0]["text"]
    names = ["model", "stream", "stream_options", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
             "repetition_penalty", "seed", "n", "stop", "stop_token_ids", "min_tokens", "logit_bias", "logprobs", "echo", "suffix",
             "best_of", "user", "include_stop_str_in_output", "skip_special_tokens", "add_special_tokens", "prompt_logprobs",
             "response_format", "no_such_field"]
    assert server.complete(PROMPT, **{k: None for k in names}, **GREEDY)["choices"][0]["text"] == plain
    neutral = dict(best_of=1, stop=[], stop_token_ids=[], logit_bias={}, user="me", response_format={"type": "text"}, suffix=None,
                   use_beam_search=False, no_such_field={"a": [1]}, n=1, presence_penalty=0, frequency_penalty=0.0,
                   repetition_penalty=1, top_p=1, top_k=-1, min_p=0, model="demo", stream=False)
    assert server.complete(PROMPT, **neutral, **GREEDY)["choices"][0]["text"] == plain
    before = server.metrics().get("specd_unknown_fields_total")
    server.complete(PROMPT, max_tokens=1, one_more=1)
    assert server.metrics().get("specd_unknown_fields_total") == before + 1


def test_escapes(server):
    """All code points below 256 and a few beyond survive the way in and out."""
    text = "".join(chr(i) for i in range(1, 256)) + "\u2028\u2029\ufeff\ufffd😀"
    r = server.complete(text, echo=True, max_tokens=1, temperature=0)["choices"][0]["text"]
    import unicodedata
    assert r.startswith(unicodedata.normalize("NFC", text)) or r.startswith(text)
    ev = server.stream("/v1/completions", {"prompt": text, "echo": True, "max_tokens": 1, "temperature": 0}).all()
    assert stream_texts(ev)[0] == r


def test_every_delta_is_utf8(server):
    """Single bytes of a character come as tokens; no delta holds half of one."""
    ids = server.tokens("😀")
    if len(ids) > 1:
        for i in range(1, len(ids)):
            for body in ({"prompt": ids[:i], "max_tokens": 6, "temperature": 1.5, "seed": i, "ignore_eos": True},):
                both(server, body)
    body = {"prompt": "x", "logit_bias": {str(ids[0]): 100}, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    r = both(server, body)
    assert "\ufffd" in r["choices"][0]["text"]


def test_continuous_usage(server):
    ev = server.stream("/v1/completions", {"prompt": PROMPT, **GREEDY,
                                           "stream_options": {"include_usage": True, "continuous_usage_stats": True}}).all()
    n = [e["usage"]["completion_tokens"] for e in ev if e["choices"]]
    assert n == sorted(n) and n[-1] == 24


def test_stream_options_without_stream(server):
    for v in ({}, {"include_usage": True}):
        server.post("/v1/completions", {"prompt": PROMPT, "stream_options": v}).error(400, param="stream_options")


@pytest.mark.release
def test_context_length(server):
    ids = [100 + i % 3000 for i in range(4096)]
    e = server.post("/v1/completions", {"prompt": ids, "max_tokens": 1}).error(400, code="context_length_exceeded")
    assert "4096" in e["message"] and "maximum context length" in e["message"] and "available context size" in e["message"]
    e = server.post("/v1/completions", {"prompt": ids[:4000], "max_tokens": 97}).error(400, code="context_length_exceeded")
    assert "4097" in e["message"] and "4000" in e["message"] and "97" in e["message"]
    r = server.complete(ids[:4090], max_tokens=6, ignore_eos=True)
    assert r["usage"] | {"prompt_tokens_details": 0, "completion_tokens_details": 0} == {
        "prompt_tokens": 4090, "completion_tokens": 6, "total_tokens": 4096, "prompt_tokens_details": 0, "completion_tokens_details": 0}
    server.post("/v1/completions", {"prompt": "word " * 9000, "max_tokens": 1, "stream": True}).error(400, code="context_length_exceeded")


@pytest.mark.release
def test_large_body(server):
    """A 20 MB body is parsed beside the loop; health answers meanwhile."""
    r = server.post("/v1/completions", json.dumps({"prompt": "a", "max_tokens": 1, "junk": ["x" * 100] * 190000}).encode())
    assert r.status == 200


@pytest.mark.parametrize("field, value", [
    ("suffix", "x"), ("best_of", 3), ("use_beam_search", True), ("response_format", {"type": "json_object"}),
    ("guided_json", {}), ("structured_outputs", {"json": {}}), ("grammar", "root ::= 'a'"), ("lora_path", "x"), ("priority", 3),
])
def test_not_supported(server, field, value):
    e = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, field: value}).error(400)
    assert field in (e["param"] or "") or field in e["message"], e
