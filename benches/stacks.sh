#!/usr/bin/env bash
# What call stacks cost: CPU time and peak memory of `scxprof stacks` beside `perf record -g` with `perf script`, on the same load.
#
# Usage (root): [UNWIND=dwarf] benches/stacks.sh [PAIRS [SECONDS [HZ...]]]
# With UNWIND=dwarf both unwind by call frame information instead of frame pointers (--unwind, --call-graph).
# Two programs of tests/programs are always busy: one 60 calls deep, one with inlined functions in some 150 different stacks. A pair
# is a capture of the whole host for SECONDS by each, in the opposite order every other pair. perf's figure is that of `perf record`
# and of `perf script >/dev/null` together, its memory that of the larger. The figures have the naming of all functions in them,
# "lines" also inlined functions and source lines, which perf has addr2line look up. Programs and all their children count, the
# interrupts that take samples do not. Prints the medians of the pairs.
set -euo pipefail

pairs=${1:-5}
seconds=${2:-10}
rates=("${@:3}")
unwind=${UNWIND:-fp}
[ ${#rates[@]} -gt 0 ] || rates=(99 999)
top=$(cd "$(dirname "$0")/.." && pwd)
scxprof=${CARGO_TARGET_DIR:-$top/target}/release/scxprof
for tool in cc perf /usr/bin/time; do
  command -v "$tool" >/dev/null || { echo "$tool is not installed" >&2; exit 2; }
done
[ -x "$scxprof" ] || { echo "build first: make build" >&2; exit 2; }
work=$(mktemp -d)
pids=()
stop() {
  [ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || :
  wait
  rm -rf "$work"
}
trap stop EXIT
# perf keeps files of the programs there.
export HOME=$work
cc -O0 -g -o "$work/deep" "$top/tests/programs/stacks.c"
cc -O2 -g -fno-omit-frame-pointer -o "$work/inlined" "$top/tests/programs/calls.c"
forever() { # COMMAND...
  trap 'kill "$!"; wait; exit' TERM
  while :; do
    "$@" &
    wait "$!"
  done
}
forever "$work/deep" depth 60 &
pids+=("$!")
forever "$work/inlined" 2000000000 &
pids+=("$!")
sleep 1

measure() { # FILE COMMAND...: adds "CPU_S PEAK_MIB" to FILE
  local to=$1
  shift
  /usr/bin/time -f '%U %S %M' -o "$work/time" "$@" >"$work/out" 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
  awk 'END {printf "%.3f %.1f\n", $1 + $2, $3 / 1024}' "$work/time" >>"$to"
}
ours() { # FILE HZ OPTION...
  local to=$1 hz=$2
  shift 2
  measure "$to" "$scxprof" stacks -e cpu-clock -F "$hz" -t "$seconds" --unwind "$unwind" --json "$@"
  sed -n 's/^  "samples": \([0-9]*\),/\1/p' "$work/out" >>"$to.samples"
}
theirs() { # FILE HZ OPTION...
  local to=$1 hz=$2
  shift 2
  : >"$work/both"
  measure "$work/both" perf record -q -a --call-graph "$unwind" -e cpu-clock -F "$hz" -o "$work/data" -- sleep "$seconds"
  measure "$work/both" perf script -i "$work/data" "$@"
  awk '{cpu += $1; if ($2 > most) most = $2} END {print cpu, most}' "$work/both" >>"$to"
  # Of the samples, those that are not the idle task's, as ours.
  perf script -i "$work/data" -F comm 2>/dev/null | grep -cv '^ *swapper' >>"$to.samples"
}
median() { # FILE COLUMN
  awk -v column="$2" '{print $column}' "$1" | sort -n | awk '{value[NR] = $1} END {print value[int((NR + 1) / 2)]}'
}

echo "$(date -u +%F), $(nproc) CPUs, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), Linux $(uname -r), $(perf --version)," \
  "$pairs pairs of $seconds s, $unwind"
echo "| rate, names | samples: scxprof, perf | CPU s: scxprof | perf | peak MiB: scxprof | perf |"
echo "|---|---|---:|---:|---:|---:|"
for hz in "${rates[@]}"; do
  for names in lines functions; do
    if [ "$names" = lines ]; then own=() perf=(); else own=(--no-lines) perf=(--no-inline); fi
    file=$work/$hz.$names
    for pair in $(seq "$pairs"); do
      if [ $((pair % 2)) = 1 ]; then
        ours "$file.ours" "$hz" "${own[@]}"; theirs "$file.perf" "$hz" "${perf[@]}"
      else
        theirs "$file.perf" "$hz" "${perf[@]}"; ours "$file.ours" "$hz" "${own[@]}"
      fi
    done
    echo "| $hz Hz, $names | $(median "$file.ours.samples" 1), $(median "$file.perf.samples" 1) | $(median "$file.ours" 1)" \
      "| $(median "$file.perf" 1) | $(median "$file.ours" 2) | $(median "$file.perf" 2) |"
  done
done
