# The simulator itself: the suite's own perf takes the samples of an Intel machine for those of a real one; and extract reads what it
# recorded.
# cpu: intel
# needs: target/debug/scxprof
# needs: target/debug/examples/vm-check
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
perf_sees alder-lake || fail alder-lake
perf_recorded alder-lake || fail "alder-lake, recorded by perf"
