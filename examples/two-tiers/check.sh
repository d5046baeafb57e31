#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# shellcheck source=examples/common.sh
source "${EXAMPLES:-..}/common.sh"

# start NAME TIER ADDRESS [LINE]: a container's port; with Podman or Docker, netvm-cni and `netvm docker` do this.
start() {
    netvm port add "name = '$1'" "kind = 'container'" "namespace = '$1'" "addresses = ['$3/24']" \
        "gateways = ['10.77.0.1']" "forward = { normal = true }" "labels = { tier = '$2' }" "${4:-}"
}

start web front 10.77.0.2 'publish = "8080:80"'
start db back 10.77.0.3
serves web 80
serves db 6379
connects client 203.0.113.2 8080
connects web 10.77.0.3 6379
is_refused client 10.77.0.3 6379
# Another one of the first tier has what its label gives, at once; a container of none has not.
start web2 front 10.77.0.4
connects web2 10.77.0.3 6379
netvm port del web2
start web2 none 10.77.0.4
pings web2 10.77.0.2
is_refused web2 10.77.0.3 6379
netvm port live
netvm chain
netvm nf monitor --json | grep -E '"received": [1-9]' >/dev/null
echo "packets between the tiers pass the monitor"
