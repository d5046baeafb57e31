# SPDX-License-Identifier: Apache-2.0
"""The NF of `./dev bench bindings` in Python: reads the first byte of each packet, and sends it on."""

import sys

import netvm


def packet(packet):
    packet.data[0]
    return netvm.NEXT


def burst(burst):
    for packet in burst:
        packet.data[0]


if sys.argv[1:] == ["--burst"]:
    netvm.run("touch", burst=burst, poll=True)
else:
    netvm.run("touch", packet, poll=True)
