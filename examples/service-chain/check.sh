#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# shellcheck source=examples/common.sh
source "${EXAMPLES:-..}/common.sh"
pings client 10.0.0.2
serves server 80
serves server 23
for _ in 1 2 3 4 5 6 7 8; do connects client 10.0.0.2 80; done
# What the first packet of a connection meets, as in docs/how-to/trace.md.
netvm trace -n 1 --from client 'tcp port 80 and tcp[tcpflags] = tcp-syn' >traced.txt &
tracing=$!
while kill -0 "$tracing" 2>/dev/null; do connects client 10.0.0.2 80 >/dev/null; done
wait "$tracing"
cat traced.txt
is_refused client 10.0.0.2 23
# Port 80 is for the firewall; what the inspector drops stands in the payload.
echo "an attack" | ip netns exec client busybox nc -w 2 10.0.0.2 80 >answer || true
netvm nf inspector --json | grep -E '"dropped": [1-9]' >/dev/null
echo "the inspector drops an attack"
netvm chain
netvm nf
# Flows went to both.
for monitor in monitor-a monitor-b; do
    netvm nf "$monitor" --json | grep -E '"received": [1-9]' >/dev/null
done
