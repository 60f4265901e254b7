# The events that scxprof opens on AMD machines are those of `perf mem record`, apart from differences that have a reason.
# cpu: amd
# needs: target/debug/scxprof
# needs: target/debug/examples/vm-check
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
for name in zen3 zen5; do
    machine "$name" || exit 1
    same_attrs --source ibs || fail "$name"
done
