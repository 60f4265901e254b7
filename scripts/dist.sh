#!/usr/bin/env bash
# Builds the archive for hosts that have nothing: a static binary, manual pages, completions, systemd units and licences.
# Usage: scripts/dist.sh     It goes to target/dist.
#        MACHINE=aarch64 scripts/dist.sh     builds it for arm64 on another machine; SKIP and why if that cannot be done here.
#
# The C library is glibc's static one, as libelf and zlib are there for it only. For tests, QUICK=1 builds without optimisation, and
# BINARY=FILE packs that program, whatever it is linked with.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target_dir=${CARGO_TARGET_DIR:-target}
# MiB; more means that something has crept in.
max_size=${MAX_SIZE:-16}

native=$(uname -m)
machine=${MACHINE:-$native}
triple=$machine-unknown-linux-gnu
if [ "$machine" != "$native" ]; then
    cannot() {
        echo "SKIP: archive for $machine: $1"
        exit 0
    }
    [ "$machine" = aarch64 ] || cannot "only aarch64 is built on other machines"
    # shellcheck source=scripts/arm64-env.sh
    . scripts/arm64-env.sh
fi

# Builds the static binary and prints where it is.
build() {
    local libelf binary=$target_dir/$triple/release/scxprof
    if [ -n "${QUICK:-}" ]; then
        export CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
    fi
    if [ "$machine" = "$native" ]; then
        # Where the system has libelf and zlib to link in, which rustc does not look for by itself.
        libelf=$(cc -print-file-name=libelf.a)
        if [ ! -f "$libelf" ] || [ ! -f "$(cc -print-file-name=libz.a)" ]; then
            echo "dist: no libelf.a and libz.a to link in (packages libelf-dev and zlib1g-dev)" >&2
            return 1
        fi
        LIBBPF_SYS_LIBRARY_PATH=$(dirname "$(realpath "$libelf")")
        export LIBBPF_SYS_LIBRARY_PATH
        export RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static -C strip=symbols"
    fi
    "$cargo" build --locked --bin scxprof --release --target "$triple" --features bpf-static || return
    if readelf -d "$binary" | grep -q NEEDED; then
        echo "dist: $binary needs shared libraries:" >&2
        readelf -d "$binary" | grep NEEDED >&2
        return 1
    fi
    printf '%s\n' "$binary"
}

binary=${BINARY:-$(build)}
size=$(stat -c %s "$binary")
if [ "$size" -gt $((max_size * 1024 * 1024)) ]; then
    echo "dist: $binary has $size bytes, more than $max_size MiB" >&2
    exit 1
fi

# It is asked for its manual pages, or the one of this machine, which says the same.
runs=$binary
if [ "$machine" != "$native" ]; then
    runs=$target_dir/$native-unknown-linux-gnu/release/scxprof
    [ -x "$runs" ] || cannot "no archive for $native was made before"
fi
version=$("$runs" --version | cut -d' ' -f2)
name=scxprof-$version-$machine-linux
dist=$target_dir/dist
tree=$dist/$name
rm -rf "$tree"
mkdir -p "$tree/man/man1" "$tree/completions" "$tree/licences" "$tree/systemd"
cp "$binary" README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$tree/"
cp contrib/*.service "$tree/systemd/"
# They bear the date of the last commit, where this is a checkout, and never that of the build.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || true)} "$runs" man "$tree/man/man1"
"$runs" completions bash >"$tree/completions/scxprof"
"$runs" completions zsh >"$tree/completions/_scxprof"
"$runs" completions fish >"$tree/completions/scxprof.fish"
# What is linked in has licences of its own, which go with it.
"$cargo" tree --locked --edges normal --features bpf-static --target "$triple" --prefix none --format '{p} ({l})' |
    grep -v '^scxprof' | sed 's/ (proc-macro)//; s/ (\*)$//' | sort -u >"$tree/licences/LIST"
while read -r crate number _; do
    for directory in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$crate-${number#v}"; do
        [ -d "$directory" ] || continue
        mkdir -p "$tree/licences/$crate"
        find "$directory" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) \
            -exec cp {} "$tree/licences/$crate/" \;
    done
done <"$tree/licences/LIST"
# And the C libraries, whose packages have them on Debian and what comes from it.
for package in libc6-dev libelf-dev zlib1g-dev; do
    if [ -f "/usr/share/doc/$package/copyright" ]; then
        cp "/usr/share/doc/$package/copyright" "$tree/licences/$package"
    else
        echo "dist: the licence of $package is not in /usr/share/doc: add it before you give the archive away" >&2
    fi
done
tar -C "$dist" --owner=0 --group=0 --sort=name -czf "$dist/$name.tar.gz" "$name"
echo "$dist/$name.tar.gz: $triple, binary of $size bytes"
