#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends packets from left to right, and prints those that arrive, without their Ethernet headers.

usage: compare.py MAC (the router's)"""

import ctypes
import os
import random
import socket
import struct
import sys

PACKETS = 500


def enter(namespace):
    """A packet socket of a namespace."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    other = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(other, 0) != 0:
        raise OSError(ctypes.get_errno(), namespace)
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    packets.bind(("eth0", 0x0800))
    libc.setns(own, 0)
    return packets


def checksum(header):
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def packet(number, choose):
    """A UDP datagram of any size, TTL, TOS and ports, also to nowhere, or with a wrong header checksum."""
    payload = choose.randbytes(choose.randrange(0, 1400))
    ports = struct.pack("!HHHH", choose.randrange(1, 65536), choose.randrange(1, 65536), 8 + len(payload), 0)
    destination = choose.choice(["10.0.2.1"] * 6 + ["10.0.3.1", "127.0.0.1", "224.0.0.9"])
    ttl = choose.choice([0, 1, 2, 64, 255])
    length = 20 + 8 + len(payload)
    ends = socket.inet_aton("10.0.1.1") + socket.inet_aton(destination)
    head = struct.pack("!BBHHHBBH", 0x45, choose.randrange(256), length, number, 0x4000, ttl, 17, 0) + ends
    wrong = choose.randrange(8) == 0
    head = head[:10] + struct.pack("!H", checksum(head) ^ wrong) + head[12:]
    return head + ports + payload


def main():
    choose = random.Random(1)
    left, right = enter("left"), enter("right")
    mac = bytes.fromhex(sys.argv[1].replace(":", ""))
    header = mac + bytes.fromhex("020000000101") + b"\x08\x00"
    arrived = []
    right.settimeout(0.05)
    for number in range(PACKETS):
        left.send(header + packet(number, choose))
        try:
            while True:
                frame = right.recv(2048)
                if frame[14 + 9] == 17 and frame[26:30] == socket.inet_aton("10.0.1.1"):
                    arrived.append(frame[14:])
                    break
        except TimeoutError:
            pass
    for frame in arrived:
        print(frame.hex())


main()
