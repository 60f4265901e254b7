#!/usr/bin/env bash
# Fetches the kernel of a Debian suite, with its headers, compiler and perf, and builds the module for it. Nothing is installed.
# Usage: tests/vm/kernel.sh SUITE     leaves vmlinuz, simpmu.ko and the unpacked suite (root/) in tests/vm/cache/SUITE.
#
# Exits with 77 and one line why on stdout where this machine cannot do it; packages are fetched once and kept.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
suite=$1
cache=$here/cache/$suite

cannot() {
    printf '%s\n' "$1"
    exit 77
}

# shellcheck source=tests/vm/apt.sh
. ./apt.sh

# What the kernel, its perf and the build of a module take, with all that they depend on; but nothing that only an
# installed system needs.
packages() {
    apt-get "${options[@]}" -s --no-install-recommends install linux-image-cloud-amd64 linux-headers-cloud-amd64 linux-perf \
        make libc6-dev dash bash sed grep mawk coreutils findutils diffutils perl-base gzip 2>/dev/null |
        awk '/^Inst/ { print $2 }' |
        grep -vE '^(initramfs.*|klibc.*|libklibc|dracut.*|linux-base|dpkg|debconf|systemd.*|udev)$'
}

fetch() {
    local list
    apt_options -o APT::Architecture=amd64
    timeout 120 apt-get "${options[@]}" update -qq >"$cache/apt/log" 2>&1 || cannot "apt cannot read $suite: $(tail -n 1 "$cache/apt/log")"
    list=$(packages) || true
    [ -n "$list" ] || cannot "apt finds no kernel in $suite"
    # shellcheck disable=SC2086 # One word a package.
    (cd "$cache/debs" && timeout 300 apt-get "${options[@]}" download -qq $list) >"$cache/apt/log" 2>&1 ||
        cannot "apt cannot fetch the kernel of $suite: $(tail -n 1 "$cache/apt/log")"
    # Suites differ in whether packages hold /bin or /usr/bin: here both are one, as on every installed system.
    rm -rf "$cache/root"
    mkdir -p "$cache/root/usr"/{bin,sbin,lib,lib64}
    for name in bin sbin lib lib64; do
        ln -s "usr/$name" "$cache/root/$name"
    done
    for package in "$cache"/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$cache/root"
    done
    rm -rf "$cache/debs" "$cache/apt"
    # What maintainer scripts would have made.
    ln -sf dash "$cache/root/bin/sh"
    [ -e "$cache/root/bin/awk" ] || ln -s mawk "$cache/root/bin/awk"
    mkdir -p "$cache/root"/{dev,proc,tmp,module}
    touch "$cache/root/dev/null"
    find "$cache/root/boot" "$cache/root/usr/lib/modules" "$cache/root/lib/modules" \
        -name 'vmlinuz*' -exec cp {} "$cache/vmlinuz" \; -quit 2>/dev/null || true
    [ -s "$cache/vmlinuz" ] || cannot "the packages of $suite hold no kernel"
    touch "$cache/fetched"
}

# Builds in the unpacked suite, whose compiler and tools are the kernel's own. The mounts go away with the namespace.
build() {
    local root=$cache/root headers
    headers=$(cd "$root/usr/src" && ls -d linux-headers-*-cloud-amd64)
    rm -rf "$root/module" && mkdir "$root/module"
    cp "$here"/module/* "$root/module/"
    # objtool reads /proc.
    # shellcheck disable=SC2016 # The inner shell expands it.
    timeout 300 "${namespace[@]}" bash -euc '
        mount --rbind /proc "$1/proc"
        mount --bind /dev/null "$1/dev/null"
        exec chroot "$1" /usr/bin/env -i PATH=/usr/bin:/bin make -s -C "/usr/src/$2" M=/module modules' \
        build "$root" "$headers" >&2
    objcopy --strip-debug "$root/module/simpmu.ko" "$cache/simpmu.ko"
    cat "$here"/module/* | sha256sum >"$cache/built"
}

[ "$(uname -m)" = x86_64 ] || cannot "the guests are x86-64, this machine is $(uname -m)"
for tool in apt-get dpkg-deb unshare objcopy; do
    command -v "$tool" >/dev/null || cannot "no $tool"
done
[ -e "$cache/fetched" ] || fetch
if ! cat "$here"/module/* | sha256sum | cmp -s - "$cache/built"; then
    namespace=(unshare --mount --fork)
    [ "$(id -u)" -eq 0 ] || namespace+=(--map-root-user)
    "${namespace[@]}" true 2>/dev/null || cannot "no namespace to build in (${namespace[*]})"
    build
fi
