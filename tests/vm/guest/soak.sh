# Tables stay flat and every loss is counted while CPUs go offline and come back, too: tests/soak for 40 seconds.
# cpu: amd
# needs: target/debug/scxprof
# test: alone
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh

SOAK_SECONDS=40 SOAK_CPUS=1 /bin/alone tables_stay_flat --nocapture >said 2>&1
status=$?
grep -E " events, | of the load|CPU 1 was" said
[ "$status" -eq 0 ] || fail "$(tail -n 30 said)"
