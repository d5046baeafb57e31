#!/usr/bin/env bash
set -euo pipefail
for name in client web web2 db; do ip netns add "$name"; done
