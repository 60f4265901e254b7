# Scheduling events on this kernel: the tests of tests/sched with programs of known pattern.
# cpu: intel
# test: live
# needs: target/debug/scxprof
# needs: target/debug/demo-workload
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
# The fixtures are on the host.
live sched:: --nocapture --test-threads=1 --skip recorded:: --skip bad:: --skip record:: || fail "tests/sched"
