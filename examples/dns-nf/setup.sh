#!/usr/bin/env bash
set -euo pipefail
for name in client server; do ip netns add "$name"; done
