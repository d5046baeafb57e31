#!/usr/bin/env bash
set -euo pipefail
ip netns add client
cp -r "$EXAMPLE_CACHE/two-tier" image
