#!/bin/sh
# `make test-real`: what needs a real public model and the reference implementation beside it. Gets
# SmolLM2-135M-Instruct, builds, and runs every test/real/test_*.py; stops at the first that fails.
# Not part of `make test`: it downloads the model and, unless PYTHON names an interpreter that has
# them, torch and transformers (several GB) into a venv under build/.
set -eu
cd "$(dirname "$0")/.."
MODEL=${MODEL:-build/models/SmolLM2-135M-Instruct}
SPECD=${SPECD:-build/specd}
export MODEL SPECD

if [ -z "${PYTHON:-}" ]; then
    PYTHON=build/venv-real/bin/python
    [ -x "$PYTHON" ] || python3 -m venv build/venv-real
    "$PYTHON" -c 'import torch, transformers, tokenizers, jinja2, gguf' 2>/dev/null ||
        "$PYTHON" -m pip install -q --disable-pip-version-check torch 'transformers>=5.24' \
            tokenizers jinja2 gguf numpy
fi
export PYTHON
sh scripts/fetch_smollm2.sh "$MODEL"
make all
ran=0
for t in test/real/test_*.py; do
    echo "== $t"
    "$PYTHON" -u "$t"
    ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || { echo "no test found" >&2; exit 1; }
echo "test-real: $ran passed"
