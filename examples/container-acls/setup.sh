#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Containers are network namespaces; netvm makes their interfaces.
set -euo pipefail
for name in client web db; do ip netns add "$name"; done
