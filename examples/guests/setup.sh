#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
ip netns add client
cp -r "$EXAMPLE_CACHE/example" image
