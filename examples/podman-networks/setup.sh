#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two containers without a network of their own. With Podman or Docker: run with --network none, and inspect for the
# process.
set -euo pipefail
for name in web client; do
    unshare --net sleep 3600 &
    pid=$!
    until [[ $(readlink "/proc/$pid/ns/net") != "$(readlink /proc/self/ns/net)" ]]; do sleep 0.05; done
    sed -i "s/@PID_OF_$name@/$pid/" host.toml
    # For check.sh.
    ip netns attach "$name" "$pid"
done
