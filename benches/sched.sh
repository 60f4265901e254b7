#!/usr/bin/env bash
# What scxprof sched and perf sched cost beside the same load: benches/sched.sh [ROUNDS [SECONDS]]. Needs root and perf.
#
# Prints CPU seconds (user and system), peak memory and events: of a live `scxprof sched`, of `perf sched record` and `perf
# sched latency` for the same time, and of `scxprof sched -f` on what perf recorded, on one CPU. Every other round has the
# opposite order.
set -euo pipefail
rounds=${1:-5}
seconds=${2:-5}
scxprof=${SCXPROF:-target/release/scxprof}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Runs what follows beside processes that wake each other over pipes and sockets.
beside_load() {
	perf bench sched messaging -g 6 -l 1000000 >/dev/null 2>&1 &
	local load=$!
	sleep 1
	"$@"
	kill "$load" 2>/dev/null || true
	pkill -f 'bench sched messaging' || true
	wait "$load" 2>/dev/null || true
}

# Runs a command; prints its name, user and system time in s, and peak memory in KiB.
cost() {
	local name=$1
	shift
	/usr/bin/time -o "$dir/time" -f '%U %S %M' "$@" >"$dir/out" 2>"$dir/err" || true
	printf '%-16s %s' "$name" "$(tail -n 1 "$dir/time")"
	printf '  %s\n' "$(grep -Eo '[0-9]+ events$' "$dir/out" || true)"
}

live() {
	beside_load cost 'scxprof sched' "$scxprof" sched -t "$seconds" --max-loss 100
}

recorded() {
	beside_load cost 'perf record' perf sched record -o "$dir/perf.data" sleep "$seconds"
	cost 'perf latency' perf sched -i "$dir/perf.data" latency
	cost 'scxprof -f' taskset -c 0 "$scxprof" sched -f "$dir/perf.data" --max-loss 100
}

for round in $(seq "$rounds"); do
	if ((round % 2)); then
		live
		recorded
	else
		recorded
		live
	fi
done
