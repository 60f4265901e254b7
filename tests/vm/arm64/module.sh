#!/usr/bin/env bash
# Builds the simulated SPE (module/) for the arm64 kernel that is in the cache, with the compiler and tools of its suite. Nothing is
# installed.
# Usage: tests/vm/arm64/module.sh SUITE CACHE     CACHE has the suite's kernel, vmlinuz; leaves simspe.ko beside it.
#
# Exits with 77 and one line why on stdout where this machine cannot do it; packages are fetched once and kept.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
suite=$1
kernel=$2
cache=$kernel/build
root=$cache/root

cannot() {
    printf '%s\n' "$1"
    exit 77
}
# shellcheck source=tests/vm/apt.sh
. ../apt.sh

# The compiler's host is this machine; headers are of the guest's.
fetch() {
    local release=$1 version list package
    version=${release%%-*}
    apt_options -o APT::Architecture=amd64 -o APT::Architectures=amd64,arm64
    timeout 120 apt-get "${options[@]}" update -qq >"$cache/apt/log" 2>&1 || cannot "apt cannot read $suite: $(tail -n 1 "$cache/apt/log")"
    list=$(apt-get "${options[@]}" -s --no-install-recommends install "linux-kbuild-$version" gcc-aarch64-linux-gnu make libc6-dev \
        dash bash sed grep mawk coreutils findutils diffutils perl-base gzip 2>/dev/null |
        awk '/^Inst/ { print $2 }' | grep -vE '^(dpkg|debconf)$') || true
    [ -n "$list" ] || cannot "$suite has no headers for Linux $release any more: rm -r $kernel fetches a newer kernel"
    # shellcheck disable=SC2086 # One word a package.
    (cd "$cache/debs" && timeout 300 apt-get "${options[@]}" download -qq $list "linux-headers-$version-common" \
        "linux-headers-$release:arm64") >"$cache/apt/log" 2>&1 || cannot "apt cannot fetch headers: $(tail -n 1 "$cache/apt/log")"
    mkdir -p "$root/usr"/{bin,sbin,lib,lib64}
    for name in bin sbin lib lib64; do
        ln -s "usr/$name" "$root/$name"
    done
    for package in "$cache"/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"
    done
    rm -rf "$cache/debs" "$cache/apt"
    # What maintainer scripts would have made.
    ln -sf dash "$root/bin/sh"
    [ -e "$root/bin/awk" ] || ln -s mawk "$root/bin/awk"
    mkdir -p "$root"/{dev,proc,tmp,module}
    touch "$root/dev/null"
    echo "$release" >"$cache/fetched"
}

[ "$(uname -m)" = x86_64 ] || cannot "the module is built on x86-64, this machine is $(uname -m)"
release=$(grep -aom1 'Linux version [^ ]*' "$kernel/vmlinuz" | cut -d ' ' -f 3) || cannot "$kernel/vmlinuz does not say its version"
if [ "$(cat "$cache/fetched" 2>/dev/null)" != "$release" ]; then
    rm -rf "$cache"
    fetch "$release"
fi
state="$release $(cat module/* | sha256sum)"
[ "$(cat "$cache/built" 2>/dev/null)" = "$state" ] && [ -s "$kernel/simspe.ko" ] && exit 0
namespace=(unshare --mount --fork)
[ "$(id -u)" -eq 0 ] || namespace+=(--map-root-user)
"${namespace[@]}" true 2>/dev/null || cannot "no namespace to build in (${namespace[*]})"
rm -rf "$root/module" && mkdir "$root/module"
cp "$here"/module/* "$root/module/"
# The mounts go away with the namespace.
# shellcheck disable=SC2016 # The inner shell expands it.
timeout 300 "${namespace[@]}" bash -euc '
    mount --rbind /proc "$1/proc"
    mount --bind /dev/null "$1/dev/null"
    exec chroot "$1" /usr/bin/env -i PATH=/usr/bin:/bin make -s -C "/usr/src/linux-headers-$2" M=/module ARCH=arm64 \
        CROSS_COMPILE=aarch64-linux-gnu- modules' build "$root" "$release" >&2
aarch64-linux-gnu-objcopy --strip-debug "$root/module/simspe.ko" "$kernel/simspe.ko"
echo "$state" >"$cache/built"
