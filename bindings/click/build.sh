#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds Click with FromNetvm and ToNetvm.
set -eu

usage() {
    cat <<'TEXT'
usage: bindings/click/build.sh TREE FOLDER

Builds the Click of the source tree TREE with the elements FromNetvm and ToNetvm: FOLDER/click. TREE stays as it
is. Takes g++, make, and netlib for C where pkg-config finds it (tools/package/install-netlib.sh).
TEXT
}

[ $# -eq 2 ] || { usage >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$1" && pwd)
mkdir -p "$2"
folder=$(cd "$2" && pwd)
[ -x "$tree/configure" ] || { echo "build.sh: $tree is not a tree of Click: it has no configure" >&2; exit 1; }
pkg-config --exists netlib || { echo "build.sh: pkg-config finds no netlib: install it with tools/package/install-netlib.sh PREFIX, and set PKG_CONFIG_PATH=PREFIX/lib/pkgconfig" >&2; exit 1; }

# A copy, as elements of one's own belong into the tree.
if [ ! -e "$folder/tree/config.status" ]; then
    rm -rf "$folder/tree"
    cp -R "$tree" "$folder/tree"
    cd "$folder/tree"
    rm -f elements/local/*.cc elements/local/*.hh
    CPPFLAGS="$(pkg-config --cflags netlib)" LIBS="$(pkg-config --libs netlib)" ./configure --enable-local \
        --disable-linuxmodule --disable-bsdmodule --disable-tools
fi
cd "$folder/tree"
cp "$here"/fromnetvm.* "$here"/tonetvm.* elements/local/
make -C userlevel ${JOBS:+-j"$JOBS"}
ln -sf tree/userlevel/click "$folder/click"
