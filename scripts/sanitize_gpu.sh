#!/bin/sh
# sanitize_gpu.sh [TOOL...]: the GPU suites at small sizes under compute-sanitizer (memcheck, initcheck,
# racecheck; all three when none is named). One line for every tool and case with its errors and
# seconds; the first lines of what was found follow. Exit 1 when there was any, or a case did not
# end. JOBS at once (4), each within LIMIT seconds (120); CASES="SUITE SUITE:CASE ..." chooses.
set -eu
cd "$(dirname "$0")/.."
test=${SPECD_TEST_GPU:-build/release/specd_test_gpu}
limit=${LIMIT:-120}
export GPU_SMALL=1

# Shared memory of the suites that run whole models is that of the same kernels: racecheck, the
# slowest by far, leaves them out.
cases_of() {
    case $1 in
    racecheck) echo gpu_slots:speculation gpu_slots:slots_and_sampling gpu_slots:ratio_rejection gpu_ops gpu_fused \
        gpu_small gpu_wide gpu_moe gpu_attn:attention gpu_attn:bf16_caches ;;
    *) echo gpu_spec:replay gpu_spec:steps gpu_model gpu_attn:bf16_caches gpu_attn:attention gpu_ops gpu_fused gpu_small gpu_wide \
        gpu_moe gpu_slots gpu_load ;;
    esac
}

if [ "${1:-}" = --one ]; then # one TOOL SUITE[:CASE] LOG
    suite=${3%%:*}
    case $3 in *:*) export CK_RUN_CASE="${3#*:}" ;; esac
    t0=$(date +%s)
    rc=0
    # what the library itself asks of the driver and is refused on purpose is no error here
    timeout "$limit" "${SANITIZER:-compute-sanitizer}" --tool "$2" --report-api-errors no --print-limit 1000 \
        --error-exitcode 99 "$test" "$suite" >"$4" 2>&1 || rc=$?
    found=$(sed -nE 's/.*(ERROR|RACECHECK) SUMMARY: //p' "$4" | tail -1)
    case $rc in
    0) what=ok ;;
    99)
        what=FOUND
        # racecheck does not follow the cluster barriers of cuBLASLt's kernels for sm_90
        [ "$2" != racecheck ] || grep -E 'Race reported|Sanitizer Error|returned an error' "$4" | grep -qv nvjet_ || what=ok
        ;;
    124) what="NOT ENDED in $limit s" ;;
    *) what="FAILED, exit $rc" ;;
    esac
    [ -n "$found" ] || [ "$rc" -ne 0 ] || what="NO REPORT"
    echo "$2 $3: $what (${found:-no summary}, $(($(date +%s) - t0)) s)"
    [ "$what" = ok ] || { sed -nE '/^=========/p' "$4" | grep -vE '=+ *$|COMPUTE-SANITIZER|Host Frame|nvjet_' | head -"${LINES_MAX:-12}"; }
    exit 0
fi

PATH=$PATH:/usr/local/cuda/bin
command -v "${SANITIZER:-compute-sanitizer}" >/dev/null || { echo "compute-sanitizer is not here (CUDA toolkit)" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
[ $# -gt 0 ] || set -- memcheck initcheck racecheck
n=0
for tool in "$@"; do
    for c in ${CASES:-$(cases_of "$tool")}; do
        n=$((n + 1))
        list=all
        [ "$c" != gpu_load ] || list=alone # compares free memory, which others change
        echo "$tool $c $dir/$n" >>"$dir/$list"
    done
done
# each line's output at once, so that those of several do not mix
# shellcheck disable=SC2016 # $@ is sh -c's own
run() { xargs -r -P "$1" -L 1 sh -c 'out=$(sh scripts/sanitize_gpu.sh --one "$@") && printf "%s\n" "$out"' _ <"$2"; }
touch "$dir/all" "$dir/alone"
{ run "${JOBS:-4}" "$dir/all"; run 1 "$dir/alone"; } | tee "$dir/out"
bad=$(grep -cE '^[a-z]+ gpu_[a-z_:0-9]+: (FOUND|NOT|NO|FAILED)' "$dir/out" || :)
good=$(grep -cE '^[a-z]+ gpu_[a-z_:0-9]+: ok' "$dir/out" || :)
echo "compute-sanitizer: $good clean, $bad not"
[ "$bad" -eq 0 ] && [ "$good" -gt 0 ]
