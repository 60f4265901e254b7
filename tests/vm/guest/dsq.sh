# What scxprof says of the dispatch queues of a sched_ext scheduler, live and from a recording, is what the scheduler counts.
# cpu: intel
# since: 6.19
# test: live
# bpf: tests/vm/scheduler/dsq.bpf.c
# needs: target/debug/scxprof
# needs: target/debug/examples/vm-check
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
scxprof sched --by dsq -t 0.2 >said 2>&1
[ $? -eq 3 ] || fail "without a scheduler: $(cat said)"
grep -q 'none is loaded' said || fail "without a scheduler: $(cat said)"
begin_scheduler queues vm-check scheduler /lib/dsq.bpf.o || fail "the scheduler did not start"
# The threads run in both captures from their first moment to their last.
SCXPROF_TEST_SCHED=queues scxprof record --source faults --sched --mmap-pages 1024 -o profile -- \
    scxprof sched --by dsq --mmap-pages 1024 --json -o live.json -- live sched::live::program --exact --nocapture >said 2>&1 || fail "$(cat said)"
cat said
scxprof sched -f profile.tar.gz --by dsq --json -o recorded.json >said 2>&1 || fail "of the recording: $(cat said)"
scxprof sched -f profile.tar.gz --by dsq
end_scheduler || fail "the scheduler did not end as told"
vm-check dsq live.json scheduler.out || fail "live: $(cat scheduler.out live.json)"
vm-check dsq recorded.json scheduler.out || fail "recorded: $(cat scheduler.out recorded.json)"
mkdir unpacked
tar xzf profile.tar.gz -C unpacked || fail "tar"
perf script -i "$(find unpacked -name perf.data)" -F comm,tid,event,trace >shown 2>said || fail "perf: $(cat said)"
grep -m 3 'sched_ext:dsq: .*kind=0 .*dsq=0x10' shown || fail "perf does not show the events: $(head shown)"
