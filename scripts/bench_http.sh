#!/bin/sh
# bench_http.sh MODEL [STREAMS...]: HTTP throughput of this machine. Starts the server on a free port
# and runs the load generator at each number of streams (8 64 256 1000): prompts of PROMPT (64)
# random ids, TOKENS (256) new tokens each, ROUNDS (2) requests a stream, LEAST (256) in all. One JSON line a run: tok_s,
# cpu_us_per_token and loop_us_per_token of the server, ttft_ms (p50, p99), events_per_token (below 1:
# the server's loop was behind and put several tokens into a chunk).
#
# The model of the README's table is two layers under a real vocabulary:
#   sh scripts/model_dir.sh configs/shapes/qwen3-2layer.json PATH/tokenizer.json build/models/qwen3-2layer
#   sh scripts/bench_http.sh build/models/qwen3-2layer
# SERVE holds more flags of the server, LOAD of the generator, BIN the folder of both programs.
set -eu
if [ $# -lt 1 ]; then
    echo "usage: sh scripts/bench_http.sh MODEL [STREAMS...]" >&2
    exit 2
fi
model=$1
shift
[ $# -gt 0 ] || set -- 8 64 256 1000
bin=${BIN:-build/release}
prompt=${PROMPT:-64}
tokens=${TOKENS:-256}
rounds=${ROUNDS:-2}
least=${LEAST:-256}
log=$(mktemp)
pid=
cleanup() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    rm -f "$log"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

format=auto
[ -e "$model/model.safetensors" ] || [ -e "$model/model.safetensors.index.json" ] || format=dummy
# shellcheck disable=SC2086 # a list of flags
"$bin/specd" serve --model "$model" --load-format $format --port 0 --max-model-len $((prompt + tokens + 16)) \
    --max-num-seqs 1024 --max-queued-requests 4096 --max-num-batched-tokens ${ROWS:-8192} \
    --kv-cache-tokens $((1024 * (prompt + tokens + 32))) --log-level info ${SERVE:-} 2>"$log" &
pid=$!
port=
for _ in $(seq 600); do
    port=$(sed -nE 's/.*listening on http:\/\/[^:]*:([0-9]+).*/\1/p' "$log" | head -1)
    if [ -n "$port" ] && curl -sf "http://127.0.0.1:$port/health" >/dev/null; then
        break
    fi
    if ! kill -0 "$pid" 2>/dev/null; then
        cat "$log" >&2
        exit 1
    fi
    sleep 0.1
done
grep -E 'engine:' "$log" | tail -1 >&2 || true
half=$(($(nproc) / 2))
# shellcheck disable=SC2086
for n in "$@"; do
    requests=$((rounds * n > least ? rounds * n : least))
    procs=$((n / 32 < half ? n / 32 : half))
    "$bin/bench_load" --port "$port" --pid "$pid" --conns "$n" --requests $requests --tokens "$tokens" \
        --prompt "$prompt" --procs $((procs < 1 ? 1 : procs > 8 ? 8 : procs)) ${LOAD:-} || {
        tail -5 "$log" >&2
        exit 1
    }
done
curl -sf "http://127.0.0.1:$port/metrics" | grep -E '^specd_(requests_running|requests_waiting|kv_cache_usage|kv_usage)' >&2 || true
