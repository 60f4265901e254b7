#!/usr/bin/env bash
# Tests the plugin: exact counts on the host (patterns.c), whether the guests' BPF program compiles, then patterns in a guest of 8 CPUs with two last-level caches, within bounds.
# Usage: tests/vm/caches/patterns.sh [--host] [SUITE]     the guest boots the kernel of tests/vm/cache/SUITE (sid); none with --host
set -euo pipefail
cd "$(dirname "$0")"
host=
if [ "${1:-}" = --host ]; then
    host=yes
    shift
fi
kernel=../cache/${1:-sid}/vmlinuz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The guest's RAM, not written to a disk if that can be. The file has no name, so that nothing is left of it however this ends.
ram=$(mktemp -p "$([ -w /dev/shm ] && echo /dev/shm || echo "$work")")
exec {fd}<>"$ram"
rm "$ram"
ram=/proc/self/fd/$fd
failed=0

mkdir "$work/host"
cc -std=c11 -O2 -Wall -Wextra -Werror -o "$work/patterns" patterns.c
"$work/patterns" "$work/host" || failed=1
# What the guests load with it, which nothing else compiles, includes a header of ours.
headers=("${CARGO_TARGET_DIR:-../../../target}"/*/build/libbpf-sys-*/out/include)
if [ -d "${headers[0]}" ]; then
    clang -fsyntax-only -target bpf -D__TARGET_ARCH_x86 -Wall -Werror -I "${headers[0]}" who.bpf.c || failed=1
else
    printf 'SKIP: who.bpf.c: cargo has built no libbpf\n'
fi
[ -z "$host" ] || exit "$failed"

status=0
why=$(./probe.sh) || status=$?
if [ "$status" -ne 0 ]; then
    printf 'SKIP: caches in a guest: %s\n' "$why"
    exit "$failed"
fi
command -v cpio >/dev/null || {
    printf 'SKIP: caches in a guest: no cpio (as root on Debian: scripts/deps.sh vm)\n'
    exit "$failed"
}
[ -e "$kernel" ] || {
    printf 'SKIP: caches in a guest: there is no kernel: tests/vm/kernel.sh %s fetches it\n' "${1:-sid}"
    exit "$failed"
}

cc -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -shared -fPIC -o "$work/caches.so" caches.c
mkdir -p "$work/root"/{proc,sys,dev}
cc -O2 -Wall -Wextra -Werror -static -pthread -o "$work/root/init" patterns_guest.c
(cd "$work/root" && find . | cpio -o -H newc --quiet -R 0:0) >"$work/initramfs"
truncate -s 512M "$ram"
timeout --foreground "${VM_TIMEOUT:-300}" qemu-system-x86_64 -accel tcg,thread=single -icount shift=3,sleep=off \
    -cpu max -smp 8,sockets=2,cores=4 -m 512 \
    -object memory-backend-file,id=ram,size=512M,mem-path="$ram",share=on -machine pc,memory-backend=ram \
    -plugin "$work/caches.so,llcs=2,ram=$ram,out=$work/out,files=$work/files" \
    -nodefaults -display none -monitor none -serial stdio -no-reboot \
    -kernel "$kernel" -initrd "$work/initramfs" -append "console=ttyS0 panic=-1 quiet" </dev/null >"$work/console" 2>"$work/errors" || {
    printf 'patterns.sh: QEMU ended with %d\n' $?
    tail -n 5 "$work/console" "$work/errors"
    exit 1
}

# is WHAT LINE: a line of `out`.
is() {
    grep -qxF "$2" "$work/out" || {
        printf 'patterns.sh: %s: no line %s\n' "$1" "$2"
        failed=1
    }
}

# within WHAT WINDOW GROUP COUNT LOW HIGH
within() {
    local value
    value=$(grep "^{\"window\":$2," "$work/out" | grep -o "{\"group\":$3,[^}]*" | grep -o "\"$4\":[0-9]*" | cut -d: -f2 || true)
    printf '%-40s %-9s %7s  (%d to %d)\n' "$1" "$4" "${value:-none}" "$5" "$6"
    if [ -z "$value" ] || [ "$value" -lt "$5" ] || [ "$value" -gt "$6" ]; then
        printf 'patterns.sh: %s: %s is not within %d and %d\n' "$1" "$4" "$5" "$6"
        failed=1
    fi
}

is 'the first last-level cache' 'cpu0 index3/shared_cpu_list: 0-3'
is 'the second last-level cache' 'cpu7 index3/shared_cpu_list: 4-7'
is 'pages' "$(grep -o '{"misses":[0-9]*' "$work/out"),\"seen\":6400,\"pages\":100}"
# One instruction loads this address.
is 'accesses' '{"asked":170,"found":1}'
within '8 MiB, first use' 1 4 first 131072 132500
within '8 MiB again' 1 5 capacity 131000 132500
within '64 KiB once' 1 6 loads 1024 2500
within '64 KiB once' 1 6 capacity 1000 1100
within '64 KiB, 100 times' 1 7 l1 102400 104000
within '64 KiB, 100 times' 1 7 l2 0 1500
within '16 KiB, 100 times' 1 8 l1 256 1500
within 'a line in turn, one cache' 3 4 units 2000 2000
within 'a line in turn, one cache' 3 4 near 1900 3000
within 'a line in turn, one cache' 3 4 written 0 600
within 'a line in turn, one cache' 3 5 near 1900 3000
within 'a line in turn, two caches' 4 4 written 1900 3000
within 'a line in turn, two caches' 4 4 transfers 1900 3000
within 'a line in turn, two caches' 4 5 written 1900 3000
within 'a line in turn, two caches' 4 5 near 0 600
complaint='caches: MISSED: a count of 256, of at most 255: ignored'
if [ "$(cat "$work/files")" != "a file's bytes" ] || [ "$(cat "$work/errors")" != "$complaint" ]; then
    printf 'patterns.sh: bytes for files=, or complaints, differ:\n'
    cat "$work/files" "$work/errors"
    failed=1
fi
[ "$failed" = 0 ] && printf 'caches: patterns: ok\n'
exit "$failed"
