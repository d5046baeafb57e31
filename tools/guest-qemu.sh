#!/usr/bin/env bash
# A QEMU with a vfio-user client, for machines whose own is older than 10.1: see --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'END2'
usage: tools/guest-qemu.sh [FOLDER]

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
mirror=${NETVM_GUEST_MIRROR:-http://deb.debian.org/debian}
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[[ ! -x $folder/qemu-system-x86_64 ]] || exit 0
[[ $(uname -m) == x86_64 ]] || die "Debian's packages for x86-64 are unpacked, and this machine is $(uname -m)"
for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || die "$tool is missing: use a QEMU of 10.1 or later of your distribution"
done
[[ -r $keys ]] || die "$keys is missing: install the package debian-archive-keyring"

mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
# apt-get's own user reads and writes here, where there is one.
chmod 755 "$work"
mkdir -p "$work"/apt/{lists,archives}/partial "$work"/apt/parts
: >"$work/apt/status"
for name in "${suite%-backports}" "$suite"; do
    printf 'deb [signed-by=%s] %s %s main\n' "$keys" "$mirror" "$name"
done | sort -u >"$work/apt/sources.list"
# A state of its own: this machine's packages and sources have no part in it.
cat >"$work/apt/apt.conf" <<END2
Dir::State "$work/apt";
Dir::State::status "$work/apt/status";
Dir::State::Lists "$work/apt/lists";
Dir::Cache "$work/apt";
Dir::Cache::archives "$work/apt/archives";
Dir::Etc::SourceList "$work/apt/sources.list";
Dir::Etc::SourceParts "$work/apt/parts";
Dir::Etc::Preferences "$work/apt/none";
Dir::Etc::PreferencesParts "$work/apt/parts";
APT::Install-Recommends "false";
APT::Architecture "amd64";
Acquire::Languages "none";
Debug::NoLocking "true";
END2
export APT_CONFIG=$work/apt/apt.conf
log=$work/log
apt-get update >"$log" 2>&1 || die "apt-get update of $suite: $(tail -n 3 "$log")"
apt-get install -y --download-only -t "$suite" qemu-system-x86 >"$log" 2>&1 ||
    die "apt-get download of QEMU from $suite: $(tail -n 3 "$log")"
for package in "$work"/apt/archives/*.deb; do
    dpkg-deb --extract "$package" "$work/root"
done
rm -rf "$work/apt" "$log" "$work"/root/usr/share/{doc,man,locale}
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
