# The events that scxprof opens on Intel machines are those of `perf mem record`, apart from differences that have a reason.
# cpu: intel
# needs: target/debug/scxprof
# needs: target/debug/examples/vm-check
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
for name in skylake sapphire-rapids alder-lake; do
    machine "$name" || exit 1
    # perf's own default is 30.
    same_attrs --source pebs --stores --ldlat 30 || fail "$name"
done
