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
    cargo fuzz run "$target" -- -max_total_time="${FUZZ_SECONDS:-30}" -rss_limit_mb=1024
done
