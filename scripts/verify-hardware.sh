#!/usr/bin/env bash
# Compares a memory PMU's samples with a workload of known sharing and with perf, and prints a report to send (docs/verify-hardware.md).
# Usage: scripts/verify-hardware.sh     `make verify-hardware` builds what it needs and calls it.
#
# Environment:
#   SOURCE=pebs|ibs|spe   the source [default: the first that works]
#   TIME=N                seconds of `scxprof run` (20); half as long for each recording
#   PERIOD=N              events between two samples in the recordings [default: by the source]
#   SELF_TEST=no          leaves out the self-test
#   PERF=PATH             the perf to compare with [default: perf]
#   BIN=DIR               the folder with scxprof, demo-workload, demo-compare and demo-verify [default: target/demo]
#   WORKLOAD=COMMAND, TRUTH=FILE   another workload, which prints a line that begins with "ready", and which threads of it share memory
#                         (as demo-workload --print-truth prints it)
#   OUT=DIR               where report.md is written [default: target/verify-hardware]
#
# The report goes to stdout and to OUT/report.md, all else to stderr. Exit codes:
#   0  all that was compared agrees
#   1  something differs, or a step of scxprof failed; what perf fails at is not compared
#   2  wrong usage, or no root
#   3  no memory PMU works here; stderr has the reason for each source
#
# Runs as root through sudo where sudo asks no password, unless NO_SUDO is set.
set -euo pipefail
# Numbers have a point, and perf says the same everywhere.
export LC_ALL=C
target=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}
bin=${BIN:-$target/demo}
out=${OUT:-$target/verify-hardware}
perf=${PERF:-perf}
seconds=${TIME:-20}
# The caller's, also if the rest runs as root.
mkdir -p "$out"
if [ "$(id -u)" -ne 0 ] && [ -z "${NO_SUDO:-}" ] && sudo -n true 2>/dev/null; then
    exec sudo -n -- env CARGO_TARGET_DIR="$target" BIN="$bin" OUT="$out" PERF="$perf" TIME="$seconds" SOURCE="${SOURCE:-}" \
        SELF_TEST="${SELF_TEST:-}" PERIOD="${PERIOD:-}" WORKLOAD="${WORKLOAD:-}" TRUTH="${TRUTH:-}" "$0" "$@"
fi
scxprof=$bin/scxprof
say() { printf 'verify-hardware: %s\n' "$*" >&2; }
refuse() {
    local status=$1
    shift
    say "$@"
    exit "$status"
}
[ $# -eq 0 ] || refuse 2 "takes no arguments; the settings are environment variables (see the head of $(basename "$0"))"
[[ $seconds =~ ^[1-9][0-9]{0,3}$ ]] || refuse 2 "TIME is a number of seconds from 1 to 9999, not \"$seconds\""
[[ ${PERIOD:-1} =~ ^[1-9][0-9]{0,11}$ ]] || refuse 2 "PERIOD is a number of events, not \"$PERIOD\""
[ -z "${WORKLOAD:-}" ] || [ -r "${TRUTH:-}" ] || refuse 2 "TRUTH is a file that says which threads of WORKLOAD share memory"
case ${SOURCE:-} in '' | pebs | ibs | spe) ;; *) refuse 2 "SOURCE is pebs, ibs or spe, not \"$SOURCE\"" ;; esac
for program in scxprof demo-workload demo-compare demo-verify; do
    if [ "$program" = demo-workload ] && [ -n "${WORKLOAD:-}" ]; then continue; fi
    [ -x "$bin/$program" ] || refuse 2 "$program is not built; \`make verify-hardware\` builds it"
done

# shellcheck source=scripts/workload.sh
. "$(dirname "$0")/workload.sh"

# row NAME FIELD: this field of doctor's check.
row() {
    tr -d '\n' <"$files/doctor.json" | sed 's/"section"/\n&/g' | grep "\"name\": *\"$1\"" |
        sed -n "s/.*\"$2\": *\"\(\([^\"\\\\]\|\\\\.\)*\)\".*/\1/p" || true
}

"$scxprof" doctor --json >"$files/doctor.json" || [ $? -eq 3 ] || refuse 1 "scxprof doctor failed"
source=
for name in ${SOURCE:-pebs ibs spe}; do
    if [ "$(row "$name" state)" = works ]; then
        source=$name
        break
    fi
done
as_root="it samples the whole host, so it must run as root: sudo $0"
if [ -z "$source" ]; then
    # A user may sample processes of their own only.
    case $(id -u):$(row pmu state) in 0:*) ;; *:works | *:partly) refuse 2 "$as_root" ;; esac
    for name in ${SOURCE:-pebs ibs spe}; do
        why=$(row "$name" why)
        help=$(row "$name" help)
        say "$name: ${why:-no such source in this scxprof}${help:+; what would help: $help}"
    done
    help=$(row pmu help)
    refuse 3 "no memory PMU works here${help:+; what would help: $help}"
fi
[ "$(id -u)" -eq 0 ] || refuse 2 "$as_root"

# step NAME COMMAND...: runs it and keeps its exit code; a run of scxprof that only lost samples (4) has a result.
step() {
    local name=$1 status=0
    shift
    "$@" || status=$?
    [ "$status" -ne 4 ] || status=0
    echo "$name $status" >>"$files/status"
    [ "$status" -eq 0 ] || say "$name: exit code $status"
    return "$status"
}
# said COMMAND...: what it says is shown only if it fails; stdout is the caller's.
# shellcheck disable=SC2317,SC2329 # step calls it, and run.
said() {
    local status=0
    "$@" 2>"$files/said" || status=$?
    [ "$status" -eq 0 ] || [ "$status" -eq 4 ] || tail -n 20 "$files/said" >&2
    return "$status"
}
# written FILE COMMAND...: with its stdout in the file.
# shellcheck disable=SC2317,SC2329 # said calls it.
written() {
    local file=$1
    shift
    "$@" >"$file"
}

# How each program records: the same event, period and latency. `perf mem` would count cycles with ibs and record loads and stores
# of any latency in its own way with spe, so that the event is the one that scxprof opens.
half=$(((seconds + 1) / 2))
ldlat=10
ours=()
decode=()
event=$(row "$source" why | grep -oE '^[a-z_0-9]+/[^/]*/' || true)
case $source in
    pebs)
        period=${PERIOD:-50021}
        ours=(-l "$ldlat")
        theirs=(mem -t load record -U --ldlat "$ldlat" --data-page-size)
        ;;
    ibs)
        period=${PERIOD:-1048576}
        theirs=(record -d -W -e "$event")
        ;;
    spe)
        period=${PERIOD:-1048576}
        theirs=(record -d -W -e "${event}u")
        decode=(--itrace=M)
        ;;
esac
recorded=
recorded_by_perf=

# Facts of the machine, without names of it.
fact() { [ -z "$2" ] || printf '%s\t%s\n' "$1" "$2" >>"$files/facts"; }
cpuinfo() { sed -n "s/^$1[[:space:]]*: *//p" /proc/cpuinfo | head -n 1; }
json_text() { sed -n "s/^  \"$1\": *\"\{0,1\}\([^\",]*\)\"\{0,1\},*$/\1/p" "$files/doctor.json"; }
caches() {
    local index caches=
    for index in /sys/devices/system/cpu/cpu0/cache/index*; do
        [ -e "$index/size" ] || continue
        caches+="${caches:+, }L$(cat "$index/level") $(cat "$index/type") $(cat "$index/size") x"
        caches+=$(sort -u /sys/devices/system/cpu/cpu*/cache/"$(basename "$index")"/shared_cpu_map | wc -l)
    done
    printf '%s' "$caches"
}
perf_version=$("$perf" --version 2>/dev/null | head -n 1) || perf_version=
no_perf="perf is not installed"
! command -v "$perf" >/dev/null || no_perf="perf --version failed"
fact date "$(date -u +%Y-%m-%d)"
fact scxprof "$("$scxprof" --version)"
fact source "$source ($(row "$source" why))"
fact CPU "$(json_text cpu)"
for name in vendor_id "cpu family" model stepping microcode "CPU implementer" "CPU part" "CPU variant" "CPU revision"; do
    fact "$name" "$(cpuinfo "$name")"
done
fact kernel "$(json_text kernel) $(json_text arch)"
fact hypervisor "$(row hypervisor state): $(row hypervisor why)"
fact "CPUs online" "$(json_text cpus)"
fact packages "$(sort -u /sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id | wc -l)"
fact caches "$(caches)"
fact "page size" "$(sed -n 's/^KernelPageSize: *//p' /proc/self/smaps | head -n 1)"
fact perf "${perf_version:-$no_perf}"
fact "recordings" "a sample every $period events${ours[*]+, loads of at least $ldlat cycles}, $half s each; perf ${theirs[*]}"
fact perf_event_paranoid "$(cat /proc/sys/kernel/perf_event_paranoid)"
echo "$source" >"$files/source"
touch "$files/status" "$files/why"

if [ "${SELF_TEST:-}" = no ]; then
    echo "self-test SELF_TEST=no" >>"$files/why"
else
    say "self-test of each source that works"
    "$scxprof" doctor --json --self-test >"$files/tested.json" || say "scxprof doctor --self-test: exit code $?"
    [ ! -s "$files/tested.json" ] || mv "$files/tested.json" "$files/doctor.json"
fi

# The workload never sleeps: more samples. Its processes are what is compared.
if [ -n "${WORKLOAD:-}" ]; then
    cp "$TRUTH" "$files/truth.json"
    read -ra workload <<<"$WORKLOAD"
else
    "$bin/demo-workload" --print-truth >"$files/truth.json"
    workload=("$bin/demo-workload" --busy --seconds 86400)
fi
start_workload "${workload[@]}" || refuse 1 "the workload did not start"
: >"$files/parents"
for stat in /proc/[0-9]*/stat; do
    # PID (NAME) STATE PARENT ...; a name may have spaces and parentheses. One that ended since is none of the workload's.
    { read -r line <"$stat"; } 2>/dev/null || continue
    read -r _ parent _ <<<"${line##*)}"
    echo "${line%% *} $parent" >>"$files/parents"
done
awk -v root="$child" '{ parent[$1] = $2 }
    END { for (pid in parent) { at = pid; while (at != root && at in parent) at = parent[at]; if (at == root) print pid } }' \
    "$files/parents" >"$files/pids"
# groups STEP: compares STEP.cells, a configuration, with the truth.
groups() {
    local status=0 how=()
    # A recording of spe has no cgroups.
    if [ "$ready" = "ready without cgroups" ] || { [ "$source" = spe ] && [ "$1" != run ]; }; then how=(--without-cgroups); fi
    written "$files/$1.groups" "$bin/demo-compare" "$files/truth.json" "$files/$1.cells" ${how[@]+"${how[@]}"} || status=$?
    echo "$1.groups $status" >>"$files/status"
}
# read_recording NAME PROFILE PERF.DATA [OPTIONS OF perf script]: by each program.
read_recording() {
    local name=$1 profile=$2 data=$3
    shift 3
    say "reading the recording of $name"
    if step "$name.extract" said "$scxprof" extract --no-symbols --target-cpus 64 -f "$profile" -o "$files/$name.cells"; then
        groups "$name"
    fi
    if step "$name.jsonl" said "$scxprof" process --no-symbols -f "$profile" -o "$files/$name.lines"; then
        mv "$files/$name.lines/perf.jsonl" "$files/$name.jsonl"
    fi
    if [ -n "$perf_version" ]; then
        step "$name.script" said written "$files/$name.script" "$perf" script -i "$data" --ns "$@" --show-lost-events \
            -F pid,tid,time,event,ip,addr,phys_addr,data_src,weight || true
    fi
}

say "scxprof run, $seconds s"
TIMEFORMAT='%U %S'
# shellcheck disable=SC2317,SC2329 # step calls it.
run() {
    { time said "$scxprof" run -a --source "$source" -t "$seconds" --no-symbols --target-cpus 64 --report "$files/run.report" \
        -o "$files/run.cells" 2>&4; } 4>&2 2>"$files/cpu"
}
if step run run; then groups run; fi

# window NAME: leaves in $window the command during which NAME records; it keeps the CPU time that the workload had before and after.
mapfile -t stats < <(sed 's|.*|/proc/&/stat|' "$files/pids")
window() {
    # shellcheck disable=SC2016 # The shell that it starts expands these.
    window=(sh -c 'seconds=$1; shift; cat "$@" >"$0.before"; sleep "$seconds"; cat "$@" >"$0.after"' "$files/$1" "$half" "${stats[@]}")
}

say "scxprof record, $half s"
window scxprof
if step scxprof said "$scxprof" record -a --source "$source" -c "$period" ${ours[@]+"${ours[@]}"} \
    --disable-archive -o "$files/scxprof" -- "${window[@]}"; then
    recorded=yes
fi
if [ -n "$perf_version" ]; then
    say "perf ${theirs[*]}, $half s"
    window perf
    ! step perf said "$perf" "${theirs[@]}" -a -N -c "$period" --phys-data --all-cgroups -o "$files/perf.data" \
        -- "${window[@]}" >&2 || recorded_by_perf=yes
else
    echo "perf $no_perf" >>"$files/why"
fi
# What follows only reads.
kill -TERM "$child"
wait "$child" 2>/dev/null || true
child=
[ -z "$recorded" ] || read_recording scxprof "$files/scxprof" "$files/scxprof/perf.data"
[ -z "$recorded_by_perf" ] || read_recording perf "$files/perf.data" "$files/perf.data" ${decode[@]+"${decode[@]}"}

status=0
"$bin/demo-verify" "$files" >"$files/report.md" || status=$?
[ "$status" -le 1 ] || refuse 1 "there is no report"
mkdir -p "$out"
temporary=$(mktemp "$out/report.XXXXXX")
cat "$files/report.md" >"$temporary"
chmod 644 "$temporary"
mv "$temporary" "$out/report.md"
cat "$out/report.md"
say "the report is in $out/report.md; docs/verify-hardware.md says what it contains"
exit "$status"
