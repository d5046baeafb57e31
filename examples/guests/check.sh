#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# shellcheck source=examples/common.sh
source "${EXAMPLES:-..}/common.sh"
# Without KVM, a guest takes some seconds to boot.
pings client 10.0.0.2 120
connects client 10.0.0.2 80
is_refused client 10.0.0.2 23
netvm vm list
netvm stats --drops
