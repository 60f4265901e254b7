#!/usr/bin/env bash
# What following task hints costs those who write them: ns a write and ns a getppid(), without scxprof and with each way
# (probe) in which it can see the writes. Turns alternate, so that a change of the machine hits all of them.
# Usage: benches/hints.sh [TURNS] [SCXPROF]     as root; a probe that the kernel refuses is left out and said.
set -euo pipefail
cd "$(dirname "$0")/.."
turns=${1:-5}
scxprof=${2:-target/release/scxprof}
work=$(mktemp -d)
pid=
clean() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    wait 2>/dev/null || true
    umount "$work/bpf" 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT
mkdir "$work/bpf"
mount -t bpf bpf "$work/bpf"
pin=$work/bpf/hints
${CC:-cc} -O2 -o "$work/hints" benches/hints.c
"$work/hints" -m "$pin"

# measure NAME: one turn's figures go to the files of that name.
measure() {
    "$work/hints" "$pin" >"$work/out"
    sed -n 's/^write //p' "$work/out" >>"$work/$1.write"
    sed -n 's/^getppid //p' "$work/out" >>"$work/$1.getppid"
}

# follow PROBE: scxprof in the background, sampling next to nothing; false where the probe is refused.
follow() {
    # Only `sleep` is sampled: the price is that of the hints.
    "$scxprof" run -v -t 60 --source faults --hints-map "$pin" --hints-probe "$1" -- sleep 60 >/dev/null 2>"$work/err" &
    pid=$!
    for _ in $(seq 100); do
        kill -0 "$pid" 2>/dev/null || return 1
        # All threads are there once the programs are attached.
        [ "$(cat "/proc/$pid/task/"*/comm 2>/dev/null | grep -cx hints)" -eq 0 ] || return 0
        sleep 0.1
    done
    return 1
}

unfollow() {
    kill -TERM "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    pid=
}

for _ in $(seq "$turns"); do
    measure without
    for probe in local_storage_update pid_task_storage_update_elem syscall; do
        if follow "$probe"; then
            measure "$probe"
        fi
        unfollow
    done
done

median() { sort -n "$1" | awk '{ line[NR] = $1 } END { print line[int((NR + 1) / 2)] }'; }
printf '%s, Linux %s, %s CPUs, load %s, %s turns\n' "$(date -u +%F)" "$(uname -r)" "$(nproc)" "$(cut -d' ' -f1 /proc/loadavg)" "$turns"
printf '%-10s %12s %12s\n' '' 'write ns' 'getppid ns'
for name in without local_storage_update pid_task_storage_update_elem syscall; do
    if [ -s "$work/$name.write" ]; then
        printf '%-10s %12s %12s\n' "$name" "$(median "$work/$name.write")" "$(median "$work/$name.getppid")"
    else
        printf '%-10s refused by this kernel\n' "$name"
    fi
done
