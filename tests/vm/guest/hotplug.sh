# CPUs that go offline and come online during a capture are sampled again; the recording has their samples, for perf and for scxprof.
# cpu: amd
# needs: target/debug/scxprof
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh

cpu1=/sys/devices/system/cpu/cpu1/online
recorder=

# What follows must find both CPUs, and no workload.
trap 'kill $recorder 2>/dev/null; echo 1 >$cpu1; end_workload' EXIT

# online: CPU 1 is back, and half of the workload runs there: the guest leaves threads where they are.
online() {
    echo 1 >$cpu1
    for member in $(pidof grpB-0 grpB-1); do
        taskset -p 2 "$member" >/dev/null || fail "taskset"
    done
}

# works_again OPTIONS...: CPU 1 has been sampled since the log was emptied, as far as there is a log.
works_again() {
    case " $* " in
    *" ibs "*) wait_for 100 grep -qs 'cpu=1 ' $sim/samples || fail "the machine sent no sample on CPU 1; said: $(cat said)" ;;
    *) sleep 2 ;;
    esac
    sleep 1
}

# The time, CLOCK_MONOTONIC in seconds.
now() { cut -d' ' -f1 /proc/uptime; }

# record OPTIONS...: begins to record into prof; returns when it samples.
record() {
    rm -rf prof said
    scxprof record -t 3600 --disable-archive -o prof -v --max-loss 100 "$@" >out 2>said &
    recorder=$!
    wait_for 100 has_begun || fail "nothing is recorded: $(cat said)"
}

# has_begun: all events are enabled, as the last thread runs.
has_begun() { grep -qs steer /proc/"$recorder"/task/*/comm; }

# end_record: ends it; what it said is in the file said.
end_record() {
    kill -TERM "$recorder"
    wait "$recorder"
    status=$?
    [ "$status" -eq 0 ] || [ "$status" -eq 143 ] || fail "record ended with $status: $(cat said)"
    perf script -i prof/perf.data --ns -F cpu,time >shown 2>perf.said || fail "perf: $(cat perf.said)"
    scxprof process --no-symbols -f prof -o - >lines.jsonl 2>process.said || fail "process: $(cat process.said)"
}

# by_perf BEGIN END: the samples of CPU 1 from BEGIN to END that perf shows, as "[001] 12.345678901:".
by_perf() {
    tr -d '[]:' <shown |
        awk -v begin="$1" -v end="$2" '$1 + 0 == 1 && $2 > begin && $2 < end { count++ } END { print count + 0 }'
}

# by_scxprof BEGIN END: the same that scxprof shows.
by_scxprof() {
    sed -n 's/.*"cpu":1,"time":"\([0-9.]*\)".*/\1/p' lines.jsonl |
        awk -v begin="$1" -v end="$2" '$1 > begin && $1 < end { count++ } END { print count + 0 }'
}

# sampled BEGIN END: samples of CPU 1 are in the recording.
sampled() {
    for by in by_perf by_scxprof; do
        count=$($by "$1" "$2")
        echo "  $by: $count samples of CPU 1 from $1 to $2 s"
        [ "$count" -gt 0 ] || fail "$by: no sample of CPU 1 from $1 to $2 s; said: $(cat said)"
    done
}

# not_sampled BEGIN END: none is.
not_sampled() {
    [ "$(by_perf "$1" "$2")" -eq 0 ] || fail "samples of CPU 1 while it is offline"
}

said() { grep -q "$1" said || fail "not said: $1; but: $(cat said)"; }

# away SECONDS OPTIONS...: CPU 1 goes offline for so long and comes back, twice, while OPTIONS are recorded.
away() {
    seconds=$1
    shift
    record "$@"
    sleep 0.5
    for _ in 1 2; do
        echo 0 >$cpu1
        gone=$(now)
        sleep "$seconds"
        back=$(now)
        empty_logs
        online
        works_again "$@"
    done
    end=$(now)
    end_record
    not_sampled "$gone" "$back"
    sampled "$back" "$end"
    said "CPU 1 was offline 2 times, for .* s of the capture: sampled again after each"
}

# new OPTIONS...: CPU 1 is offline at the start.
new() {
    echo 0 >$cpu1
    record "$@"
    begin=$(now)
    empty_logs
    online
    works_again "$@"
    end=$(now)
    end_record
    not_sampled 0 "$begin"
    sampled "$begin" "$end"
    said "CPU 1 came online during the capture: sampled since"
}

machine zen3 || exit 1
begin_workload workload.slice || fail "no workload"

# The whole host, or one busy cgroup: a single process may have no sample on this CPU in the time of the test.
echo "a CPU goes offline and comes back: ibs"
away 1 --source ibs --rate 200
echo "timer"
away 1 --source timer

echo "a CPU that is offline at the start comes online: ibs, a cgroup"
new --source ibs --rate 200 --cgroup workload.slice
