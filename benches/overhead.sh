#!/usr/bin/env bash
# What the timer source costs those that it watches: CPU time of fixed work with the event off, on the tick, and at FREQ
# Hz; where perf is installed, what perf record costs them at FREQ Hz; and the CPU share of the sampler itself while every
# CPU is busy.
#
# Usage (root): benches/overhead.sh [ROUNDS [FREQ [CPU...]]]
# A loop of arithmetic and one of random loads in 1 MiB (benches/loops.c) run all the time, each on a CPU of its own. A
# round has phases of 1.5 s: off, tick, off, FREQ Hz, off, perf, in the opposite order every other round. A phase counts with
# the CPU time of a unit of work (about 10 ms): the median of its units, which has in it what other programs on the CPU,
# the sampler too, push out of the caches; and the limit of the fastest tenth, which has little of that. A pair is an "on" phase over the "off" phase of its
# half of the round. Prints the median of the pairs' ratios and the 95 % interval of that median by bootstrap (10,000
# draws, fixed seed), and what the ratio makes in ns for each sample. CPU time is that of the loop's thread, in which
# interrupts are counted where the kernel has no CONFIG_IRQ_TIME_ACCOUNTING; with it this script says nothing.
set -euo pipefail

rounds=${1:-15}
freq=${2:-1000}
cpus=("${3:-0}" "${4:-1}")
phase=1.5
top=$(cd "$(dirname "$0")/.." && pwd)
scxprof=$top/target/release/scxprof
command -v cc >/dev/null || { echo "cc is not installed" >&2; exit 2; }
[ -x /usr/bin/time ] || { echo "GNU time is not installed (Debian: apt-get install time)" >&2; exit 2; }
[ -x "$scxprof" ] || { echo "build first: make build" >&2; exit 2; }
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || :; rm -rf "$work"' EXIT
cc -O2 -o "$work/loops" "$top/benches/loops.c"
"$work/loops" cpu "${cpus[0]}" >"$work/cpu" &
pids+=("$!")
"$work/loops" memory "${cpus[1]}" >"$work/memory" &
pids+=("$!")

off() { # ROUND HALF
  local begin
  begin=$(date +%s%N)
  sleep "$phase"
  echo "$1 $2 off $begin $(date +%s%N)" >>"$work/phases"
}
on() { # ROUND HALF
  local begin sampler
  local run=("$scxprof" run -t 60 --source timer -o "$work/cells.json")
  rm -f "$work/perf.data"
  case $2 in
    tick) "${run[@]}" 2>/dev/null & ;;
    freq) "${run[@]}" --freq "$freq" 2>/dev/null & ;;
    perf) perf record -q -a -e cpu-clock -F "$freq" -o "$work/perf.data" >/dev/null 2>&1 & ;;
  esac
  sampler=$!
  pids+=("$sampler")
  # The events are on when the threads that read the rings are there, or the file of perf.
  until [ -s "$work/perf.data" ] || grep -qs '^ring' "/proc/$sampler/task/"*/comm; do
    kill -0 "$sampler" 2>/dev/null || { echo "$2: the sampler ended at its start" >&2; exit 1; }
    sleep 0.05
  done
  sleep 0.3
  begin=$(date +%s%N)
  sleep "$phase"
  echo "$1 $2 on $begin $(date +%s%N)" >>"$work/phases"
  kill -INT "$sampler"
  wait "$sampler" || :
  unset 'pids[-1]'
}

halves=(tick freq)
if perf record -q -a -e cpu-clock -o "$work/perf.data" true >/dev/null 2>&1; then
  halves+=(perf)
else
  echo "perf record does not work here: not compared with it" >&2
fi
echo "$(date -u +%F), $(nproc) CPUs, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), Linux $(uname -r), $rounds rounds"
for round in $(seq "$rounds"); do
  if [ $((round % 2)) = 1 ]; then
    for half in "${halves[@]}"; do off "$round" "$half"; on "$round" "$half"; done
  else
    for ((at = ${#halves[@]} - 1; at >= 0; at--)); do on "$round" "${halves[at]}"; off "$round" "${halves[at]}"; done
  fi
done

# The rate of the tick, as scxprof measured it.
tick=$("$scxprof" run -t 1 --source timer -v -o "$work/cells.json" 2>&1 | sed -n 's/.*, about \([0-9]*\) samples a second.*/\1/p')

for loop in cpu memory; do
  for what in "tick 0.5" "tick 0.1" "freq 0.5" "freq 0.1" "perf 0.5" "perf 0.1"; do
    read -r half part <<<"$what"
    [[ " ${halves[*]} " = *" $half "* ]] || continue
    hz=$freq
    [ "$half" != tick ] || hz=${tick:-250}
    awk -v part="$part" -v loop="$loop" -v half="$half" -v hz="$hz" '
      function sorted(from, to, n,    i, j, v) {
        for (i = 1; i <= n; i++) to[i] = from[i]
        for (i = 2; i <= n; i++) { v = to[i]; for (j = i - 1; j > 0 && to[j] > v; j--) to[j + 1] = to[j]; to[j + 1] = v }
      }
      function at(values, n, part,    order) {
        sorted(values, order, n)
        return order[int((n - 1) * part) + 1]
      }
      function median(values, n) { return at(values, n, 0.5) }
      FNR == NR { if ($2 == half) { n++; name[n] = $1 " " $3; from[n] = $4; to[n] = $5; if ($1 > rounds) rounds = $1 } next }
      { for (p = 1; p <= n; p++) if ($1 - $2 > from[p] && $1 < to[p]) { units[p]++; unit[p, units[p]] = $2 } }
      END {
        for (p = 1; p <= n; p++) {
          for (i = 1; i <= units[p]; i++) values[i] = unit[p, i]
          if (units[p] > 0) phase[name[p]] = at(values, units[p], part)
        }
        for (r = 1; r <= rounds; r++) if (phase[r " off"] > 0 && phase[r " on"] > 0) {
          ratios[++pairs] = phase[r " on"] / phase[r " off"]; offs[pairs] = phase[r " off"]
        }
        if (!pairs) { print "no pairs"; exit 1 }
        m = median(ratios, pairs)
        srand(1)
        draws = 10000
        for (d = 1; d <= draws; d++) {
          for (i = 1; i <= pairs; i++) draw[i] = ratios[int(rand() * pairs) + 1]
          medians[d] = median(draw, pairs)
        }
        # Counted, not sorted: there are many draws of few values.
        low = quantile(0.025); high = quantile(0.975)
        printf "%-6s loop, %s Hz%s, %s: %+.2f %% (95 %% interval %+.2f to %+.2f), %.0f ns a sample (%.0f to %.0f); %d pairs, off %.2f ms a unit\n",
          loop, hz, half == "tick" ? " (tick)" : half == "perf" ? " (perf record)" : "", part == 0.5 ? "median unit" : "fastest tenth", 100 * (m - 1), 100 * (low - 1), 100 * (high - 1),
          1e9 * (m - 1) / hz, 1e9 * (low - 1) / hz, 1e9 * (high - 1) / hz, pairs, median(offs, pairs) / 1e6
        printf "       ratios:"
        for (i = 1; i <= pairs; i++) printf " %.4f", ratios[i]
        print ""
      }
      function quantile(wanted,    lo, hi, mid, i, below, steps) {
        lo = 0; hi = 10
        for (steps = 0; steps < 60; steps++) {
          mid = (lo + hi) / 2; below = 0
          for (i = 1; i <= draws; i++) below += medians[i] <= mid
          if (below >= wanted * draws) hi = mid; else lo = mid
        }
        return hi
      }' "$work/phases" "$work/$loop"
  done
done

share() { # NAME SCXPROF-OPTION...
  local name=$1 seconds
  shift
  for seconds in 2 12; do
    /usr/bin/time -f '%U %S' -o "$work/time.$seconds" "$scxprof" run -t "$seconds" --source timer -o "$work/cells.json" "$@" 2>"$work/err" ||
      { echo "sampler, $name: failed ($?)"; cat "$work/err"; return; }
  done
  paste -d' ' "$work/time.2" "$work/time.12" | awk -v name="$name" '
    {printf "sampler, %s, every CPU busy: %.2f %% of one CPU (%.2f s for 12 s less %.2f s for 2 s)\n", name,
       100 * ($3 + $4 - $1 - $2) / 10, $3 + $4, $1 + $2}'
}
share tick
share "$freq Hz" --freq "$freq"
