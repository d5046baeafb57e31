#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# shellcheck source=examples/common.sh
source "${EXAMPLES:-..}/common.sh"
pings client 10.0.0.2
serves web 80
serves db 5432
connects client 10.0.0.2 80
connects web 10.0.0.3 5432
is_refused client 10.0.0.3 5432
# An address that is not the client's.
ip -n client address add 10.0.0.9/24 dev eth0
ip netns exec client busybox ping -c 1 -W 1 -I 10.0.0.9 10.0.0.2 >/dev/null && exit 1
echo "client does not get out with a forged address"
netvm policy trace --from client protocol=tcp source=10.0.0.1 destination=10.0.0.3 destination_port=5432
netvm stats --drops
