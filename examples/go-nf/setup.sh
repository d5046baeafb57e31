#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the NF: with libnetlib of this checkout, or with that of the package libnetlib-dev.
set -euo pipefail
if [[ -n $NETVM_BIN && -f $NETVM_BIN/netlib.h ]]; then
    "$EXAMPLES/../tools/package/install-netlib.sh" "$PWD/prefix" --from "$NETVM_BIN" >/dev/null
    export PKG_CONFIG_PATH=$PWD/prefix/lib/pkgconfig
fi
go build -C "$EXAMPLES/go-nf" -o "$PWD/no-telnet" . 2>build.log || { cat build.log >&2 && exit 1; }
for name in client server; do ip netns add "$name"; done
