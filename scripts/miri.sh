#!/usr/bin/env bash
# Runs the tests of the rooms that do no I/O in Miri, with few cases for each property: it takes some thousand times as long.
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
    filters=(sampler::record elf:: recover:: config:: cluster::)
fi
# The clock and the files of the golden tests are the host's. The seeds of failures are not looked for.
export MIRIFLAGS="${MIRIFLAGS:--Zmiri-disable-isolation}" PROPTEST_CASES="${PROPTEST_CASES:-4}" PROPTEST_FAILURE_PERSISTENCE=off
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri-build"
for filter in "${filters[@]}"; do
    printf '==> miri %s\n' "$filter"
    # libbpf is C, which Miri does not run.
    cargo +nightly miri test --locked --no-default-features --lib -- "$filter"
done
