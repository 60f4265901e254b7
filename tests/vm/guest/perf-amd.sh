# The simulator itself: the suite's own perf takes the samples of an AMD machine for those of a real one; and extract reads what it
# recorded.
# cpu: amd
# needs: target/debug/scxprof
# needs: target/debug/examples/vm-check
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
perf_sees zen5 || fail zen5
perf_recorded zen5 || fail "zen5, recorded by perf"
