#!/usr/bin/env bash
# What a capture costs beside perf's, on the same load in the same run: CPU seconds, peak memory, bytes written.
#
# Usage (root): benches/capture.sh [SECONDS [ROUNDS]]
# Both watch the whole host for SECONDS while a load of minor faults runs; A and B alternate, ROUNDS times. The order of
# the two is swapped every round. Prints a line a run and the medians.
set -euo pipefail

seconds=${1:-10}
rounds=${2:-5}
top=$(cd "$(dirname "$0")/.." && pwd)
scxprof=$top/target/release/scxprof
command -v perf >/dev/null || { echo "perf is not installed (Debian: apt-get install linux-perf)" >&2; exit 2; }
[ -x /usr/bin/time ] || { echo "GNU time is not installed (Debian: apt-get install time)" >&2; exit 2; }
[ -x "$scxprof" ] || { echo "build first: make build" >&2; exit 2; }
work=$(mktemp -d)
load=
trap 'kill -- -"$load" 2>/dev/null || :; rm -rf "$work"' EXIT

# A paced load: some 50,000 faults a second, in processes that come and go.
setsid sh -c 'while :; do dd if=/dev/zero of=/dev/null bs=4M count=1 2>/dev/null; sleep 0.02; done' &
load=$!

measure() { # NAME COMMAND...: one line "NAME cpu_s peak_kib fs_blocks_out samples"
  local name=$1 samples=0
  shift
  /usr/bin/time -f '%U %S %M %O' -o "$work/time" "$@" >"$work/out" 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
  case $name in
    scxprof) samples=$(sed -n 's/^Sampled.* \([0-9]*\) samples,.*/\1/p' "$work/err" | head -1) ;;
    perf) samples=$(perf report --stats -i "$work/perf.data" 2>/dev/null | awk '/SAMPLE events:/ {print $3; exit}') ;;
  esac
  awk -v name="$name" -v samples="$samples" '{printf "%-8s %.3f s CPU  %d KiB peak  %d blocks written  %s samples\n", name, $1+$2, $3, $4, samples}' "$work/time" | tee -a "$work/runs"
  rm -f "$work/perf.data"
}
run_scxprof() { measure scxprof "$scxprof" run -t "$seconds" --source faults -v; }
run_perf() {
  measure perf perf record -e minor-faults -c 1 -a -d --phys-data --data-page-size --all-cgroups \
    -o "$work/perf.data" -- sleep "$seconds"
}

echo "$(date -u +%F), $(nproc) CPUs, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), Linux $(uname -r), $(perf --version)"
for round in $(seq "$rounds"); do
  if [ $((round % 2)) = 1 ]; then run_scxprof; run_perf; else run_perf; run_scxprof; fi
done
for name in scxprof perf; do
  awk -v name="$name" '$1 == name {print $2}' "$work/runs" | sort -n |
    awk -v name="$name" '{v[NR]=$1} END {printf "median %-8s %.3f s CPU\n", name, v[int((NR+1)/2)]}'
done
