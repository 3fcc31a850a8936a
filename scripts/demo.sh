#!/bin/sh
# Builds specd, starts it on the demo model, streams one completion with curl and keeps serving
# until Ctrl-C. --once: stop after the completion; the exit code says whether it worked.
# PORT=N asks for a port (default: the first free one from 8000), MODEL=DIR for another model.
set -eu
cd "$(dirname "$0")/.."
once=0
case ${1:-} in
'') ;;
--once) once=1 ;;
*)
    echo "usage: sh scripts/demo.sh [--once]" >&2
    exit 2
    ;;
esac
model=${MODEL:-configs/models/demo}

# With a GPU the build needs nvcc, which toolkits leave outside PATH; the server then takes the GPU.
# deps.sh leaves apt alone where everything is there, so this works without a network too.
if [ -e /dev/nvidiactl ] && ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then
    PATH=$PATH:/usr/local/cuda/bin
fi
sh scripts/deps.sh build
make -j"$(nproc 2>/dev/null || echo 2)"

port=${PORT:-}
if [ -z "$port" ]; then
    port=8000
    while :; do
        rc=0
        curl -s -o /dev/null --max-time 2 "http://127.0.0.1:$port/" || rc=$?
        [ "$rc" -eq 7 ] && break # refused: nobody listens there
        port=$((port + 1))
        [ "$port" -lt 8100 ] || { echo "demo: no free port in 8000..8099" >&2; exit 1; }
    done
fi
url=http://127.0.0.1:$port
tmp=$(mktemp -d)
pid=""
stop() { # end the server we started, and wait for it
    if [ -n "$pid" ]; then
        kill -TERM "$pid" 2>/dev/null || :
        wait "$pid" || :
        pid=""
    fi
    rm -rf "$tmp"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

build/specd serve --model "$model" --port "$port" &
pid=$!
i=0
until curl -sf -o /dev/null --max-time 2 "$url/health"; do
    kill -0 "$pid" 2>/dev/null || { pid=""; echo "demo: the server did not start" >&2; exit 1; }
    i=$((i + 1))
    [ "$i" -le 300 ] || { echo "demo: not ready after 60 s" >&2; exit 1; }
    sleep 0.2
done
device=$(curl -s --max-time 5 "$url/metrics" | sed -nE 's/^specd_config_info\{.*[{,]device="([^"]*)".*/\1/p')
echo "demo: $model runs on ${device:-an unknown device}"
if [ "$device" = cpu ] && [ -e /dev/nvidiactl ]; then
    echo "demo: there is an NVIDIA GPU, but no nvcc to build for it (or the log above says why it is not used)" >&2
fi

echo
echo "curl -N $url/v1/chat/completions -H 'Content-Type: application/json' \\"
echo "     -d '{\"messages\":[{\"role\":\"user\",\"content\":\"What is 17 + 25?\"}],\"stream\":true,\"temperature\":0}'"
echo
rc=0
curl -sS -N --max-time 120 "$url/v1/chat/completions" -H 'Content-Type: application/json' \
    -d '{"messages":[{"role":"user","content":"What is 17 + 25?"}],"stream":true,"temperature":0,"max_tokens":48}' >"$tmp/out" || rc=$?
cat "$tmp/out"
if [ "$rc" -ne 0 ] || ! grep -q '^data: \[DONE\]' "$tmp/out" || ! grep -q '"finish_reason":"' "$tmp/out" ||
    grep -q '^data: {"error"' "$tmp/out"; then
    echo "demo: the stream did not end as it should" >&2
    exit 1
fi
echo "The text: $(sed -nE 's/^data: .*"delta":\{"content":"(([^"\\]|\\.)*)".*/\1/p' "$tmp/out" | tr -d '\n')"
[ "$once" = 1 ] && exit 0
echo
echo "Serving on $url (Ctrl-C ends it)."
rc=0
wait "$pid" || rc=$?
pid=""
exit "$rc"
