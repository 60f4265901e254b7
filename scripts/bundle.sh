#!/usr/bin/env bash
# Makes the libraries in the HTML page (src/report/html/vendor) again from package-lock.json there, which has their versions and checksums.
# Usage: scripts/bundle.sh [--check]     With --check it changes nothing and fails if a file differs.
#
# Exit codes: 1 if a file differs, 2 if npm is not there or cannot fetch.
#
# Only who renews a library needs this, and npm: the files are in the repository.
set -euo pipefail
cd "$(dirname "$0")/../src/report/html/vendor"

if ! command -v npm >/dev/null; then
    printf 'bundle: npm is not there\n' >&2
    exit 2
fi
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
cp package.json package-lock.json "$files"
npm ci --prefix "$files" --silent --no-audit --no-fund --ignore-scripts >&2 || exit 2
uplot=$files/node_modules/uplot
status=0
for pair in dist/uPlot.iife.min.js:uPlot.iife.min.js dist/uPlot.min.css:uPlot.min.css LICENSE:LICENSE-uPlot; do
    from=$uplot/${pair%%:*}
    to=${pair##*:}
    if [ "${1:-}" != --check ]; then
        cp "$from" "$to"
        chmod 644 "$to"
    elif ! cmp "$from" "$to" >&2; then
        status=1
    fi
done
exit "$status"
