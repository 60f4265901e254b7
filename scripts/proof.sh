#!/usr/bin/env bash
# Counts the cache misses of workloads under the real schedulers, without and with configurations, in an emulated machine with several
# last-level caches, and prints what each configuration saves. tests/vm/caches/README.md says how it works, docs/proof.md what came out.
# Usage: scripts/proof.sh [--quick | GUEST...]     `make proof` calls it; GUESTs are those of `guests` below, all without one.
#
# SCX_MITOSIS=FILE names a scx_mitosis of the branch mitosis-next of sched-ext/scx; scx_layered is SCX_LAYERED=FILE, or what
# `make test-schedulers` has built. What is missing is left out, and said to be. --quick runs one workload with two
# configurations as cpusets, and fails if scxprof's saves less than half of the misses. ROUNDS=5 is how often each configuration
# runs with each workload.
#
# The lines of each guest stay in target/proof (tests/vm/caches/README.md has their format).
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${HOME:-/root}/.cargo/bin"
target=${CARGO_TARGET_DIR:-target}
# What the guest runs and the report are optimized: in the emulator each instruction counts.
profile=${PROOF_PROFILE:-demo}
folder=$target/${profile/#dev/debug}
results=$target/proof
work=$(mktemp -d)
# A guest with its RAM, the model, the filter and the code that QEMU has translated, in KiB.
room=4600000

skip() { printf 'SKIP: %s: %s\n' "$1" "$2"; }

# The guests: name, CPUs as QEMU takes them, last-level caches, schedulers, workloads, and what else the driver takes; `oracle` where the
# plugin is asked for each access that scxprof saw, too. With the scheduler `none` that is all that is done. `only=kernel` is for the plugin:
# no caches, and only accesses of kernel code are kept.
# Programs in one guest are sampled once and then run under each of its schedulers.
guests() {
    cat <<-END
	mitosis-a 8,sockets=2,cores=4 2 mitosis demo,chase,rings,hash oracle
	mitosis-b 8,sockets=2,cores=4 2 mitosis hotfield,three,falseshare oracle
	layered 8,sockets=2,cores=4 2 layered demo,chase,rings,hash,three
	cpusets 8,sockets=2,cores=4 2 cpusets demo,chase,rings,hash,three,falseshare
	four 16,sockets=4,cores=4 4 mitosis demo,three,fleet
	build 8,sockets=2,cores=4 2 mitosis build arms=none,name,scxprof nones=1 window=0.5 sample=3
	kernel 2,sockets=2,cores=1 2 none pipes,unixes,loopback,readers,written,events,futexes oracle only=kernel kernel=yes sample=9 freq=4000
	servers 8,sockets=2,cores=4 2 mitosis servers kernel=yes
	END
}

# Workloads in which threads that share have names that differ: a configuration by name keeps them apart. So it does in falseshare, but a
# cache has CPUs for four of its six threads, and no configuration of scx_mitosis keeps more together than that.
mislead=(demo chase rings hash hotfield three fleet)

# scheduler NAME: where its program is; nothing and false where it is not.
scheduler() {
    case $1 in
        mitosis) [ -n "${SCX_MITOSIS:-}" ] && [ -x "$SCX_MITOSIS" ] && realpath "$SCX_MITOSIS" ;;
        layered)
            local file=${SCX_LAYERED:-$target/schedulers/bin/scx_layered}
            [ -x "$file" ] && realpath "$file"
            ;;
        cpusets | none) ;;
    esac
}

# lacks WORKLOAD: what it needs and this machine does not have; false where there is all.
lacks() {
    local need missing=1
    local -A needs=([servers]="redis-server redis-benchmark memcached" [build]="make as $(cc -print-prog-name=cc1)")
    for need in ${needs[$1]:-}; do
        if ! command -v "$need" >/dev/null; then
            printf '%s ' "$need"
            missing=0
        fi
    done
    return "$missing"
}

# files_of_build: a make, a compiler and what to compile, for the workload `build`, in a cpio archive.
files_of_build() {
    local root=$work/build cc1 at
    cc1=$(cc -print-prog-name=cc1)
    mkdir -p "$root/build"
    # Sources that differ, of some thousand tokens each, already preprocessed: the guest has no headers.
    for at in $(seq 24); do
        sed "s/@N@/$at/g" tests/vm/caches/compiled.c | cc -E -P -x c -o "$root/build/file$at.i" -
    done
    printf 'all: %s\n%%.o: %%.i\n\t@%s -fpreprocessed -quiet -O2 $< -o $*.s && as $*.s -o $@ && echo $@ >>/tmp/built\n' \
        "$(seq -s ' ' -f 'file%g.o' 24)" "$(command -v "$cc1")" >"$root/build/Makefile"
    (cd "$root" && find . | cpio -o -H newc --quiet -R 0:0) >"$work/build.cpio"
    printf '# needs: %s\n' "$(command -v "$cc1")" "$(command -v as)" "$(command -v make)"
}

# needs_of WORKLOADS SCHEDULERS: the lines of a guest test's head that name what these need.
needs_of() {
    local scheduler program
    for scheduler in ${2//,/ }; do
        program=$(scheduler "$scheduler")
        if [ -n "$program" ]; then
            # Under the name that it has on every host.
            ln -sf "$program" "$work/scx_$scheduler"
            printf '# needs: %s\n' "$work/scx_$scheduler"
        fi
    done
    case ,$1, in
        *,servers,*)
            for program in redis-server redis-benchmark memcached; do
                printf '# needs: %s\n' "$(command -v "$program")"
            done
            ;;
        *,build,*) files_of_build ;;
    esac
}

# guest NAME SMP CACHES SCHEDULERS WORKLOADS [oracle] [only=kernel] [KEY=VALUE...]: runs one; its lines go to NAME.out.
guest() {
    local name=$1 smp=$2 caches=$3 cpus=${2%%,*} oracle="" extra="" model missing it begin=$SECONDS status=0 schedulers=() workloads=()
    for it in ${4//,/ }; do
        if scheduler "$it" >/dev/null; then
            schedulers+=("$it")
        else
            skip "proof: $name with scx_$it" "no SCX_${it^^}=FILE that can be run"
        fi
    done
    for it in ${5//,/ }; do
        if missing=$(lacks "$it"); then
            skip "proof: $name with $it" "no ${missing% } (as root on Debian: scripts/deps.sh test)"
        else
            workloads+=("$it")
        fi
    done
    shift 5
    if [ "${1:-}" = oracle ]; then
        oracle=yes
        shift
    fi
    [ ${#schedulers[@]} -gt 0 ] && [ ${#workloads[@]} -gt 0 ] || return 0
    it=$(IFS=, && printf 'workload=%s' "${workloads[*]}")
    model=l1=32:8,l2=512:8,llc=16384:16
    # Turns that are shorter than the time between two samples, and a filter in which few are found by chance.
    if [ "${1:-}" = only=kernel ]; then
        model=only=kernel,bloom_mib=1024,slice=20000
        shift
    fi
    {
        printf '# cpus: %s\n' "$smp"
        printf '# needs: %s\n' "$folder/scxprof" "$folder/demo-workload" "$work/family" "$folder/examples/proof-guest"
        printf '# bpf: tests/vm/caches/who.bpf.c\n'
        needs_of "${it#*=}" "${schedulers[*]}"
        printf '. /lib/vm.sh\nifconfig lo up\nmkdir -p /etc\necho root:x:0:0::/root:/bin/sh >/etc/passwd\n'
        [ "${schedulers[0]}" = none ] ||
            printf 'proof-guest run llcs=%s "machine=%s" rounds=%s %s scheduler=%s %s || fail "proof-guest"\n' \
                "$caches" "$cpus CPUs, $caches caches" "$rounds" "$it" "$(IFS=, && printf '%s' "${schedulers[*]}")" "$*"
        [ -z "$oracle" ] || printf 'proof-guest oracle llcs=%s %s %s || fail "the oracle"\n' "$caches" "$it" "$*"
    } >"$work/$name.sh"
    case ,${it#*=}, in *,build,*) extra=$work/build.cpio ;; esac
    printf 'proof: %s begins (%s CPUs, %s caches; %s; %s)\n' "$name" "$cpus" "$caches" "${schedulers[*]}" "${workloads[*]}"
    # shellcheck disable=SC2097,SC2098 # They are for the command alone.
    VM_SHIFT=1 VM_TIMEOUT=${VM_TIMEOUT:-14400} VM_EXTRA=$extra \
        VM_CACHES="llcs=$caches,$model,out=$results/$name.out,files=$results/$name.files" \
        tests/vm/boot.sh sid max,l3-cache=on "$work/$name.sh" >"$results/$name.log" 2>&1 || status=$?
    if [ "$status" -ne 0 ] || ! grep -q "^::end $name 0 " "$results/$name.log"; then
        printf 'proof: %s FAILED: %s (%s)\n' "$name" "$(grep -v '^::' "$results/$name.log" | tail -n 4 | tr '\n' ' ')" "$results/$name.log"
        return 1
    fi
    printf 'proof: %s ended after %d s\n' "$name" "$((SECONDS - begin))"
}

# stop: ends all guests, each a process group of its own, and removes what is temporary.
# shellcheck disable=SC2317 # The trap calls it.
stop() {
    local child
    for child in $(jobs -p); do
        kill -TERM -- "-$child" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

quick=
if [ "${1:-}" = --quick ]; then
    quick=yes
    shift
fi
rounds=${ROUNDS:-5}
[ -z "$quick" ] || rounds=${ROUNDS:-3}
known=$(guests | awk '{ print $1 }')
for name; do
    if [ -n "$quick" ] || ! grep -qxF -- "$name" <<<"$known"; then
        printf 'scripts/proof.sh: no guest "%s": want --quick, or some of %s\n' "$name" "$(tr '\n' ' ' <<<"$known")" >&2
        exit 2
    fi
done
for tool in qemu-system-x86_64 busybox cpio cc clang; do
    command -v "$tool" >/dev/null || {
        skip proof "no $tool (as root on Debian: scripts/deps.sh vm)"
        exit 0
    }
done
status=0
why=$(tests/vm/caches/probe.sh) || status=$?
[ "$status" -ne 77 ] || {
    skip proof "$why"
    exit 0
}
status=0
why=$(tests/vm/kernel.sh sid) || status=$?
case $status in
    0) ;;
    77)
        skip proof "$why"
        exit 0
        ;;
    *)
        echo "proof: FAILED: the module of the guest's kernel does not build"
        exit 1
        ;;
esac
mkdir -p "$results"
rm -f "$results"/*.out "$results"/*.files "$results"/*.log "$results/table.md" "$results"/*.svg
cargo build --locked --profile "$profile" --features demo --bins --example proof-guest --example proof-report
cc -O2 -Wall -static -pthread -o "$work/family" tests/sharing/programs/*.c
outs=()
checks=()
failed=0
# Each guest is a process group, so that it can be ended with all that it started.
set -m
if [ -n "$quick" ]; then
    # Cpusets need nothing else, and lend no CPU.
    guest quick 8,sockets=2,cores=4 2 cpusets rings arms=none,scxprof nones=1 sample=2 </dev/null &
    wait $! || failed=1
    outs+=("$results/quick.out")
    checks=(--at-least 0.5)
else
    at_once=$(awk -v room="$room" '/^MemAvailable:/ { print int($2 / room) }' /proc/meminfo)
    at_once=$((at_once < $(nproc) ? at_once : $(nproc)))
    running=0
    while read -r name rest; do
        [ $# -eq 0 ] || printf '%s\n' "$@" | grep -qxF -- "$name" || continue
        outs+=("$results/$name.out")
        if [ "$running" -ge "$((at_once > 0 ? at_once : 1))" ]; then
            wait -n || failed=1
            running=$((running - 1))
        fi
        # shellcheck disable=SC2086 # Words.
        guest "$name" $rest </dev/null &
        running=$((running + 1))
    done < <(guests)
    while [ "$running" -gt 0 ]; do
        wait -n || failed=1
        running=$((running - 1))
    done
fi
there=()
for out in "${outs[@]}"; do
    [ ! -s "$out" ] || there+=("$out")
done
[ ${#there[@]} -gt 0 ] || exit "$failed"
for name in "${mislead[@]}"; do
    ! grep -qF "\"workload\":\"$name\"" "${there[@]}" || checks+=(--mislead "$name")
done
"$folder/examples/proof-report" --markdown "$results/table.md" --plots "$results" ${checks[@]+"${checks[@]}"} "${there[@]}" || failed=1
exit "$failed"
