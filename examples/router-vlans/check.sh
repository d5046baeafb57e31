#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# shellcheck source=examples/common.sh
source "${EXAMPLES:-..}/common.sh"
pings staff 10.0.10.1
pings staff 10.0.20.2
serves server 80
connects staff 10.0.20.2 80
netvm router show office
