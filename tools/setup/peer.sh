#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Programs of newer Debian releases, for benchmarks and tests: see --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tools/setup/unpack-debian.sh
source tools/setup/unpack-debian.sh

usage() {
    cat <<'END'
usage: tools/setup/peer.sh grout|haproxy|openvswitch|openvswitch-dpdk|suricata|etcd [FOLDER]

Unpacks a program, with what it depends on, into FOLDER/root, target/guest/NAME/root unless told otherwise:
  grout     for ./dev bench router, with the parts of DPDK that it needs (Debian sid, some 20 MB)
  haproxy   for the tests of hops that are programs of others (Debian 13, some 10 MB)
  suricata  the same (Debian 13, some 40 MB)
  openvswitch  for the tests of bonds (Debian 13, some 10 MB)
  openvswitch-dpdk  for ./dev bench, as a peer (Debian 13, some 40 MB)
  etcd      for the tests of fleets (Debian 12, some 20 MB)
Nothing is installed, so it takes no root. A second run does nothing. NETVM_PEER_SUITE names another suite.
END
}

program=${1:-}
case $program in
    # The drivers: it names a device of each bus.
    grout) packages=(grout librte-net-null26 librte-net-memif26 librte-mempool-ring26 librte-bus-fslmc26) suite=sid ;;
    haproxy | suricata) packages=("$1") suite=trixie ;;
    openvswitch) packages=(openvswitch-switch) suite=trixie program=ovs-vsctl ;;
    openvswitch-dpdk) packages=(openvswitch-switch-dpdk librte-net-null25 librte-mempool-ring25 librte-bus-vdev25) suite=trixie program=ovs-vsctl ;;
    etcd) packages=(etcd-server etcd-client) suite=bookworm ;;
    -h | --help) usage && exit ;;
    *) usage >&2 && exit 2 ;;
esac
name=$1
suite=${NETVM_PEER_SUITE:-$suite}
target=${CARGO_TARGET_DIR:-target}
folder=$(realpath -m "${2:-$target/guest/$name}")
[[ ! -x $folder/root/usr/bin/$program && ! -x $folder/root/usr/sbin/$program ]] || exit 0
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
unpack_debian "$work" "$suite" "${packages[@]}" >"$work/problem" ||
    { printf '%s: %s\n' "$name" "$(cat "$work/problem")" >&2; exit 1; }
root=$work/root
mkdir -p "$root"/{dev,proc,sys,run,tmp,var} "$root/usr/lib64"
for link in bin lib lib64; do
    [[ -e $root/$link ]] || ln -s "usr/$link" "$root/$link"
done
[[ -e $root/var/run ]] || ln -s ../run "$root/var/run"
# The locale that grout asks for.
mkdir -p "$root/usr/lib/locale"
cp -a /usr/lib/locale/C.utf8 "$root/usr/lib/locale/" 2>/dev/null || true
rm -rf "$folder"
mv -T "$work" "$folder"
trap - EXIT
printf '%s: %s of Debian %s\n' "$folder" "$name" "$suite"
