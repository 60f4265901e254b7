# perf mem and perf c2c see on an AMD machine what scxprof sees: benches/versus-perf compares them, and fails if they differ.
# cpu: amd
# needs: target/debug/scxprof
# needs: target/debug/examples/versus-perf
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
# Without a memory PMU there is nothing to compare, which is no failure of either.
versus-perf pmu --out without-pmu >out 2>said
status=$?
if [ "$status" -ne 2 ] || [ -e without-pmu ] || ! grep -q "no memory PMU" said; then
    fail "without a memory PMU: $status, $(cat out said)"
fi
# Linux 6.12 stalls in the emulator while perf records there, at any rate.
case $(uname -r) in 6.12.*) exit 0 ;; esac
machine zen4 || exit 1
# The load gives way to perf, which takes seconds to start in the emulator.
load="sh -c 'renice -n 19 -p \$\$ && exec workload -s 3600'"
versus-perf pmu --rounds 1 --seconds 8 --period 1000000 --load "$load" --out versus >out 2>said ||
    fail "perf and scxprof differ: $(cat out said)"
grep "^- holds" out
grep -q "^- holds: ops: perf c2c record and scxprof run give the same groups of threads" out ||
    fail "c2c was not compared: $(cat out)"
