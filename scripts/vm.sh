#!/usr/bin/env bash
# Runs the guest tests of tests/vm in virtual machines with a simulated memory PMU. tests/vm/README.md says how it works.
# Usage: scripts/vm.sh [--schedulers] [--any] [TEST...]     KERNELS="bookworm trixie sid" are the suites whose kernels it
# boots, the newest last; with --any only the newest of them that can be fetched, and without the long tests. TESTs are names of
# tests/vm/guest; all without one. With --schedulers they are those of tests/vm/schedulers (scripts/schedulers.sh).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export PATH="$PATH:${HOME:-/root}/.cargo/bin"
read -ra suites <<<"${KERNELS:-bookworm trixie sid}"
folder=tests/vm/guest
features=()
if [ "${1:-}" = --schedulers ]; then
    folder=tests/vm/schedulers
    # The example workload.
    features=(--features demo)
    shift
fi
any=
if [ "${1:-}" = --any ]; then
    any=yes
    shift
fi
names=("$@")
target=${CARGO_TARGET_DIR:-target}
passed=0
failed=0

skip() { printf 'SKIP: %s: %s\n' "$1" "$2"; }

# What a test says of itself in a line of its head: `# cpu: intel`.
says() { sed -n "s/^# $2: //p" "$1"; }

# What the guest's console says becomes one line a test, after its output.
verdicts() {
    local suite=$1 cpu=$2 counts
    counts=$(mktemp)
    awk -v what="vm $suite $cpu" -v counts="$counts" '
        /^::guest / { print what ": Linux " $2; next }
        /^::begin / { running = $2; skipped = 0; next }
        /^::end / {
            running = ""
            if ($3 != 0) failed++
            else if (!skipped) passed++
            printf "vm test %s (%s) ... %s (%d s)\n", $2, what, $3 != 0 ? "FAILED" : skipped ? "skipped" : "ok", $4
            next
        }
        /^::kernel / { complaints++; print "the guest'"'"'s kernel says: " substr($0, 10); next }
        /^::done/ { done = 1; next }
        /^SKIP: / { skipped = 1; sub(/^SKIP: /, "&" what ": "); print; next }
        { print "    " $0 }
        END {
            if (running != "") { failed++; print "vm test " running " (" what ") ... FAILED: the guest died" }
            else if (!done) { failed++; print what ": FAILED: the guest did not come to its end" }
            if (complaints) { failed++; print what ": FAILED: warnings of the kernel" }
            print passed + 0, failed + 0 > counts
        }'
    read -r counted_passed counted_failed <"$counts"
    rm -f "$counts"
    passed=$((passed + counted_passed))
    failed=$((failed + counted_failed))
}

# guest SUITE CPU MODEL: one guest with the tests that want this CPU; those that do not care run on an AMD one.
guest() {
    local suite=$1 cpu=$2 model=$3 test wants long since chosen=() version begin=$SECONDS
    version=$(basename "tests/vm/cache/$suite/root/usr/src"/linux-headers-*-cloud-amd64 | grep -oE '[0-9]+\.[0-9]+' | head -n 1)
    for test in "$folder"/*.sh; do
        [ ${#names[@]} -eq 0 ] || printf '%s\n' "${names[@]}" | grep -qx "$(basename "$test" .sh)" || continue
        wants=$(says "$test" cpu)
        [ "${wants:-amd}" = "$cpu" ] || continue
        long=$(says "$test" long)
        if [ -n "$any" ] && [ -n "$long" ] && [ ${#names[@]} -eq 0 ]; then
            skip "vm test $(basename "$test" .sh) ($suite)" "only make test-vm runs it: $long"
            continue
        fi
        since=$(says "$test" since)
        if [ -n "$since" ] && [ "$(printf '%s\n%s\n' "$since" "$version" | sort -V | head -n 1)" != "$since" ]; then
            skip "vm test $(basename "$test" .sh) ($suite)" "needs Linux $since, this is $version"
            continue
        fi
        chosen+=("$PWD/$test")
    done
    [ ${#chosen[@]} -gt 0 ] || return 0
    printf '\nvm %s %s: %d tests\n' "$suite" "$cpu" "${#chosen[@]}"
    verdicts "$suite" "$cpu" < <(tests/vm/boot.sh "$suite" "$model" "${chosen[@]}" 2>&1)
    if [ "$counted_failed" -gt 0 ]; then
        # The emulator, too, can be what failed. A second failure is one.
        printf '\nvm %s %s: %d failed; once more\n' "$suite" "$cpu" "$counted_failed"
        passed=$((passed - counted_passed))
        failed=$((failed - counted_failed))
        verdicts "$suite" "$cpu" < <(tests/vm/boot.sh "$suite" "$model" "${chosen[@]}" 2>&1)
    fi
    printf 'vm %s %s: ended after %d s\n' "$suite" "$cpu" "$((SECONDS - begin))"
}

# counted FILE GUEST...: the guest, and in the file what passed and failed.
counted() {
    local file=$1
    shift
    passed=0
    failed=0
    guest "$@"
    echo "$passed $failed" >"$file"
}

# guests SUITE FEATURES: one of each CPU. A guest takes one CPU of the host and 2 GiB, so that two of them run at the same time where
# there is room; the second one's output then follows the first one's.
guests() {
    local suite=$1 less=$2 dir counted_passed counted_failed file
    dir=$(mktemp -d)
    if [ "$(nproc)" -gt 1 ] && [ "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)" -gt 6000000 ]; then
        (counted "$dir/intel" "$suite" intel "Skylake-Client$less") >"$dir/log" 2>&1 &
        (counted "$dir/amd" "$suite" amd "EPYC$less")
        wait $!
        cat "$dir/log"
    else
        (counted "$dir/amd" "$suite" amd "EPYC$less")
        (counted "$dir/intel" "$suite" intel "Skylake-Client$less")
    fi
    for file in "$dir/amd" "$dir/intel"; do
        # One that could not even count has failed.
        read -r counted_passed counted_failed < <(cat "$file" 2>/dev/null || echo 0 1)
        passed=$((passed + counted_passed))
        failed=$((failed + counted_failed))
    done
    rm -rf "$dir"
}

# The programs that guest tests want to take along: those of `cargo build`, and tests of `cargo test` as target/vm/NAME.
build() {
    local test program
    cargo build --locked ${features[@]+"${features[@]}"} --bins --examples || return 1
    mkdir -p "$target/vm"
    sed -n 's/^# test: //p' "$folder"/*.sh | sort -u | while read -r test; do
        program=$(cargo test --locked --no-run --test "$test" --message-format json-render-diagnostics |
            sed -n 's/.*"executable":"\([^"]*\/deps\/[^"]*\)".*/\1/p' | tail -n 1)
        [ -n "$program" ] && ln -sf "$(realpath "$program")" "$target/vm/$test" || return 1
    done
}

# verdict NAME COMMAND...: runs a test of the host, whose output is shown where it fails or is skipped.
verdict() {
    local name=$1 output begin=$SECONDS status=0 verdict=ok
    shift
    output=$("$@" 2>&1) || status=$?
    grep '^SKIP: ' <<<"$output" || true
    if [ "$status" -ne 0 ]; then
        verdict=FAILED
        printf '    %s\n' "${output//$'\n'/$'\n    '}"
        failed=$((failed + 1))
    elif grep -q '^SKIP: ' <<<"$output"; then
        verdict=skipped
    else
        passed=$((passed + 1))
    fi
    printf 'vm test %s ... %s (%d s)\n' "$name" "$verdict" "$((SECONDS - begin))"
}

scripts/deps.sh vm >&2 || true
for tool in qemu-system-x86_64 busybox cpio cc; do
    if ! command -v "$tool" >/dev/null; then
        skip vm "no $tool (as root on Debian: scripts/deps.sh vm)"
        exit 0
    fi
done
if ! build; then
    echo "vm: the build failed"
    exit 1
fi
if [ -n "$any" ]; then
    # The newest first.
    mapfile -t suites < <(printf '%s\n' "${suites[@]}" | tac)
fi
for suite in "${suites[@]}"; do
    status=0
    why=$(tests/vm/kernel.sh "$suite") || status=$?
    if [ "$status" -eq 77 ]; then
        skip "vm $suite" "$why"
        continue
    elif [ "$status" -ne 0 ]; then
        echo "vm $suite: FAILED: the module does not build"
        failed=$((failed + 1))
        continue
    fi
    # Linux 6.12 dies in the emulator of a cmpxchg16b that an interrupt cuts short.
    less=
    [ "$suite" != trixie ] || less=,-cx16
    guests "$suite" "$less"
    [ -z "$any" ] || break
done
# The model of caches, by itself; with `make test-vm` also in a guest, and what `make proof` does in its quick form.
if [ ${#names[@]} -eq 0 ]; then
    verdict "caches" tests/vm/caches/patterns.sh ${any:+--host} sid
    if [ -n "$any" ]; then
        skip "vm test proof" "only make test-vm runs it: it takes two minutes"
    else
        PROOF_PROFILE=dev verdict "proof" scripts/proof.sh --quick
    fi
fi
# As cargo's test harness says it, for scripts/test.sh.
printf '\ntest result: %s. %d passed; %d failed; in virtual machines\n' \
    "$([ "$failed" -eq 0 ] && echo ok || echo FAILED)" "$passed" "$failed"
[ "$failed" -eq 0 ]
