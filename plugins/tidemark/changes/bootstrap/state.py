"""How far the tables of a source are read: `bootstrap.json` in the store's folder.

Written by the holder of the source's lease, whole and durably. A chunk is written down **before** it is appended, with the
number that its transaction will have. Whether it stands is what the store says of that number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tidemark.changes.store.disk import Disk, read_document
from tidemark.changes.store.model import Mark, Op, Record, Rows
from tidemark.changes.store.read import Reader

PATH = "bootstrap.json"
FORMAT = 1
BEGIN, END = "bootstrap_begin", "bootstrap_end"
"""Words of the marks that stand before a table's first chunk and behind its last."""
WAITING, READING, DONE, REFUSED, GONE, CANCELLED = "waiting", "reading", "done", "refused", "gone", "cancelled"
PARKED = "parked"
"""What a table is: asked for, begun, read, not to be read as it is, no longer at the server, not to be read on; rows of it
were lost since it was read."""
OPEN = (WAITING, READING, REFUSED)
"""Those that the next round reads."""


@dataclass(frozen=True)
class Table:
    """How far a table is. `key`: the columns by which it is read, none: whole. `last`: the highest key that was read, each
    value as hexadecimal bytes; none: nothing yet, or there is no more. `why`: refused. `looked`: the place (change id,
    number of the log, offset) up to which its name may have changed, though its rows stand before that."""

    state: str = WAITING
    chunks: int = 0
    rows: int = 0
    key: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    why: str = ""
    looked: tuple[int, ...] = ()

    def as_open(self) -> Table:
        """The same, to be read on."""
        return replace(self, state=READING if self.chunks else WAITING, why="")


@dataclass(frozen=True)
class Intended:
    """A chunk that is about to be appended as transaction `seq`, and how far its table is with it."""

    name: str
    seq: int
    after: Table


@dataclass(frozen=True)
class State:
    """How far each table is, as `database.table`, and the chunk of which that does not tell yet."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    intended: Intended | None = None

    def list_open(self) -> tuple[str, ...]:
        """The tables that are not read yet."""
        return tuple(sorted(name for name, table in self.tables.items() if table.state in OPEN))

    def with_waiting(self, names: Iterable[str]) -> State:
        """The same, with these tables asked for. One that was begun goes on where it is, one that is done stays so."""
        asked = {name: self.tables.get(name, Table()) for name in names}
        found = {name: table if table.state == DONE else table.as_open() for name, table in asked.items()}
        return replace(self, tables={**self.tables, **found})

    def with_anew(self, names: Iterable[str]) -> State:
        """The same, with these tables to be read from the start, whatever was read of them."""
        return replace(self, tables={**self.tables, **{name: Table() for name in names}})

    def with_parked(self, names: Iterable[str]) -> State:
        """The same, with the tables of which rows were lost. What was read of one does not count; one that is to be read is.
        One that was such a table has another name now."""
        states = {name: self.tables.get(name, Table(PARKED)).state for name in names}
        found = {name: Table(WAITING if state in OPEN else PARKED) for name, state in states.items()}
        others = {name: table for name, table in self.tables.items() if table.state != PARKED}
        return replace(self, tables={**others, **found})

    def with_cancelled(self) -> State:
        """The same, with no table to be read on."""
        found = {name: replace(self.tables[name], state=CANCELLED) for name in self.list_open()}
        return replace(self, tables={**self.tables, **found})

    def with_table(self, name: str, table: Table) -> State:
        return State({**self.tables, name: table})


def read_state(disk: Disk) -> State:
    """What `bootstrap.json` says; nothing for a store without a bootstrap."""
    return read_document(disk, PATH, FORMAT, _decode_state) or State()


def _decode_state(found: dict[str, Any]) -> State:
    tables = {name: _read_table(table) for name, table in found["tables"].items()}
    intended = found["intended"]
    return State(tables, intended and Intended(**{**intended, "after": _read_table(intended["after"])}))


def _read_table(found: dict[str, Any]) -> Table:
    lists = {name: tuple(found.get(name, ())) for name in ("key", "last", "looked")}
    return Table(**{**found, **lists})


def write_state(disk: Disk, state: State) -> None:
    told: dict[str, Any] = {
        "format": FORMAT,
        "tables": {name: asdict(table) for name, table in state.tables.items()},
        "intended": state.intended and asdict(state.intended),
    }
    disk.publish(PATH, json.dumps(told, ensure_ascii=False).encode())


def settle(disk: Disk, state: State) -> State:
    """The store says whether the intended chunk stands. For a holder of the store who has nothing on the way."""
    intended = state.intended
    if intended is None:
        return state
    reader = Reader(disk)
    if has_chunk(reader, intended.name, intended.seq):
        after = intended.after
        if after.rows < 0:  # nobody had counted them when it was intended
            after = replace(after, rows=_count_rows(reader, intended.seq))
        return state.with_table(intended.name, after)
    return replace(state, intended=None)


def has_chunk(reader: Reader, name: str, seq: int) -> bool:
    """Whether transaction `seq` of a store is a chunk of a table. One that retention took is none: it stands nowhere."""
    if not reader.first <= seq <= reader.view.end.seq:
        return False
    piece = next(reader.read(seq))
    return any(_is_of(record, name) for record in piece.transaction.records)


def _count_rows(reader: Reader, seq: int) -> int:
    rows = 0
    for piece in reader.read(seq):
        rows += sum(record.count for record in piece.transaction.records if isinstance(record, Rows))
        if piece.ends:
            break
    return rows


def _is_of(record: Record, name: str) -> bool:
    if isinstance(record, Mark):
        return record.word in (BEGIN, END) and record.text == name
    if not isinstance(record, Rows) or not record.count:
        return False
    return f"{record.shape.database}.{record.shape.table}" == name and record.batch.column("op")[0].as_py() == Op.READ
