# Accesses of kernel code: the tests of tests/timer/kernel.rs on this kernel, which tells the registers of interrupts at the tick too.
# test: live
# cc: tests/programs/copies.c
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
export SCXPROF_COPIES=/bin/copies
live timer::kernel:: --nocapture --test-threads=1 >said 2>&1 || {
    cat said
    fail "timer::kernel"
}
cat said
[ "$(grep -c "accesses of the buffers" said)" = 2 ] || fail "not all of it ran"
# By cpu-clock once, by the tick once.
[ "$(grep -c "timer samples come from cpu-clock" said)" = 0 ] || fail "the tick was not used"
