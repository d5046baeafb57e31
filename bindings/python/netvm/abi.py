# SPDX-License-Identifier: Apache-2.0
"""libnetlib's C ABI: see netlib.h, whose names these are."""

import ctypes
import functools
import os
import struct

# Of this package, and of the library that it is made for; `./dev release` sets it.
VERSION = "0.1.0"
BURST = 32
END = -1
ERR_SPACE = -8
NEXT = 0
DROP = 0x10000
# Verdict: to the next hop, and the rest of the flow on the way on which no NF has steered it.
STEER_BACK = 0x90000

# netlib_packet, as struct.iter_unpack reads it: data, length, ingress, chain, hop, hash, index, serial, endpoint.
PACKET = struct.Struct("=QIHHBBHIQ")


def to_port(port):
    """Verdict: send the packet out of the port with this number."""
    return 0x20000 | port


def to_role(role):
    """Verdict: send the packet to an NF of the role with this number."""
    return 0x30000 | role


def drop_flow(seconds):
    """Verdict: discard the packet and the rest of its flow, until it has been idle for so long."""
    return 0x40000 | seconds


def skip_flow(seconds):
    """Verdict: to the next hop, and the rest of the flow bypasses this NF, until it has been idle for so long."""
    return 0x50000 | seconds


def steer_to_chain(chain):
    """Verdict: to the next hop, and the rest of the flow into this chain; `steer` of the `[[nf]]` must list it."""
    return 0x60000 | chain


def steer_to_role(role):
    """Verdict: to the next hop, and the rest of the flow to an NF of this role; `steer` must list it."""
    return 0x70000 | role


def steer_to_port(port):
    """Verdict: to the next hop, and the rest of the flow out of this port; `steer` must list it."""
    return 0x80000 | port


class Options(ctypes.Structure):
    """netlib_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("role", ctypes.c_char_p),
        ("socket", ctypes.c_char_p),
        ("counters", ctypes.POINTER(ctypes.c_char_p)),
        ("counter_count", ctypes.c_size_t),
        ("threads", ctypes.c_uint16),
        ("waiting", ctypes.c_int),
        ("offloads", ctypes.c_int),
        ("messages", ctypes.c_int),
    ]


class Message(ctypes.Structure):
    """netlib_message."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("role", ctypes.c_char * 33),
        ("instance", ctypes.c_uint32),
        ("version", ctypes.c_uint16),
        ("percent", ctypes.c_uint16),
        ("length", ctypes.c_size_t),
        ("payload", ctypes.c_ubyte * 1024),
    ]


class NetlibError(Exception):
    """A call of libnetlib failed; `status` is its netlib_status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def soname():
    """The name of the library of this version: before 1.0 each 0.x has one of its own."""
    major, minor, _ = VERSION.split(".")
    return f"libnetlib.so.{major}.{minor}" if major == "0" else f"libnetlib.so.{major}"


@functools.cache
def library():
    """libnetlib, with the types of its functions."""
    name = os.environ.get("NETLIB_LIBRARY", soname())
    try:
        lib = ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(
            f"{error}: install the package {soname().replace('.so.', '')}, or set NETLIB_LIBRARY to the path of libnetlib.so"
        ) from error
    pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    for name, result, arguments in [
        ("netlib_options_init", ctypes.c_int, [pointer]),
        ("netlib_attach", ctypes.c_int, [pointer, pointer]),
        ("netlib_detach", None, [pointer]),
        ("netlib_get_endpoint", pointer, [pointer, ctypes.c_uint16]),
        ("netlib_receive", ctypes.c_int, [pointer, pointer, size, ctypes.c_int64]),
        ("netlib_send", ctypes.c_int, [pointer]),
        ("netlib_set_verdicts", ctypes.c_int, [pointer, pointer, size]),
        ("netlib_count", ctypes.c_int, [pointer, size, ctypes.c_uint64]),
        ("netlib_withdraw", ctypes.c_int, [pointer]),
        ("netlib_port", ctypes.c_int, [pointer, text, pointer]),
        ("netlib_role", ctypes.c_int, [pointer, text, pointer]),
        ("netlib_chain", ctypes.c_int, [pointer, text, pointer]),
        ("netlib_epoch", ctypes.c_uint64, [pointer]),
        ("netlib_next_message", ctypes.c_int, [pointer, pointer]),
        ("netlib_send_message", ctypes.c_int, [pointer, pointer]),
        ("netlib_prepend", ctypes.c_int, [pointer, size]),
        ("netlib_append", ctypes.c_int, [pointer, size]),
        ("netlib_trim_front", ctypes.c_int, [pointer, size]),
        ("netlib_truncate", ctypes.c_int, [pointer, size]),
        ("netlib_set_hash", ctypes.c_int, [pointer, ctypes.c_uint8]),
        ("netlib_alloc", ctypes.c_int, [pointer, size, pointer]),
        ("netlib_alloc_for", ctypes.c_int, [pointer, size, pointer]),
        ("netlib_clone", ctypes.c_int, [pointer, pointer]),
        ("netlib_hold", ctypes.c_int, [pointer, pointer]),
        ("netlib_send_packet", ctypes.c_int, [pointer, ctypes.c_uint32]),
        ("netlib_release", ctypes.c_int, [pointer]),
        ("netlib_set_ingress", ctypes.c_int, [pointer, ctypes.c_uint16]),
        ("netlib_may_hold", size, [pointer]),
        ("netlib_now", ctypes.c_uint64, [pointer]),
        ("netlib_sim_set_time", ctypes.c_int, [pointer, ctypes.c_uint64]),
        ("netlib_last_error", text, []),
        ("netlib_sim_new", ctypes.c_int, [pointer, pointer, pointer]),
        ("netlib_sim_free", None, [pointer]),
        ("netlib_sim_name_chains", ctypes.c_int, [pointer, pointer]),
        ("netlib_sim_tell", ctypes.c_int, [pointer, pointer]),
        ("netlib_sim_told", ctypes.c_int, [pointer, pointer]),
        ("netlib_sim_endpoint", pointer, [pointer]),
        ("netlib_sim_put", ctypes.c_int, [pointer, ctypes.c_uint16, text, size]),
        ("netlib_sim_take", ctypes.c_int, [pointer, pointer, pointer, pointer]),
        ("netlib_sim_counter", ctypes.c_uint64, [pointer, size]),
    ]:
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def check(status):
    """The status, unless it says that a call failed."""
    if status < END:
        raise NetlibError(status, library().netlib_last_error().decode())
    return status


def names(texts):
    """A list of C strings that ends with NULL."""
    return (ctypes.c_char_p * (len(texts) + 1))(*[text.encode() for text in texts], None)
