#!/usr/bin/env bash
# Compares what scxprof knows of scx_layered (conditions, kinds of layers, options, limits) with its newest release, and says which
# releases of scx_characterize and scx_mitosis there are.
# Usage: scripts/upstream.sh     `make check-upstream` calls it. Run it weekly: it fails where something is new.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${HOME:-/root}/.cargo/bin"
# What scxprof was compared with last.
characterize=1.1.4

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/src"
: >"$work/src/lib.rs"
cat >"$work/Cargo.toml" <<'END'
[package]
name = "upstream"
version = "0.0.0"
edition = "2021"
[dependencies]
scx_layered = "*"
[workspace]
END
# cargo fetches what it needs to know, the source among it.
metadata=$(cargo metadata --format-version 1 --manifest-path "$work/Cargo.toml")
manifest=$(grep -o '"manifest_path":"[^"]*/scx_layered-[^"/]*/Cargo.toml"' <<<"$metadata" | head -n 1 | cut -d '"' -f 4)
[ -n "$manifest" ] || { echo "upstream: cargo has no source of scx_layered" >&2; exit 1; }
source=$(dirname "$manifest")
echo "scx_layered ${source##*-}:"
status=0
SCX_LAYERED_SOURCE=$source cargo test --locked --quiet --test suite a_release_has_nothing_that_is_not_known -- --include-ignored \
    --nocapture >"$work/log" 2>&1 || status=1
grep -E ' is (new|gone|refused)|nothing new| is [0-9]+, not ' "$work/log" || cat "$work/log"
version() { { cargo info "$1" 2>/dev/null || true; } | sed -n 's/^version: \([^ ]*\).*/\1/p'; }
now=$(version scx_characterize)
if [ "$now" = "$characterize" ]; then
    echo "scx_characterize $now: known"
else
    echo "scx_characterize ${now:-?}: compared with $characterize last"
    status=1
fi
now=$(version scx_mitosis)
echo "scx_mitosis ${now:-has no release}"
exit "$status"
