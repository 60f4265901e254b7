# Source pebs on Intel machines: every sample is what was sent, and the configuration is right.
# cpu: intel
# needs: target/debug/scxprof
# needs: target/debug/examples/vm-check
# cc: tests/sharing/programs family
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
for name in skylake sapphire-rapids granite-rapids sierra-forest alder-lake; do
    machine "$name" || exit 1
    in_cgroup workload.slice/pebs vm-check samples source=pebs || fail "$name"
    in_cgroup workload.slice/pebs vm-check samples source=pebs stores=1 ldlat=3 || fail "$name with stores"
done
in_cgroup workload.slice/pebs vm-check samples source=pebs period=250007 || fail "with a period"
in_cgroup workload.slice/pebs vm-check samples source=pebs freq=1000 || fail "with a frequency"
machine skylake kernel=1 || exit 1
in_cgroup workload.slice/pebs vm-check samples source=pebs kernel=1 ldlat=3 || fail "with the kernel's accesses"
files_in_the_kernel pebs || fail "the files that the kernel reads"
machine skylake kernel=1 locks=1 || exit 1
groups_of_the_kernel pebs --stores || fail "the groups that share through the kernel"
machine sapphire-rapids || exit 1
configuration pebs pebs || fail "the configuration"
configuration auto pebs || fail "the configuration of auto"
# Without memory events there is nothing to sample with, and auto goes on.
machine no-pebs || exit 1
scxprof run --source pebs -t 1 >out 2>said && fail "pebs worked without PEBS"
grep -q mem-loads said || fail "no reason: $(cat said)"
configuration auto timer || fail "auto without PEBS"
