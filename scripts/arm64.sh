#!/usr/bin/env bash
# Builds scxprof and its tests for arm64, and runs them in an emulated arm64 machine: tests/vm/arm64.
# Usage: scripts/arm64.sh     SUITE (trixie) is the Debian suite whose kernel it boots; the kernel is fetched once and kept.
#                             PAGES=16k boots one with larger pages.
#
# Prints SKIP and why where this machine lacks something.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=${SUITE:-trixie}
kernel=linux-image-${PAGES:+arm64-}${PAGES:-cloud-arm64}
cache=$PWD/tests/vm/cache/arm64-$suite${PAGES:+-$PAGES}
target=${CARGO_TARGET_DIR:-target}

cannot() {
    printf 'SKIP: vm test arm64: %s\n' "$1"
    exit 0
}
for tool in qemu-system-aarch64:qemu-system-arm cpio:cpio; do
    command -v "${tool%%:*}" >/dev/null || cannot "no ${tool%%:*} (Debian: apt install ${tool##*:})"
done
# shellcheck source=scripts/arm64-env.sh
. scripts/arm64-env.sh

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

# The suite's perf with its libraries, as an initramfs: spe.sh compares with what it shows.
fetch_perf() {
    local list package library root=$cache/perf
    apt_options -o APT::Architecture=arm64 -o APT::Architectures=arm64
    timeout 120 apt-get "${options[@]}" update -qq >"$cache/apt/log" 2>&1 || cannot "apt cannot read $suite: $(tail -n 1 "$cache/apt/log")"
    list=$(apt-get "${options[@]}" -s --no-install-recommends install linux-perf 2>/dev/null | awk '/^Inst/ { print $2 }' | grep -vE '^(dpkg|debconf)$') || true
    [ -n "$list" ] || cannot "apt finds no arm64 perf in $suite"
    # shellcheck disable=SC2086 # One word a package.
    (cd "$cache/debs" && timeout 300 apt-get "${options[@]}" download -qq $list) >"$cache/apt/log" 2>&1 ||
        cannot "apt cannot fetch the arm64 perf of $suite: $(tail -n 1 "$cache/apt/log")"
    rm -rf "$root"
    mkdir -p "$root"/{all,perf/suite/lib,perf/bin}
    for package in "$cache"/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root/all"
    done
    cp -L "$root/all/usr/bin/perf" "$root/perf/suite/perf"
    find "$root/all" -name ld-linux-aarch64.so.1 -exec cp -L {} "$root/perf/suite/ld.so" \;
    needed "$root/perf/suite/perf"
    aarch64-linux-gnu-strip -s "$root"/perf/suite/{perf,lib/*}
    # shellcheck disable=SC2016 # The guest expands it.
    printf '#!/bin/sh\nexec /suite/ld.so --library-path /suite/lib /suite/perf "$@"\n' >"$root/perf/bin/perf"
    chmod +x "$root/perf/bin/perf"
    (cd "$root/perf" && find . | cpio -o -H newc --quiet -R 0:0) >"$cache/perf.cpio.$$"
    mv "$cache/perf.cpio.$$" "$cache/perf.cpio"
    rm -rf "$cache/debs" "$cache/apt" "$root"
}

# needed FILE: copies the libraries that it needs, and those that they need.
needed() {
    local library
    aarch64-linux-gnu-readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | while read -r library; do
        if [ ! -e "$root/perf/suite/lib/$library" ]; then
            find "$root/all" -name "$library" -exec cp -L {} "$root/perf/suite/lib/" \;
            [ -e "$root/perf/suite/lib/$library" ] || continue
            needed "$root/perf/suite/lib/$library"
        fi
    done
}

if [ ! -s "$cache/vmlinuz" ] || [ ! -s "$cache/busybox" ]; then
    fetch
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root"/{bin,dev,lib,proc,programs/gcc,programs/clang,root,sys,tests,tmp}
features=(--no-default-features --features "cli,bpf-static,demo")
"${CARGO:-cargo}" build --locked --target "$triple" "${features[@]}" --bin scxprof --example vm-check
# The tests of the recovery: its units, and programs that are single-stepped; and those that run the whole.
"${CARGO:-cargo}" test --locked --target "$triple" -p scxprof-recover --lib --test operand --no-run --message-format json >"$work/built"
"${CARGO:-cargo}" test --locked --target "$triple" "${features[@]}" --test live --no-run --message-format json >>"$work/built"
for name in scxprof_recover operand live; do
    sed -n 's|.*"executable":"\([^"]*/'$name'-[0-9a-f]*\)".*|\1|p' "$work/built" | tail -n 1 | xargs -I{} cp {} "$work/root/bin/$name"
done
cp "$cache/busybox" "$target/$triple/debug/scxprof" "$target/$triple/debug/examples/vm-check" "$work/root/bin/"
# A kernel without its headers still runs the other tests.
if tests/vm/arm64/module.sh "$suite" "$cache" >"$work/no-simspe"; then
    cp "$cache/simspe.ko" "$work/root/lib/"
else
    [ $? -eq 77 ] || exit 1
    cp "$work/no-simspe" "$work/root/lib/"
fi
if [ ! -s "$cache/perf.cpio" ]; then
    (fetch_perf) | sed 's/^SKIP: vm test arm64: //' >"$work/root/lib/no-perf"
fi
aarch64-linux-gnu-gcc -O2 -pthread -static -o "$work/root/bin/workload" tests/vm/workload.c
aarch64-linux-gnu-gcc -O2 -pthread -static -o "$work/root/bin/writer" tests/hints/writer.c
# build NAME FILE COMPILER...: a program, and its frames, as the guest has no readelf.
build() {
    local program=$work/root/programs/$2 source=tests/programs/$1.c
    shift 2
    "$@" -g0 -pthread -static -o "$program" "$source"
    aarch64-linux-gnu-readelf --debug-dump=frames "$program" >"$program.frames"
}
for name in cow hash lines list queue random shared stream; do
    build "$name" "gcc/$name-O0" aarch64-linux-gnu-gcc -O0
    build "$name" "gcc/$name-O2" aarch64-linux-gnu-gcc -O2
    # The tests know two levels. These are the other two, of another compiler; one with the atomics of Armv8.1.
    build "$name" "clang/$name-O0" clang --target=aarch64-linux-gnu -O1
    build "$name" "clang/$name-O2" clang --target=aarch64-linux-gnu -O3 -march=armv8.1-a
done
# build_rust FILE OPTION...: the same of a program of Rust.
build_rust() {
    local program=$work/root/programs/$1
    shift
    rustc --edition=2021 --target "$triple" -C linker=aarch64-linux-gnu-gcc -C target-feature=+crt-static "$@" -o "$program" tests/programs/collections.rs
    aarch64-linux-gnu-readelf --debug-dump=frames "$program" >"$program.frames"
}
build_rust gcc/collections-O0 -C opt-level=0
build_rust gcc/collections-O2 -C opt-level=2
build_rust clang/collections-O0 -C opt-level=1
build_rust clang/collections-O2 -C opt-level=3 -C target-cpu=neoverse-n1
aarch64-linux-gnu-gcc -O1 -fno-omit-frame-pointer -pthread -static -o "$work/root/bin/family" tests/sharing/programs/*.c
aarch64-linux-gnu-gcc -O2 -fomit-frame-pointer -fno-optimize-sibling-calls -static -o "$work/root/bin/unwind" tests/programs/unwind.c
install -m 755 tests/vm/init "$work/root/init"
cp tests/vm/lib.sh "$work/root/lib/vm.sh"
cp tests/vm/arm64/{arm64,spe}.sh "$work/root/tests/"
(cd "$work/root" && find . | cpio -o -H newc --quiet -R 0:0) >"$work/initramfs"
[ ! -s "$cache/perf.cpio" ] || cat "$cache/perf.cpio" >>"$work/initramfs"
timeout "${VM_TIMEOUT:-1500}" qemu-system-aarch64 -M virt -cpu neoverse-n1 -accel tcg,thread=single -smp 2 -m 1536 \
    -nodefaults -display none -monitor none -serial stdio -no-reboot -kernel "$cache/vmlinuz" -initrd "$work/initramfs" \
    -append "console=ttyAMA0 panic=-1 quiet" </dev/null 2>"$work/qemu" | sed -u 's|\r||g' | tee "$work/console" || true
tail -n 1 "$work/qemu" >&2
if grep -q '^::end arm64 0 ' "$work/console" && grep -q '^::end spe 0 ' "$work/console" && ! grep '^::kernel ' "$work/console"; then
    printf 'vm test arm64 (%s) ... ok\n' "$(sed -n 's/^::guest /Linux /p' "$work/console")"
else
    printf 'vm test arm64 ... FAILED\n'
    exit 1
fi
