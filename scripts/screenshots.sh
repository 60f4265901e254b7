#!/usr/bin/env bash
# Makes the pictures of the report of the example workload (docs/screenshots) again, with Chromium.
# Usage: scripts/screenshots.sh [REPORT.html]     Without a page it records the example workload for 20 seconds, as root;
#                                                 `make screenshots` builds what that needs.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
say() { printf 'screenshots: %s\n' "$*" >&2; }

browser=
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then
        browser=$name
        break
    fi
done
if [ -z "$browser" ]; then
    say "install Chromium (apt install chromium, dnf install chromium, pacman -S chromium)"
    exit 1
fi

# shellcheck source=scripts/workload.sh
. scripts/workload.sh
page=${1:-}
if [ -z "$page" ]; then
    if ! start_workload "$target/demo/demo-workload" || [ "$ready" != ready ]; then
        say "the example workload does not run here as it does for root"
        exit 1
    fi
    # Some kernels give no sample of scheduling events of idle CPUs: loops of the lowest priority keep them busy.
    for _ in $(seq "$(nproc)"); do
        timeout 25 nice -n 19 sh -c 'while :; do :; done' &
    done
    # Only the workload: what else runs on this host is not of the example. 4: more was lost than one likes; the page tells it.
    "$target/demo/scxprof" record --sched --stacks -t 20 -p "$child" -o "$files/example.tar.gz" || [ $? -eq 4 ]
    # The example host of the documentation has 64 CPUs, so that all subcells are printed.
    page=$files/example.html
    "$target/demo/scxprof" report -f "$files/example.tar.gz" --target-cpus 64 --html "$page" || [ $? -eq 4 ]
fi

# A picture of a section alone: a browser without a screen paints the top of a page only. On a busy host it may leave out text, unless
# told to draw all of it first.
picture() {
    local name=$1 section=$2 height=$3 fragment=
    shift 3
    # Its link opens it.
    [ "$section" != unseen ] || fragment='#unseen'
    sed "s|</head>|<style>section:not(#$section), footer { display: none }</style></head>|" "$page" >"$files/$name.html"
    timeout 100 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$files/user" \
        --run-all-compositor-stages-before-draw --virtual-time-budget=10000 --window-size="1280,$height" --screenshot="$files/$name.png" "$@" \
        "file://$files/$name.html$fragment" >"$files/log" 2>&1
    if [ ! -s "$files/$name.png" ]; then
        cat "$files/log" >&2
        say "$browser made no picture of $section"
        exit 1
    fi
    mkdir -p docs/screenshots
    mv "$files/$name.png" "docs/screenshots/$name.png"
    say "docs/screenshots/$name.png"
}

picture answer answer 900
picture unseen unseen 340
picture matrix matrix 620
picture matrix-dark matrix 620 --blink-settings=preferredColorScheme=0
picture lines lines 560
picture time time 660
picture scheduling scheduling 520
picture stacks stacks 600
