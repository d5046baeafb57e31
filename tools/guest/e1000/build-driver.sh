#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Linux's e1000 driver with a communication status block, for a guest's kernel: see --help.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")

usage() {
    cat <<'END'
usage: tools/guest/e1000/build-driver.sh KERNEL FILE

Builds the e1000 driver of a guest's kernel with tools/guest/e1000/linux-VERSION-csb.patch, as the module FILE. KERNEL is a
folder with an unpacked kernel package of Debian's, as tools/guest/image.sh --drivers makes one (guest-kernel-drivers).
The kernel's headers and the driver's source are downloaded with apt-get, some 150 MB; nothing is installed.
A second run does nothing while neither the kernel nor the patch has changed.
END
}

die() {
    printf 'build-driver: %s\n' "$*" >&2
    exit 1
}

# download NAME...: packages into $work.
download() {
    # apt-get's own user could not write here: as root it says so, and does it all the same.
    (cd "$work" && apt-get download -q "$@" >download.log 2>&1) ||
        die "apt-get download $*: $(tail -n 3 "$work/download.log")" \
            "(if the kernel in $kernel is older than apt-get's newest, remove that folder)"
}

# Unpacks the headers into $work/root, and makes them work there.
unpack_headers() {
    local headers=linux-headers-$release package config
    download "$headers" "linux-headers-${release%-*}-common" "linux-kbuild-$version"
    for package in "$work"/*.deb; do dpkg-deb --extract "$package" "$work/root"; done
    rm "$work"/*.deb
    build=$work/root/usr/src/$headers
    sed -i "s|^include |include $work/root|" "$build/Makefile"
    config=$build/.kernelvariables
    compiler=$(sed -n 's/^CC = .*)\(gcc-[0-9]*\)$/\1/p' "$config")
    command -v "${compiler:=gcc}" >/dev/null || compiler=gcc
}

# Unpacks the driver of the kernel's source into $work/e1000.
unpack_driver() {
    local place=linux-source-$version
    download "$place"
    dpkg-deb --fsys-tarfile "$work/$place"_*.deb | tar --extract --to-stdout "./usr/src/$place.tar.xz" |
        tar --extract --xz --directory "$work" --strip-components 5 "$place/drivers/net/ethernet/intel/e1000"
    rm "$work"/*.deb
}

[[ ${1:-} != -h && ${1:-} != --help ]] || { usage && exit; }
[[ $# -eq 2 ]] || { usage >&2 && exit 2; }
kernel=$(realpath "$1") file=$(realpath -m "$2")
image=$(find "$kernel" -path '*boot/vmlinuz-*' -print -quit)
[[ -n $image ]] || die "$kernel holds no boot/vmlinuz-*"
release=${image##*/vmlinuz-}
version=$(cut -d . -f 1,2 <<<"$release")
patch=$here/linux-$version-csb.patch
[[ -r $patch ]] || die "there is a patch for $(cd "$here" && echo linux-*-csb.patch), and the guest's kernel is $release"
for tool in apt-get dpkg-deb tar xz patch make gcc flock sha256sum; do
    command -v "$tool" >/dev/null || die "$tool is missing: ./dev setup installs what is needed"
done
mkdir -p "$(dirname "$file")"
exec 9>"$file.lock"
flock 9
made_of="$release $(sha256sum <"$patch")"
[[ ! -e $file || $(cat "$file.made-of" 2>/dev/null) != "$made_of" ]] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unpack_headers
unpack_driver
patch --silent --directory "$work/e1000" --strip 1 <"$patch"
make -C "$build" M="$work/e1000" CC="$compiler" CONFIG_DEBUG_INFO_BTF_MODULES= modules >"$work/make.log" 2>&1 ||
    die "make: $(tail -n 20 "$work/make.log")"
strip --strip-debug "$work/e1000/e1000.ko"
cp "$work/e1000/e1000.ko" "$file"
printf '%s\n' "$made_of" >"$file.made-of"
printf '%s: e1000 for %s\n' "$file" "$release"
