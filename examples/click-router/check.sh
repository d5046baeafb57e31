#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# shellcheck source=examples/common.sh
source "${EXAMPLES:-..}/common.sh"
pings left 10.0.1.254
pings left 10.0.2.1
serves right 80
connects left 10.0.2.1 80
said=$(ip netns exec left busybox traceroute -n -w 2 -m 3 10.0.2.1 2>&1)
grep -q '^ 1  10\.0\.1\.254 ' <<<"$said" || { echo "$said" >&2 && exit 1; }
echo "left sees the router 10.0.1.254 before 10.0.2.1"
python3 compare.py 02:00:00:00:01:fe >click.txt
netvm policy del from-left >/dev/null
netvm policy add 'name = "from-left"' 'from = "left"' 'chain = "own"' >/dev/null
python3 compare.py 02:00:00:00:00:fe >own.txt
cmp click.txt own.txt
echo "Click forwards $(wc -l <click.txt) packets as l3-forward does"
netvm nf click-router
