#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs netlib for C below PREFIX: libnetlib.so and libnetlib.a, netlib.h, netlib.pc.
set -eu

usage() {
    cat <<'TEXT'
usage: tools/package/install-netlib.sh PREFIX [--from DIR] [--libdir DIR] [--destdir DIR]

Builds netlib for C in the release profile and installs it below PREFIX (lib, include, lib/pkgconfig). With --from it
builds nothing and takes libraries and header from DIR, into which cargo built package netlib-c (target/debug, say). --libdir
is lib below PREFIX unless given. With --destdir everything goes below that folder, for a package.
TEXT
}

fail() {
    echo "install-netlib: $1" >&2
    exit 1
}

root=$(cd "$(dirname "$0")/../.." && pwd)
prefix=
from=
libdir=lib
destdir=
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --from) [ $# -ge 2 ] || fail "--from needs a folder"; from=$2; shift 2 ;;
        --libdir) [ $# -ge 2 ] || fail "--libdir needs a folder"; libdir=$2; shift 2 ;;
        --destdir) [ $# -ge 2 ] || fail "--destdir needs a folder"; destdir=$2; shift 2 ;;
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

mkdir -p "$destdir$prefix/$libdir/pkgconfig" "$destdir$prefix/include"
[ -n "$destdir" ] || prefix=$(cd "$prefix" && pwd)
to=$destdir$prefix
install -m 644 "$from/netlib.h" "$to/include/netlib.h"
install -m 644 "$from/deps/libnetlib_c.a" "$to/$libdir/libnetlib.a"
install -m 755 "$from/deps/libnetlib_c.so" "$to/$libdir/libnetlib.so.$version"
# The name by which programs ask for it (its soname), and the one by which the linker does.
case $version in
    0.*) soname=libnetlib.so.${version%.*} ;;
    *) soname=libnetlib.so.${version%%.*} ;;
esac
ln -sf "libnetlib.so.$version" "$to/$libdir/$soname"
ln -sf "$soname" "$to/$libdir/libnetlib.so"
# The loader looks in the folders of the system by itself.
case $prefix in
    /usr | /usr/local) rpath= ;;
    # pkg-config knows libdir, the shell does not.
    *) rpath="-Wl,-rpath,\${libdir} " ;;
esac
sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@RPATH@|$rpath|" -e "s|@VERSION@|$version|" "$root/crates/netlib-c/netlib.pc.in" \
    > "$to/$libdir/pkgconfig/netlib.pc"
echo "netlib $version is installed below $prefix"
