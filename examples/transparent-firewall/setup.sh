#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two hosts on one network, each at the other end of a NIC of this machine.
set -euo pipefail
# shellcheck source=examples/common.sh
source "${EXAMPLES:-..}/common.sh"
host inside 10.0.0.1/24
host outside 10.0.0.2/24
