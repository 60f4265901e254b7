#!/usr/bin/env bash
# Checks for what the build needs and installs it through the package manager where it is missing.
# Usage: scripts/deps.sh [test|truth|fuzz|vm]     Does nothing, and quickly, where nothing is missing.
#        scripts/deps.sh --check     Installs nothing; says what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${HOME:-/root}/.cargo/bin"

say() { printf 'deps: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

manager() {
    local name
    for name in apt-get dnf pacman; do
        if has "$name"; then
            echo "$name"
            return
        fi
    done
}

# The name of a tool's package in the distribution of the manager.
package() {
    case "$1:$2" in
        cc:apt-get) echo "gcc libc6-dev" ;;
        cc:*) echo gcc ;;
        c++:dnf) echo gcc-c++ ;;
        c++:apt-get) echo g++ ;;
        c++:*) echo gcc ;;
        shellcheck:dnf) echo ShellCheck ;;
        cargo-fmt:*) echo rustfmt ;;
        cargo-clippy:apt-get) echo rust-clippy ;;
        cargo-clippy:*) echo clippy ;;
        qemu-system-x86_64:*) echo qemu-system-x86 ;;
        busybox:apt-get) echo busybox-static ;;
        pkg-config:dnf) echo pkgconf-pkg-config ;;
        pkg-config:pacman) echo pkgconf ;;
        libelf:apt-get) echo libelf-dev ;;
        libelf:dnf) echo elfutils-libelf-devel ;;
        zlib:apt-get) echo zlib1g-dev ;;
        zlib:dnf) echo zlib-devel ;;
        rust:apt-get) echo "rustc cargo ca-certificates" ;;
        rust:dnf) echo "rust cargo" ;;
        *) echo "$1" ;;
    esac
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif ! has sudo; then
        return 1
    elif [ -t 0 ]; then
        sudo -- "$@"
    else
        sudo -n -- "$@"
    fi
}

# install TOOL: true where its package is installed afterwards.
install() {
    local with packages
    with=$(manager)
    read -ra packages <<<"$(package "$1" "$with")"
    case "$with" in
        apt-get)
            as_root apt-get update -qq >&2 || true
            # RUNLEVEL=1: a server's package starts no server (invoke-rc.d(8)).
            as_root env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >&2
            ;;
        dnf) as_root dnf install -y -q "${packages[@]}" >&2 ;;
        pacman) as_root pacman -Sy --noconfirm --needed "${packages[@]}" >&2 ;;
        *) return 1 ;;
    esac
}

# has_library NAME: true where programs can be linked with it, which takes its -dev package.
has_library() { echo "int main(void) { return 0; }" | cc -x c - -o /dev/null "-l$1" 2>/dev/null; }

# need NAME [LIBRARY]: installs the tool, or what is needed to build with the library, or says in one line what to do.
need() {
    local with here=(has "$1")
    [ $# -eq 1 ] || here=(has_library "$2")
    "${here[@]}" && return
    with=$(manager)
    say "$1 is missing, installing it${with:+ with $with}"
    if ! install "$1" || ! "${here[@]}"; then
        say "please install $1${with:+ (package $(package "$1" "$with"))}, then run the command again"
        exit 1
    fi
}

# at_least HAVE WANTED: compares versions.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# The lower of the versions of rustc and cargo, nothing where one of them does not run.
rust_version() {
    has rustc && has cargo || return 0
    local rustc cargo
    rustc=$(rustc --version 2>/dev/null) && cargo=$(cargo --version 2>/dev/null) || return 0
    printf '%s\n%s\n' "$rustc" "$cargo" | awk '{ print $2 }' | sort -V | head -n 1
}

# The version of Rust that the distribution would install.
packaged_rust() {
    case "$(manager)" in
        apt-get) apt-cache policy rustc 2>/dev/null | awk '$1 == "Candidate:" { print $2 }' ;;
        dnf) dnf -q repoquery --latest-limit=1 --qf '%{version}\n' rust 2>/dev/null | tail -n 1 ;;
        pacman) pacman -Si rust 2>/dev/null | awk '$1 == "Version" { sub(/^[0-9]+:/, "", $3); print $3 }' ;;
    esac | grep -o '^[0-9][0-9.]*' || true
}

# True where Rust is new enough; tells the versions in $have and $wanted.
rust_is_here() {
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    have=$(rust_version)
    [ -n "$have" ] && at_least "$have" "$wanted"
}

need_rust() {
    local wanted have packaged
    rust_is_here && return
    # A distribution's package is no help where another installation, such as rustup's, comes first.
    if [ -z "$have" ]; then
        packaged=$(packaged_rust)
        if [ -n "$packaged" ] && at_least "$packaged" "$wanted" && install rust; then
            have=$(rust_version)
            [ -n "$have" ] && at_least "$have" "$wanted" && return
        fi
    fi
    say "Rust $wanted or newer is needed, here is ${have:-none}: get it from https://rustup.rs" \
        "(with rustup already there: rustup update stable)"
    exit 1
}

# What programs are measured with. Not needed but wanted: without them their checks are skipped, and said to be.
servers() {
    local tool
    if [ "$(manager)" = apt-get ]; then
        for tool in redis-server memcached; do
            has "$tool" || install "$tool" || say "$tool could not be installed"
        done
    fi
}

# check NAME [LIBRARY]: as need, but adds what is missing to the list.
check() {
    local with here=(has "$1")
    # Without a compiler, what can be linked is not known.
    if [ $# -eq 2 ]; then
        has cc || return 0
        here=(has_library "$2")
    fi
    "${here[@]}" && return
    with=$(manager)
    missing+=("$1${with:+ (package $(package "$1" "$with"))}")
}

if [ "${1:-}" = --check ]; then
    missing=()
    need() { check "$@"; }
fi
need make
need cc
# For the BPF programs of task hints; `cargo build --no-default-features --features cli,mcp` does without.
need clang
need pkg-config
need libelf elf
need zlib z
if [ "${1:-}" = --check ]; then
    rust_is_here || missing+=("Rust $wanted or newer (here is ${have:-none}; https://rustup.rs)")
    [ ${#missing[@]} -eq 0 ] && exit
    list=$(printf ', %s' "${missing[@]}")
    say "missing: ${list:2}; \`make deps\` installs what the package manager has"
    exit 1
fi
need_rust
case "${1:-}" in
    test)
        # Not needed but wanted: without them their checks are skipped, and said to be.
        scripts/duckdb.sh || say "the queries of docs/queries.md and fleet/merge.sql are not run"
        scripts/pyspark.sh || say "fleet/merge_spark.py is not run"
        scripts/firefox.sh || say "the files of stacks --firefox are not read by the Firefox Profiler"
        if [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; then
            for tool in shellcheck cargo-fmt cargo-clippy; do
                has "$tool" || install "$tool" || say "$tool could not be installed"
            done
            servers
            # Elsewhere it is another package, or none.
            if grep -qsx ID=debian /etc/os-release; then
                has chromium || install chromium || say "flame graphs are not opened in a browser"
            fi
        fi
        ;;
    truth)
        servers
        ;;
    vm)
        # The guests' kernels, compilers and perf are fetched by tests/vm/kernel.sh, and not installed.
        if [ "$(manager)" = apt-get ]; then
            for tool in qemu-system-x86_64 busybox cpio; do
                has "$tool" || install "$tool" || say "$tool could not be installed"
            done
        fi
        ;;
    fuzz)
        need c++
        if ! has cargo-fuzz; then
            say "cargo-fuzz is missing, building it"
            cargo install --locked cargo-fuzz
        fi
        ;;
esac
