#!/usr/bin/env bash
# The timer source on real servers under load: yield, addresses without a page, CPU time for each sample.
#
# Usage (root): benches/timer.sh [SECONDS [FREQ]]
# Starts a redis-server and a memcached on loopback ports of their own, each with a client, samples them for SECONDS on
# the tick and at FREQ Hz, and ends them. CPU time for each sample is that of a run of SECONDS + 1 less that of a run of
# 1 second, over the samples that it read more: what starting costs is in neither.
# Servers and clients have a nice value of -10, so that they get the CPU where the machine has other work.
# Debian: apt-get install redis-server redis-tools memcached libmemcached-tools time
set -euo pipefail

seconds=${1:-15}
freq=${2:-1000}
top=$(cd "$(dirname "$0")/.." && pwd)
scxprof=$top/target/release/scxprof
for tool in redis-server redis-benchmark memcached memcslap /usr/bin/time; do
  command -v "$tool" >/dev/null || { echo "$tool is not installed" >&2; exit 2; }
done
[ -x "$scxprof" ] || { echo "build first: make build" >&2; exit 2; }
work=$(mktemp -d)
pids=()
stop() {
  [ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || :
  wait
  pids=()
}
trap 'stop; rm -rf "$work"' EXIT

capture() { # SECONDS SCXPROF-OPTION...: leaves "cpu_s user_samples recovered addresses absent" in $work/line
  local length=$1
  shift
  /usr/bin/time -f 'CPU %U %S' "$scxprof" run -t "$length" --source timer -v -o "$work/cells.json" "$@" \
    >"$work/out" 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
  awk '/^Recovered:/ {
         recovered = $2; samples = $4
         sub(/.*method: /, ""); gsub(/[a-z,]/, ""); for (i = 1; i <= NF; i++) addresses += $i
       }
       /^Addresses without a page:/ {absent = $5}
       /^CPU / {cpu = $2 + $3}
       END {print cpu + 0, samples + 0, recovered + 0, addresses + 0, absent + 0}' "$work/err" >"$work/line"
}

sample() { # NAME SCXPROF-OPTION...
  local name=$1 cpu samples recovered addresses absent cpu_1 samples_1 rest
  shift
  capture 1 "$@"
  read -r cpu_1 samples_1 rest <"$work/line"
  capture $((seconds + 1)) "$@"
  read -r cpu samples recovered addresses absent <"$work/line"
  grep -E '^(Recovered|Not recoverable|Addresses without)|kernel code|were lost' "$work/err" | sed 's/^/  /'
  echo "- $cpu $samples $recovered $addresses $absent $cpu_1 $samples_1" | awk -v name="$name" '
    {printf "%s: %d user samples, recovered %.1f %%, %d addresses, without a page %d (%.3f %%), ", name, $3,
       100 * $4 / ($3 > 0 ? $3 : 1), $5, $6, 100 * $6 / ($5 ? $5 : 1)
     more = $3 - $8
     printf "%.1f us CPU a sample (%.2f s less %.2f s for %d more samples)\n", (more > 0 ? 1e6 * ($2 - $7) / more : 0),
       $2, $7, more}'
}

both() { # NAME PID
  sample "$1, tick" -p "$2"
  sample "$1, $freq Hz" -p "$2" --freq "$freq"
}

echo "$(date -u +%F), $(nproc) CPUs, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), Linux $(uname -r)"

redis-server --version
nice -n -10 redis-server --port 17379 --bind 127.0.0.1 --save '' --appendonly no --dir "$work" >/dev/null &
server=$!
pids+=("$server")
sleep 1
while :; do
  nice -n -10 redis-benchmark -p 17379 -c 20 -P 16 -r 100000 -n 500000 -q -t set,get,lpush,lpop,sadd,hset,zadd >/dev/null 2>&1
done &
pids+=("$!")
sleep 2
both redis "$server"
stop

memcached --version
nice -n -10 memcached -l 127.0.0.1 -p 17211 -U 0 -m 64 -t 2 -u nobody &
server=$!
pids+=("$server")
sleep 1
while :; do
  nice -n -10 memcslap -s 127.0.0.1:17211 --concurrency=4 --execute-number=20000 --initial-load=10000 --test=get >/dev/null 2>&1
  nice -n -10 memcslap -s 127.0.0.1:17211 --concurrency=4 --execute-number=20000 --initial-load=10000 --test=set >/dev/null 2>&1
done &
pids+=("$!")
sleep 2
both memcached "$server"
stop
