#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# shellcheck source=examples/common.sh
source "${EXAMPLES:-..}/common.sh"
pings client 10.0.0.2
serves server 80
is_refused client 10.0.0.2 80
is_refused client 10.0.0.2 1234
echo "client has knocked"
connects client 10.0.0.2 80
netvm nf port-knock
