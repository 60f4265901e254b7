# The simulator itself: the suite's own perf takes the samples of an AMD machine for those of a real one; and extract reads what it
# recorded.
# cpu: amd
# needs: target/debug/scxprof
# needs: target/debug/examples/vm-check
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
perf_sees zen5 || fail zen5
# perf 6.1 and 6.12 cannot ask IBS for the size of the page.
page_size=--data-page-size
perf mem record -a $page_size -o refused -- true >said 2>&1 || page_size=
# shellcheck disable=SC2086 # Nothing is no argument.
perf_recorded zen5 perf mem record -a --phys-data $page_size --all-cgroups -B -N --freq=1000 -- sleep 6 ||
    fail "zen5, recorded by perf mem"
perf_recorded zen5 perf c2c record -- -a --all-cgroups -B -N --freq=1000 sleep 6 || fail "zen5, recorded by perf c2c"
