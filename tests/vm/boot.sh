#!/usr/bin/env bash
# Boots a guest with the kernel of a suite and runs tests in it.
# Usage: tests/vm/boot.sh SUITE CPU TEST.sh...     CPU is a model of QEMU's. The guest's console goes to stdout.
#
# What a test names in its lines `# needs:`, `# test:` and `# cc:` comes along, with its libraries (README.md). VM_SHIFT says how
# long an instruction takes (2^N ns), VM_EXTRA has more of the guest's files (a cpio archive), VM_CACHES the options of the plugin in
# tests/vm/caches, without which there is none.
set -euo pipefail
cd "$(dirname "$0")/../.."
vm=$PWD/tests/vm
suite=$1
cache=$vm/cache/$suite
cpu=$2
shift 2
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# libraries_of COMMAND...: the files that a dynamic linker lists, its own path too.
libraries_of() { "$@" 2>/dev/null | grep -oE '/[^ ]+ \(0x' | sed 's/ (0x//' || true; }

# archive DIRECTORY: an initramfs; the kernel takes several behind each other.
archive() { (cd "$1" && find . | cpio -o -H newc --quiet -R 0:0); }

# The suite's own perf with its libraries apart from the host's, under /suite.
make_suite() {
    local root=$cache/root dir=$work/suite loader libraries library
    loader=$root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2
    libraries=$root/usr/lib/x86_64-linux-gnu
    mkdir -p "$dir/suite/lib" "$dir/bin"
    cp -L "$loader" "$dir/suite/ld.so"
    cp -L "$root/usr/bin/perf" "$dir/suite/perf"
    libraries_of "$loader" --library-path "$libraries" --list "$root/usr/bin/perf" | while read -r library; do
        cp -L "$library" "$dir/suite/lib/"
    done
    strip -s "$dir"/suite/lib/* 2>/dev/null || true
    printf '#!/bin/sh\nexec /suite/ld.so --library-path /suite/lib /suite/perf "$@"\n' >"$dir/bin/perf"
    chmod +x "$dir/bin/perf"
    archive "$dir" >"$cache/suite.cpio.$$"
    mv "$cache/suite.cpio.$$" "$cache/suite.cpio"
}

# copy FILE: into the guest at the same path, with its libraries, and under its name in /bin.
copy() {
    local file=$1 name library
    name=$(basename "$file")
    [ -e "$file" ] || {
        printf 'tests/vm: %s is not there: build it first\n' "$file" >&2
        exit 1
    }
    file=$(realpath "$file")
    for library in "$file" $(libraries_of ldd "$file"); do
        if [ ! -e "$work/root$library" ]; then
            mkdir -p "$work/root$(dirname "$library")"
            cp -L "$library" "$work/root$library"
            strip -g "$work/root$library" 2>/dev/null || true
        fi
    done
    ln -sf "$file" "$work/root/bin/$name"
}

# Those that cargo built with the project.
libbpf_headers() {
    local built=("$target"/*/build/libbpf-sys-*/out/include)
    printf '%s\n' "${built[0]}"
}

[ "$cache/suite.cpio" -nt "$cache/fetched" ] || make_suite
cpus=$(sed -n 's/^# cpus: //p' "$@" | sort -n | tail -n 1)
mkdir -p "$work/root"/{bin,dev,lib,proc,root,sys,tests,tmp}
cp "$(command -v busybox)" "$work/root/bin/busybox"
install -m 755 "$vm/init" "$work/root/init"
cp "$vm/lib.sh" "$work/root/lib/vm.sh"
cp "$cache/simpmu.ko" "$work/root/lib/simpmu.ko"
# The kernel's configuration where every installed system has it: libbpf reads it for some programs.
headers=$(cd "$cache/root/usr/src" && printf '%s\n' linux-headers-*-cloud-amd64)
install -D -m 644 "$cache/root/usr/src/$headers/.config" "$work/root/boot/config-${headers#linux-headers-}"
cc -O2 -Wall -Werror -static -pthread -o "$work/root/bin/workload" "$vm/workload.c"
for test; do
    cp "$test" "$work/root/tests/"
    while read -r file; do
        copy "${file/#target/$target}"
    done < <(sed -n -e 's/^# needs: //p' -e 's|^# test: |target/vm/|p' "$test")
    while read -r source name; do
        # A folder's files are one program.
        if [ -d "$source" ]; then sources=("$source"/*.c); else sources=("$source"); fi
        cc -O2 -Wall -static -pthread -o "$work/root/bin/${name:-$(basename "$source" .c)}" "${sources[@]}"
    done < <(sed -n 's/^# cc: //p' "$test")
    while read -r source; do
        clang -g -O2 -target bpf -D__TARGET_ARCH_x86 -Wall -Werror -I "$(libbpf_headers)" -c "$source" \
            -o "$work/root/lib/$(basename "$source" .c).o"
    done < <(sed -n 's/^# bpf: //p' "$test")
done
archive "$work/root" | cat "$cache/suite.cpio" - ${VM_EXTRA:+"$VM_EXTRA"} >"$work/initramfs"
# Never a thread for each CPU: a kernel that patches its own code can die of it in the emulator.
accel=tcg,thread=single
plugin=()
if [ -n "${VM_CACHES:-}" ]; then
    # The largest buffer that there can be: when it is full, QEMU drops all translated code, and 7.2 may abort then, because it still calls
    # a plugin's callbacks of that code (patchew.org/QEMU/Y3QNRWUK8BLRQlaQ@strawberry.localdomain).
    accel+=,tb-size=2047
    cc -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -shared -fPIC -o "$work/caches.so" "$vm/caches/caches.c"
    # The guest's RAM, which the plugin reads, is not written to a disk if that can be. The file has no name, so that nothing is left of it
    # however this ends.
    ram=$(mktemp -p "$([ -w /dev/shm ] && echo /dev/shm || echo "$work")")
    exec {fd}<>"$ram"
    rm "$ram"
    ram=/proc/self/fd/$fd
    truncate -s 2048M "$ram"
    plugin=(-object "memory-backend-file,id=ram,size=2048M,mem-path=$ram,share=on" -machine "pc,memory-backend=ram"
        -plugin "$work/caches.so,ram=$ram,$VM_CACHES")
fi
status=0
# The guest's time is that of its instructions, 8 ns each, so that it sees nothing of how busy the host is. Linux 6.1 does not
# find its second CPU then: there time is the host's, by a clock that needs no calibration, which a busy host would spoil.
clock=(-icount "shift=${VM_SHIFT:-3},sleep=off")
boot="console=ttyS0 panic=-1 quiet"
if [ "$(basename "$vm/cache/$suite/root/usr/src"/linux-headers-6.1.*-cloud-amd64)" != 'linux-headers-6.1.*-cloud-amd64' ]; then
    clock=()
    boot+=" clocksource=hpet"
fi
timeout --foreground "${VM_TIMEOUT:-900}" qemu-system-x86_64 -accel "$accel" ${clock[@]+"${clock[@]}"} \
    -cpu "$cpu" -smp "${cpus:-2}" -m 2048 ${plugin[@]+"${plugin[@]}"} \
    -nodefaults -display none -monitor none -serial stdio -no-reboot \
    -kernel "$cache/vmlinuz" -initrd "$work/initramfs" -append "$boot" </dev/null 2>"$work/qemu" |
    sed -u 's|\r||g' || status=$?
if [ "$status" -ne 0 ]; then
    printf 'tests/vm: qemu ended with %s: %s\n' "$status" "$(tail -n 1 "$work/qemu")"
    exit 1
fi
