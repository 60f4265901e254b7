# scx_layered loads what `scxprof run --target layered` prints, and threads of Confined layers run on CPUs of their own.
# since: 6.12
# cpus: 16
# needs: target/schedulers/bin/scx_layered
# needs: target/debug/scxprof
# needs: target/debug/demo-workload
# needs: target/debug/examples/vm-check
# With 8 CPUs, fewer than the ten layers, 84 to 86 % were measured, probably because layers take turns on a CPU.
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
begin_demo --scenario demo || fail "the workload did not start"
configuration_for layered || fail "no configuration"
# The check itself: without the scheduler it must not hold.
vm-check placement layered layered.json below=90 || fail "the check holds without the scheduler"
begin_scheduler layered scx_layered f:layered.json || fail "scx_layered did not start"
# Until the layers have their CPUs.
sleep 5
vm-check placement layered layered.json at-least=99 || fail "threads run elsewhere than the configuration says"
end_scheduler || fail "scx_layered did not end as told"
