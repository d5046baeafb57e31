#!/usr/bin/env bash
# grout, with the DPDK that it comes with, for `./dev bench router`: see --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tools/setup/unpack-debian.sh
source tools/setup/unpack-debian.sh

usage() {
    cat <<'END'
usage: tools/bench/grout.sh [FOLDER]

Unpacks Debian's grout and the parts of DPDK that it needs (sid, some 20 MB) into FOLDER/root, target/guest/grout/root unless told
otherwise. Nothing is installed, so it takes no root. A second run does nothing. NETVM_GROUT_SUITE names another suite.
END
}

[[ ${1:-} != -h && ${1:-} != --help ]] || { usage && exit; }
target=${CARGO_TARGET_DIR:-target}
folder=$(realpath -m "${1:-$target/guest/grout}")
suite=${NETVM_GROUT_SUITE:-sid}
[[ ! -x $folder/root/usr/bin/grout ]] || exit 0
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
# The drivers: it names a device of each bus.
unpack_debian "$work" "$suite" grout librte-net-null26 librte-mempool-ring26 librte-bus-fslmc26 >"$work/problem" ||
    { printf 'peer-grout: %s\n' "$(cat "$work/problem")" >&2; exit 1; }
root=$work/root
mkdir -p "$root"/{dev,proc,sys,run,tmp,var} "$root/usr/lib64"
for name in bin lib lib64; do
    [[ -e $root/$name ]] || ln -s "usr/$name" "$root/$name"
done
[[ -e $root/var/run ]] || ln -s ../run "$root/var/run"
# The locale that it asks for.
cp -a /usr/lib/locale/C.utf8 "$root/usr/lib/locale/" 2>/dev/null || true
rm -rf "$folder"
mv -T "$work" "$folder"
trap - EXIT
printf '%s: grout of Debian %s\n' "$folder" "$suite"
