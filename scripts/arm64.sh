#!/usr/bin/env bash
# Builds scxprof and the tests of its recovery for arm64, without BPF, and runs them in an emulated arm64 machine: tests/vm/arm64.
# Usage: scripts/arm64.sh     SUITE (trixie) is the Debian suite whose kernel it boots; the kernel is fetched once and kept.
#                             PAGES=16k boots one with larger pages.
#
# Prints SKIP and why where this machine lacks something.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${HOME:-/root}/.cargo/bin"
triple=aarch64-unknown-linux-gnu
suite=${SUITE:-trixie}
kernel=linux-image-${PAGES:+arm64-}${PAGES:-cloud-arm64}
cache=$PWD/tests/vm/cache/arm64-$suite${PAGES:+-$PAGES}
target=${CARGO_TARGET_DIR:-target}

cannot() {
    printf 'SKIP: vm test arm64: %s\n' "$1"
    exit 0
}
# shellcheck source=tests/vm/apt.sh
. tests/vm/apt.sh

for tool in qemu-system-aarch64:qemu-system-arm aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu cpio:cpio apt-get:apt dpkg-deb:dpkg; do
    command -v "${tool%%:*}" >/dev/null || cannot "no ${tool%%:*} (Debian: apt install ${tool##*:})"
done
rustc --print target-libdir --target "$triple" 2>/dev/null | xargs -r test -d || rustup target add "$triple" 2>/dev/null ||
    cannot "no Rust library for $triple (rustup target add $triple)"

fetch() {
    local list package
    apt_options -o APT::Architecture=arm64 -o APT::Architectures=arm64
    mkdir -p "$cache/root"
    timeout 120 apt-get "${options[@]}" update -qq >"$cache/apt/log" 2>&1 || cannot "apt cannot read $suite: $(tail -n 1 "$cache/apt/log")"
    list=$(apt-get "${options[@]}" -s --no-install-recommends install "$kernel" busybox-static 2>/dev/null |
        awk '/^Inst (linux-image|busybox)/ { print $2 }')
    [ -n "$list" ] || cannot "apt finds no arm64 kernel in $suite"
    # shellcheck disable=SC2086 # One word a package.
    (cd "$cache/debs" && timeout 300 apt-get "${options[@]}" download -qq $list) >"$cache/apt/log" 2>&1 ||
        cannot "apt cannot fetch the arm64 kernel of $suite: $(tail -n 1 "$cache/apt/log")"
    for package in "$cache"/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$cache/root"
    done
    cp "$cache"/root/boot/vmlinuz-* "$cache/vmlinuz"
    find "$cache/root" -path '*bin/busybox' -exec cp {} "$cache/busybox" \;
    rm -rf "$cache/debs" "$cache/apt" "$cache/root"
}

if [ ! -s "$cache/vmlinuz" ] || [ ! -s "$cache/busybox" ]; then
    fetch
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root"/{bin,dev,lib,proc,programs,root,sys,tests,tmp}
# The libraries of C are in the binaries, as the guest has none. BPF programs would need libelf for arm64.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS='-C target-feature=+crt-static'
"${CARGO:-cargo}" build --locked --target "$triple" --no-default-features --features cli --bin scxprof
# The tests of the recovery: its units, and programs that are single-stepped.
"${CARGO:-cargo}" test --locked --target "$triple" -p scxprof-recover --lib --test operand --no-run --message-format json >"$work/built"
for name in scxprof_recover operand; do
    sed -n 's|.*"executable":"\([^"]*/'$name'-[0-9a-f]*\)".*|\1|p' "$work/built" | tail -n 1 | xargs -I{} aarch64-linux-gnu-strip -g -o "$work/$name" {}
done
cp "$cache/busybox" "$target/$triple/debug/scxprof" "$work/root/bin/"
aarch64-linux-gnu-strip -g "$work/root/bin/scxprof"
cp "$work/scxprof_recover" "$work/operand" "$work/root/bin/"
for level in 0 2; do
    for name in cow hash lines list queue random shared stream; do
        program=$work/root/programs/$name-O$level
        aarch64-linux-gnu-gcc "-O$level" -g0 -pthread -static -o "$program" "tests/programs/$name.c"
        # The guest has no readelf.
        aarch64-linux-gnu-readelf --debug-dump=frames "$program" >"$program.frames"
    done
done
aarch64-linux-gnu-gcc -O1 -fno-omit-frame-pointer -pthread -static -o "$work/root/bin/family" tests/sharing/programs/*.c
install -m 755 tests/vm/init "$work/root/init"
cp tests/vm/lib.sh "$work/root/lib/vm.sh"
cp tests/vm/arm64/*.sh "$work/root/tests/"
(cd "$work/root" && find . | cpio -o -H newc --quiet -R 0:0) >"$work/initramfs"
timeout "${VM_TIMEOUT:-600}" qemu-system-aarch64 -M virt -cpu neoverse-n1 -accel tcg,thread=single -smp 2 -m 1024 \
    -nodefaults -display none -monitor none -serial stdio -no-reboot -kernel "$cache/vmlinuz" -initrd "$work/initramfs" \
    -append "console=ttyAMA0 panic=-1 quiet" </dev/null 2>"$work/qemu" | sed -u 's|\r||g' | tee "$work/console" || true
tail -n 1 "$work/qemu" >&2
if grep -q '^::end arm64 0 ' "$work/console" && ! grep '^::kernel ' "$work/console"; then
    printf 'vm test arm64 (%s) ... ok\n' "$(sed -n 's/^::guest /Linux /p' "$work/console")"
else
    printf 'vm test arm64 ... FAILED\n'
    exit 1
fi
