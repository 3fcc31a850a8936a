#!/bin/sh
# `make check`: format, layers, each header alone, banned calls, file shape, tree size. Prints one
# line for every fault as FILE:LINE: what, runs every check in spite of earlier faults, and exits 1
# when there was any. Reads the tree only; needs clang-format 14 (FMT names it) and a C and C++
# compiler. What a person has to judge (names, comments, texts) is not looked at here.
set -u
cd "$(dirname "$0")/.." || exit 2
FMT=${FMT:-clang-format-14}
CC=${CC:-cc}
CXX=${CXX:-c++}
PKGS="libuv libmicrohttpd jansson libpcre2-8 libutf8proc"
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

faults=0
# report NAME FILE: the lines of FILE are the faults of check NAME
report() {
    if [ -s "$2" ]; then
        n=$(wc -l <"$2")
        sed "s|^|$1: |" "$2"
        faults=$((faults + n))
    fi
}

prod_dirs=""
for d in engine kernels attention speculative server; do
    [ -d "$d" ] && prod_dirs="$prod_dirs $d"
done
# shellcheck disable=SC2086 # a list of folders
find $prod_dirs \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' \) |
    sort >"$tmp/prod"
find test \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) | sort >"$tmp/test"
cat "$tmp/prod" "$tmp/test" >"$tmp/all"
grep -E '\.h$' "$tmp/prod" >"$tmp/headers"
if [ "$(wc -l <"$tmp/all")" -lt 10 ]; then
    echo "check: found only $(wc -l <"$tmp/all") source files, so the file list is broken"
    exit 2
fi

# ---- format ----
if ! "$FMT" --version >"$tmp/v" 2>/dev/null; then
    echo "format: $FMT is not installed (package clang-format-14; FMT=... names another path)"
    faults=$((faults + 1))
elif ! grep -q 'version 14\.' "$tmp/v"; then
    echo "format: $FMT is not version 14: $(cat "$tmp/v")"
    faults=$((faults + 1))
else
    grep -E '\.(c|h|cu|cuh)$' "$tmp/all" |
        xargs "$FMT" --dry-run -Werror 2>&1 | grep -E 'error:' >"$tmp/fmt"
    report format "$tmp/fmt"
fi

# ---- the text without comments and string contents, same line numbers ----
# One row a line: FILE:LINE:CODE. What follows looks at code only.
strip() {
    xargs awk '
    FNR == 1 { inc = 0 }
    {
        s = $0; out = ""; n = length(s)
        for (i = 1; i <= n; i++) {
            c = substr(s, i, 1); d = substr(s, i, 2)
            if (inc) { if (d == "*/") { inc = 0; i++ } ; continue }
            if (d == "/*") { inc = 1; i++; continue }
            if (d == "//") break
            if (c == "\"" || c == "\047") {
                q = c; out = out c
                for (i++; i <= n; i++) {
                    c = substr(s, i, 1)
                    if (c == "\\") { i++; continue }
                    if (c == q) break
                }
                out = out q; continue
            }
            out = out c
        }
        print FILENAME ":" FNR ":" out
    }'
}
strip <"$tmp/prod" >"$tmp/prod.code"
strip <"$tmp/test" >"$tmp/test.code"

# ban NAME PATTERN WHERE-NOT TEXT: the pattern may not occur in production code, except in files
# that match WHERE-NOT.
ban() {
    grep -E "^[^:]*:[0-9]+:.*(^|[^A-Za-z0-9_])($2)[[:space:]]*\\(" "$tmp/prod.code" |
        grep -vE "^($3):" | sed -E "s/^([^:]*:[0-9]+):[[:space:]]*(.*)/\\1: $4: \\2/" >"$tmp/ban"
    report "$1" "$tmp/ban"
}
unsafe='sprintf|vsprintf|strcpy|strcat|gets|atoi|atol|atof|strtok|alloca'
ban banned "$unsafe" 'none' 'unsafe call'
ban banned 'malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup|strndup|asprintf' \
    'engine/base/mem\.c' 'use engine\/base\/mem.h'
ban banned 'exit|_exit|abort|quick_exit' 'server/main\.c|engine/base/check\.c|engine/base/mem\.c' \
    'only main ends the process'
ban banned 'getenv|secure_getenv' 'server/config\.c' 'settings come from the table in server\/config.c'
ban banned 'usleep|sleep|nanosleep|sched_yield' 'none' 'wait on a condition instead'
ban banned 'pthread_(mutex|cond|rwlock|create|join)[a-z_]*' 'engine/base/thread\.[ch]' \
    'use engine\/base\/thread.h'
# A step never waits for the device, and neither does anything of ours outside the CUDA device's own
# file, where waits are counted, and its loader and its trials of products, which run at start.
ban banned 'cuda(Device|Stream|Event)Synchronize|cudaMemcpy|cudaMemset|cudaStreamWaitValue[a-z0-9]*|cudaMemcpyToSymbol|cudaMemcpyFromSymbol|cudaFree|cudaFreeHost|cudaMalloc|cudaMallocHost|cu(Ctx|Stream|Event)Synchronize' \
    'kernels/cuda/(device|load|gemm)\.cu' 'waits or allocates: only the device itself does'
grep -E "^[^:]*:[0-9]+:.*(^|[^A-Za-z0-9_])($unsafe)[[:space:]]*\\(" "$tmp/test.code" |
    sed -E 's/^([^:]*:[0-9]+):[[:space:]]*(.*)/\1: unsafe call: \2/' >"$tmp/ban"
report banned "$tmp/ban"
# free() is for memory a library allocated; the comment on its line names the library
grep -E '^[^:]*:[0-9]+:.*(^|[^A-Za-z0-9_>.])free[[:space:]]*\(' "$tmp/prod.code" |
    grep -vE '^engine/base/mem\.c:' | while IFS=: read -r f l _; do
    sed -n "${l}p" "$f" | grep -qE 'free *\(.*\); */\*' ||
        echo "$f:$l: free() needs a trailing comment that names who allocated, or mem_free"
done >"$tmp/free"
report banned "$tmp/free"

# ---- layers ----
# Includes read from the sources themselves, since string contents were dropped above.
xargs grep -nE '^[[:space:]]*#[[:space:]]*include' <"$tmp/all" >"$tmp/inc"
awk '
function rank(p) {
    if (p ~ /^server\//) return 7
    if (p ~ /^engine\/(base\/|limits\.h$)/) return 0
    if (p ~ /^engine\/[^\/]*\.[a-z]+$/) return 6
    if (p ~ /^engine\/(sched|worker)\//) return 5
    if (p ~ /^speculative\//) return 4
    if (p ~ /^engine\/(model|kv|batch|text|sample|graph|comm)\//) return 3
    if (p ~ /^attention\//) return 2
    if (p ~ /^kernels\//) return 1
    if (p ~ /^test\//) return 9
    return -1
}
{
    split($0, a, ":"); from = a[1]; at = a[1] ":" a[2] ": "
    what = $0; sub(/^[^:]*:[0-9]+:/, "", what)
    name = what; sub(/^[^<"]*[<"]/, "", name); sub(/[>"].*$/, "", name)
    r = rank(from)
    if (r < 0) print at "no layer is known for this folder"
    if (what ~ /</) {
        if (r == 9) next
        if (name ~ /^(uv|microhttpd)(\/.*)?(\.h)?$/ && r != 7)
            print at "only server/ includes " name
        if (name == "jansson.h" && from != "engine/base/js.h")
            print at "include engine/base/js.h, the only wrapper of jansson"
        if (name ~ /^(cuda|cublas|nccl|cooperative_groups|mma)/ &&
            from !~ /^kernels\/cuda\// && from !~ /^attention\/.*\.cuh?$/ &&
            from != "engine/comm/comm_nccl.c")
            print at "CUDA headers stay in kernels/cuda, attention/*.cu and comm_nccl.c"
        next
    }
    if (name !~ /\//) { # generated (suites.inc) or a private neighbour
        if (name !~ /\.inc$/) print at "include \"" name "\" by its path from the root"
        next
    }
    if (r == 9) next
    t = rank(name)
    if (t == 9) { print at "nothing includes test/"; next }
    if (t < 0) { print at "unknown folder in include \"" name "\""; next }
    if (t > r) print at "\"" name "\" belongs to a higher layer (" t " > " r ")"
    if (r == 7 && t != 7 && t != 0 && name != "engine/engine.h")
        print at "server/ includes engine/engine.h and engine/base only, not \"" name "\""
    if (from ~ /^engine\/base\// && name !~ /^engine\/base\//)
        print at "engine/base includes nothing of ours"
}' "$tmp/inc" >"$tmp/layers"
report layers "$tmp/layers"

# ---- each header alone ----
# shellcheck disable=SC2046,SC2086 # flag lists
{
    cflags=$(pkg-config --cflags $PKGS)
    while read -r h; do
        printf '#include "%s"\n' "$h" >"$tmp/one.c"
        $CC -std=c17 -D_GNU_SOURCE -I. -Wall -Wextra -Wshadow -Wstrict-prototypes -Werror $cflags \
            -fsyntax-only "$tmp/one.c" >"$tmp/one.log" 2>&1 ||
            { echo "$h:1: does not compile alone as C"; sed -n '1,3p' "$tmp/one.log"; }
        case $h in
        kernels/* | attention/* | engine/limits.h | engine/base/err.h)
            cp "$tmp/one.c" "$tmp/one.cc"
            $CXX -std=c++17 -D_GNU_SOURCE -I. -Wall -Werror -fsyntax-only "$tmp/one.cc" \
                >"$tmp/one.log" 2>&1 ||
                { echo "$h:1: does not compile alone as C++"; sed -n '1,3p' "$tmp/one.log"; }
            ;;
        esac
    done <"$tmp/headers"
} >"$tmp/alone"
report header "$tmp/alone"

# ---- shape of files ----
{
    while read -r f; do
        n=$(wc -l <"$f")
        [ "$n" -le 1000 ] || echo "$f:$n: more than 1000 lines"
        case $(head -c 2 "$f") in
        '/*' | '//') ;;
        *) echo "$f:1: no opening comment (what it owns, on which thread, what it does not do)" ;;
        esac
    done <"$tmp/all"
    xargs grep -nP '\t' <"$tmp/all" | sed -E 's/^([^:]*:[0-9]+):.*/\1: tab/'
    xargs grep -nP '[ \t]+$' <"$tmp/all" | sed -E 's/^([^:]*:[0-9]+):.*/\1: space at the end/'
    find scripts test .ci \( -name '*.sh' -o -name '*.py' -o -path '.ci/run' \) -not -path '*/__pycache__/*' |
        sort | while read -r f; do
        head -2 "$f" | grep -qE '^(# |""")' || echo "$f:1: no opening comment"
    done
} >"$tmp/shape"
report shape "$tmp/shape"

# ---- suites and fuzz targets ----
# A fuzz target without inputs, or a folder of inputs without a target, proves nothing.
{
    for f in test/fuzz/fuzz_*.c; do
        [ -e "$f" ] || continue
        t=${f#test/fuzz/fuzz_}
        t=${t%.c}
        [ -n "$(find "test/fuzz/corpus/$t" -type f 2>/dev/null | head -1)" ] ||
            echo "$f:1: no inputs in test/fuzz/corpus/$t"
    done
    for d in test/fuzz/corpus/* test/fuzz/regress/*; do
        [ -d "$d" ] || continue
        [ -e "test/fuzz/fuzz_$(basename "$d").c" ] || echo "$d:1: inputs without a target"
    done
    find test/unit test/ops test/attn test/model -name 'test_*.c' 2>/dev/null | sort | while read -r f; do
        grep -qE '^Suite \*suite_[a-z0-9_]+\(void\)$' "$f" ||
            echo "$f:1: defines no 'Suite *suite_NAME(void)', so nothing of it runs"
    done
} >"$tmp/suites"
report suites "$tmp/suites"

# ---- scripts ----
if command -v shellcheck >/dev/null 2>&1; then
    find scripts .ci \( -name '*.sh' -o -path '.ci/run' \) | sort |
        xargs shellcheck -S warning -f gcc >"$tmp/sc" 2>&1
    report shellcheck "$tmp/sc"
fi

# ---- size: the working tree stays under 40 MiB for good ----
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z | xargs -0 du -cb --apparent-size 2>/dev/null | tail -1 >"$tmp/size"
else
    du -sb --exclude=.git --exclude=build --exclude=.venv . >"$tmp/size"
fi
bytes=$(cut -f1 "$tmp/size")
if [ "$bytes" -ge $((40 * 1024 * 1024)) ]; then
    echo "size: the tree holds $bytes bytes, the limit is 40 MiB"
    faults=$((faults + 1))
fi

if [ "$faults" -gt 0 ]; then
    echo "check: $faults faults"
    exit 1
fi
echo "check: $(wc -l <"$tmp/all") files, $(wc -l <"$tmp/headers") headers, $((bytes / 1024)) KiB: clean"
