#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs an example in namespaces of its own, so that nothing on this machine changes: examples/try.sh EXAMPLE.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() {
    echo "try: $1" >&2
    exit 1
}

# lacking EXAMPLE BUILD: the programs of netvm that the example starts and that are not in a build.
lacking() {
    local program
    for program in netvmd netvm $(sed -n 's/^command = \["\(netvm-[a-z0-9-]*\)".*/\1/p' "$here/$1/host.toml" | sort -u); do
        [[ -x $2/$program ]] || echo "$program"
    done
    # NFs in other languages take the library.
    if [[ -f $here/$1/nf.py ]] || grep -q install-netlib "$here/$1/setup.sh"; then
        [[ -f $2/deps/libnetlib_c.so ]] || echo libnetlib
    fi
}

# find_programs EXAMPLE: the programs: of the newest build of this checkout that has all, else those that are installed.
find_programs() {
    local build newest='' incomplete=''
    if [[ -z ${NETVM_BIN:-} ]]; then
        for build in release demo debug; do
            build=${CARGO_TARGET_DIR:-$here/../target}/$build
            [[ -x $build/netvmd ]] || continue
            if [[ -n $(lacking "$1" "$build") ]]; then
                incomplete=$build
            elif [[ -z $newest || $build/netvmd -nt $newest/netvmd ]]; then
                newest=$build
            fi
        done
        NETVM_BIN=$newest
        if [[ -z $newest && -n $incomplete ]] && ! command -v netvmd >/dev/null; then
            fail "$incomplete has no $(lacking "$1" "$incomplete" | paste -sd ' '): build all with ./dev demo --no-run, or ./dev build"
        fi
    fi
    export NETVM_BIN PATH=${NETVM_BIN:+$NETVM_BIN:}$PATH:/usr/sbin:/sbin
    command -v netvmd >/dev/null || fail "there is no netvmd: build it (./dev build) or install the package netvm"
}

# inside EXAMPLE: in the namespaces.
inside() {
    local work=/run/netvm/example
    # Of this network namespace, with the cgroups of the machine.
    mkdir -p /run/netvm/cgroup
    mount --rbind /sys/fs/cgroup /run/netvm/cgroup
    mount -t sysfs sysfs /sys
    mount --rbind /run/netvm/cgroup /sys/fs/cgroup
    mount -t tmpfs -o mode=0755 tmpfs /run/netvm
    mount -t tmpfs -o mode=0755 tmpfs /run/netns
    cp -r "$here/$1" "$work"
    cd "$work"
    sed -i "s|/etc/netvm/|$work/|g" host.toml
    # NFs in Python find what packages would have installed, where every user can read it.
    if [[ -n $NETVM_BIN && -f $NETVM_BIN/deps/libnetlib_c.so && -f nf.py ]]; then
        cp -r "$here/../bindings/python/netvm" "$NETVM_BIN/deps/libnetlib_c.so" "$work"
        sed -i "s|^# \(environment = \)|\1|; s|@CHECKOUT@/bindings/python|$work|; s|@LIBRARY@|$work/libnetlib_c.so|" host.toml
    fi
    ip link set lo up
    export EXAMPLES=$here
    ./setup.sh
    netvmd --config host.toml --run-dir /run/netvm 2>netvmd.log &
    local daemon=$! tries=0
    until netvm status >/dev/null 2>&1; do
        if ((++tries > 200)) || ! kill -0 "$daemon" 2>/dev/null; then
            cat netvmd.log >&2
            fail "netvmd does not start"
        fi
        sleep 0.1
    done
    ./check.sh || {
        tail -n 30 netvmd.log >&2
        fail "$1 FAILED"
    }
    netvm stop --yes >/dev/null
    wait "$daemon"
    echo "$1: ok"
}

[[ $# -eq 1 && -f $here/$1/host.toml ]] || fail "usage: examples/try.sh EXAMPLE; examples are: $(cd "$here" && echo */ | tr -d /)"
if [[ ${TRY_INSIDE:-} == yes ]]; then
    inside "$1"
else
    ((EUID == 0)) || fail "network namespaces take root: run it with sudo"
    find_programs "$1"
    # What takes the Internet, before there is a network of its own.
    export EXAMPLE_CACHE=${NETVM_BIN:-/var/tmp/netvm}/guest
    if [[ -x $here/$1/prepare.sh ]]; then "$here/$1/prepare.sh"; fi
    mkdir -p /run/netvm /run/netns
    TRY_INSIDE=yes exec unshare --mount --net --pid --ipc --fork --kill-child --mount-proc "${BASH_SOURCE[0]}" "$1"
fi
