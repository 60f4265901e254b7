# Task hints, by each way in which their writes can be seen: the tests of tests/hints on this kernel.
# cpu: intel
# test: live
# needs: target/debug/scxprof
# cc: tests/hints/writer.c
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
export SCXPROF_HINT_WRITER=/bin/writer
for probe in local_storage_update pid_task_storage_update_elem syscall; do
    echo "probe $probe"
    # Recordings are tested on the host, where there is the time for them.
    SCXPROF_HINT_PROBE=$probe live hints:: --nocapture --test-threads=1 --skip a_recording || fail "$probe"
done
