#!/bin/sh
# Makes .venv with the pinned packages of test/e2e/requirements.txt; does nothing when they are in.
set -eu
cd "$(dirname "$0")/.."
want=$(cksum <test/e2e/requirements.txt)
if [ "$(cat .venv/requirements.sum 2>/dev/null || :)" != "$want" ]; then
    rm -rf .venv
    python3 -m venv .venv
    .venv/bin/python -m pip install -q --disable-pip-version-check --no-input -r test/e2e/requirements.txt
    printf '%s\n' "$want" >.venv/requirements.sum
fi
