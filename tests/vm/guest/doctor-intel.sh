# `scxprof doctor` describes simulated Intel machines rightly.
# cpu: intel
# needs: target/debug/scxprof
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
for name in skylake sapphire-rapids granite-rapids sierra-forest alder-lake; do
    machine "$name" || exit 1
    examine
    diagnosed pebs works "mem-loads"
    diagnosed ibs fails "no PMU ibs_op"
    diagnosed pmu works "mem-loads"
    diagnosed precise works
    diagnosed ldlat works
done
# The last one has two kinds of cores.
diagnosed pebs works "cpu_atom"
machine no-pebs || exit 1
examine
diagnosed pebs fails "mem-loads"
diagnosed timer works
machine skylake silent=1 || exit 1
examine
diagnosed pebs fails "never count"
