#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# shellcheck source=examples/common.sh
source "${EXAMPLES:-..}/common.sh"
# Without KVM, guests take some seconds to boot.
pings client 10.0.0.2 120
pings client 10.0.0.3 120
connects client 10.0.0.2 80
is_refused client 10.0.0.3 5432
netvm nf
netvm policy show
