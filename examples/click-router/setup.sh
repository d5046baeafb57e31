#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Click, of the tree that CLICK_TREE names, with netvm's elements, in the folder that CLICK_BUILD names.
set -euo pipefail
tree=${CLICK_TREE:?must name a source tree of Click, such as a clone of https://github.com/kohler/click}
if [[ -n $NETVM_BIN && -f $NETVM_BIN/netlib.h ]]; then
    "$EXAMPLES/../tools/package/install-netlib.sh" "$PWD/prefix" --from "$NETVM_BIN" >/dev/null
    export PKG_CONFIG_PATH=$PWD/prefix/lib/pkgconfig
fi
build=${CLICK_BUILD:-$EXAMPLES/../target/guest/click}
"$EXAMPLES/../bindings/click/build.sh" "$tree" "$build" >build.log 2>&1 || { tail -n 30 build.log >&2 && exit 1; }
cp "$build/click" "$EXAMPLES"/../bindings/click/ip-router{,-element}.click .
for name in left right; do ip netns add "$name"; done
