#!/usr/bin/env bash
# Runs tests of rooms that do no I/O in Miri, with few cases for each property: it takes some thousand times as long as the
# processor. By itself it takes those that are through in some minutes; iced-x86 (recover), regular expressions (config) and the
# larger streams of cluster take hours.
# Usage: [PACKAGE=scxprof-recover] scripts/miri.sh [FILTER...]     such as `cluster::linkage` or a test's name
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${HOME:-/root}/.cargo/bin"
if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "make miri needs a nightly toolchain with Miri: rustup toolchain install nightly --component miri,rust-src" >&2
    exit 1
fi
filters=("$@")
# The clock and the files of the golden tests are the host's. The seeds of failures are not looked for. For recover it takes
# MIRIFLAGS with -Zmiri-tree-borrows, which is slower: iced-x86 walks its input in a way that the older model of aliasing forbids.
export MIRIFLAGS="${MIRIFLAGS:--Zmiri-disable-isolation -Zmiri-permissive-provenance}"
export PROPTEST_CASES="${PROPTEST_CASES:-2}" PROPTEST_FAILURE_PERSISTENCE=off
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri-build"
# libbpf is C, which Miri does not run.
miri() { cargo +nightly miri test --locked --no-default-features --lib "$@"; }
if [ ${#filters[@]} -eq 0 ]; then
    miri -p scxprof-base -p scxprof-elf
    miri -p scxprof-perf -- record
    miri -p scxprof -- cluster::linkage cluster::misses cluster::quality sampler::ring::tests::records_are_whole_beside
else
    miri -p "${PACKAGE:-scxprof}" -- "${filters[@]}"
fi
