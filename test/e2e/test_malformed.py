"""At least 300 malformed requests: each gets its status and an error that names the field, and the
server answers the next request as if nothing had been."""
import json

P = "/v1/completions"
C = "/v1/chat/completions"
BASE = {P: {"prompt": "The", "max_tokens": 1}, C: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}}


class Raw(str):
    """JSON text that stands as it is in place of a value."""


def dump(v):
    if isinstance(v, Raw):
        return str(v)
    if isinstance(v, dict):
        return "{" + ",".join(json.dumps(k) + ":" + dump(w) for k, w in v.items()) + "}"
    if isinstance(v, list):
        return "[" + ",".join(map(dump, v)) + "]"
    return json.dumps(v)


NUMBER_WRONG = ["1", "x", True, [], {}, [1]]
INT_WRONG = NUMBER_WRONG + [1.5, Raw("1e400"), Raw("9223372036854775808")]
BOOL_WRONG = ["true", 1, 0, [], {}]


def field_cases():
    """(path, field, bad value)"""
    for path in (P, C):
        for f, bad in (("temperature", [-0.1, 2.1, 1e9]), ("top_p", [0, -1, 1.01]), ("min_p", [-0.1, 1.1]),
                       ("presence_penalty", [-2.1, 2.1]), ("frequency_penalty", [-2.1, 2.1]), ("repetition_penalty", [0, -1])):
            for v in NUMBER_WRONG + [Raw("1e400"), Raw("NaN"), Raw("Infinity")] + bad:
                yield path, f, v
        for f, bad in (("top_k", [-2]), ("seed", []), ("n", [0, -1, 129]), ("max_tokens", [-1, -100]),
                       ("min_tokens", [-1, 5])):
            for v in INT_WRONG + bad:
                yield path, f, v
        for f in ("stream", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            for v in BOOL_WRONG:
                yield path, f, v
        for v in (5, True, {}, [5], [""], "", ["a", ""], ["a"] * 17, [["a"]], ["a", None], ["x" * 5000]):
            yield path, "stop", v
        for v in (5, "1", {}, [-1], [4096], [1 << 31], [1 << 40], ["1"], [1.5], [None], list(range(100, 200))):
            yield path, "stop_token_ids", v
        for v in (5, "x", [], {"x": 1}, {"-1": 1}, {"4096": 1}, {"99999999999": 1}, {"1": "x"}, {"1": 101}, {"1": -101}, {"1": True},
                  {"1.5": 1}, {" 1": 1}, {"": 1}, {"1": []}):
            if v != []:
                yield path, "logit_bias", v
        for v in (5, [], {}, True):
            yield path, "model", v
        for v in (5, "x", [], True, {"include_usage": 1}, {"include_usage": "yes"}):
            yield path, "stream_options", v
    for v in INT_WRONG + [-1, 21]:
        yield P, "logprobs", v
    for v in ("1", 1, [], {}):
        yield P, "echo", v
        yield C, "logprobs", v
    for v in NUMBER_WRONG + [-1, 21, 1.5]:
        yield C, "top_logprobs", v
    for v in INT_WRONG + [0, -1]:
        yield C, "max_completion_tokens", v
    for v in ("", [], [[]], [""], ["a", ""], 5, True, {}, {"a": 1}, [5, "a"], ["a", 5], [[1], "a"], [[1], 2], [1, [2]], [-1], [4096],
              [1 << 31], [1 << 62], [Raw("9223372036854775808")], [1.5], [True], [None], [[None]], [["a"]], [[[1]]], [[-1]], [[4096]],
              [[1], []], ["a"] * 1025, None):
        yield P, "prompt", v
    text = {"type": "text", "text": "x"}
    for v in ([], {}, "x", 5, True, None, [5], ["x"], [None], [[]], [{}], [{"role": "user"}], [{"content": "x"}],
              [{"role": 5, "content": "x"}], [{"role": None, "content": "x"}], [{"role": "user", "content": 5}],
              [{"role": "user", "content": True}], [{"role": "user", "content": {}}], [{"role": "user", "content": [5]}],
              [{"role": "user", "content": ["x"]}], [{"role": "user", "content": [{}]}], [{"role": "user", "content": [{"type": "text"}]}],
              [{"role": "user", "content": [{"type": "text", "text": 5}]}], [{"role": "user", "content": [{"type": 5, "text": "x"}]}],
              [{"role": "user", "content": [text, {"type": "image_url", "image_url": {"url": "x"}}]}],
              [{"role": "user", "content": [{"type": "input_audio"}]}], [{"role": "user", "content": [{"type": "nonsense"}]}],
              [{"role": "user", "content": "x"}, 5], [{"role": "user", "content": "x"}, {"role": "user", "content": 1.5}]):
        yield C, "messages", v
    for f, v in (("chat_template_kwargs", 5), ("chat_template_kwargs", []), ("chat_template_kwargs", "x"),
                 ("add_generation_prompt", "yes"), ("tools", 5), ("tools", "x"), ("tools", {}), ("tools", [{"type": "function"}]),
                 ("tool_choice", "auto2"), ("tool_choice", 5), ("tool_choice", "required"), ("response_format", 5), ("response_format", {}),
                 ("response_format", "json"), ("response_format", {"type": 5}), ("response_format", {"type": "nonsense"}),
                 ("response_format", {"type": "json_object"})):
        yield C, f, v


BODIES = [  # (body, why): not a JSON object that we accept
    (b"", "empty"), (b" ", "blank"), (b"{", "cut"), (b"}", "closing"), (b"[]", "array"), (b"null", "null"), (b"5", "number"),
    (b'"x"', "string"), (b"true", "true"), (b"{]", "mixed"), (b'{"prompt"}', "no colon"), (b'{"prompt":}', "no value"),
    (b'{"prompt":"a",}', "trailing comma"), (b'{"prompt":"a"}x', "trailing text"), (b'{"prompt":"a"}{}', "two objects"),
    (b"{'prompt':'a'}", "single quotes"), (b'{prompt:"a"}', "bare key"), (b'{"prompt":"a" "b":1}', "no comma"),
    (b'{"prompt":"\xff"}', "not UTF-8"), (b'{"prompt":"\xc0\xaf"}', "overlong"), (b'{"prompt":"\xed\xa0\x80"}', "encoded surrogate"),
    (b'{"prompt":"\xf4\x90\x80\x80"}', "beyond Unicode"), (b'{"prompt":"\xe2\x82"}', "cut character"),
    (b'{"prompt":"\\ud800"}', "lone surrogate"), (b'{"prompt":"\\udc00\\ud800"}', "surrogates turned"), (b'{"prompt":"\\u00g0"}', "bad escape"),
    (b'{"prompt":"\\x41"}', "unknown escape"), (b'{"prompt":"\\u0000"}', "NUL"), (b'{"prompt":"a\x00b"}', "raw NUL"), (b'{"\\u0000":1}', "NUL key"),
    (b'{"prompt":"a\nb"}', "raw line feed"), (b'{"prompt":"a","prompt":"b"}', "key twice"), (b'{"prompt":"a","n":1,"n":2}', "field twice"),
    (b'{"prompt":"a","max_tokens":01}', "leading zero"), (b'{"prompt":"a","max_tokens":1.}', "bare point"), (b'{"prompt":"a","max_tokens":+1}', "plus"),
    (b'{"prompt":"a","max_tokens":0x1}', "hex"), (b'{"prompt":"a","x":nul}', "nul"), (b'{"prompt":"a","x":NaN}', "NaN"),
    (b'{"prompt":"a","x":1e999}', "too large"), (b'{"prompt":"a","x":99999999999999999999}', "too long an integer"),
    (b'{"prompt":"a" /* c */}', "comment"), (b'{"prompt":"a"', "no brace"), (b'{"prompt":"a', "no quote"),
    (b"[" * 100000, "deep arrays"), (b'{"a":' * 100000, "deep objects"), (b'{"prompt":"a","x":' + b"[" * 3000 + b"]" * 3000 + b"}", "too deep"),
    (b"\xef\xbb\xbf", "only a byte order mark"), (b"\xff\xfe{\x00}\x00", "UTF-16"), (b"\x00" * 64, "zeros"), (b"\x1f\x8b\x08\x00", "gzip"),
]


def test_malformed(server):
    before = server.complete("The", max_tokens=8, temperature=0)["choices"][0]["text"]
    n, wrong = 0, []
    for path, field, value in field_cases():
        body = dict(BASE[path])
        if field == "stream_options":
            body["stream"] = True
        body[field] = value
        r = server.post(path, dump(body).encode())
        n += 1
        try:
            assert r.status == 400, f"status {r.status} {r.data[:150]!r}"
            e = r.error(r.status)
            parsed = not isinstance(value, Raw) and not (isinstance(value, list) and any(isinstance(w, Raw) for w in value))
            if parsed:
                assert e["param"] and e["param"].split("[")[0].split(".")[0] == field, f"param {e['param']!r}: {e['message']}"
        except AssertionError as why:
            wrong.append(f"{path} {field} = {dump(value)[:60]}: {why}")
    for body, why in BODIES:
        for path in (P, C, "/tokenize", "/detokenize"):
            r = server.post(path, body)
            n += 1
            try:
                r.error(400)
            except AssertionError as e:
                wrong.append(f"{path} {why}: {e}")
    assert not wrong, f"{len(wrong)} of {n} wrong:\n" + "\n".join(wrong)
    print(f"{n} malformed requests")
    assert n >= 300
    assert server.complete("The", max_tokens=8, temperature=0)["choices"][0]["text"] == before
    server.idle()


def test_combinations(server):
    for path, extra, param in (
            (P, {"min_tokens": 5, "max_tokens": 2}, "min_tokens"), (C, {"top_logprobs": 2}, "top_logprobs"),
            (C, {"logprobs": False, "top_logprobs": 2}, "top_logprobs"), (P, {"max_tokens": 0}, "max_tokens"),
            (C, {"max_tokens": 0}, "max_tokens"), (P, {"n": 4, "best_of": 2}, "best_of"),
            (P, {"model": "gpt-4"}, "model"), (C, {"model": ""}, "model")):
        r = server.post(path, {**BASE[path], **extra})
        r.error(404 if param == "model" else 400, param=param)


def test_param_path(server):
    """The error names the place, not only the field."""
    r = server.post(C, {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": 5}]}]})
    e = r.error(400)
    assert e["param"].startswith("messages[1].content[0]"), e
    e = server.post(P, {"prompt": [[1], [2, 4096]], "max_tokens": 1}).error(400)
    assert "4096" in e["message"], e


def test_no_leak_of_insides(server):
    for body in (b"{", b'{"prompt":5}', b'{"model":"/etc/passwd","prompt":"a"}'):
        text = server.post(P, body).text
        assert ".c:" not in text and "0x" not in text and "specd/" not in text
