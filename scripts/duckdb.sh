#!/usr/bin/env bash
# Installs DuckDB below the target directory, for the tests of docs/queries.md and fleet/merge.sql.
# Usage: scripts/duckdb.sh     Does nothing, and quickly, where it is there. Without it these tests are skipped, and say so.
set -euo pipefail
cd "$(dirname "$0")/.."
version=2.0.0
venv=${CARGO_TARGET_DIR:-target}/duckdb

say() { printf 'duckdb: %s\n' "$*" >&2; }

if [ "$(cat "$venv/version" 2>/dev/null)" = "$version" ]; then
    exit 0
fi
rm -rf "$venv"
if ! python3 -m venv "$venv" >/dev/null 2>&1; then
    rm -rf "$venv"
    say "python3 -m venv does not work here (Debian: package python3-venv)"
    exit 1
fi
if ! "$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "duckdb==$version" >&2; then
    rm -rf "$venv"
    say "PyPI has no duckdb $version for this machine, or cannot be reached"
    exit 1
fi
# Only now is it whole.
echo "$version" >"$venv/version"
