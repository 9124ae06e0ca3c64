"""XA transactions that are prepared: their rows are parked in the store's folder until they are committed or rolled back.

A restart may lie in between, and the server may purge the log that has the rows. `parked/<name>.block` is one transaction as
a block, or as several where it is larger (docs/formats/change-store.md); `parked/<name>-<seq>.block` one that the store's
transaction `seq` decides. What becomes of a transaction is known at its end, so a large one is gathered in
`parked/gathered.block` until then.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemark.changes.capture.transactions import XA_PREPARE, xa_of
from tidemark.changes.store.block import (
    HEADER_BYTES,
    Draft,
    Header,
    decode_header,
    decode_transactions,
    encode_block,
    is_sound,
)
from tidemark.changes.store.disk import Disk, OpenFile
from tidemark.changes.store.layout import EMPTY, State
from tidemark.changes.store.model import Mark, Record, Rows, Transaction
from tidemark.errors import CorruptionError

FOLDER = "parked"
GATHERED = f"{FOLDER}/gathered.block"
_NAME = re.compile(r"([0-9a-f]{32})(?:-(\d+))?\.block")


@dataclass(frozen=True)
class Gathered:
    """A transaction whose end is read: all its records, or, where they are in a file, those behind the last part of it."""

    head: Transaction
    marks: tuple[Mark, ...]
    records: tuple[Record, ...]
    in_file: bool

    @property
    def xa(self) -> Mark | None:
        """What becomes of it; None where it was committed in one phase."""
        return xa_of(self.marks)


class Parked:
    """The parked transactions of a store, for its holder. `end` is the state after the store's last durable transaction.

    One that takes more than `most_bytes` of memory is written while it is gathered.
    """

    def __init__(self, disk: Disk, end: State, fence: int, most_bytes: int) -> None:
        self._disk, self._fence, self._most_bytes = disk, fence, most_bytes
        self._decided: list[tuple[int, str]] = []
        for name in disk.list_names(FOLDER):
            if f"{FOLDER}/{name}" == GATHERED:
                disk.remove([GATHERED])
            elif (found := _NAME.fullmatch(name)) and found[2]:
                if int(found[2]) <= end.seq:
                    disk.remove([f"{FOLDER}/{name}"])
                else:  # the transaction that decided it was not durable: it comes again
                    disk.rename(f"{FOLDER}/{name}", f"{FOLDER}/{found[1]}.block")

    def gather(self, head: Transaction, records: Iterable[Record]) -> Gathered:
        """Read a transaction to its end."""
        marks: list[Mark] = []
        found: list[Record] = []
        size = offset = 0
        for record in records:
            found.append(record)
            if isinstance(record, Mark):
                marks.append(record)
            elif isinstance(record, Rows):
                size += record.batch.nbytes
            if size >= self._most_bytes:
                # CRASH WINDOW: parts of a transaction without its end; it comes again, and the next holder removes them.
                offset += self._write_part(head, found, offset, ends=False)
                found, size = [], 0
        if offset:
            self._write_part(head, found, offset, ends=True)
        return Gathered(head, tuple(marks), tuple(found), in_file=offset > 0)

    def read(self, gathered: Gathered) -> Iterator[Record]:
        """All records of a gathered transaction."""
        return self._read_records(GATHERED) if gathered.in_file else iter(gathered.records)

    def drop(self, gathered: Gathered) -> None:
        """A gathered transaction is in the store."""
        if gathered.in_file:
            self._disk.remove([GATHERED])

    def park(self, gathered: Gathered, xid: str) -> None:
        """Keep a prepared transaction durably. One of that name is replaced."""
        if gathered.in_file:
            self._disk.rename(GATHERED, _path(xid))
        else:
            whole = gathered.head._replace(records=gathered.records)
            self._disk.publish(_path(xid), self._encode(whole, 0, begins=True, ends=True))

    def take(self, xid: str, seq: int) -> Iterator[Record] | None:
        """The rows of a prepared transaction, which the store's transaction `seq` commits or rolls back. None: it is not
        here."""
        path = _path(xid)
        try:
            self._check(path)
        except FileNotFoundError:
            return None
        decided = f"{path.removesuffix('.block')}-{seq}.block"
        # CRASH WINDOW: the name says that transaction `seq` decides; the next holder knows whether it became durable.
        self._disk.rename(path, decided)
        self._decided.append((seq, decided))
        return (r for r in self._read_records(decided) if not (isinstance(r, Mark) and r.word == XA_PREPARE))

    def forget(self, durable: State) -> None:
        """Remove what durable transactions have decided."""
        # CRASH WINDOW: some are left; the next holder removes them.
        self._disk.remove([path for seq, path in self._decided if seq <= durable.seq])
        self._decided = [(seq, path) for seq, path in self._decided if seq > durable.seq]

    def _write_part(self, head: Transaction, records: list[Record], offset: int, *, ends: bool) -> int:
        data = self._encode(head._replace(records=tuple(records)), offset, begins=offset == 0, ends=ends)
        self._disk.append(GATHERED, offset, data)
        return len(data)

    def _encode(self, part: Transaction, offset: int, *, begins: bool, ends: bool) -> bytes:
        draft = Draft(EMPTY, EMPTY, "", "", [part], begins=begins, ends=ends)
        return encode_block(draft, compress=True).place(offset, self._fence)

    def _check(self, path: str) -> None:
        """Raise CorruptionError where the file is not one whole transaction."""
        with self._disk.open_file(path) as file:
            for _ in _read_blocks(file):
                pass

    def _read_records(self, path: str) -> Iterator[Record]:
        with self._disk.open_file(path) as file:
            for header, rest in _read_blocks(file):
                for part in decode_transactions(header, rest[header.head_bytes :]):
                    yield from part.records


def is_parked(disk: Disk, xid: str) -> bool:
    """Whether the store has an XA transaction as prepared, and nothing of what becomes of it."""
    return _path(xid).removeprefix(f"{FOLDER}/") in disk.list_names(FOLDER)


def _path(xid: str) -> str:
    return f"{FOLDER}/{hashlib.sha256(xid.encode()).hexdigest()[:32]}.block"


def _read_blocks(file: OpenFile) -> Iterator[tuple[Header, bytes]]:
    """(header, what follows it) of each block; the last one ends the transaction."""
    at, ends = 0, False
    while at < file.size:
        header = decode_header(file.read(at, HEADER_BYTES))
        rest = file.read(at + HEADER_BYTES, header.head_bytes + header.body_bytes) if header else b""
        if header is None or ends or header.position != at or not is_sound(header, rest):
            raise _damage(file.path)
        yield header, rest
        at, ends = at + header.size, header.ends
    if not ends:
        raise _damage(file.path)


def _damage(path: str) -> CorruptionError:
    return CorruptionError(f"{path} is damaged", hint="bring it back from a copy", subject=path)
