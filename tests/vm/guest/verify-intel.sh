# The report of `make verify-hardware` on an Intel machine, without perf.
# cpu: intel
# long: verify-amd runs the same script
# needs: target/debug/scxprof
# needs: target/debug/demo-compare
# needs: target/debug/demo-verify
# needs: scripts/verify-hardware.sh
# needs: scripts/workload.sh
# needs: /usr/bin/bash
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
machine sapphire-rapids || exit 1
verify_hardware 0 TIME=4 PERF=none PERIOD=1000003 || fail "the report"
in_report '^# scxprof verify-hardware: pebs' '^| groups that .run. finds | 2 of 2 .* agrees |' \
    "^| groups in scxprof's recording | 2 of 2 .* agrees |" '^Verdict: agrees (3 agree, 0 differ, 5 not compared)'
