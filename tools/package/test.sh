#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs netvm's packages in a fresh root, and uses them there: see --help.
set -euo pipefail

if (($# < 2)); then
    cat <<'TEXT'
usage: tools/package/test.sh SUITE FOLDER [yes]

Makes a minimal root of SUITE, installs the packages in FOLDER, runs netvmd as its systemd unit does, lets two containers
talk through a chain, upgrades, removes and purges, and looks for what is left. Takes root and mmdebstrap; nothing outside
of the root changes. With "yes", lintian checks the packages, too. The exit status is 75 if no root of SUITE can be made.
TEXT
    [[ ${1:-} != --help ]] || exit 0
    exit 2
fi
suite=$1
folder=$(realpath "$2")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
shopt -s nullglob
debs=("$folder"/*.deb)
((${#debs[@]} > 0)) || { echo "package-test: $folder holds no .deb: run ./dev package first" >&2 && exit 1; }

work=$(mktemp -d "${TMPDIR:-/tmp}/netvm-package-test.XXXXXX")
root=$work/root
# The root's mounts end with the namespace below.
trap 'rm -rf --one-file-system "$work"' EXIT
start=$SECONDS
# shellcheck disable=SC2016 # mmdebstrap's shell has the root as $1
# shellcheck disable=SC2086 # options
mmdebstrap --quiet --variant=apt ${NETVM_MMDEBSTRAP:-} --aptopt='APT::Install-Recommends "false"' --include=busybox,iproute2 \
    --customize-hook='cp -L /etc/resolv.conf "$1/etc/resolv.conf"' --skip=cleanup/apt "$suite" "$root" || { echo "package-test: no root of $suite can be made here" >&2 && exit 75; }
echo "fresh root of $suite: $((SECONDS - start)) s, $(du -smx "$root" | cut -f 1) MB"
mkdir "$root/packages"
cp "${debs[@]}" "$root/packages"
cp "$here/test-inside.sh" "$root/inside.sh"

# Before it gets a network namespace of its own, which has no way to the archive.
start=$SECONDS began=$EPOCHSECONDS
chroot "$root" sh -c 'DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends /packages/*.deb' \
    >"$work/install.log" 2>&1 </dev/null || { cat "$work/install.log" >&2 && exit 1; }
echo "apt-get install ./*.deb: $((SECONDS - start)) s, $(du -smx "$root" | cut -f 1) MB with what they depend on"
# `ip netns exec` wants a mount at /.
# shellcheck disable=SC2016 # the inner shell's $0
unshare --mount --net --pid --ipc --fork --kill-child sh -c '
    mount --make-rprivate / && mount --bind "$0" "$0" && mount -t proc proc "$0/proc" && mount -t sysfs sysfs "$0/sys" && mount --rbind /dev "$0/dev" &&
    mount -t tmpfs tmpfs "$0/run" && exec chroot "$0" /inside.sh "$1"' "$root" "$began" </dev/null

if [[ ${3:-no} == yes ]]; then
    chroot "$root" sh -c 'DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends lintian' >"$work/install.log" 2>&1 </dev/null ||
        { cat "$work/install.log" >&2 && exit 1; }
    chroot "$root" sh -c 'lintian --allow-root --fail-on error,warning /packages/*.deb'
    echo "lintian is content"
fi
