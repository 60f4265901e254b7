# Accesses of kernel code, at the tick: a test of tests/timer/kernel.rs on this kernel, which tells the registers of interrupts there.
# test: live
# cc: tests/programs/copies.c
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
# The kernel takes its time to print its symbols here, and has none beside what copies all the time.
export COPIES_NICE=19 SCXPROF_COPIES=/bin/copies
live timer::kernel::at_the_tick_too --nocapture --test-threads=1 >said 2>&1 || {
    cat said
    fail "timer::kernel"
}
cat said
grep -q "accesses of the buffers" said || fail "it did not run"
if grep -q "timer samples come from cpu-clock" said; then fail "the tick was not used"; fi
