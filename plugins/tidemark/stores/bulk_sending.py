"""The bytes of one channel on their way out: many packets encrypted into one buffer, one call of the kernel for all.

paramiko builds each packet from copies and hands it over by itself, which costs most of a push's CPU time
(research/transfer.md §1.2). Windows, rekeying and the order among channels stay paramiko's: its locks and gates are passed
as its own sender passes them. As `packets`, for the versions of paramiko in KNOWN alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tidemark.stores.lean_paramiko import paramiko
from tidemark.stores.packets import BulkPacketizer

GROUP = 16  # packets handed to the kernel at once
_CHANNEL_DATA = 94
_HEAD = struct.Struct(">BBII")  # padding, type, channel, bytes
_TAG, _LENGTH, _BLOCK = 16, 4, 16

Bytes = bytes | bytearray | memoryview


class BulkSender:
    """`send` is for one thread."""

    def __init__(self, channel: paramiko.Channel, packetizer: BulkPacketizer) -> None:
        self._channel = channel
        self._packets = packetizer
        room = int(channel.out_max_packet_size) + 2 * _BLOCK + _HEAD.size
        self._plain = memoryview(bytearray(room))
        self._out = memoryview(bytearray(GROUP * (room + _LENGTH + _TAG)))

    def send(self, pieces: Sequence[Bytes]) -> None:
        """All bytes of `pieces`, when the far end's window lets them. Raises as `Channel.sendall` does."""
        views = [memoryview(piece) for piece in pieces if len(piece)]
        left = sum(len(view) for view in views)
        views.reverse()
        while left:
            sizes = self._windows(left)
            left -= sum(sizes)
            self._gate(views, sizes)

    def _windows(self, left: int) -> list[int]:
        """Sizes of the next packets: what of `left` the window takes now, at least something."""
        channel = self._channel
        sizes: list[int] = []
        with channel.lock:
            while left and len(sizes) < GROUP and (channel.out_window_size or not sizes):
                size = channel._wait_for_send_window(left)
                if not size:
                    raise OSError("the channel is closed")
                sizes.append(size)
                left -= size
        return sizes

    def _gate(self, views: list[memoryview], sizes: list[int]) -> None:
        """While keys are exchanged nobody sends data."""
        transport = self._channel.transport
        while True:
            transport.clear_to_send.wait(0.1)
            if not transport.active:
                raise EOFError
            with transport.clear_to_send_lock:
                if transport.clear_to_send.is_set():
                    self._write(views, sizes)
                    return

    def _write(self, views: list[memoryview], sizes: list[int]) -> None:
        packets, number = self._packets, int(self._channel.remote_chanid)
        with packets.writing() as encrypt:
            end = 0
            for size in sizes:
                padding = _BLOCK - (1 + 9 + size) % _BLOCK
                padding += _BLOCK if padding < 4 else 0
                length = _HEAD.size + size + padding
                _HEAD.pack_into(self._plain, 0, padding, _CHANNEL_DATA, number, size)
                _gather(views, self._plain, _HEAD.size, size)
                body = end + _LENGTH
                self._out[end:body] = length.to_bytes(_LENGTH, "big")
                encrypt(self._plain[:length], self._out[end:body], self._out[body : body + length + _TAG])
                end = body + length + _TAG
            packets.write_packets(self._out[:end], len(sizes))


def _gather(views: list[memoryview], plain: memoryview, at: int, size: int) -> None:
    """Move `size` bytes from the last of `views` on to `plain`."""
    end = at + size
    while at < end:
        view = views[-1]
        taken = min(len(view), end - at)
        plain[at : at + taken] = view[:taken]
        at += taken
        if taken == len(view):
            views.pop()
        else:
            views[-1] = view[taken:]
