#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A QEMU with a vfio-user client, for machines whose own is older than 10.1: see --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tools/setup/unpack-debian.sh
source tools/setup/unpack-debian.sh

usage() {
    cat <<'END2'
usage: tools/guest/qemu.sh [FOLDER]

Unpacks Debian's QEMU of a newer release (trixie-backports, some 40 MB) into FOLDER, target/guest/qemu unless told
otherwise, and writes FOLDER/qemu-system-x86_64, a script that runs it with the libraries that came with it. Nothing is
installed, so it takes no root. A second run does nothing. NETVM_GUEST_SUITE names another suite.
END2
}

die() {
    printf 'guest-qemu: %s\n' "$*" >&2
    exit 1
}

[[ ${1:-} != -h && ${1:-} != --help ]] || { usage && exit; }
target=${CARGO_TARGET_DIR:-target}
folder=$(realpath -m "${1:-$target/guest/qemu}")
suite=${NETVM_GUEST_SUITE:-trixie-backports}
[[ ! -x $folder/qemu-system-x86_64 ]] || exit 0
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
unpack_debian "$work" "${suite%-backports} $suite" qemu-system-x86 >"$work/problem" ||
    die "$(cat "$work/problem") (a QEMU of 10.1 or later of your distribution will do, too)"
rm "$work/problem"
cat >"$work/qemu-system-x86_64" <<'END2'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/root/usr
libraries=$root/lib/x86_64-linux-gnu
exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$root/bin/qemu-system-x86_64" \
    -L "$root/share/qemu" -L "$root/share/seabios" -L "$root/lib/ipxe/qemu" "$@"
END2
chmod 755 "$work/qemu-system-x86_64"
version=$("$work/qemu-system-x86_64" --version | head -n 1)
"$work/qemu-system-x86_64" -device vfio-user-pci,help 2>/dev/null | grep -q socket= ||
    die "$version of $suite has no vfio-user-pci device: set NETVM_GUEST_SUITE to a newer suite"
rm -rf "$folder"
mv -T "$work" "$folder"
trap - EXIT
printf '%s: %s\n' "$folder" "$version"
