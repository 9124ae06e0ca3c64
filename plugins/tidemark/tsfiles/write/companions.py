"""Encode what lies beside a TsFile of the table model: its `.resource`, and entries of its `.mods2`, as IoTDB 2.x does.

`tsfiles.companions` describes and reads both.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from tidemark.tsfiles.layout.index import Segments
from tidemark.tsfiles.write.values import encode_var_string, encode_varint
from tidemark.tsfiles.write.writer import device_id

_VERSION, _ARRAY_INDEX = 1, 3
_TABLE_ENTRY, _ANY_DEVICE, _ONE_DEVICE = 0, 0, 1


def encode_resource(extent: Mapping[Segments, tuple[int, int]]) -> bytes:
    """The `.resource` of a file with these devices. `extent`: first and last time of each, both inclusive."""
    head = struct.pack(">BBi", _VERSION, _ARRAY_INDEX, len(extent))
    spans = b"".join(struct.pack(">qq", *span) for span in extent.values())
    devices = b"".join(device_id(device) + struct.pack(">i", number) for number, device in enumerate(extent))
    return head + spans + devices + struct.pack(">qq", 0, 0)  # plan indexes, which a single server has no use for


def encode_table_deletion(
    span: tuple[int, int], table: str, device: Segments | None = None, measurements: Sequence[str] = ()
) -> bytes:
    """An entry of a `.mods2`: points of a table from the first to the last time of `span`, both inclusive.

    `device`: the table and its tags; None: every device of the table. `measurements`: none are all.
    """
    rule = bytes((_ANY_DEVICE,)) if device is None else bytes((_ONE_DEVICE,)) + device_id(device)
    columns = encode_varint(len(measurements)) + b"".join(encode_var_string(name) for name in measurements)
    return struct.pack(">Bqq", _TABLE_ENTRY, *span) + encode_var_string(table) + rule + columns
