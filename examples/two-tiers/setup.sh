#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
for name in client web web2 db; do ip netns add "$name"; done
