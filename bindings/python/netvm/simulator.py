# SPDX-License-Identifier: Apache-2.0
"""Tests an NF without netvmd: the same rings and memory, an engine that does nothing else."""

import ctypes
from typing import NamedTuple

from . import abi
from .nf import Burst, Message

_ROOM = 16384


class Outcome(NamedTuple):
    """What the NF did with a packet."""

    verdict: int
    data: bytes


class Simulator:
    """An engine with one NF thread. Ports, roles and chains are numbered in the order of the lists."""

    def __init__(self, ports=(), roles=(), chains=()):
        self._lib = abi.library()
        self._sim = ctypes.c_void_p()
        lists = abi.names(list(ports)), abi.names(list(roles))
        abi.check(self._lib.netlib_sim_new(*lists, ctypes.byref(self._sim)))
        abi.check(self._lib.netlib_sim_name_chains(self._sim, abi.names(list(chains))))
        self.burst = Burst(self._lib.netlib_sim_endpoint(self._sim))

    def inject(self, function, ingress, frame):
        """Gives the frame to `function(packet)`, and returns the outcome."""
        return self.inject_all(function, [(ingress, frame)])[0]

    def inject_all(self, function, frames):
        """Gives frames, as pairs of port number and bytes, to the function, in bursts."""
        outcomes = []
        for start in range(0, len(frames), abi.BURST):
            for ingress, frame in frames[start : start + abi.BURST]:
                frame = bytes(frame)
                abi.check(self._lib.netlib_sim_put(self._sim, ingress, frame, len(frame)))
            try:
                self.burst.receive(0)
                self.burst.handle(function)
            finally:
                outcomes.extend(self._taken())
        return outcomes

    def exchange(self, function, ingress, frame):
        """Gives the frame to the function, and returns the outcomes of all that the NF sends: of the frame itself, if
        the NF does not hold it, then of what it has made and what it had held."""
        return self.inject_all(function, [(ingress, frame)])

    def set_time(self, seconds):
        """Sets what `burst.now()` returns from now on."""
        abi.check(self._lib.netlib_sim_set_time(self._sim, round(seconds * 1e9)))

    def tell(self, message):
        """Sends the NF a message, as netvmd does."""
        abi.check(self._lib.netlib_sim_tell(self._sim, ctypes.byref(message.raw())))

    def told(self):
        """The messages that the NF has sent: each one's role is the receivers'."""
        raw, told = abi.Message(), []
        while abi.check(self._lib.netlib_sim_told(self._sim, ctypes.byref(raw))):
            told.append(Message.of(raw))
        return told

    def counter(self, index):
        """One of the NF's own counters."""
        return self._lib.netlib_sim_counter(self._sim, index)

    def _taken(self):
        room, verdict = (ctypes.c_ubyte * _ROOM)(), ctypes.c_uint32()
        while True:
            length = ctypes.c_size_t(_ROOM)
            taken = self._lib.netlib_sim_take(self._sim, room, ctypes.byref(length), ctypes.byref(verdict))
            if abi.check(taken) == 0:
                return
            yield Outcome(verdict.value, bytes(room[: length.value]))

    def __del__(self):
        if getattr(self, "_sim", None):
            self.burst.close()
            self._lib.netlib_sim_free(self._sim)
            self._sim = None
