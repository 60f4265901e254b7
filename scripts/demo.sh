#!/usr/bin/env bash
# Profiles the example workload, prints the configuration, and compares it with what the workload is known to share.
# Usage: scripts/demo.sh [OPTIONS OF scxprof run]     `make run` builds what it needs and calls it.
#
# Runs as root through sudo where sudo asks no password, unless NO_SUDO is set.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
if [ "$(id -u)" -ne 0 ] && [ -z "${NO_SUDO:-}" ] && sudo -n true 2>/dev/null; then
    exec sudo -n -- env CARGO_TARGET_DIR="$target" scripts/demo.sh "$@"
fi

scxprof=$target/demo/scxprof
workload=$target/demo/demo-workload
compare=$target/demo/demo-compare
# What the groups are exact from.
seconds=20
enough=5000
say() { printf '%s\n' "$*" >&2; }

# shellcheck source=scripts/workload.sh
. scripts/workload.sh

"$workload" --print-truth >"$files/truth.json"
how=()
status=0
if [ "$(id -u)" -eq 0 ]; then
    if ! start_workload "$workload" --seconds 600; then
        say "make run: the example workload did not start"
        exit 1
    fi
    if [ "$ready" != ready ]; then
        how=(--without-cgroups)
    fi
    say "The example workload runs; watching the whole machine for $seconds seconds."
else
    how=(--without-cgroups)
    say "Not root: watching the processes of the example workload only for $seconds seconds. As root (\`sudo -v\`, then" \
        "\`make run\`) it watches the whole machine, and the workload has cgroups of its own."
fi

# watch SECONDS [OPTIONS OF scxprof run]: leaves what it said, the configuration, and the source and samples of the workload.
watch() {
    local time=$1 command=()
    shift
    status=0
    if [ -z "$child" ]; then
        command=(-- "$workload" --seconds $((time + 2)))
    fi
    # The configuration goes to a file, so that the workload's own output stays out of it. Ctrl-C ends the run, not tee. The tables
    # after the answer are for the comparison below.
    "$scxprof" run --target-cpus 64 -t "$time" -v -o "$files/cells.json" "$@" ${command[@]+"${command[@]}"} 2>&1 >/dev/null |
        tee -i "$files/said" | awk '/^$/ { more = 1 } !more || /^(note|error): / || / lost/' >&2 || status=$?
    if [ ! -s "$files/cells.json" ]; then
        say "make run: scxprof ended with status $status and gave no configuration"
        exit $((status == 0 ? 1 : status))
    fi
    source=$(sed -n 's/^Source: \([a-z]*\).*/\1/p' "$files/said")
    samples=$(awk -v here="${how[*]-}" '
        $3 == "samples" && (here != "" ? /^rest: / : /^(allotment|workload\.slice): /) { sum += $2 }
        END { print sum + 0 }' "$files/said")
    exact=0
    "$compare" "$files/truth.json" "$files/cells.json" ${how[@]+"${how[@]}"} >"$files/compared" || exact=$?
}

watch "$seconds" "$@"
if [ "$exact" -eq 1 ] && [ "$source" = timer ] && [ "$samples" -lt "$enough" ]; then
    more=$((seconds * enough * 5 / 4 / (samples + 1)))
    more=$((more > 60 ? 60 : more))
    say ""
    say "The machine is busy: only $samples samples of the workload. Once more, for $more seconds."
    watch "$more" "$@"
fi

cat "$files/cells.json"
say ""
cat "$files/compared" >&2
grep '^Locality captured: ' "$files/said" >&2 || true
if [ "$exact" -eq 1 ] && [ "$source" != timer ]; then
    say "That is no failure: the source of the samples was $source, which does not see all sharing."
    exact=0
elif [ "$exact" -eq 1 ] && [ "$samples" -lt "$enough" ]; then
    say "That is no failure: $samples samples of the workload are fewer than the $enough that are sure to be enough."
    exact=0
fi
if [ "$status" -eq 4 ]; then
    say "Samples were lost, as said above: the machine is too busy to keep up with them. What counts here is the groups."
    status=0
fi
exit $((status == 0 ? exact : status))
