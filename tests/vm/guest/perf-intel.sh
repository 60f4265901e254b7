# The simulator itself: the suite's own perf takes the samples of an Intel machine for those of a real one; and extract reads what it
# recorded.
# cpu: intel
# needs: target/debug/scxprof
# needs: target/debug/examples/vm-check
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
perf_sees alder-lake || fail alder-lake
# Linux 6.12 stalls in the emulator while perf records there, at any rate.
case $(uname -r) in 6.12.*) exit 0 ;; esac
perf_recorded alder-lake perf mem record -a --phys-data --data-page-size --all-cgroups -B -N --freq=1000 -- sleep 6 ||
    fail "alder-lake, recorded by perf mem"
perf_recorded alder-lake perf c2c record -- -a --all-cgroups -B -N --freq=1000 sleep 6 || fail "alder-lake, recorded by perf c2c"
