# SPDX-License-Identifier: Apache-2.0
"""Network functions for netvm in Python, and a client of netvmd's HTTP API."""

from .abi import (
    DROP,
    NEXT,
    STEER_BACK,
    NetlibError,
    drop_flow,
    skip_flow,
    steer_to_chain,
    steer_to_port,
    steer_to_role,
    to_port,
    to_role,
)
from .client import ApiError, Client
from .nf import Burst, Message, OwnedPacket, Packet, run
from .simulator import Outcome, Simulator

__all__ = [
    "DROP",
    "NEXT",
    "STEER_BACK",
    "ApiError",
    "Burst",
    "Client",
    "Message",
    "NetlibError",
    "Outcome",
    "OwnedPacket",
    "Packet",
    "Simulator",
    "drop_flow",
    "run",
    "skip_flow",
    "steer_to_chain",
    "steer_to_port",
    "steer_to_role",
    "to_port",
    "to_role",
]
