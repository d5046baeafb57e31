"""Network functions for netvm in Python, and a client of netvmd's HTTP API."""

from .abi import DROP, NEXT, NetlibError, drop_flow, skip_flow, to_port, to_role
from .client import ApiError, Client
from .nf import Burst, OwnedPacket, Packet, run
from .simulator import Outcome, Simulator

__all__ = [
    "DROP",
    "NEXT",
    "ApiError",
    "Burst",
    "Client",
    "NetlibError",
    "Outcome",
    "OwnedPacket",
    "Packet",
    "Simulator",
    "drop_flow",
    "run",
    "skip_flow",
    "to_port",
    "to_role",
]
