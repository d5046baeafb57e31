# SPDX-License-Identifier: Apache-2.0
"""An NF: bursts of packets in shared memory, without a copy."""

import ctypes
import signal
from typing import NamedTuple

from . import abi

# Windows over packet memory, from which the packets' memoryviews are cut: cheaper than one from an address each.
_WINDOW_BITS = 24
_WINDOW = 1 << _WINDOW_BITS


class Packet:
    """One packet. Valid until the function that got it, or its burst, returns."""

    __slots__ = ("_address", "_burst", "_data", "_length", "chain", "hash", "hop", "index", "ingress")

    def __init__(self, burst, raw):
        self._burst = burst
        self._data = None
        (
            self._address,
            self._length,
            self.ingress,
            self.chain,
            self.hop,
            self.hash,
            self.index,
            _serial,
            _endpoint,
        ) = raw

    @property
    def data(self):
        """Its bytes, from the Ethernet header on: a writable memoryview of the shared buffer."""
        if self._data is None:
            self._data = self._burst._view(self._address, self._length)
        return self._data

    def __len__(self):
        return self._length

    def prepend(self, count):
        """Adds bytes at the front, whose content is undefined."""
        self._change(abi.library().netlib_prepend, count)

    def append(self, count):
        """Adds bytes at the end, whose content is undefined."""
        self._change(abi.library().netlib_append, count)

    def trim_front(self, count):
        """Removes bytes from the front."""
        self._change(abi.library().netlib_trim_front, count)

    def truncate(self, length):
        """Shortens the packet."""
        self._change(abi.library().netlib_truncate, length)

    def alloc(self, length):
        """A new packet of zero bytes in this one's place: with its ingress port and its hop. None if no buffer is
        free."""
        return self._burst._own(abi.library().netlib_alloc_for, self._at(), length)

    def copy(self):
        """A copy of the packet. None if no buffer is free."""
        return self._burst._own(abi.library().netlib_clone, self._at())

    def hold(self):
        """Keeps the packet beyond the burst; the verdict on it is ignored, and this object must not be used any more.
        None if `hold` of the [[nf]] allows no further one."""
        self._release()
        return self._burst._own(abi.library().netlib_hold, self._at())

    def _at(self):
        return self._burst._address_of(self.index)

    def _change(self, function, count):
        self._release()
        at = self._at()
        abi.check(function(at, count))
        raw = abi.PACKET.unpack(ctypes.string_at(at, abi.PACKET.size))
        self._address, self._length = raw[0], raw[1]

    def _release(self):
        if self._data is not None:
            self._data.release()
            self._data = None


class OwnedPacket(Packet):
    """A packet that the NF has made, copied or holds, over any number of bursts: until it is sent, or dropped, which
    frees it."""

    __slots__ = ("_own",)

    def __init__(self, burst, own):
        self._own = own
        super().__init__(burst, abi.PACKET.unpack(own))

    def set_ingress(self, port):
        """Makes the packet count as received by this port, if it is one that the NF has made."""
        abi.check(abi.library().netlib_set_ingress(self._at(), port))
        self.ingress = port

    def send(self, verdict):
        """Sends the packet by a verdict: before the packets of the burst, or at once between bursts."""
        self._release()
        at = self._at()
        # Keeps the memory until the call is over.
        own, self._own = self._own, None
        abi.check(abi.library().netlib_send_packet(at, verdict))
        del own

    def hold(self):
        """It is held already."""
        return self

    def _at(self):
        if self._own is None:
            raise ValueError("the packet was sent")
        return ctypes.addressof(self._own)

    def __del__(self):
        if getattr(self, "_own", None) is not None and self._burst._is_open():
            self._release()
            abi.library().netlib_release(ctypes.addressof(self._own))


_KINDS = ("from_nf", "configured", "drain", "resume", "load")


class Message(NamedTuple):
    """A message: its kind (from_nf, configured, drain, resume, load), and what belongs to that kind."""

    kind: str
    role: str = ""
    instance: int = 0
    version: int = 0
    payload: bytes = b""
    percent: int = 0

    @classmethod
    def of(cls, raw):
        """A message of C."""
        payload = bytes(raw.payload[: raw.length])
        return cls(_KINDS[raw.kind], raw.role.decode(), raw.instance, raw.version, payload, raw.percent)

    def raw(self):
        """The same for C."""
        raw = abi.Message(_KINDS.index(self.kind), self.role.encode(), self.instance, self.version, self.percent)
        raw.length = len(self.payload)
        raw.payload[: raw.length] = self.payload
        return raw


class Burst:
    """The packets that an endpoint received together, and their verdicts: `burst.verdicts[n] = netvm.DROP`."""

    def __init__(self, endpoint):
        self._lib = abi.library()
        self._endpoint = endpoint
        self._raw = (ctypes.c_char * (abi.PACKET.size * abi.BURST))()
        self._raw_view = memoryview(self._raw)
        self._windows = {}
        self._next = (ctypes.c_uint32 * abi.BURST)()
        self._packets = []
        self.verdicts = (ctypes.c_uint32 * abi.BURST)()

    def __len__(self):
        return len(self._packets)

    def __getitem__(self, index):
        return self._packets[index]

    def __iter__(self):
        return iter(self._packets)

    def alloc(self, length):
        """A new packet of zero bytes without ingress port: send it out of a port. None if no buffer is free."""
        return self._own(self._lib.netlib_alloc, self._endpoint, length)

    def now(self):
        """Seconds since the NF attached; in a simulator, what the test has set."""
        return self._lib.netlib_now(self._endpoint) / 1e9

    def may_hold(self):
        """Number of further packets that the NF may hold."""
        return self._lib.netlib_may_hold(self._endpoint)

    def port(self, name):
        """The number of the port with this name; KeyError if there is none."""
        return self._number(self._lib.netlib_port, name)

    def role(self, name):
        """The number of the role with this name; KeyError if there is none."""
        return self._number(self._lib.netlib_role, name)

    def chain(self, name):
        """The number of the chain with this name, for steer_to_chain; KeyError if there is none."""
        return self._number(self._lib.netlib_chain, name)

    def epoch(self):
        """Changes whenever ports, roles or chains change, so that names may have other numbers."""
        return self._lib.netlib_epoch(self._endpoint)

    def count(self, counter, by=1):
        """Adds to one of the NF's own counters, by its index."""
        abi.check(self._lib.netlib_count(self._endpoint, counter, by))

    def next_message(self):
        """The next message of another NF or of netvmd; None if there is none now. `run` needs `messages=True`."""
        raw = abi.Message()
        if abi.check(self._lib.netlib_next_message(self._endpoint, ctypes.byref(raw))) == 0:
            return None
        return Message.of(raw)

    def send_message(self, role, version, payload):
        """Sends a message to all other NFs of a role in this NF's trust group: at most 1024 bytes."""
        raw = Message("from_nf", role, version=version, payload=bytes(payload)).raw()
        abi.check(self._lib.netlib_send_message(self._endpoint, ctypes.byref(raw)))

    def withdraw(self):
        """Withdraws the per-flow verdicts that this NF gave."""
        abi.check(self._lib.netlib_withdraw(self._endpoint))

    def receive(self, timeout):
        """Receives the next burst, for at most so many microseconds. False if the NF must end."""
        count = abi.check(self._lib.netlib_receive(self._endpoint, self._raw, abi.BURST, timeout))
        if count == abi.END:
            return False
        raw = abi.PACKET.iter_unpack(self._raw_view[: count * abi.PACKET.size])
        self._packets = [Packet(self, packet) for packet in raw]
        ctypes.memmove(self.verdicts, self._next, 4 * count)
        return True

    def send(self):
        """Gives the packets back, by their verdicts."""
        count = len(self._packets)
        for packet in self._packets:
            packet._release()
        self._packets = []
        if count:
            abi.check(self._lib.netlib_set_verdicts(self._endpoint, self.verdicts, count))
            abi.check(self._lib.netlib_send(self._endpoint))

    def handle(self, function):
        """Calls the function on every packet. If it raises, that packet and those after it are discarded."""
        verdicts = self.verdicts
        index = 0
        try:
            for packet in self._packets:
                verdicts[index] = function(packet)
                index += 1
        except BaseException:
            for rest in range(index, len(self._packets)):
                verdicts[rest] = abi.DROP
            self.send()
            raise
        self.send()

    def _own(self, function, *arguments):
        """The packet that a function makes; None if there is no room for it."""
        own = (ctypes.c_char * abi.PACKET.size)()
        status = function(*arguments, ctypes.addressof(own))
        if status == abi.ERR_SPACE:
            return None
        abi.check(status)
        return OwnedPacket(self, own)

    def _is_open(self):
        return self._endpoint is not None

    def close(self):
        """The endpoint is gone, and with it all packets."""
        self._endpoint = None

    def _number(self, function, name):
        number = ctypes.c_uint16()
        if function(self._endpoint, name.encode(), ctypes.byref(number)) != 0:
            raise KeyError(name)
        return number.value

    def _address_of(self, index):
        return ctypes.addressof(self._raw) + index * abi.PACKET.size

    def _view(self, address, length):
        key = address >> _WINDOW_BITS
        window = self._windows.get(key)
        if window is None:
            array = (ctypes.c_ubyte * (2 * _WINDOW)).from_address(key << _WINDOW_BITS)
            window = self._windows[key] = memoryview(array).cast("B")
        start = address & (_WINDOW - 1)
        return window[start : start + length]


def run(name, packet=None, burst=None, counters=(), **options):
    """Runs the NF until netvmd ends it, or SIGTERM or SIGINT.

    `packet(packet)` returns a verdict for each packet; or `burst(burst)` sets `burst.verdicts` for a burst at a time.
    `counters` names the NF's own counters. Options: `role`, `socket`, `poll` (spin instead of sleeping), `offloads`
    (see netlib.h), `messages` (see Burst.next_message; read them in `burst`).
    """
    if (packet is None) == (burst is None):
        raise TypeError("run takes one of the functions packet and burst")
    lib = abi.library()
    nf, texts = _attach(lib, name, counters, options)
    stopped = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.append(True))
    received = Burst(lib.netlib_get_endpoint(nf, 0))
    try:
        # Short, so that signals are seen.
        while not stopped and received.receive(100_000):
            if packet is not None:
                received.handle(packet)
            elif len(received):
                burst(received)
                received.send()
    finally:
        received.close()
        lib.netlib_detach(nf)
    del texts


def _attach(lib, name, counters, options):
    raw = abi.Options()
    abi.check(lib.netlib_options_init(ctypes.byref(raw)))
    texts = abi.names(list(counters))
    raw.name, raw.threads = name.encode(), 1
    raw.counters, raw.counter_count = texts, len(counters)
    raw.waiting, raw.offloads = int(options.pop("poll", False)), int(options.pop("offloads", False))
    raw.messages = int(options.pop("messages", False))
    for key in ("role", "socket"):
        value = options.pop(key, None)
        setattr(raw, key, value.encode() if value is not None else None)
    if options:
        raise TypeError(f"run has no option {', '.join(options)}")
    nf = ctypes.c_void_p()
    abi.check(lib.netlib_attach(ctypes.byref(raw), ctypes.byref(nf)))
    return nf, texts
