#!/usr/bin/env bash
# Containers are network namespaces; netvm makes their interfaces.
set -euo pipefail
for name in client web db; do ip netns add "$name"; done
