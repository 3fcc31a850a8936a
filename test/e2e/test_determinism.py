"""Same bytes: a (seed, prompt) pair gives one text, whatever runs beside it, also after preemption.

The reference is one request at a time with room for all. The other server has so few pages that
its streams have to take them from each other; the counters prove that they did.
"""
import pytest

from harness import Server, stream_texts, together

N = 64


def bodies(tokens):
    words = "The kernel reads a file and writes the result to another one before it ends".split()
    out = []
    for i in range(N):
        prompt = " ".join(words[(i + j) % len(words)] for j in range(4 + i * 7 % 40))
        sampling = ({"temperature": 0}, {"temperature": 1.0, "seed": 1000 + i},
                    {"temperature": 0.8, "top_k": 30, "seed": i, "frequency_penalty": 0.5},
                    {"temperature": 1.3, "top_p": 0.9, "seed": -i, "repetition_penalty": 1.2})[i % 4]
        out.append({"prompt": prompt, "max_tokens": tokens - i % 5, "ignore_eos": True, **sampling})
    return out


def text(server, body):
    ev = server.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}}, timeout=110).all()
    assert ev[-1]["usage"]["completion_tokens"] == body["max_tokens"]
    return stream_texts(ev)[0]


@pytest.mark.release
def test_parallel_streams(server):
    jobs = bodies(40)
    alone = [text(server, b) for b in jobs]
    assert len(set(alone)) > N // 2, "the texts have to differ for this to mean something"
    assert together(8, lambda i: text(server, jobs[i])) == alone[:8]
    with Server("--kv-cache-tokens", 512, "--max-num-seqs", 64) as tiny:
        for n in (1, 8, N):
            before = tiny.metrics().get("specd_preemptions_total")
            got = together(n, lambda i: text(tiny, jobs[i]))
            assert got == alone[:n], [i for i in range(n) if got[i] != alone[i]]
            preempted = tiny.metrics().get("specd_preemptions_total") - before
            if n == N:
                assert preempted > 0, "nothing was preempted, so this run proves less than it should"
                print(f"{preempted:.0f} preemptions at {N} streams")
        m = tiny.metrics()
        assert m.get("specd_recomputed_tokens_total") > 0
        tiny.idle()
        # what was recomputed counts once
        assert m.get("specd_generation_tokens_total") == sum(b["max_tokens"] for n in (1, 8, N) for b in jobs[:n])
    with Server("--overlap", "off", "--max-num-batched-tokens", 16, "--threads", 1) as other:
        assert together(16, lambda i: text(other, jobs[i])) == alone[:16]


def test_few_streams_with_preemption():
    """The same in small, also for the sanitizers."""
    jobs = bodies(64)[:8]
    with Server("--kv-cache-tokens", 192, "--max-num-seqs", 8) as s:
        alone = [text(s, b) for b in jobs]
        assert together(8, lambda i: text(s, jobs[i])) == alone
        assert s.metrics().get("specd_preemptions_total") > 0
