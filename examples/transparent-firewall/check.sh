#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# shellcheck source=examples/common.sh
source "${EXAMPLES:-..}/common.sh"
pings inside 10.0.0.2
pings outside 10.0.0.1
serves outside 80
serves inside 80
connects inside 10.0.0.2 80
is_refused outside 10.0.0.1 80
netvm nf firewall
