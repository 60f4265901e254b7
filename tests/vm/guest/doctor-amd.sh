# `scxprof doctor` describes simulated AMD machines rightly.
# cpu: amd
# needs: target/debug/scxprof
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
for name in zen3 zen4 zen5; do
    machine "$name" || exit 1
    examine
    diagnosed pebs fails "no PMU of the CPU cores"
    diagnosed ibs works "ibs_op"
    diagnosed timer works
    diagnosed faults works
    diagnosed pmu works "ibs_op"
    diagnosed hints-storage works
    diagnosed hints-snapshot works
    diagnosed sample-memory works
done
# An event that opens and never counts.
machine zen3 silent=1 || exit 1
examine
diagnosed ibs fails "never count"
no_machine
examine
diagnosed ibs fails "no PMU ibs_op"
diagnosed pmu fails
