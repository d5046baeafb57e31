#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a small Linux guest: the kernel of this distribution, BusyBox, and guest.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"$here/../../tools/guest/image.sh" "$EXAMPLE_CACHE/two-tier" --module virtio_pci --module virtio_net --file "$here/guest.sh:/guest.sh" \
    "$(command -v busybox)" sh /guest.sh
