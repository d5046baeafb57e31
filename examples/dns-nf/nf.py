#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A DNS responder: answers queries for the addresses of the names that it knows, by packets that it makes itself."""

import netvm

NAMES = {b"\3www\7example\0": (192, 0, 2, 80), b"\4mail\7example\0": (192, 0, 2, 25)}
ADDRESS_QUERY, IPV4_UDP, ETHERNET, PORT = b"\0\1\0\1", 17, 14, b"\0\x35"


def checksum(data):
    total = sum(int.from_bytes(data[n : n + 2], "big") for n in range(0, len(data), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return (total ^ 0xFFFF).to_bytes(2, "big")


def answer(query):
    """The DNS message that answers a query (RFC 1035 section 4)."""
    end = query.index(0, 12) + 1
    question, name = query[12 : end + 4], query[12:end].lower()
    known = NAMES.get(name) if query[end : end + 4] == ADDRESS_QUERY else None
    flags, count = (b"\x85\0", b"\0\1") if known else (b"\x85\3", b"\0\0")  # NXDOMAIN
    record = b"\xc0\x0c" + ADDRESS_QUERY + b"\0\0\0\x3c\0\4" + bytes(known) if known else b""
    return query[:2] + flags + b"\0\1" + count + bytes(4) + question + record


def packet(packet):
    frame = bytes(packet.data)
    ip, udp = frame[ETHERNET : ETHERNET + 20], frame[ETHERNET + 20 : ETHERNET + 28]
    if frame[12:15] != b"\x08\0\x45" or ip[9] != IPV4_UDP or udp[2:4] != PORT or len(frame) < ETHERNET + 45:
        return netvm.NEXT
    message = answer(frame[ETHERNET + 28 :])
    made = packet.alloc(ETHERNET + 28 + len(message))
    if made is None:
        return netvm.DROP
    head = b"\x45\0" + (28 + len(message)).to_bytes(2, "big") + bytes(4) + b"\x40\x11"
    ends = ip[16:20] + ip[12:16]
    made.data[:ETHERNET] = frame[6:12] + frame[:6] + frame[12:14]
    made.data[ETHERNET : ETHERNET + 20] = head + checksum(head + ends) + ends
    made.data[ETHERNET + 20 :] = udp[2:4] + udp[:2] + (8 + len(message)).to_bytes(2, "big") + bytes(2) + message
    made.send(netvm.to_port(packet.ingress))
    return netvm.DROP


if __name__ == "__main__":
    netvm.run("dns", packet)
