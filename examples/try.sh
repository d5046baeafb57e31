#!/usr/bin/env bash
# Runs an example in namespaces of its own, so that nothing on this machine changes: examples/try.sh EXAMPLE.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() {
    echo "try: $1" >&2
    exit 1
}

# The programs: the newest build of this checkout, else those that are installed.
find_programs() {
    local build newest=''
    if [[ -z ${NETVM_BIN:-} ]]; then
        for build in release demo debug; do
            build=${CARGO_TARGET_DIR:-$here/../target}/$build
            if [[ -x $build/netvmd && (-z $newest || $build/netvmd -nt $newest/netvmd) ]]; then newest=$build; fi
        done
        NETVM_BIN=$newest
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
    find_programs
    # What takes the Internet, before there is a network of its own.
    export EXAMPLE_CACHE=${NETVM_BIN:-/var/tmp/netvm}/guest
    if [[ -x $here/$1/prepare.sh ]]; then "$here/$1/prepare.sh"; fi
    mkdir -p /run/netvm /run/netns
    TRY_INSIDE=yes exec unshare --mount --net --pid --ipc --fork --kill-child --mount-proc "${BASH_SOURCE[0]}" "$1"
fi
