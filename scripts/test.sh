#!/usr/bin/env bash
# Runs every test and check that this machine allows, and says what it skipped and why.
# Usage: scripts/test.sh     The whole output is kept in target/test.log.
#
# Where sudo asks no password the tests run as root through it, unless NO_SUDO is set. With NO_VM no guest of tests/vm is booted.
# SCXPROF_FIXTURES is a directory with recordings of real machines in its perf-data/; without it the tests of these are skipped.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
target=${CARGO_TARGET_DIR:-target}
log=$target/test.log
mkdir -p "$target"
: >"$log"
failed_steps=()

# step NAME COMMAND...: runs it, output to the terminal and the log; false if it fails.
step() {
    local name=$1 begin=$SECONDS status
    shift
    printf '\n==> %s\n' "$name" | tee -a "$log"
    "$@" 2>&1 | tee -a "$log"
    status=${PIPESTATUS[0]}
    printf '<== %s: %d s\n' "$name" "$((SECONDS - begin))" >>"$log"
    [ "$status" -eq 0 ] || failed_steps+=("$name")
    return "$status"
}

skip() { printf 'SKIP: %s: %s\n' "$1" "$2" | tee -a "$log"; }

# Steps that compute, for the time in which tests wait: one after the other, as cargo would have them wait for each other anyway.
queue=()
jobs=()
work=$(mktemp -d)

# They are in process groups of their own, which Ctrl-C does not reach.
stop() {
    local job
    for job in ${jobs[@]+"${jobs[@]}"}; do
        kill -- "-$job" 2>/dev/null
    done
    rm -rf "$work"
}
trap stop EXIT

# True once something may run beside the tests: cargo has built them, and those of tests/alone.rs, which are before live.rs, are done.
may_begin() { [ -e "$work/tested" ] || grep -q '^ *Running tests/live\.rs' "$log"; }

# beside NAME COMMAND...: runs it beside the tests, to which it gives way, after those before it. What it says is kept in a file.
beside() {
    local name=$1 before=
    shift
    [ ${#queue[@]} -eq 0 ] || before=${queue[-1]}
    queue+=("$name")
    : >"$work/$name"
    set -m
    {
        until if [ -n "$before" ]; then [ -e "$work/$before.status" ]; else may_begin; fi; do sleep 1; done
        begin=$SECONDS
        nice -n 19 "$@" >"$work/$name" 2>&1
        echo "$? $((SECONDS - begin))" >"$work/$name.ended"
        mv "$work/$name.ended" "$work/$name.status"
    } </dev/null &
    set +m
    jobs+=($!)
}

# The steps of the queue, each whole.
results() {
    local at name status seconds
    for at in ${queue[@]+"${!queue[@]}"}; do
        name=${queue[at]}
        printf '\n==> %s\n' "$name" | tee -a "$log"
        tail -n +1 -f -s 1 --pid="${jobs[at]}" "$work/$name" | tee -a "$log"
        # Without a status it was killed.
        status=1 seconds=0
        [ ! -e "$work/$name.status" ] || read -r status seconds <"$work/$name.status"
        printf '<== %s: %d s\n' "$name" "$seconds" >>"$log"
        [ "$status" -eq 0 ] || failed_steps+=("$name")
    done
}

if [ "$(id -u)" -ne 0 ] && [ -z "${NO_SUDO:-}" ] && sudo -n -E true 2>/dev/null; then
    echo "sudo asks no password: the tests run as root (NO_SUDO=1 to prevent that)" | tee -a "$log"
    host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
    export "CARGO_TARGET_${host}_RUNNER=sudo -n -E"
fi

if cargo fmt --version >/dev/null 2>&1; then
    step "cargo fmt" cargo fmt --all --check
else
    skip "cargo fmt" "not installed (rustup component add rustfmt)"
fi
if command -v shellcheck >/dev/null; then
    step shellcheck shellcheck -x scripts/*.sh tests/vm/*.sh tests/vm/guest/*.sh tests/vm/schedulers/*.sh tests/vm/caches/*.sh tests/vm/arm64/*.sh .ci/run
else
    skip shellcheck "not installed"
fi
if compgen -G 'benches/*.rs' >/dev/null; then
    # Each once, to see that it runs.
    beside "benchmarks" cargo test --locked --bench '*'
fi
if cargo clippy --version >/dev/null 2>&1; then
    beside "cargo clippy" cargo clippy --locked --all-targets -- -D warnings
    # What README.md offers where there is no clang; tests would bring the features back.
    beside "cargo clippy without BPF" cargo clippy --locked --no-default-features --features cli,mcp -- -D warnings
else
    skip "cargo clippy" "not installed (rustup component add clippy)"
fi
beside "cargo doc" env RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps
# The examples too. What does not build is not tested.
if step "build" cargo test --locked --no-run; then
    # The documentation's examples too.
    step "cargo test" cargo test --locked --no-fail-fast -- --show-output
fi
touch "$work/tested"
results
# The guests simulate PMUs, whose samples they check one by one: they get both CPUs.
if [ -z "${NO_VM:-}" ]; then
    step "virtual machine" scripts/vm.sh --any
else
    skip "virtual machine" "NO_VM is set"
fi

# A test that skips prints so and returns, which its harness counts as passed. An ignored test is counted apart.
read -r passed failed <<<"$(awk '
    /^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) passed += $(i - 1)
            if ($i ~ /^failed/) failed += $(i - 1)
        }
    }
    END { print passed + 0, failed + 0 }' "$log")"
returned=$(awk '/^==> / { tests = $0 == "==> cargo test" } tests && /^SKIP: /' "$log" | wc -l)
skipped=$(sed -n -e '/^SKIP: /p' -e 's/^test \(.*\) \.\.\. ignored,* *\(.*\)$/SKIP: \1: ignored \2/p' "$log")
count=$(printf '%s' "$skipped" | grep -c '' || true)
# Test binaries that ended without a result: they crashed.
mapfile -t crashed < <(awk '
    function crash() { if (running != "") print running; running = "" }
    /^==> / { crash(); tests = $0 == "==> cargo test" }
    tests && /^ +(Running|Doc-tests) / { crash(); running = $0; sub(/^ +/, "", running) }
    /^test result: / { running = "" }
    END { crash() }' "$log")
# The seconds of each step, of each test binary and of each guest.
times=$(awk '
    function line(indent, seconds, name) { text = text sprintf("%6.0f  %s%s\n", seconds, indent, name) }
    /^==> / { text = "" }
    # "Running unittests src/lib.rs (target/debug/deps/scxprof_base-0123)": each crate has a src/lib.rs.
    /^ +Running / { binary = $NF; gsub(/.*\/|-[0-9a-f]+\)$/, "", binary) }
    /^ +Doc-tests / { binary = "documentation of " $2 }
    /^test result: .* finished in / { seconds = $NF; sub(/s$/, "", seconds); line("  ", seconds, binary) }
    /^vm .*: ended after / { seconds = $(NF - 1); sub(/^vm /, ""); sub(/:.*/, ""); line("  ", seconds, $0) }
    /^<== / {
        parts = text; text = ""; seconds = $(NF - 1)
        sub(/^<== /, ""); sub(/: [0-9]+ s$/, "")
        line("", seconds, $0); printf "%s%s", text, parts; text = ""
    }' "$log")
failed=$((failed + ${#crashed[@]}))
tests_failed=$failed
# Any other step that failed without a failed test (a lint, a build error) counts as one.
for name in ${failed_steps[@]+"${failed_steps[@]}"}; do
    if [ "$name" != "cargo test" ] || [ "$tests_failed" -eq 0 ]; then
        failed=$((failed + 1))
    fi
done

{
    printf '\nSeconds (benchmarks, clippy and the documentation ran beside the tests of live and suite):\n%s\n%6d  in all\n\n' "$times" "$SECONDS"
    if [ "$count" -gt 0 ]; then
        printf 'Skipped:\n%s\n' "$skipped"
    fi
    for name in ${failed_steps[@]+"${failed_steps[@]}"}; do
        printf 'FAILED: %s\n' "$name"
    done
    if [ ${#failed_steps[@]} -gt 0 ]; then
        sed -n 's/^test \(.*\) \.\.\. FAILED$/FAILED: \1/p' "$log"
        # What they said, which is far above by now.
        sed -n "/^failures:\$/,/^test result/{/^thread .* panicked at /,+4p}" "$log" | grep -v '^$' | cut -c1-400
        [ ${#crashed[@]} -eq 0 ] || printf 'FAILED: no result from: %s\n' "${crashed[@]}"
        printf 'The whole output is in %s\n' "$log"
    fi
    printf '%d passed, %d failed, %d skipped\n' "$((passed - returned))" "$failed" "$count"
} > >(tee "$target/test.summary") 2>&1
wait $!
cat "$target/test.summary" >>"$log"
[ ${#failed_steps[@]} -eq 0 ] && [ "$failed" -eq 0 ]
