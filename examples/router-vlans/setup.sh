#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two hosts, and the cable between the switch and the router.
set -euo pipefail
for name in staff server; do ip netns add "$name"; done
ip link add trunk0 type veth peer name uplink0
ip link set trunk0 up
ip link set uplink0 up
