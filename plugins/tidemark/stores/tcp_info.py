"""What the kernel tells of a TCP connection: struct tcp_info of Linux, zeros where there is none."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_TCP_INFO = 11
_SHORT = struct.Struct("=I")
_LONG = struct.Struct("=Q")
_MIN_RTT, _OUT_OF_ORDER, _SENT_AGAIN, _ACKED, _RECEIVED = 148, 224, 100, 120, 128  # offsets


class TcpInfo(NamedTuple):
    """`lost`: packets that came out of order, so that one before them was lost, and those sent again."""

    round_trip: float  # seconds, the least there was
    lost: int
    acknowledged: int  # bytes that the other end has
    received: int  # of packets that are not whole yet, too


def tcp_info(sock: socket.socket | None) -> TcpInfo:
    """Zeros, too, where there is no connection any more."""
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256) if sock is not None else b""
    except OSError:
        told = b""

    def field(kind: struct.Struct, at: int) -> int:
        return int(kind.unpack_from(told, at)[0]) if len(told) >= at + kind.size else 0

    return TcpInfo(
        field(_SHORT, _MIN_RTT) / 1e6,
        field(_SHORT, _OUT_OF_ORDER) + field(_SHORT, _SENT_AGAIN),
        field(_LONG, _ACKED),
        field(_LONG, _RECEIVED),
    )
