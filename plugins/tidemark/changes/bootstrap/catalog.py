"""Describe tables that a log does not, by the server's catalog: `metadata = "catalog"` of a source.

A definition is read where its table cannot be defined anew meanwhile, and the log is read ahead up to where it ends then. If
no statement in between may have changed the table, its rows are as the definition says. Else they are lost: the table is
**parked**, until it is read anew. What is known stands in `catalog.json` of the store's folder, so that a later capture
knows it of rows that were logged before a table was changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from tidemark.changes.binlog.events import Query
from tidemark.changes.binlog.layout import EventType
from tidemark.changes.binlog.reader import EventDecoder
from tidemark.changes.binlog.tables import Table
from tidemark.changes.bootstrap.tables import Name, read_charsets, read_table
from tidemark.changes.capture.definitions import (
    Definition,
    Place,
    Statement,
    Where,
    begin_of,
    end_by,
    find_renames,
    go_on,
    read_statement,
)
from tidemark.changes.capture.identity import number_of
from tidemark.changes.connection.dump import open_dump
from tidemark.changes.connection.facts import status_question
from tidemark.changes.connection.login import Server, open_server
from tidemark.changes.connection.model import FilePosition, SourceSettings
from tidemark.changes.store.disk import Disk, read_document
from tidemark.changes.store.model import Shape
from tidemark.errors import PermanentError, PermissionDeniedError, UnreachableError
from tidemark.progress import Progress, Tick, ignore_progress

PATH = "catalog.json"
FORMAT = 1
MOST_KNOWN = 4096
"""Tables of logs that are remembered as described."""
LOCK_SECONDS = 20
_BUSY = "(1205)"
_DEFINING = {
    *(EventType.FORMAT_DESCRIPTION, EventType.QUERY, EventType.EXECUTE_LOAD_QUERY),
    *(EventType.MARIA_QUERY_COMPRESSED, EventType.TRANSACTION_PAYLOAD),
}


@dataclass(frozen=True)
class Known:
    """What is known of tables: definitions, and why rows of tables were lost, by `database.table`. `renamed`: where the last
    statement stands that renamed one of these."""

    definitions: tuple[Definition, ...] = ()
    parked: dict[str, str] = field(default_factory=dict)
    renamed: Place = (0, 0, 0)


def read_known(disk: Disk) -> Known:
    """What `catalog.json` says; nothing for a store without one."""
    return read_document(disk, PATH, FORMAT, _decode_known, hint="remove it: what it proves is lost") or Known()


def forget_definitions(disk: Disk) -> None:
    """No definition counts any more: what was logged in between is not known."""
    if (known := read_known(disk)).definitions:
        _write_known(disk, replace(known, definitions=()))


class Catalog:
    """The catalog of the server that a capture reads, and what it told. For the holder of a store.

    `use_server` says which of the source's servers that is, before its events come.
    """

    def __init__(self, disk: Disk, login: SourceSettings, progress: Progress = ignore_progress) -> None:
        self._disk, self._login, self._progress = disk, replace(login, server_id=0), progress
        self._known = read_known(disk)
        self._described: dict[Table, tuple[Definition, Table | None]] = {}
        self._stored: Place = (0, 0, 0)
        self._statements: list[Statement] = []
        self._covered: FilePosition | None = None  # up to here, and behind the events that came, all are in `_statements`

    @property
    def parked(self) -> dict[str, str]:
        return self._known.parked

    def use_server(self, address: tuple[str, int]) -> None:
        self._login = replace(self._login, addresses=(address,))

    def begin(self, change_id: int, end: Place) -> None:
        self._stored, self._statements, self._covered = end, [], None
        self._change(definitions=go_on(self._known.definitions, end, change_id))

    def note_statement(self, query: Query, where: Where) -> None:
        statement = read_statement(query, where.place)
        if statement is None:
            return
        if self._covered is not None and where.place >= _place_of(where.change_id, self._covered):
            self._statements.append(statement)
        # CRASH WINDOW: an end or a new name is on record, and its statement not stored: it comes again, and changes nothing.
        self._change(definitions=end_by(self._known.definitions, [statement]), **self._follow_renames(query, where.place))

    def _follow_renames(self, query: Query, place: Place) -> dict[str, Any]:
        """What changes where a parked table gets another name: the rows that it lost are lost there."""
        parked = dict(self.parked)
        for former, new in find_renames(query) if place > self._known.renamed else ():
            if former in parked:
                parked[new] = parked.pop(former)
        return {"parked": parked, "renamed": place} if parked != self.parked else {}

    def note_read(self, name: str) -> None:
        # CRASH WINDOW: the table is not parked any more, and not read: it is asked for, and the next round reads it.
        self._change(parked={other: why for other, why in self.parked.items() if other != name})

    def describe(self, table: Table, where: Where) -> Table | None:
        definition, described = self._described.get(table, (None, None))
        if definition is None or not definition.holds_at(where.place):
            definition = self._find(table, where)
            described = definition.describe(table) if definition else None
            if definition is not None:
                if len(self._described) >= MOST_KNOWN:
                    self._described = {}
                self._described[table] = definition, described
        if described is None and (where.change_id, number_of(where.file), where.begins) > self._stored:
            self._park(table, definition, where)
        return described

    def _find(self, table: Table, where: Where) -> Definition | None:
        """The definition of a table that holds somewhere; the catalog is asked where a newer one may."""
        later = False
        for one in self._known.definitions:
            if (one.database, one.table) == (table.database, table.name):
                if one.holds_at(where.place):
                    return one
                later = later or one.since > where.place
        if later:
            return None
        found = self._read(table, where)
        return found if found.holds_at(where.place) else None

    def _read(self, table: Table, where: Where) -> Definition:
        """Read a table's definition, and the log up to where it ends then."""
        asked = Name(table.database, table.name, has_snapshot=True)
        with open_server(self._login) as server:
            definition, end = _ask_definition(server, asked)
        first = (where.change_id, number_of(where.file), where.begins)
        found = self._look_ahead(where, end)
        self._statements = [one for one in self._statements if one.place >= first]
        place = _place_of(where.change_id, end)
        definition = replace(definition, since=begin_of(table.name, self._statements, first, place))
        [definition] = end_by([definition], self._statements)
        self._change(definitions=(*end_by(self._known.definitions, found), definition))
        return definition

    def _look_ahead(self, where: Where, end: FilePosition) -> list[Statement]:
        """Read the statements up to a place of the log that are not read yet."""
        starts = [FilePosition(where.file, where.begins), *([self._covered] if self._covered else [])]
        start = max(starts, key=lambda one: _place_of(where.change_id, one))
        found = list(self._read_statements(where.change_id, start, _place_of(where.change_id, end)))
        self._statements += found
        self._covered = max(start, end, key=lambda one: _place_of(where.change_id, one))
        return found

    def _read_statements(self, change_id: int, start: FilePosition, end: Place) -> Iterator[Statement]:
        if _place_of(change_id, start) >= end:
            return
        decoder = EventDecoder()
        self._progress(Tick(f"looking ahead from {start.file}:{start.position} for definitions"))
        with closing(open_dump(self._login, start)) as dump:
            for raw in dump.events():
                place = (change_id, number_of(raw.file), raw.position)
                if place >= end:
                    return
                if raw.data and raw.header.type in _DEFINING:
                    for event in decoder.decode_split(raw.header, raw.data, raw.position, raw.end):
                        if isinstance(event.body, Query) and (statement := read_statement(event.body, place)):
                            yield statement

    def _park(self, table: Table, definition: Definition | None, where: Where) -> None:
        """Record that rows of a table are lost."""
        name = f"{table.database}.{table.name}"
        if name in self.parked:
            return
        at = f"{where.file}:{where.begins}"
        why = f"its definition changed behind {at}, before it was read"
        if definition is not None:
            why = definition.why or f"the rows at {at} do not fit its definition"
        self._progress(Tick(f"{name} is parked: {why}"))
        self._change(parked={**self.parked, name: why})

    def _change(self, **what: Any) -> None:
        """Make a change durable: what is appended next counts on it."""
        changed = replace(self._known, **what)
        if changed != self._known:
            self._known, self._described = changed, {}
            _write_known(self._disk, changed)


def _place_of(change_id: int, position: FilePosition) -> Place:
    return change_id, number_of(position.file), position.position


def _ask_definition(server: Server, name: Name) -> tuple[Definition, FilePosition]:
    """A table as the catalog has it, and where the log ends while nobody can define it anew."""
    unknown = Definition(name.database, name.table, since=(0, 0, 0))
    server.ask(f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}")
    charsets = read_charsets(server)
    server.ask("START TRANSACTION")
    try:
        server.ask(f"SELECT 1 FROM {name.quoted} LIMIT 1")  # until the transaction ends its definition stays
        read = read_table(server, name, charsets)
        charsets_of = tuple(column.collation for column in read.columns)
        definition = replace(unknown, shape=read.shape, charsets=charsets_of, hidden=read.hidden)
    except PermissionDeniedError:
        raise
    except PermanentError as refused:
        if _BUSY in refused.message:
            raise UnreachableError(
                f"{name.database}.{name.table} is being defined anew: {refused.message}", subject=server.name
            ) from refused
        definition = replace(unknown, why=refused.message)
    status = server.ask(status_question(server))[0]
    server.ask("ROLLBACK")
    return definition, FilePosition(str(status["File"]), int(status["Position"]))


def _write_known(disk: Disk, known: Known) -> None:
    definitions = [
        {
            "table": [one.database, one.table],
            "since": one.since,
            "until": one.until,
            "shape": one.shape and one.shape.as_json(),
            "charsets": one.charsets,
            "why": one.why,
            "hidden": one.hidden,
        }
        for one in known.definitions
    ]
    told = {"format": FORMAT, "definitions": definitions, "parked": known.parked, "renamed": known.renamed}
    disk.publish(PATH, json.dumps(told, ensure_ascii=False).encode())


def _decode_known(found: dict[str, Any]) -> Known:
    definitions = tuple(_decode_definition(**one) for one in found["definitions"])
    return Known(definitions, dict(found["parked"]), _decode_place(found.get("renamed", (0, 0, 0))))


def _decode_definition(
    *,
    table: list[str],
    since: list[int],
    until: list[int] | None,
    shape: str | None,
    charsets: list[int | None],
    why: str,
    hidden: int = 0,
) -> Definition:
    database, name = table
    return Definition(
        database,
        name,
        _decode_place(since),
        None if until is None else _decode_place(until),
        Shape.from_json(shape) if shape else None,
        tuple(charsets),
        why,
        hidden,
    )


def _decode_place(found: Sequence[int]) -> Place:
    change_id, file, position = map(int, found)
    return change_id, file, position
