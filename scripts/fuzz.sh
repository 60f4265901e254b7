#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS (30) each.
# Usage: scripts/fuzz.sh [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${HOME:-/root}/.cargo/bin"
# cargo-fuzz asks for the nightly compiler because of its -Z options; the stable one knows them too.
export RUSTC_BOOTSTRAP=1
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    mapfile -t targets < <(cargo fuzz list)
fi
for target in "${targets[@]}"; do
    printf '==> fuzz %s\n' "$target"
    # What is found goes into the first directory.
    dirs=("fuzz/corpus/$target")
    mkdir -p "${dirs[0]}"
    [ -d "fuzz/seeds/$target" ] && dirs+=("fuzz/seeds/$target")
    cargo fuzz run "$target" "${dirs[@]}" -- -max_total_time="${FUZZ_SECONDS:-30}" -rss_limit_mb=1024
done
