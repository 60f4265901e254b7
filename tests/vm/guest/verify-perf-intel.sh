# The report of `make verify-hardware` on an Intel machine, with perf.
# cpu: intel
# long: perf starts slowly in the emulator
# since: 6.13
# needs: target/debug/scxprof
# needs: target/debug/demo-compare
# needs: target/debug/demo-verify
# needs: scripts/verify-hardware.sh
# needs: scripts/workload.sh
# needs: /usr/bin/bash
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
# Linux 6.12 stalls in the emulator while perf records there, and in 6.1 time is the host's (boot.sh), so that rates differ.
for name in skylake sapphire-rapids; do
    machine "$name" || exit 1
    verify_hardware 0 TIME=8 PERIOD=1000003 || fail "the report of $name"
    in_report "^| groups in perf's recording | 2 of 2 .* agrees |" "^| scxprof's recording, read by both | .* agrees |" \
        '^| accesses, for each CPU second of the workload | .* agrees |' '^| data from: L3.* hit | .* agrees |' \
        '^Verdict: agrees (.* 0 differ, 1 not compared)'
done
