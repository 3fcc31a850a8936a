#!/bin/sh
# Installs what a step needs and only that: sh scripts/deps.sh build|test|ci|promtool ...
# Looks for the tool or library itself first, so nothing is touched on a machine that has it. Uses
# apt (Debian 12, Ubuntu 24.04; sudo when not root); elsewhere it names what is missing and fails.
# No package that starts a service is ever installed: promtool is unpacked from its package into
# build/tools. Sourced or run; prints nothing when all is there.
set -eu
cd "$(dirname "$0")/.."

missing="" # Debian package names
names=""   # the same for people on other systems
need() { # need PACKAGE WHAT TEST...
    pkg=$1
    what=$2
    shift 2
    "$@" >/dev/null 2>&1 && return 0
    missing="$missing $pkg"
    names="$names
  $what"
}
has() { command -v "$1"; }
any_cc() { has "${CC:-cc}"; }
venv_works() { python3 -c 'import venv, ensurepip'; }

promtool=0
for step in "${@:-build}"; do
    case $step in
    build)
        need gcc "a C17 compiler (cc)" any_cc
        need libc6-dev "the C library's headers" test -e /usr/include/stdio.h
        need make "GNU make" has make
        need pkg-config "pkg-config" has pkg-config
        need libuv1-dev "libuv" pkg-config --exists libuv
        need libmicrohttpd-dev "libmicrohttpd" pkg-config --exists libmicrohttpd
        need libjansson-dev "jansson" pkg-config --exists jansson
        need libpcre2-dev "PCRE2, 8-bit" pkg-config --exists libpcre2-8
        need libutf8proc-dev "utf8proc" pkg-config --exists libutf8proc
        need curl "curl" has curl
        ;;
    test)
        need liblzma-dev "liblzma" pkg-config --exists liblzma
        need check "Check (unit test library)" pkg-config --exists check
        need python3 "Python 3.9 or newer" has python3
        need python3-venv "Python's venv and ensurepip modules" venv_works
        need ca-certificates "certificate authorities" test -e /etc/ssl/certs/ca-certificates.crt
        need git "git" has git
        ;;
    ci)
        need g++ "a C++17 compiler (c++), for the headers that CUDA code shares" has c++
        need clang-format-14 "clang-format 14" has "${FMT:-clang-format-14}"
        need shellcheck "shellcheck" has shellcheck
        ;;
    promtool) promtool=1 ;;
    *)
        echo "deps: unknown step '$step' (build, test, ci, promtool)" >&2
        exit 2
        ;;
    esac
done

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif has sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        echo "deps: not root and there is no sudo; as root run: $*" >&2
        exit 1
    fi
}
apt_fresh() { # package lists, once a run
    [ -n "${apt_done:-}" ] || as_root apt-get -q -o Acquire::Retries=3 update >"$log" 2>&1 ||
        { cat "$log" >&2; echo "deps: apt-get update failed; missing here:${names:- promtool}" >&2; exit 1; }
    apt_done=1
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if [ -n "$missing" ]; then
    if ! has apt-get >/dev/null 2>&1; then
        echo "deps: this system has no apt. Install these with its own package manager:$names" >&2
        echo "deps: then run the same command again." >&2
        exit 1
    fi
    echo "deps: installing$missing"
    apt_fresh
    # shellcheck disable=SC2086 # a list
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 \
        install --no-install-recommends $missing >"$log" 2>&1 ||
        { cat "$log" >&2; echo "deps: installing$missing failed" >&2; exit 1; }
fi

if [ "$promtool" = 1 ] && ! has promtool >/dev/null 2>&1 && [ ! -x build/tools/promtool ]; then
    if ! has apt-get >/dev/null 2>&1; then
        echo "deps: promtool is missing: put it on PATH or into build/tools" >&2
        exit 1
    fi
    echo "deps: unpacking promtool into build/tools (the package itself is not installed)"
    mkdir -p build/tools
    dir=$(mktemp -d)
    apt_fresh
    (cd "$dir" && apt-get -q -o Acquire::Retries=3 download prometheus && dpkg -x prometheus_*.deb x) >"$log" 2>&1 ||
        { cat "$log" >&2; echo "deps: no promtool" >&2; exit 1; }
    cp "$dir/x/usr/bin/promtool" build/tools/promtool
    rm -rf "$dir"
fi
