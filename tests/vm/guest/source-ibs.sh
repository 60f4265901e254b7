# Source ibs on AMD machines: every sample is what was sent, and the configuration is right.
# cpu: amd
# needs: target/debug/scxprof
# needs: target/debug/examples/vm-check
# cc: tests/sharing/programs family
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
for name in zen3 zen4 zen5; do
    machine "$name" || exit 1
    in_cgroup workload.slice/ibs vm-check samples source=ibs || fail "$name"
done
# Accesses of the kernel too; a period; what perf steers.
machine zen4 kernel=1 || exit 1
in_cgroup workload.slice/ibs vm-check samples source=ibs kernel=1 || fail "with the kernel's accesses"
files_in_the_kernel ibs || fail "the files that the kernel reads"
machine zen4 kernel=1 locks=1 || exit 1
groups_of_the_kernel ibs || fail "the groups that share through the kernel"
machine zen3 || exit 1
in_cgroup workload.slice/ibs vm-check samples source=ibs period=250000 || fail "with a period"
in_cgroup workload.slice/ibs vm-check samples source=ibs freq=1000 || fail "with a frequency"
# A threshold without help by the hardware, and with too much help.
in_cgroup workload.slice/ibs vm-check samples source=ibs ldlat=50 filter=50 || fail "with a threshold"
machine zen5 || exit 1
in_cgroup workload.slice/ibs vm-check samples source=ibs ldlat=130 filter=130 || fail "with a threshold on zen5"
configuration ibs ibs || fail "the configuration"
configuration auto ibs || fail "the configuration of auto"
