#!/usr/bin/env bash
# Makes the pictures of the report of the example workload and of top (docs/screenshots) again, with Chromium and tmux.
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
    if ! start_workload "$target/demo/demo-workload" --seconds 600 || [ "$ready" != ready ]; then
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

# A picture of `scxprof top` on a terminal of tmux, whose colours and marks become HTML.
top_picture() {
    local tmux=(tmux -S "$files/tmux" -f /dev/null)
    "${tmux[@]}" new-session -d -x 100 -y 16 "$1 top -p $child --target-cpus 64 --sharing-window 5"
    for _ in $(seq 120); do
        "${tmux[@]}" capture-pane -p | grep -q '^allotment/pool-' && break
        sleep 0.5
    done
    # The next window has more samples than the first one.
    sleep 8
    {
        echo '<meta charset="utf-8"><style>body { margin: 12px; background: #14171a; color: #d6d9dc; font: 15px "DejaVu Sans Mono", monospace }'
        echo 'pre { margin: 0 } .b { font-weight: bold } .u { text-decoration: underline } .r { background: #d6d9dc; color: #14171a }'
        echo '.c33 { color: #e5c07b } .c36 { color: #56b6c2 } .c37 { color: #9aa0a6 }</style><pre><span>'
        "${tmux[@]}" capture-pane -e -p | sed 's/&/\&amp;/g; s/</\&lt;/g' | awk '
            # Each part begins with what changes the colour and the marks, but for the first.
            {
                count = split($0, part, "\033[[]")
                printf "%s", part[1]
                for (at = 2; at <= count; at++) {
                    end = index(part[at], "m")
                    codes = substr(part[at], 1, end - 1)
                    gsub("38;5;", "3", codes)
                    many = split(codes, code, ";")
                    if (many == 0) { bold = under = turned = colour = "" }
                    for (n = 1; n <= many; n++) {
                        if (code[n] == 0) { bold = under = turned = colour = "" }
                        if (code[n] == 1) bold = "b"
                        if (code[n] == 4) under = "u"
                        if (code[n] == 7) turned = "r"
                        if (code[n] >= 30 && code[n] <= 37) colour = "c" code[n]
                        if (code[n] == 39) colour = ""
                    }
                    printf "</span><span class=\"%s %s %s %s\">%s", bold, under, turned, colour, substr(part[at], end + 1)
                }
                print ""
            }'
        echo '</span></pre>'
    } >"$files/top.html"
    "${tmux[@]}" kill-server
    timeout 100 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$files/user" \
        --window-size=940,330 --screenshot="$files/top.png" "file://$files/top.html" >"$files/log" 2>&1
    mv "$files/top.png" docs/screenshots/top.png
    say "docs/screenshots/top.png"
}
if [ -n "$child" ] && command -v tmux >/dev/null; then
    top_picture "$target/demo/scxprof"
else
    say "no picture of top: it takes tmux, and the example workload"
fi
