#!/usr/bin/env bash
set -euo pipefail
ip netns add client
cp -r "$EXAMPLE_CACHE/example" image
