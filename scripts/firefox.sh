#!/usr/bin/env bash
# Installs the command line of the Firefox Profiler below the target directory, for the tests of `stacks --firefox`.
# Usage: scripts/firefox.sh     Does nothing, and quickly, where it is there. Without it this test is skipped, and says so.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.10.0
dir=${CARGO_TARGET_DIR:-target}/firefox

say() { printf 'firefox: %s\n' "$*" >&2; }

if [ "$(cat "$dir/version" 2>/dev/null)" = "$version" ]; then
    exit 0
fi
rm -rf "$dir"
if ! command -v npm >/dev/null; then
    say "npm is not there"
    exit 1
fi
mkdir -p "$dir"
# One package of 1.4 MB without dependencies.
if ! npm install --prefix "$dir" --silent --no-audit --no-fund --ignore-scripts \
    "@firefox-devtools/profiler-cli@$version" >&2; then
    rm -rf "$dir"
    say "the npm registry has no profiler-cli $version, or cannot be reached"
    exit 1
fi
# Only now is it whole.
echo "$version" >"$dir/version"
