#!/usr/bin/env bash
# Builds packages for Debian and Fedora, and what comes from them, of the static binary that `make dist` makes.
# Usage: scripts/packages.sh deb|rpm...     They go to target/dist. They have what `make install` installs, with PREFIX=/usr.
#
# Exit codes: 1 if a tool is missing or a package cannot be made.
#
# For tests, BINARY=FILE packs that program, whatever it is linked with.
set -euo pipefail
cd "$(dirname "$0")/.."
target_dir=${CARGO_TARGET_DIR:-target}

need() {
    command -v "$1" >/dev/null && return
    echo "packages: $1 is missing: cargo install --locked $1" >&2
    exit 1
}

for kind in "$@"; do
    case "$kind" in
        deb) need cargo-deb ;;
        rpm) need cargo-generate-rpm ;;
        *)
            echo "packages: $kind is no kind of package: deb or rpm" >&2
            exit 1
            ;;
    esac
done

archive=$(scripts/dist.sh | tail -n 1)
tree=${archive%%.tar.gz:*}
# Cargo.toml names the files by this directory.
stage=$target_dir/release/package
rm -rf "$stage"
make --silent install DESTDIR="$stage" PREFIX=/usr BINARY="$tree/scxprof"
install -d "$stage/usr/share/doc/scxprof"
cp -r "$tree"/{README.md,CHANGELOG.md,LICENSE-APACHE,LICENSE-MIT,licences} "$stage/usr/share/doc/scxprof/"

for kind in "$@"; do
    case "$kind" in
        deb) "${CARGO:-cargo}" deb --no-build --no-strip --quiet --output "$target_dir/dist/" >&2 ;;
        rpm) "${CARGO:-cargo}" generate-rpm --target-dir "$target_dir" --output "$target_dir/dist/" ;;
    esac
    find "$target_dir/dist" -maxdepth 1 -name "*.$kind" -newer "$stage/usr/bin/scxprof"
done
