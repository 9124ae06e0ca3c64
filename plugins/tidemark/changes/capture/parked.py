"""XA transactions that are prepared: their rows are parked in the store's folder until they are committed or rolled back.

A restart may lie in between, and the server may purge the log that has the rows. `parked/<name>.block` is one transaction as
a block (docs/formats/change-store.md), `parked/<name>-<seq>.block` one that the store's transaction `seq` decides.
"""

from __future__ import annotations

import hashlib
import re

from tidemark.changes.capture.transactions import XA_PREPARE, xa_of
from tidemark.changes.store.block import HEADER_BYTES, Draft, decode_header, decode_transactions, encode_block, is_sound
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.layout import EMPTY, State
from tidemark.changes.store.model import Record, Transaction
from tidemark.errors import CorruptionError

FOLDER = "parked"
_NAME = re.compile(r"([0-9a-f]{32})(?:-(\d+))?\.block")


class Parked:
    """The parked transactions of a store, for its holder. `end` is the state after the store's last durable transaction."""

    def __init__(self, disk: Disk, end: State, fence: int) -> None:
        self._disk, self._fence = disk, fence
        self._decided: list[tuple[int, str]] = []
        for name in disk.list_names(FOLDER):
            if (found := _NAME.fullmatch(name)) and found[2]:
                if int(found[2]) <= end.seq:
                    disk.remove([f"{FOLDER}/{name}"])
                else:  # the transaction that decided it was not durable: it comes again
                    disk.rename(f"{FOLDER}/{name}", f"{FOLDER}/{found[1]}.block")

    def park(self, transaction: Transaction) -> None:
        """Keep a prepared transaction durably. Its last record says its name. One of that name is replaced."""
        mark = xa_of(transaction.records)
        assert mark is not None
        assert mark.word == XA_PREPARE
        block = encode_block(Draft(EMPTY, EMPTY, "", "", [transaction]), compress=True)
        self._disk.publish(self._path(mark.text), block.place(0, self._fence))

    def take(self, xid: str, seq: int) -> tuple[Record, ...] | None:
        """The rows of a prepared transaction, which the store's transaction `seq` commits or rolls back. None: it is not
        here."""
        path = self._path(xid)
        try:
            data = self._disk.read(path)
        except FileNotFoundError:
            return None
        header = decode_header(data)
        if header is None or not is_sound(header, data[HEADER_BYTES:]):
            raise CorruptionError(f"{path} is damaged", hint="bring it back from a copy", subject=path)
        [transaction] = decode_transactions(header, data[HEADER_BYTES + header.head_bytes :])
        decided = f"{path.removesuffix('.block')}-{seq}.block"
        # CRASH WINDOW: the name says that transaction `seq` decides; the next holder knows whether it became durable.
        self._disk.rename(path, decided)
        self._decided.append((seq, decided))
        return transaction.records[:-1]

    def forget(self, durable: State) -> None:
        """Remove what durable transactions have decided."""
        # CRASH WINDOW: some are left; the next holder removes them.
        self._disk.remove([path for seq, path in self._decided if seq <= durable.seq])
        self._decided = [(seq, path) for seq, path in self._decided if seq > durable.seq]

    def _path(self, xid: str) -> str:
        return f"{FOLDER}/{hashlib.sha256(xid.encode()).hexdigest()[:32]}.block"
