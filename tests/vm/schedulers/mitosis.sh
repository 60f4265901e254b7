# scx_mitosis loads what `scxprof run` prints, and threads of each subcell run on the CPUs that it gives them.
# since: 6.12
# cpus: 8
# cc: tests/vm/schedulers/busy.c
# needs: target/schedulers/bin/scx_mitosis
# needs: target/debug/scxprof
# needs: target/debug/demo-workload
# needs: target/debug/examples/vm-check
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
begin_demo --scenario demo || fail "the workload did not start"
configuration_for mitosis || fail "no configuration"
# It needs the cpu controller in the cgroups of the cells.
echo +cpu >/sys/fs/cgroup/workload.slice/cgroup.subtree_control || fail "no cpu controller"
begin_scheduler mitosis scx_mitosis --cell-config mitosis.json || fail "scx_mitosis did not start"
# Busy: an idle subcell lends its CPUs to others of the cell.
begin_load
# Until it has applied its configuration again, which it does every 10 s: only then does it look at new names.
sleep 20
vm-check placement mitosis mitosis.json keep=assigned at-least=99.9 || fail "threads run elsewhere than the configuration says"
# Its own figures, which `scxprof top` shows.
vm-check stats mitosis num_cells local_q_pct || fail "the figures of scx_mitosis are not read"
end_load || fail "the load did not end"
end_scheduler || fail "scx_mitosis did not end as told"
# The check itself: without the scheduler it must not hold. The threads begin anew, as Linux leaves them where they were.
begin_load
vm-check placement mitosis mitosis.json from=assigned below=60 || fail "the check holds without the scheduler"
