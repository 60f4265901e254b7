#!/usr/bin/env bash
# Installs PySpark below the target directory, for the tests of fleet/merge_spark.py.
# Usage: scripts/pyspark.sh     Does nothing, and quickly, where it is there. Without it these tests are skipped, and say so.
set -euo pipefail
cd "$(dirname "$0")/.."
# It runs on Java 17 and 21, and Python 3.9 and later.
version=4.0.5
venv=${CARGO_TARGET_DIR:-target}/pyspark

say() { printf 'pyspark: %s\n' "$*" >&2; }

if [ "$(cat "$venv/version" 2>/dev/null)" = "$version" ]; then
    exit 0
fi
# 400 MB would be of no use without it.
if ! java -version >/dev/null 2>&1; then
    say "there is no Java (Debian: package openjdk-17-jre-headless)"
    exit 1
fi
rm -rf "$venv"
if ! python3 -m venv "$venv" >/dev/null 2>&1; then
    rm -rf "$venv"
    say "python3 -m venv does not work here (Debian: package python3-venv)"
    exit 1
fi
# PyPI has it as source only, which is the program itself: nothing is compiled.
if ! "$venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir "pyspark==$version" >&2; then
    rm -rf "$venv"
    say "PyPI has no pyspark $version, or cannot be reached"
    exit 1
fi
# Only now is it whole.
echo "$version" >"$venv/version"
