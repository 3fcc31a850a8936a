"""Every field of POST /v1/chat/completions."""
import pytest

from harness import finishes, stream_texts

ASK = [{"role": "user", "content": "What is 12 + 30?"}]
GREEDY = dict(temperature=0, max_tokens=24)


def both(server, body):
    r = server.ok("/v1/chat/completions", body)
    ev = server.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}).all()
    assert stream_texts(ev, "chat") == {c["index"]: c["message"]["content"] for c in r["choices"]}
    assert finishes(ev) == {c["index"]: c["finish_reason"] for c in r["choices"]}
    assert ev[-1]["choices"] == [] and ev[-1]["usage"] == r["usage"]
    seen = set()
    for e in ev[:-1]:
        assert e["object"] == "chat.completion.chunk" and e["usage"] is None
        (c,) = e["choices"]
        d = c["delta"]
        if c["index"] not in seen:  # the first delta of a choice: role and empty content
            assert d == {"role": "assistant", "content": ""} and c["finish_reason"] is None
            seen.add(c["index"])
        elif c["finish_reason"]:
            assert d == {}
        else:
            assert set(d) == {"content"} and d["content"], d
    assert seen == {c["index"] for c in r["choices"]}
    if body.get("logprobs"):
        for c in r["choices"]:
            got = [x for e in ev for d in e["choices"] if d["index"] == c["index"] and d["logprobs"] for x in d["logprobs"]["content"]]
            assert got == c["logprobs"]["content"]
    return r


def test_shape(server):
    r = server.chat("Hello", **GREEDY)
    assert r["object"] == "chat.completion" and r["id"].startswith("chatcmpl-")
    m = r["choices"][0]["message"]
    assert m["role"] == "assistant" and m["refusal"] is None and isinstance(m["content"], str)
    assert "tool_calls" not in m and "reasoning_content" not in m
    assert set(r["choices"][0]) >= {"index", "message", "logprobs", "finish_reason"}


def test_stream_equals_whole(server):
    for extra in ({}, {"temperature": 1.2, "seed": 3}, {"n": 3, "temperature": 1.0, "seed": 9}, {"logprobs": True, "top_logprobs": 4},
                  {"stop": ["4", "2"]}, {"max_tokens": 2}, {"n": 2, "logprobs": True}):
        both(server, {"messages": ASK, **GREEDY, **extra})


def test_content_parts(server):
    text = server.chat("What is 12 + 30?", **GREEDY)["choices"][0]["message"]["content"]
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "12 + 30?"}]
    assert server.chat([{"role": "user", "content": parts}], **GREEDY)["choices"][0]["message"]["content"] == text
    one = server.chat([{"role": "user", "content": parts[:1]}, {"role": "assistant", "content": parts[1:]},
                       {"role": "user", "content": "x"}], **GREEDY)
    assert one["choices"][0]["message"]["content"] is not None


def test_roles(server):
    for role in ("system", "user", "assistant", "developer", "custom"):
        messages = [{"role": role, "content": "x"}, *ASK]
        assert server.chat(messages, **GREEDY)["choices"]
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None,
             "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
             {"role": "tool", "tool_call_id": "call_1", "content": "42"}, {"role": "user", "content": "So?"}]
    r = server.post("/v1/chat/completions", {"messages": turns, **GREEDY})
    assert r.status in (200, 400)  # this template may refuse a null content, in words
    if r.status == 400:
        r.error(400)


def test_user_text_is_text(server):
    """Special tokens in a message neither end the turn nor open another."""
    n = server.chat("<|im_end|><|im_start|>", max_tokens=1)["usage"]["prompt_tokens"]
    assert n > server.chat("ab", max_tokens=1)["usage"]["prompt_tokens"] + 4


def test_max_tokens(server):
    long = dict(temperature=0, ignore_eos=True)
    assert server.chat("Hi", max_completion_tokens=3, **long)["usage"]["completion_tokens"] == 3
    assert server.chat("Hi", max_completion_tokens=3, max_tokens=7, **long)["usage"]["completion_tokens"] == 3
    assert server.chat("Hi", max_tokens=7, **long)["usage"]["completion_tokens"] == 7
    # the default is the rest of the context
    r = server.chat("Hi", stop=["\n"], temperature=0)
    assert r["usage"]["total_tokens"] <= 4096


def test_logprobs(server):
    r = server.chat("What is 12 + 30?", logprobs=True, top_logprobs=5, **GREEDY)["choices"][0]
    content = r["logprobs"]["content"]
    assert b"".join(bytes(e["bytes"]) for e in content).decode() == r["message"]["content"]
    for e in content:
        assert e["logprob"] <= 0 and len(e["top_logprobs"]) == 5
        tops = [t["logprob"] for t in e["top_logprobs"]]
        assert tops == sorted(tops, reverse=True)
        assert e["top_logprobs"][0]["token"] == e["token"] and tops[0] == e["logprob"]
        assert all(isinstance(b, int) and 0 <= b < 256 for t in e["top_logprobs"] for b in t["bytes"])
    zero = server.chat("What is 12 + 30?", logprobs=True, **GREEDY)["choices"][0]["logprobs"]["content"]
    assert [e["logprob"] for e in zero] == [e["logprob"] for e in content]
    assert all(e["top_logprobs"] == [] for e in zero)
    assert server.chat("Hi", max_tokens=1)["choices"][0]["logprobs"] is None
    assert server.chat("Hi", max_tokens=1, logprobs=False)["choices"][0]["logprobs"] is None


def test_bytes_of_partial_characters(server):
    """A token that is part of a character: its bytes are right and the text is recoverable."""
    ids = server.tokens("😀")
    r = server.chat("x", logprobs=True, temperature=0, max_tokens=3, logit_bias={str(ids[0]): 100}, ignore_eos=True)["choices"][0]
    for e in r["logprobs"]["content"]:
        assert bytes(e["bytes"]) == "😀".encode()[:len(e["bytes"])]
        if len(ids) > 1:
            assert e["token"] and "\ufffd" not in e["token"]


def test_neutral_values(server):
    text = server.chat("Hello", **GREEDY)["choices"][0]["message"]["content"]
    neutral = dict(tool_choice="none", response_format={"type": "text"}, parallel_tool_calls=True, n=1, logprobs=False, store=False,
                   metadata={}, user="u", service_tier="auto", modalities=["text"], chat_template_kwargs={}, frequency_penalty=0,
                   top_logprobs=None, stream_options=None, functions=None, add_generation_prompt=True, continue_final_message=False)
    assert server.chat("Hello", **neutral, **GREEDY)["choices"][0]["message"]["content"] == text
    assert server.chat("Hello", tools=[], **GREEDY)["choices"][0]["message"]["content"] == text
    assert server.chat("Hello", tool_choice="auto", **GREEDY)["choices"][0]["message"]["content"] == text
    assert server.chat("Hello", tools=None, tool_choice=None, **GREEDY)["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize("field, value", [
    ("tools", [{"type": "function", "function": {"name": "f", "parameters": {}}}]), ("tool_choice", "required"),
    ("response_format", {"type": "json_object"}), ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}),
    ("functions", [{"name": "f"}]), ("audio", {"voice": "x"}), ("modalities", ["text", "audio"]),
    ("chat_template", "{{ messages }}"), ("web_search_options", {}),
])
def test_not_supported(server, field, value):
    e = server.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 1, field: value}).error(400)
    assert field in (e["param"] or "") or field in e["message"], e


def test_image_part(server):
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}]}]}
    e = server.post("/v1/chat/completions", body).error(400)
    assert "image_url" in e["message"] and e["param"].startswith("messages[0].content[1]"), e


def test_context_length(server):
    e = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 5000}]}).error(
        400, code="context_length_exceeded")
    assert "4096" in e["message"]


def test_alias(server):
    assert server.ok("/chat/completions", {"messages": ASK, **GREEDY})["choices"]
