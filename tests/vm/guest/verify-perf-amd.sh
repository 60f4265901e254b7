# The report of `make verify-hardware` on an AMD machine, with perf; and that it tells a perf that records something else.
# cpu: amd
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
machine zen4 || exit 1
verify_hardware 0 TIME=8 || fail "the report"
in_report "^| groups in perf's recording | 2 of 2 .* agrees |" "^| scxprof's recording, read by both | .* agrees |" \
    '^| accesses, for each CPU second of the workload | .* agrees |' '^| data from: L3.* hit | .* agrees |' \
    '^Verdict: agrees (.* 0 differ, 1 not compared)'
# Of every two samples one.
cat >half-perf <<'END'
#!/bin/sh
if [ "$1" = record ]; then
    for word; do
        shift
        [ "$word" != 1048576 ] || word=2097152
        set -- "$@" "$word"
    done
fi
exec perf "$@"
END
chmod +x half-perf
verify_hardware 1 TIME=8 PERF=./half-perf || fail "half of the samples"
in_report '^| accesses, for each CPU second of the workload | .* \*\*differs\*\* |' '^Verdict: differs (.* 1 differ, 1 not compared)'
