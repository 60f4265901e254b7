#!/usr/bin/env bash
# What got slower since a commit: benches/against.sh REV [ROUNDS]. As root also captures.
#
# Builds scxprof of REV (in a worktree below target/against) and of this tree, both as `make build` does, and runs them in turn on
# the same work, every other round in the opposite order. Prints the medians of CPU time (user and system, in s) and of wall time,
# and what the ratio of the CPU times is. OLD=FILE and NEW=FILE are binaries that are built already; then there is no REV.
set -euo pipefail
old=${OLD:+$(realpath "$OLD")} new=${NEW:+$(realpath "$NEW")}
cd "$(dirname "$0")/.."
export PATH="$PATH:${HOME:-/root}/.cargo/bin"
cargo=${CARGO:-cargo}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
if [ -z "$old" ]; then
  rev=${1:?usage: benches/against.sh REV [ROUNDS], or OLD=FILE benches/against.sh [ROUNDS]}
  shift
  rev=$(git rev-parse --verify --quiet "$rev^{commit}") || { echo "there is no such commit here: git log" >&2; exit 2; }
  tree=$target/against/tree
  git worktree remove --force "$tree" 2>/dev/null || :
  git worktree prune
  git worktree add --quiet --detach "$tree" "$rev"
  (cd "$tree" && CARGO_TARGET_DIR=$target/against "$cargo" build --locked --release --bin scxprof)
  git worktree remove --force "$tree"
  old=$target/against/release/scxprof
fi
if [ -z "$new" ]; then
  "$cargo" build --locked --release --bin scxprof
  new=$target/release/scxprof
fi
rounds=${1:-5}
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || :; rm -rf "$work"' EXIT

echo "Making the recordings and the trace ..." >&2
"$cargo" build --quiet --locked --release --features demo --example make_profile
for samples in 100000 1000000; do
  "$target/release/examples/make_profile" "$samples" "$work/$samples.data"
done
"$new" process -f "$work/1000000.data" -o "$work/lines" 2>/dev/null
SCXPROF_WRITE_TRACE=$work/trace SCXPROF_WRITE_EVENTS=1000000 "$cargo" bench --quiet --locked --bench trace >/dev/null

# Runs a command; adds user and system time, and wall time, in s, to the file of its name.
timed() { # NAME COMMAND...
  local name=$1 TIMEFORMAT='%U %S %R'
  shift
  rm -f "$work/status"
  { time "$@" >"$work/out" 2>"$work/err" </dev/null || echo "$?" >"$work/status"; } 2>&1 | awk '{ printf "%.3f %.3f\n", $1 + $2, $3 }' >>"$work/$name"
  # What fails may be quick.
  [ ! -f "$work/status" ] || echo "note: $name: exit code $(cat "$work/status"): ${*:2}: $(tail -n 1 "$work/err")" >&2
}

median() { # COLUMN FILE
  cut -d ' ' -f "$1" "$2" | sort -n | awk '{ all[NR] = $1 } END { print (all[int((NR + 1) / 2)] + all[int(NR / 2) + 1]) / 2 }'
}

compare() { # NAME ARGUMENT...
  local name=$1 round first second
  shift
  rm -f "$work/old" "$work/new"
  for round in $(seq "$rounds"); do
    first=old second=new
    [ $((round % 2)) = 1 ] || { first=new second=old; }
    for side in "$first" "$second"; do
      rm -rf "$work/made"
      timed "$side" "${!side}" "$@"
    done
  done
  awk -v name="$name" -v a="$(median 1 "$work/old")" -v b="$(median 1 "$work/new")" -v c="$(median 2 "$work/old")" \
    -v d="$(median 2 "$work/new")" 'BEGIN { printf "| %s | %.3f | %.3f | %+.0f %% | %.2f | %.2f |\n", name, a, b, (b / (a ? a : 1) - 1) * 100, c, d }'
}

echo "$(date -u +%F), $(nproc) CPUs, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), Linux $(uname -r), $rounds rounds"
echo '| work | CPU s before | now | change | wall s before | now |'
echo '|---|---:|---:|---:|---:|---:|'
compare 'extract, 100,000 samples' extract -f "$work/100000.data"
compare 'extract, 1 million samples' extract -f "$work/1000000.data"
compare 'extract --report, 1 million samples' extract -f "$work/1000000.data" -o /dev/null --report "$work/made"
compare 'extract, 1 million lines' extract -f "$work/lines"
compare 'process, 1 million samples' process -f "$work/1000000.data" -o "$work/made"
compare 'trace analyze, 1 million events' trace analyze "$work/trace"
compare 'sched -f, 1 million events' sched -f "$work/trace"
if [ "$(id -u)" -ne 0 ]; then
  echo 'SKIP: captures: they need root' >&2
  exit
fi
command -v cc >/dev/null || { echo 'SKIP: captures: cc is not installed' >&2; exit; }
compare 'run -t 0.05 at the tick' run -t 0.05 --source timer -o "$work/made"
compare 'run -t 0.05 at 1 kHz' run -t 0.05 --source timer --freq 1000 -o "$work/made"
cc -O2 -o "$work/loops" benches/loops.c
"$work/loops" cpu 0 >/dev/null &
pids+=("$!")
"$work/loops" memory 1 >/dev/null &
pids+=("$!")
compare 'run -t 5 at 1 kHz, two busy loops' run -t 5 --source timer --freq 1000 -o "$work/made"
