#!/usr/bin/env bash
# Says whether this machine's QEMU runs the plugin: builds it and starts a machine without anything.
# Usage: tests/vm/caches/probe.sh     exits with 77 and one line why on stdout where it does not, or where memory for a guest is missing.
set -euo pipefail
cd "$(dirname "$0")"
# The RAM of a guest, in KiB.
ram=2097152

cannot() {
    printf '%s\n' "$1"
    exit 77
}

command -v qemu-system-x86_64 >/dev/null || cannot "no qemu-system-x86_64 (as root on Debian: scripts/deps.sh vm)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -shared -fPIC -o "$work/caches.so" caches.c
truncate -s 64M "$work/ram"
# Without a clock nothing runs; the monitor's `quit` ends it.
said=$(echo quit | timeout 30 qemu-system-x86_64 -accel tcg,thread=single -machine pc -cpu max -m 64 -S -nodefaults -display none \
    -monitor stdio -plugin "$work/caches.so,llcs=1,ram=$work/ram,out=$work/out" 2>&1 >/dev/null) ||
    cannot "$(qemu-system-x86_64 --version | head -n 1) does not run the plugin: ${said%%$'\n'*}"
free=$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1 || echo 0)
[ "$free" -gt "$ram" ] || cannot "/dev/shm has room for $((free / 1024)) MiB, and a guest's RAM is $((ram / 1024))"
