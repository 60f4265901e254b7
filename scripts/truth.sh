#!/usr/bin/env bash
# Prints the table of how right the printed configuration is on programs of known sharing (tests/sharing/programs).
# Usage: scripts/truth.sh [OPTIONS] [PROGRAM...]     The options are those of tests/sharing/truth/main.rs: --beside, --live,
# --keep DIR, --recorded DIR, --scxprof BINARY. All programs in all company take an hour: 30 s of sampling each.
#
# Runs as root through sudo where sudo asks no password, unless NO_SUDO is set. redis-server and memcached are started on
# free ports; instances that run already are not touched.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${HOME:-/root}/.cargo/bin"
target=${CARGO_TARGET_DIR:-target}

"${CARGO:-cargo}" build --locked --release --bin scxprof --example truth
as_root=()
if [ "$(id -u)" -ne 0 ] && [ -z "${NO_SUDO:-}" ] && sudo -n true 2>/dev/null; then
    as_root=(sudo -n -E -- env PATH="$PATH")
fi
exec ${as_root[@]+"${as_root[@]}"} "$target/release/examples/truth" "$@"
