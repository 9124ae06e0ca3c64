"""A partition table as bytes: what goes into the ledger and to nodes. 10,000 slots and 1,000 nodes are about 20 KB.

JSON with names, numbers and ranges, compressed; its first byte is the version of this form. Source: research/iotdb.md §3.2:
the original writes the whole group at every slot.
"""

from __future__ import annotations

import json
import zlib
from array import array
from base64 import b85decode, b85encode
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from tidemark.cluster.partition_table import PartitionTable
from tidemark.cluster.ring import Node, Ring
from tidemark.cluster.slot_hash import SlotHash
from tidemark.errors import CorruptionError, SchemaTooNewError
from tidemark.formats.json_stream import parse_json

FORM = 1
_MOST = 1 << 24  # bytes of a table once it is unpacked


def encode(table: PartitionTable) -> bytes:
    """The table, whatever its size; equal tables give equal bytes."""
    places = {name: place for place, name in enumerate(table.ring.names)}
    groups = sorted(set(table.moving.values()))
    numbers = {group: number for number, group in enumerate(groups)}
    words = {
        "epoch": table.epoch,
        "replicas": table.replicas,
        "hash": table.hash.value,
        "nodes": [[node.name, node.identifier] for node in table.ring],
        "owners": _numbers(places[name] for name in table.owners),
        "groups": [list(group) for group in groups],
        "moving": [[*span, numbers[group]] for span, group in _spans(table)],
    }
    return bytes([FORM]) + zlib.compress(json.dumps(words, separators=(",", ":")).encode(), 9)


def decode(data: bytes) -> PartitionTable:
    """CorruptionError for bytes that are no table, SchemaTooNewError for those of a later form."""
    if data[:1] > bytes([FORM]):
        raise SchemaTooNewError(
            "the partition table was written by a newer Tidemark", hint="use that version, or a newer one"
        )
    try:
        unpack = zlib.decompressobj()
        words = parse_json(unpack.decompress(data[1:], _MOST))
        if data[:1] != bytes([FORM]) or not unpack.eof or unpack.unused_data:
            raise ValueError("its end is missing, or something follows it")
        return _table(words)
    except (ValueError, KeyError, IndexError, TypeError, zlib.error) as error:
        raise CorruptionError(
            f"the partition table is damaged: {error}", hint="./tidemark cluster check; every node keeps a copy of it"
        ) from error


def _table(words: Any) -> PartitionTable:
    ring = Ring([Node(int(identifier), str(name)) for name, identifier in words["nodes"]])
    names, groups = ring.names, [tuple(map(str, group)) for group in words["groups"]]
    owners = array("H", b85decode(words["owners"]))
    moving = {slot: groups[number] for first, last, number in words["moving"] for slot in range(first, last + 1)}
    if any(number >= len(names) for number in owners) or any(not 0 <= slot < len(owners) for slot in moving):
        raise ValueError("a slot without a node")
    owned = tuple(names[number] for number in owners)
    return PartitionTable(int(words["epoch"]), int(words["replicas"]), ring, owned, SlotHash(words["hash"]), moving)


def _numbers(numbers: Iterable[int]) -> str:
    """16 bits each, little-endian on every machine Tidemark runs on."""
    return b85encode(array("H", numbers).tobytes()).decode()


def _spans(table: PartitionTable) -> Iterable[tuple[tuple[int, int], tuple[str, ...]]]:
    """Neighbours that come from one group: ((first, last), group)."""
    ordered = sorted(table.moving.items())
    for (_, group), run in groupby(enumerate(ordered), key=lambda entry: (entry[1][0] - entry[0], entry[1][1])):
        slots = [slot for _, (slot, _) in run]
        yield (slots[0], slots[-1]), group
