#!/bin/sh
# gaps_gpu.sh [MODEL [BATCHES [CONTEXT]]]: what of a steady decode step on a GPU is no kernel's work.
# Three runs of bench_spec_gpu without drafts, after `make bench trace`:
#   replay    by stamps inside the launches, no profiler: start to start of a step, and the pause
#             from the end of a replay to the start of the next (median, 99th percentile)
#   records   by CUPTI: gaps between consecutive kernels of a step (negative: started early)
#   isolated  by CUPTI with kernels one at a time, launched eagerly: the sum of their times
# The last line of a batch is start to start less the sum of the isolated kernels.
set -eu
cd "$(dirname "$0")/.."
model=${1:-configs/models/demo}
batches=${2:-1}
context=${3:-1024}
bench=${BENCH:-build/release/bench_bench_spec_gpu}
trace=$(realpath "${TRACE:-build/release/libtrace_gpu.so}")
out=$(mktemp)
trap 'rm -f "$out"' EXIT

run() { # run MODE REPS [VARIABLE=VALUE...]
    mode=$1
    reps=$2
    shift 2
    env "$@" "$bench" --model "$model" --method ngram --steps 1 --context "$context" --batch "$batch" \
        --mode "$mode" --reps "$reps" >"$out" 2>&1 || { cat "$out" >&2; exit 1; }
    if grep -q '^nothing was measured' "$out"; then
        cat "$out" >&2
        exit 1
    fi
}
field() { # field NAME: of the line of the JSON output that has a mode
    sed -nE "s/.*\"mode\".*\"$1\":([0-9.]+).*/\1/p" "$out"
}

for batch in $(echo "$batches" | tr , ' '); do
    run "no drafts, overlap" 400 NONE=
    ms=$(field ms)
    echo "$model batch $batch context $context"
    echo "  replay: start to start $ms ms (p99 $(field p99_ms)), pause between replays $(field pause) ms (p99 $(field pause_p99))"
    run "no drafts, overlap" 200 CUDA_INJECTION64_PATH="$trace" TRACE_TOP=0
    sed -nE 's/^trace: (step |gap |[0-9]+ records|no records)/  records: \1/p' "$out"
    run "no drafts, eager" 100 CUDA_INJECTION64_PATH="$trace" TRACE_TOP=0 TRACE_SERIAL=1
    sed -nE 's/^trace: (step |gap |no records)/  isolated: \1/p' "$out"
    sum=$(sed -nE "s/^trace: step .* kernels' sum ([0-9.]+) us.*/\1/p" "$out")
    kernels=$(sed -nE 's/^trace: step .* ([0-9]+) kernels;.*/\1/p' "$out")
    if [ -n "$sum" ] && [ -n "$ms" ]; then
        echo "$ms $sum $kernels" | awk '{ d = $1 * 1000 - $2
            printf "  start to start less the sum of isolated kernels: %.1f us of %.1f (%.1f%%), %.2f us for each of %d kernels\n",
                d, $1 * 1000, d / $1 / 10, d / $3, $3 }'
    fi
done
