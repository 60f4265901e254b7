#!/usr/bin/env bash
# What reading a profile costs beside perf, on the same made recording in the same run: CPU seconds and peak memory.
#
# Usage: benches/profile.sh [ROUNDS [SAMPLES...]]    (3 rounds of 1000000 and 10000000 samples)
# perf script prints the fields that an access has, to /dev/null; extract reads perf.data; process writes lines and extract
# reads those. A round runs all four in turn, every other round the other way round. Prints a line a run and the medians.
# Needs 5 GB for 10 million samples (TMPDIR).
set -euo pipefail

rounds=${1:-3}
shift || :
sizes=("$@")
[ ${#sizes[@]} -gt 0 ] || sizes=(1000000 10000000)
top=$(cd "$(dirname "$0")/.." && pwd)
scxprof=$top/target/release/scxprof
make_profile=$top/target/release/examples/make_profile
command -v perf >/dev/null || { echo "perf is not installed (Debian: apt-get install linux-perf)" >&2; exit 2; }
[ -x /usr/bin/time ] || { echo "GNU time is not installed (Debian: apt-get install time)" >&2; exit 2; }
{ [ -x "$scxprof" ] && [ -x "$make_profile" ]; } ||
  { echo "build first: cargo build --release && cargo build --release --example make_profile" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

measure() { # NAME COMMAND...: one line "SAMPLES NAME cpu_s peak_kib user_s system_s"
  local name=$1
  shift
  /usr/bin/time -f '%U %S %M' -o "$work/time" "$@" >/dev/null 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
  awk -v name="$name" -v samples="$samples" \
    '{printf "%9d %-14s %8.2f s CPU %8d KiB peak (%.2f s user, %.2f s system)\n", samples, name, $1+$2, $3, $1, $2}' \
    "$work/time" | tee -a "$work/runs"
}
fields=comm,pid,tid,cpu,time,event,ip,addr,phys_addr,data_src,weight,period
run_perf() { measure "perf-script" perf script --ns -F "$fields" -i "$work/perf.data"; }
run_extract() { measure "extract" "$scxprof" extract -f "$work/perf.data"; }
run_process() {
  rm -rf "$work/perf.data.out"
  measure "process" "$scxprof" process -f "$work/perf.data"
}
run_lines() {
  [ -d "$work/perf.data.out" ] || "$scxprof" process -f "$work/perf.data" 2>/dev/null
  measure "extract-lines" "$scxprof" extract -f "$work/perf.data.out"
}

echo "$(date -u +%F), $(nproc) CPUs, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), Linux $(uname -r), $(perf --version)"
for samples in "${sizes[@]}"; do
  rm -rf "$work/perf.data" "$work/perf.data.out"
  "$make_profile" "$samples" "$work/perf.data"
  for round in $(seq "$rounds"); do
    if [ $((round % 2)) = 1 ]; then
      run_perf; run_extract; run_process; run_lines
    else
      run_lines; run_process; run_extract; run_perf
    fi
  done
done
for samples in "${sizes[@]}"; do
  for name in perf-script extract process extract-lines; do
    awk -v name="$name" -v samples="$samples" '$1 == samples && $2 == name {print $3, $6}' "$work/runs" | sort -n |
      awk -v name="$name" -v samples="$samples" '{cpu[NR]=$1; kib[NR]=$2}
        END {m=int((NR+1)/2); printf "median %9d %-14s %8.2f s CPU %8d KiB peak\n", samples, name, cpu[m], kib[m]}'
  done
done
