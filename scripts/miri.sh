#!/usr/bin/env bash
# Runs the tests of the rooms that do no I/O in Miri, each by itself: it takes some thousand times as long as the processor.
# A test that is not through after MIRI_SECONDS (60) is ended and counted as such, without a complaint until then.
# By itself it leaves recover and config out: the tables of iced-x86 and the regular expressions take minutes in each test.
# Usage: scripts/miri.sh [FILTER...]     such as `recover::` or a test's name
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${HOME:-/root}/.cargo/bin"
if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "make miri needs a nightly toolchain with Miri: rustup toolchain install nightly --component miri,rust-src" >&2
    exit 1
fi
filters=("$@")
if [ ${#filters[@]} -eq 0 ]; then
    filters=(sampler::record elf:: cluster::)
fi
# The clock and the files of the golden tests are the host's. The seeds of failures are not looked for. For recover it takes
# MIRIFLAGS with -Zmiri-tree-borrows, which is slower: iced-x86 walks its input in a way that the older model of aliasing forbids.
export MIRIFLAGS="${MIRIFLAGS:--Zmiri-disable-isolation -Zmiri-permissive-provenance}"
export PROPTEST_CASES="${PROPTEST_CASES:-2}" PROPTEST_FAILURE_PERSISTENCE=off
export MIRI_SECONDS="${MIRI_SECONDS:-60}" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri-build"

# libbpf is C, which Miri does not run.
export MIRI_TEST="cargo +nightly miri test --quiet --locked --no-default-features --lib --"

# one NAME: its line, and what Miri said where it failed.
one() {
    local said status=0
    # shellcheck disable=SC2086 # MIRI_TEST is words.
    said=$(timeout "$MIRI_SECONDS" $MIRI_TEST --exact "$1" 2>&1) || status=$?
    case $status in
    0) echo "ok: $1" ;;
    124) echo "not through in $MIRI_SECONDS s: $1" ;;
    *) printf '%s\nFAILED: %s\n' "$said" "$1" ;;
    esac
}
export -f one

log=$(mktemp)
trap 'rm -f "$log"' EXIT
for filter in "${filters[@]}"; do
    # Builds it, too.
    # shellcheck disable=SC2086 # MIRI_TEST is words.
    $MIRI_TEST --list "$filter" | sed -n 's/: test$//p'
done | xargs -P "$(nproc)" -I{} bash -c "one {}" | tee "$log"
count() { grep -c "^$1" "$log" || true; }
echo "$(count 'ok: ') passed, $(count 'FAILED: ') failed, $(count 'not through ') not through"
[ "$(count 'FAILED: ')" -eq 0 ] && [ "$(count 'ok: ')" -gt 0 ]
