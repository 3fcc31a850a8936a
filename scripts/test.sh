#!/bin/sh
# Builds specd and passes every test that needs no GPU: the C suites (`make test`), then the
# end-to-end suites against the real daemon on loopback (test/e2e, Python in a venv of its own).
# Installs what is missing; what cannot be had fails, nothing is skipped.
# Arguments are given to pytest: sh scripts/test.sh -k drain
set -eu
cd "$(dirname "$0")/.."
jobs=$(nproc 2>/dev/null || echo 2)

sh scripts/deps.sh build test
make -j"$jobs" all bench
make -j"$jobs" test
sh scripts/venv.sh
sh scripts/deps.sh promtool
.venv/bin/python -m pytest test/e2e "$@"
