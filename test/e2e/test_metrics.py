"""/metrics: names and labels from the start, zero then, and what has to add up after a load."""
import re
import shutil
import subprocess

from harness import ROOT, Server, together

GAUGES = ["specd_requests_running", "specd_requests_waiting", "specd_queue_tokens", "specd_kv_cache_usage_ratio", "specd_ready",
          "specd_draining", "specd_model_load_seconds", "specd_start_seconds", "specd_http_connections", "specd_http_streams", "specd_stream_buffered_bytes",
          "specd_engine_last_step_timestamp_seconds", "process_resident_memory_bytes", "process_open_fds", "process_max_fds",
          "process_start_time_seconds", "specd_build_info", "specd_config_info", "specd_cache_config_info"]
COUNTERS = ["specd_requests_total", "specd_http_requests_total", "specd_client_disconnects_total", "specd_prompt_tokens_total",
            "specd_generation_tokens_total", "specd_preemptions_total", "specd_recomputed_tokens_total", "specd_engine_steps_total",
            "specd_stream_paused_seconds_total", "specd_unknown_fields_total", "specd_nan_logits_total", "process_cpu_seconds_total",
            "specd_spec_verify_total", "specd_spec_verify_rows_total", "specd_spec_drafted_tokens_total",
            "specd_spec_accepted_tokens_total", "specd_spec_position_drafted_total", "specd_spec_position_accepted_total",
            "specd_spec_part_seconds_total"]
HISTOGRAMS = ["specd_http_request_duration_seconds", "specd_time_to_first_token_seconds", "specd_inter_token_latency_seconds",
              "specd_time_per_output_token_seconds", "specd_e2e_request_latency_seconds", "specd_queue_time_seconds",
              "specd_prefill_time_seconds", "specd_decode_time_seconds", "specd_request_prompt_tokens",
              "specd_request_generation_tokens", "specd_request_max_tokens", "specd_request_n", "specd_event_loop_lag_seconds",
              "specd_spec_accepted_length"]
OUTCOMES = ["stop", "length", "abort_client", "abort_timeout", "abort_shutdown", "error", "rejected_invalid", "rejected_overload",
            "rejected_unready"]
# these move by themselves, or with the scrape
ALIVE = re.compile(r"specd_(build|config|cache_config)_info|specd_ready|specd_model_load|specd_start_seconds|specd_http_(connections|requests|request_duration)"
                   r"|specd_event_loop|specd_kv_cache_total|process_|specd_engine_last_step|specd_engine_steps|specd_gpu_memory")


def promtool():
    tool = shutil.which("promtool") or ROOT / "build" / "tools" / "promtool"
    assert shutil.which(str(tool)), "promtool is missing: sh scripts/deps.sh promtool"
    return str(tool)


def check_text(text):
    """The rules of the text format that promtool does not look at."""
    assert text.endswith("\n") and "\r" not in text
    families, seen = {}, None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in families, f"{name} twice: families are contiguous"
            families[name] = kind
            seen = name
        elif line.startswith("# HELP "):
            assert line.split(" ", 3)[3].strip()
        else:
            name = re.match(r"[A-Za-z0-9_:]+", line)[0]
            base = re.sub(r"_(bucket|sum|count)$", "", name) if families[seen] == "histogram" else name
            assert base == seen, f"{name} stands in the family {seen}"
            assert 'model_name="' in line or name.startswith("process_"), line
    return families


def check_histograms(m, families):
    for name, kind in families.items():
        if kind != "histogram":
            continue
        rows = {}
        for labels, v in m.series[name + "_bucket"]:
            key = tuple(sorted((k, w) for k, w in labels.items() if k != "le"))
            rows.setdefault(key, []).append((float(labels["le"]), v))
        for key, row in rows.items():
            les, counts = [a for a, _ in row], [b for _, b in row]
            assert les == sorted(les) and les[-1] == float("inf"), name
            assert counts == sorted(counts), f"{name} is not cumulative"
            assert counts[-1] == m.get(name + "_count", **dict(key)), name


def test_from_the_start():
    with Server() as s:
        r = s.get("/metrics")
        assert r.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = check_text(r.text)
        for names, kind in ((GAUGES, "gauge"), (COUNTERS, "counter"), (HISTOGRAMS, "histogram")):
            for n in names:
                assert families.get(n) == kind, f"{n}: {families.get(n)} instead of {kind}"
        m = s.metrics()
        check_histograms(m, families)
        for name, rows in m.series.items():
            for labels, v in rows:
                assert ALIVE.match(name) or v == 0, f"{name}{labels} is {v} before any request"
        assert m.get("specd_ready") == 1 and m.get("specd_build_info") >= 1
        for o in OUTCOMES:
            for e in ("completions", "chat_completions"):
                assert [v for have, v in m.series["specd_requests_total"] if have["outcome"] == o and have["endpoint"] == e] == [0]
        assert m.get("specd_cache_config_info") == 1
        assert {"block_size", "num_gpu_blocks"} <= set(m.series["specd_cache_config_info"][0][0])
        assert len(r.data) < 100 << 10
        p = subprocess.run([promtool(), "check", "metrics"], input=r.data, capture_output=True, timeout=60)
        assert p.returncode == 0 and not p.stderr, (p.stdout + p.stderr).decode()


def test_identities():
    """10 requests of 10 tokens, and a few that fail: every number is known."""
    with Server() as s:
        prompt = s.tokens("One two three four five six seven eight")
        body = {"prompt": prompt, "max_tokens": 10, "temperature": 0, "ignore_eos": True}
        together(10, lambda i: s.stream("/v1/completions", body).all() if i % 2 else s.ok("/v1/completions", body))
        s.ok("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "n": 3, "ignore_eos": True})
        for bad in ({}, {"prompt": ""}, {"prompt": "a", "n": 0}):
            s.post("/v1/completions", bad).error(400)
        chat = s.ok("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]})["count"]
        s.idle()
        m = s.metrics()
        families = check_text(m.text)
        check_histograms(m, families)
        assert m.get("specd_requests_total", endpoint="completions", outcome="length") == 10
        assert m.get("specd_requests_total", endpoint="chat_completions", outcome="length") == 1
        assert m.get("specd_requests_total", outcome="rejected_invalid") == 3
        assert m.get("specd_requests_total") == 14, "each request ends in exactly one outcome"
        assert m.get("specd_generation_tokens_total") == 100 + 12
        assert m.get("specd_prompt_tokens_total", source="cached") == 0
        computed = m.get("specd_prompt_tokens_total", source="computed")
        assert computed in (10 * len(prompt) + chat, 10 * len(prompt) + 3 * chat)
        # once a token after the first, once a sequence
        assert m.get("specd_inter_token_latency_seconds_count") == 10 * 9 + 3 * 3
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "queue_time_seconds", "prefill_time_seconds",
                     "decode_time_seconds", "request_prompt_tokens", "request_generation_tokens"):
            assert m.get(f"specd_{name}_count") == 13, name
        assert m.get("specd_request_generation_tokens_sum") == 112
        assert m.get("specd_request_prompt_tokens_sum") == 10 * len(prompt) + 3 * chat
        assert m.get("specd_request_n_count") == 11 and m.get("specd_request_n_sum") == 13
        assert m.get("specd_request_max_tokens_sum") in (10 * 10 + 4, 10 * 10 + 12)
        ttft, e2e = m.get("specd_time_to_first_token_seconds_sum"), m.get("specd_e2e_request_latency_seconds_sum")
        assert 0 < ttft <= e2e
        assert m.get("specd_http_requests_total", handler="/v1/completions", code="200") == 10
        assert m.get("specd_http_requests_total", handler="/v1/completions", code="400") == 3
        assert m.get("specd_http_requests_total", handler="/v1/chat/completions", code="200") == 1
        assert m.get("specd_http_request_duration_seconds_count", handler="/v1/completions") == 13
        assert m.get("specd_engine_steps_total", kind="decode", mode="graph") > 0
        assert m.get("specd_engine_steps_total", kind="decode", mode="eager") == 0, "no decode step runs eager"
        assert m.get("specd_nan_logits_total") == 0
        p = subprocess.run([promtool(), "check", "metrics"], input=m.text.encode(), capture_output=True, timeout=60)
        assert p.returncode == 0 and not p.stderr, (p.stdout + p.stderr).decode()


def test_other_paths_have_one_label(server):
    before = server.metrics()
    for i in range(20):
        server.get(f"/no/such/{i}")
    after = server.metrics()
    assert len(after.series["specd_http_requests_total"]) == len(before.series["specd_http_requests_total"])
    assert after.get("specd_http_requests_total", handler="other") == before.get("specd_http_requests_total", handler="other") + 20
