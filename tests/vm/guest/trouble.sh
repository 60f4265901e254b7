# What can go wrong during a run is survived, counted and said: a full ring, throttling, a lowered rate limit, a shared PMU, an
# event that never counts. hotplug.sh has CPUs that go offline.
# cpu: amd
# needs: target/debug/scxprof
# needs: target/debug/examples/vm-check
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh

# profile OPTIONS...: a run over the workload; what it said is in the file said, its status in $status.
profile() {
    scxprof run --source ibs -v -o cells.json "$@" 2>said
    status=$?
}

# said TEXT: it said so.
said() { grep -q "$1" said || fail "not said: $1; but: $(cat said)"; }

machine zen3 || exit 1
begin_workload workload.slice || fail "no workload"

echo "a full ring"
(
    # Stopped, it cannot read.
    wait_for 60 grep -q ibs_op "$sim/attrs"
    sleep 2
    kill -STOP "$(pidof scxprof)"
    sleep 2
    kill -CONT "$(pidof scxprof)"
) &
empty_logs
profile -t 5 --period 160000 --mmap-pages 1 --max-loss 100
said "lost in full rings"
[ "$status" -eq 0 ] || fail "status $status with --max-loss 100"
wait $!

echo "throttling"
limit=/proc/sys/kernel/perf_event_max_sample_rate
before=$(cat $limit)
echo 1000 >$limit
empty_logs
profile -t 3 --period 100000
[ "$(count throttled)" -gt 0 ] || fail "nothing was throttled: $(cat $sim/counts)"
said "the kernel throttled sampling"
echo "$before" >$limit

echo "a limit that the kernel lowers"
set_machine took_ns 3000000
profile -t 3
set_machine took_ns 0
[ "$(cat $limit)" -lt "$before" ] || fail "the limit is still $(cat $limit)"
said "perf_event_max_sample_rate"
echo "$before" >$limit

echo "another user of the PMU"
perf record -q -e ibs_op// -c 1000000 -a -B -N -o other.data -- sleep 3600 >other 2>&1 &
empty_logs
samples_come() { [ "$(count sent)" -gt 100 ]; }
wait_for 100 samples_come || fail "perf does not sample: $(cat other)"
profile -t 5
said "shared the PMU"
kill "$(pidof ld.so)"
wait $!

echo "events that never count"
end_workload
for silent in 1 2; do
    set_machine silent $silent
    scxprof run --source ibs -t 2 >out 2>said && fail "ibs worked with silent=$silent"
    said "opens on CPU . and never counts"
    scxprof run --source auto -v -o cells.json -- workload -s 4 >out 2>said || [ $? -eq 1 ] || fail "auto: $(cat said)"
    said "^Source: timer"
    set_machine silent 0
done
