#!/usr/bin/env bash
# Runs the real schedulers with configurations that scxprof prints, in a virtual machine: the tests of tests/vm/schedulers.
# Usage: scripts/schedulers.sh     `make test-schedulers` calls it.
#
# scx_layered is built from crates.io into target/schedulers, unless SCX_LAYERED=FILE names a binary of that release. scx_mitosis
# has no release with --cell-config: SCX_MITOSIS=FILE names a binary of the branch mitosis-next of sched-ext/scx. What is missing is
# left out, and said to be.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${HOME:-/root}/.cargo/bin"
layered=1.1.4
# What that release and its build script refuse to do without.
rust=1.91
clang=18
root=${CARGO_TARGET_DIR:-target}/schedulers

skip() { printf 'SKIP: %s: %s\n' "$1" "$2"; }

at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# The clang for BPF: BPF_CLANG, or the first new enough one.
bpf_clang() {
    local name version
    for name in ${BPF_CLANG:+"$BPF_CLANG"} clang $(compgen -c clang- | grep -xE 'clang-[0-9]+' | sort -urV); do
        version=$("$name" -dumpversion 2>/dev/null) || continue
        if at_least "$version" "$clang"; then
            printf '%s\n' "$name"
            return
        fi
    done
    return 1
}

# build_layered: or the reason why not on stdout.
build_layered() {
    local have compiler log=$root/build.log
    have=$(rustc --version 2>/dev/null | awk '{ print $2 }')
    if [ -z "$have" ] || ! at_least "$have" "$rust"; then
        echo "scx_layered $layered needs Rust $rust or newer, here is ${have:-none}"
        return 1
    elif ! compiler=$(bpf_clang); then
        echo "scx_layered $layered needs clang $clang or newer (on Debian 12: apt-get install clang-19)"
        return 1
    fi
    # Nothing happens where this version is there already.
    BPF_CLANG=$compiler CARGO_TARGET_DIR=$root/build cargo install --locked --root "$root" --version "=$layered" scx_layered \
        >"$log" 2>&1 && return
    echo "scx_layered $layered cannot be built: $(grep -m 1 '^error' "$log" || tail -n 1 "$log") ($log)"
    return 1
}

# given VARIABLE FILE NAME: the test takes this binary.
given() {
    if ! [ -f "$2" ] || ! [ -x "$2" ]; then
        echo "$1=$2 is not a program" >&2
        exit 1
    fi
    ln -sf "$(realpath "$2")" "$root/bin/$3"
}

mkdir -p "$root/bin"
tests=()
if [ -n "${SCX_LAYERED:-}" ]; then
    given SCX_LAYERED "$SCX_LAYERED" scx_layered
    tests+=(layered)
else
    # A link that SCX_LAYERED left.
    [ ! -L "$root/bin/scx_layered" ] || rm "$root/bin/scx_layered"
    echo "Building scx_layered $layered, which takes some minutes the first time" >&2
    if why=$(build_layered); then
        tests+=(layered)
    else
        skip "vm test layered" "$why"
    fi
fi
if [ -n "${SCX_MITOSIS:-}" ]; then
    given SCX_MITOSIS "$SCX_MITOSIS" scx_mitosis
    tests+=(mitosis)
else
    skip "vm test mitosis" "no SCX_MITOSIS=FILE, a scx_mitosis of the branch mitosis-next of sched-ext/scx"
fi
[ ${#tests[@]} -gt 0 ] || exit 0
# The guest emulates all its CPUs on one, and the kernel verifies the scheduler's programs there.
export VM_TIMEOUT=${VM_TIMEOUT:-1800}
exec scripts/vm.sh --schedulers --any "${tests[@]}"
