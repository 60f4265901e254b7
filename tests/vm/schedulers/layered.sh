# scx_layered loads what `scxprof run --target layered` prints, and threads of Confined layers run on the CPUs that it gives them.
# since: 6.12
# cpus: 16
# cc: tests/vm/schedulers/busy.c
# needs: target/schedulers/bin/scx_layered
# needs: target/debug/scxprof
# needs: target/debug/demo-workload
# needs: target/debug/examples/vm-check
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
begin_demo --scenario demo || fail "the workload did not start"
configuration_for layered || fail "no configuration"
begin_scheduler layered scx_layered f:layered.json || fail "scx_layered did not start"
begin_load
# Until the layers have their CPUs, and threads their layers.
sleep 20
vm-check placement layered layered.json keep=assigned at-least=99 || fail "threads run elsewhere than the configuration says"
# Its own figures, which `scxprof top` shows.
vm-check stats layered total local_sel || fail "the figures of scx_layered are not read"
end_load || fail "the load did not end"
end_scheduler || fail "scx_layered did not end as told"
# The check itself: without the scheduler it must not hold. The threads begin anew, as Linux leaves them where they were.
begin_load
vm-check placement layered layered.json from=assigned below=60 || fail "the check holds without the scheduler"
