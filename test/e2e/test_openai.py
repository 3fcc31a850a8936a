"""The official client: sync, async, streams, errors, cancel. What it accepts, its users' code accepts."""
import asyncio
import time

import openai
import pytest

PROMPT = "The shell reads"


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, timeout=60) as c:
        yield c


def aclient(server):
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, timeout=60)


def test_models(client, server):
    cards = client.models.list().data
    assert [c.id for c in cards] == ["demo"]
    card = client.models.retrieve("demo")
    assert card.object == "model" and card.owned_by and card.created > 0
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_completion(client):
    r = client.completions.create(model="demo", prompt=PROMPT, max_tokens=8, temperature=0)
    assert r.object == "text_completion" and r.id.startswith("cmpl-") and r.model == "demo"
    assert r.choices[0].finish_reason in ("stop", "length")
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert abs(r.created - time.time()) < 60
    assert r._request_id


def test_chat(client):
    r = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Hello"}], max_tokens=16)
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-")
    m = r.choices[0].message
    assert m.role == "assistant" and isinstance(m.content, str) and m.refusal is None and not m.tool_calls
    assert r.usage.completion_tokens <= 16
    assert r.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_stream(client):
    with client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Hello"}], max_tokens=16, temperature=0, stream=True,
            stream_options={"include_usage": True}) as s:
        chunks = list(s)
    whole = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Hello"}],
                                           max_tokens=16, temperature=0)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert len({c.id for c in chunks}) == 1 and len({c.created for c in chunks}) == 1
    assert all(c.object == "chat.completion.chunk" for c in chunks)


def test_completion_stream(client):
    kw = dict(model="demo", prompt=PROMPT, max_tokens=12, temperature=0)
    chunks = list(client.completions.create(stream=True, **kw))
    whole = client.completions.create(**kw)
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(c.usage is None for c in chunks)


def test_extra_body(client):
    r = client.completions.create(model="demo", prompt=PROMPT, max_tokens=6, temperature=0,
                                  extra_body={"ignore_eos": True, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1})
    assert r.usage.completion_tokens == 6 and r.choices[0].finish_reason == "length"


def test_async(server):
    async def run():
        async with aclient(server) as c:
            async def one(i):
                r = await c.chat.completions.create(model="demo", messages=[{"role": "user", "content": f"What is {i} + 1?"}],
                                                    max_tokens=12, temperature=0)
                out = ""
                s = await c.chat.completions.create(
                    model="demo", messages=[{"role": "user", "content": f"What is {i} + 1?"}], max_tokens=12,
                    temperature=0, stream=True)
                async for k in s:
                    out += k.choices[0].delta.content or ""
                assert out == r.choices[0].message.content
            await asyncio.gather(*(one(i) for i in range(8)))

    asyncio.run(run())


def test_async_cancel(server):
    async def run():
        async with aclient(server) as c:
            async def endless():
                s = await c.completions.create(model="demo", prompt=PROMPT, max_tokens=4000, stream=True,
                                               extra_body={"ignore_eos": True})
                async for _ in s:
                    pass
            tasks = [asyncio.create_task(endless()) for _ in range(6)]
            await asyncio.sleep(0.5)
            for t in tasks:
                t.cancel()
            assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))

    before = server.metrics().get("specd_requests_total", outcome="abort_client")
    asyncio.run(run())
    server.idle(2)
    assert server.metrics().get("specd_requests_total", outcome="abort_client") == before + 6


def test_sync_close(client, server):
    s = client.completions.create(model="demo", prompt=PROMPT, max_tokens=4000, stream=True,
                                  extra_body={"ignore_eos": True})
    next(iter(s))
    s.close()
    server.idle(2)


def test_timeout_of_client(client, server):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).completions.create(model="demo", prompt=PROMPT, max_tokens=4000,
                                                            extra_body={"ignore_eos": True})
    server.idle(2)


@pytest.mark.parametrize("kw, error, param", [
    (dict(model="other"), openai.NotFoundError, "model"),
    (dict(temperature=3), openai.BadRequestError, "temperature"),
    (dict(n=0), openai.BadRequestError, "n"),
    (dict(max_tokens=-1), openai.BadRequestError, "max_tokens"),
    (dict(prompt=""), openai.BadRequestError, "prompt"),
    (dict(stop=["a"] * 17), openai.BadRequestError, "stop"),
])
def test_errors(client, kw, error, param):
    with pytest.raises(error) as e:
        client.completions.create(**{"model": "demo", "prompt": PROMPT, "max_tokens": 4, **kw})
    assert e.value.param == param and e.value.message
    assert e.value.request_id


def test_error_of_stream_is_a_status(client):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "x " * 9000}], stream=True)
    assert e.value.code == "context_length_exceeded"


def test_logprobs(client):
    r = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Hi"}], max_tokens=4,
                                       temperature=0, logprobs=True, top_logprobs=3)
    for e in r.choices[0].logprobs.content:
        assert len(e.top_logprobs) == 3 and e.logprob <= 0 and bytes(e.bytes)
        assert e.top_logprobs[0].logprob == e.logprob and e.top_logprobs[0].token == e.token
    r = client.completions.create(model="demo", prompt=PROMPT, max_tokens=4, temperature=0, logprobs=2)
    lp = r.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset)
