# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev bench bindings: the NF of the benchmark in each language. Sourced by ./dev, which sets target_dir.
# shellcheck disable=SC2154

# build_bindings: the programs, into a folder that NETVM_BINDINGS names, and what they need to run.
build_bindings() {
    local prefix
    command -v go >/dev/null || install_missing golang-go
    install_missing python3
    prefix=$(realpath -m "$target_dir/bindings")
    step "libnetlib" cargo build --locked --release --package netlib-c --lib </dev/null
    tools/package/install-netlib.sh "$prefix" --from "$target_dir/release"
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    # shellcheck disable=SC2046 # flags
    cc -O2 -Wall -Wextra -o "$prefix/touch-c" bindings/bench/touch.c $(pkg-config --cflags --libs netlib)
    # Go's cache does not see that pkg-config finds libnetlib in another folder: it sees these flags.
    step "the NF in Go" env -C bindings/bench CGO_LDFLAGS="-L$prefix/lib" go build -o "$prefix/touch-go" touch.go
    cp bindings/bench/touch.py "$prefix/touch.py"
    export NETVM_BINDINGS=$prefix NETLIB_LIBRARY=$prefix/lib/libnetlib.so PYTHONPATH=$PWD/bindings/python PYTHONDONTWRITEBYTECODE=1
}
