#!/bin/sh
# stress_http.sh [DEVICE]: 64 clients at once against the demo model, on a KV memory so small that
# requests lose theirs and run again: streams read to the end (on the CPU with equal texts where the
# prompt is one for all: a GPU's sums may depend on the batch), slow readers, clients that leave in the queue, in prefill and in the middle, bodies that are
# refused. Fails when a stream is incomplete, nothing was preempted, or anything is still in use.
# DEVICE: auto (default), cpu or cuda. BIN: the folder of specd and bench_load.
set -eu
cd "$(dirname "$0")/.."
device=${1:-auto}
bin=${BIN:-build/release}
log=$(mktemp)
pid=
cleanup() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    rm -f "$log"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

"$bin/specd" serve --model "${MODEL:-configs/models/demo}" --device "$device" --port 0 --max-num-seqs 64 \
    --max-model-len 512 --kv-cache-tokens 3072 --max-queued-requests 1024 2>"$log" &
pid=$!
port=
for _ in $(seq 600); do
    port=$(sed -nE 's/.*listening on http:\/\/[^:]*:([0-9]+).*/\1/p' "$log" | head -1)
    if [ -n "$port" ] && curl -sf -o /dev/null "http://127.0.0.1:$port/health"; then
        break
    fi
    kill -0 "$pid" 2>/dev/null || { cat "$log" >&2; exit 1; }
    sleep 0.1
done

load() { # load FLAGS...: one run of the generator, which checks every stream
    "$bin/bench_load" --port "$port" --pid "$pid" --conns 64 --prompt 32 "$@" || { tail -5 "$log" >&2; exit 1; }
}
metric() { # metric NAME: the sum over its labels
    curl -sf "http://127.0.0.1:$port/metrics" | awk -v m="$1" 'index($1, m) == 1 && substr($1, length(m) + 1, 1) ~ /[{]|^$/ { s += $2 } END { printf "%d\n", 1000 * s }'
}
same=
[ "$device" != cpu ] || same=--same
# shellcheck disable=SC2086 # a flag or nothing
load --requests 192 --tokens 96 --seed 7 $same
load --requests 192 --tokens 64
load --mode slow --requests 64 --tokens 32
for drop in 0 1 20; do
    load --mode disconnect --requests 192 --tokens 96 --drop "$drop" || true
done
load --mode malformed --requests 192
load --requests 64 --tokens 96

for _ in $(seq 50); do
    left=$(($(metric specd_requests_running) + $(metric specd_requests_waiting) + $(metric specd_kv_cache_usage_ratio)))
    [ "$left" -eq 0 ] && break
    sleep 0.1
done
preempted=$(metric specd_preemptions_total)
echo "left in use: $left, preempted: $((preempted / 1000))"
[ "$left" -eq 0 ] && [ "$preempted" -gt 0 ]
kill "$pid"
rc=0
wait "$pid" || rc=$?
pid=
[ "$rc" -eq 0 ] || { echo "the server ended with $rc" >&2; exit 1; }
echo "stress: ok on $device"
