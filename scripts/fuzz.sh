#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS (30) each, and as long the recovery of addresses on programs made from new seeds.
# Usage: scripts/fuzz.sh [TARGET...]     `made` is those programs.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${HOME:-/root}/.cargo/bin"
# cargo-fuzz asks for the nightly compiler because of its -Z options; the stable one knows them too.
export RUSTC_BOOTSTRAP=1
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    mapfile -t targets < <(cargo fuzz list)
    targets+=(made)
fi
for target in "${targets[@]}"; do
    printf '==> fuzz %s\n' "$target"
    if [ "$target" = made ]; then
        SCXPROF_MADE_SECONDS="${FUZZ_SECONDS:-30}" cargo test --locked --test suite made_programs -- --nocapture
        continue
    fi
    # What is found goes into the first directory.
    dirs=("fuzz/corpus/$target")
    mkdir -p "${dirs[0]}"
    [ -d "fuzz/seeds/$target" ] && dirs+=("fuzz/seeds/$target")
    cargo fuzz run "$target" "${dirs[@]}" -- -max_total_time="${FUZZ_SECONDS:-30}" -rss_limit_mb=1024
done
