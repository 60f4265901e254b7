# shellcheck shell=bash
# To be sourced by scripts that build for arm64 on another machine, in the project's directory. Sets `triple` and what cargo needs to
# link for it; the C library, libelf and zlib are linked in. libelf and zlib are Debian's, fetched once to target/arm64-libs.
#
# The script that sources it has a function `cannot`, which is called with what this machine lacks.
export PATH="$PATH:${HOME:-/root}/.cargo/bin"
triple=aarch64-unknown-linux-gnu

# shellcheck source=tests/vm/apt.sh
. tests/vm/apt.sh

for tool in aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu apt-get:apt dpkg-deb:dpkg clang:clang; do
    command -v "${tool%%:*}" >/dev/null || cannot "no ${tool%%:*} (Debian: apt install ${tool##*:})"
done
rustc --print target-libdir --target "$triple" 2>/dev/null | xargs -r test -d || rustup target add "$triple" 2>/dev/null ||
    cannot "no Rust library for $triple (rustup target add $triple)"

# The static libraries of the suite that this machine has, as those of another may need another C library than the cross compiler's.
fetch_libs() {
    local cache=$1 suite package
    # shellcheck source=/dev/null
    suite=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    [ -n "$suite" ] || cannot "libelf for arm64 is fetched on Debian only"
    apt_options -o APT::Architecture=arm64 -o APT::Architectures=arm64
    timeout 120 apt-get "${options[@]}" update -qq >"$cache/apt/log" 2>&1 || cannot "apt cannot read $suite: $(tail -n 1 "$cache/apt/log")"
    (cd "$cache/debs" && timeout 300 apt-get "${options[@]}" download -qq libelf-dev zlib1g-dev) >"$cache/apt/log" 2>&1 ||
        cannot "apt cannot fetch libelf for arm64 from $suite: $(tail -n 1 "$cache/apt/log")"
    for package in "$cache"/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$cache"
    done
    rm -rf "$cache/debs" "$cache/apt"
    rm -rf "$libs" && mv "$cache" "$libs"
}

libs=$PWD/target/arm64-libs
libdir=$libs/usr/lib/aarch64-linux-gnu
if [ ! -s "$libdir/libelf.a" ] || [ ! -s "$libdir/libz.a" ]; then
    rm -rf "$libs.part"
    fetch_libs "$libs.part"
fi
# rustc does not look where the libraries of this machine are either, which the build of the BPF programs needs.
host=$(rustc -vV | sed -n 's/^host: //p')
host_libelf=$(cc -print-file-name=libelf.a)
[ -f "$host_libelf" ] || cannot "no libelf.a of this machine to build with (Debian: apt install libelf-dev zlib1g-dev)"
export "LIBBPF_SYS_LIBRARY_PATH_${host//-/_}=$(dirname "$(realpath "$host_libelf")")"
export LIBBPF_SYS_LIBRARY_PATH_aarch64_unknown_linux_gnu=$libdir
export LIBBPF_SYS_EXTRA_CFLAGS="-idirafter $libs/usr/include"
# Cargo prefers these to the flags of a target.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS='-C target-feature=+crt-static -C strip=symbols'
