# scx_mitosis loads what `scxprof run` prints, and threads of each subcell run on CPUs of their own.
# since: 6.12
# cpus: 8
# needs: target/schedulers/bin/scx_mitosis
# needs: target/debug/scxprof
# needs: target/debug/demo-workload
# needs: target/debug/examples/vm-check
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
# Busy: an idle subcell lends its CPUs to others of the cell.
begin_demo --busy || fail "the workload did not start"
configuration_for mitosis || fail "no configuration"
# The check itself: without the scheduler it must not hold.
vm-check placement mitosis mitosis.json below=90 || fail "the check holds without the scheduler"
# It needs the cpu controller in the cgroups of the cells.
echo +cpu >/sys/fs/cgroup/workload.slice/cgroup.subtree_control || fail "no cpu controller"
begin_scheduler mitosis scx_mitosis --cell-config mitosis.json || fail "scx_mitosis did not start"
sleep 5
vm-check placement mitosis mitosis.json at-least=99.9 || fail "threads run elsewhere than the configuration says"
end_scheduler || fail "scx_mitosis did not end as told"
