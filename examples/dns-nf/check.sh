#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# shellcheck source=examples/common.sh
source "${EXAMPLES:-..}/common.sh"
pings client 10.0.0.2

# asks NAME: what the NF says, on behalf of an address that has no server.
asks() {
    ip netns exec client dig +noall +comments +answer +time=2 +tries=5 @10.0.0.2 "$1" A |
        sed -n 's/.*status: \([A-Z]*\).*/\1/p; /^[^;]/s/[[:space:]]\{1,\}/ /gp' | paste -sd ' '
}
for name in www.example mail.example nobody.example; do
    echo "$name: $(asks "$name")"
done
# More than the NF has buffers for: each goes back when its packet has left.
for _ in {1..400}; do asks www.example; done | sort | uniq -c | sed 's/^ *//'
netvm nf dns
