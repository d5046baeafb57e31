#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# shellcheck source=examples/common.sh
source "${EXAMPLES:-..}/common.sh"
pings client 10.0.0.2
pings client fd00::2
serves web 80
connects client 10.0.0.2 80
netvm port
