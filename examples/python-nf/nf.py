#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Port knocking: TCP port 80 opens to a client that has tried port 1234 before."""

import netvm

KNOCK, GUARDED = 1234, 80
ETHERNET = 14
TCP = 6

knocked = set()


def packet(packet):
    frame = packet.data
    if len(frame) < ETHERNET + 20 or frame[12:14] != b"\x08\x00" or frame[ETHERNET + 9] != TCP:
        return netvm.NEXT
    tcp = ETHERNET + 4 * (frame[ETHERNET] & 0x0F)
    if len(frame) < tcp + 4:
        return netvm.DROP
    # A copy: another program owns the memory once the packet has gone on.
    source = bytes(frame[ETHERNET + 12 : ETHERNET + 16])
    port = int.from_bytes(frame[tcp + 2 : tcp + 4], "big")
    if port == KNOCK:
        knocked.add(source)
        return netvm.DROP
    if port == GUARDED and source not in knocked:
        return netvm.DROP
    return netvm.NEXT


if __name__ == "__main__":
    netvm.run("port-knock", packet)
