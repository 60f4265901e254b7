#!/usr/bin/env bash
# What reading a trace costs: benches/trace.sh [ROUNDS [EVENTS...]]. No root.
#
# Makes traces of ftrace events (1 and 20 million, or EVENTS) and prints their size, and for each command CPU seconds (user and
# system) and peak memory in KiB, on one CPU. TRACE_PROCESSOR names a trace_processor_shell or a command like it, which gets
# the trace as its last argument.
set -euo pipefail
rounds=${1:-3}
shift || true
sizes=("$@")
[ $# -gt 0 ] || sizes=(1000000 20000000)
scxprof=${SCXPROF:-target/release/scxprof}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Runs a command; prints its name, user and system time in s, and peak memory in KiB.
cost() {
	local name=$1
	shift
	/usr/bin/time -o "$dir/time" -f '%U %S %M' taskset -c 0 "$@" >"$dir/out" 2>"$dir/err" </dev/null || true
	printf '%-16s %s\n' "$name" "$(tail -n 1 "$dir/time")"
}

for events in "${sizes[@]}"; do
	SCXPROF_WRITE_TRACE=$dir/trace SCXPROF_WRITE_EVENTS=$events cargo bench --quiet --bench trace
	printf '%s events, %s bytes\n' "$events" "$(stat -c %s "$dir/trace")"
	for _ in $(seq "$rounds"); do
		cost 'trace info' "$scxprof" trace info "$dir/trace"
		cost 'trace analyze' "$scxprof" trace analyze "$dir/trace"
		cost 'sched -f' "$scxprof" sched -f "$dir/trace"
		if [ -n "${TRACE_PROCESSOR:-}" ]; then
			# shellcheck disable=SC2086
			cost trace_processor $TRACE_PROCESSOR "$dir/trace"
		fi
	done
done
