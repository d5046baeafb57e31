#!/bin/sh
# Installs netlib for C below PREFIX: libnetlib.so and libnetlib.a, netlib.h, netlib.pc.
set -eu

usage() {
    cat <<'TEXT'
usage: tools/install-netlib.sh PREFIX [--from DIR]

Builds netlib for C in the release profile and installs it below PREFIX (lib, include, lib/pkgconfig). With --from it
builds nothing and takes libraries and header from DIR, into which cargo built package netlib-c (target/debug, say).
TEXT
}

fail() {
    echo "install-netlib: $1" >&2
    exit 1
}

root=$(cd "$(dirname "$0")/.." && pwd)
prefix=
from=
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --from) [ $# -ge 2 ] || fail "--from needs a folder"; from=$2; shift 2 ;;
        -*) usage >&2; exit 2 ;;
        *) [ -z "$prefix" ] || { usage >&2; exit 2; }; prefix=$1; shift ;;
    esac
done
[ -n "$prefix" ] || { usage >&2; exit 2; }

if [ -z "$from" ]; then
    (cd "$root" && cargo build --release --package netlib-c)
    from=${CARGO_TARGET_DIR:-$root/target}/release
fi
for file in deps/libnetlib_c.so deps/libnetlib_c.a netlib.h; do
    [ -f "$from/$file" ] || fail "$from/$file is not there: build package netlib-c first"
done
version=$(sed -n 's/^#define NETLIB_VERSION "\(.*\)"$/\1/p' "$from/netlib.h")
[ -n "$version" ] || fail "$from/netlib.h has no version"

mkdir -p "$prefix/lib/pkgconfig" "$prefix/include"
prefix=$(cd "$prefix" && pwd)
install -m 644 "$from/netlib.h" "$prefix/include/netlib.h"
install -m 644 "$from/deps/libnetlib_c.a" "$prefix/lib/libnetlib.a"
install -m 755 "$from/deps/libnetlib_c.so" "$prefix/lib/libnetlib.so.$version"
# The name by which programs ask for it (its soname), and the one by which the linker does.
ln -sf "libnetlib.so.$version" "$prefix/lib/libnetlib.so.${version%%.*}"
ln -sf "libnetlib.so.${version%%.*}" "$prefix/lib/libnetlib.so"
# The loader looks in the folders of the system by itself.
case $prefix in
    /usr | /usr/local) rpath= ;;
    # pkg-config knows libdir, the shell does not.
    *) rpath="-Wl,-rpath,\${libdir} " ;;
esac
sed -e "s|@PREFIX@|$prefix|" -e "s|@RPATH@|$rpath|" -e "s|@VERSION@|$version|" "$root/crates/netlib-c/netlib.pc.in" \
    > "$prefix/lib/pkgconfig/netlib.pc"
echo "netlib $version is installed below $prefix"
