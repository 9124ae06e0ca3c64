"""Tasks that read the changes of a source in shards, the storage point of each shard, and what sinks write.

A point moves by compare-and-swap: `move_point` writes only where the point is still the one that was read. The caller has
checked the shard's lease in the same transaction. A rewind or another number of shards gives points a higher version, and
what a slow member writes behind that changes nothing. Every function works in the caller's transaction.
Source: seed 002 "storage point". Tables: sql/0022_change_tasks.sql, sql/0024_change_sinks.sql, sql/0028_dead_letters.sql.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.database import database_time
from tidemark.ledger.sql import write_rows

EARLIEST, LATEST, NORMAL = "EARLIEST", "LATEST", "NORMAL"
NO_UUID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class TaskRow:
    """A task. `columns`: the shard columns of tables, by `database.table`. `tables`: patterns."""

    name: str
    source: str
    shards: int
    hash: str
    key_change: str
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tables: tuple[str, ...] = ("**",)
    generation: int = 1
    version_ts: int = 0


@dataclass(frozen=True)
class StoragePoint:
    """How far a shard is: transactions before `seq`, and `event_index` rows of that one, are done.

    `uuid` to `timestamp` tell of the last transaction of which something is done; -1 and zeros: of none.
    """

    seq: int = 1
    event_index: int = 0
    change_id: int = 0
    gtids: str = ""
    uuid: str = NO_UUID
    transaction_id: int = -1
    server_id: int = -1
    binlog_file: int = -1
    binlog_offset: int = -1
    timestamp: int = -1
    version_ts: int = 0
    mode: str = EARLIEST

    @property
    def order(self) -> tuple[int, int]:
        return self.seq, self.event_index


def create_task(connection: Connection, task: TaskRow, points: Mapping[int, StoragePoint]) -> TaskRow:
    """Write a task with the points of its shards, unless there is one of that name. Return the one that is there."""
    values = {**asdict(task), "columns": _encode(task.columns), "tables": _encode(task.tables)}
    names = ", ".join(values)
    places = ", ".join(f":{name}" for name in values)
    made = connection.execute(
        sa.text(f"INSERT INTO change_task ({names}, created) VALUES ({places}, :at) ON CONFLICT (name) DO NOTHING"),
        {**values, "at": database_time(connection)},
    )
    if made.rowcount:
        _write_points(connection, task.name, points)
    found = read_task(connection, task.name, lock=True)
    assert found is not None
    return found


def read_task(connection: Connection, name: str, *, lock: bool = False) -> TaskRow | None:
    """Return the task of a name. `lock`: it stays as it is until the transaction ends."""
    suffix = " FOR UPDATE" if lock and connection.dialect.name != "sqlite" else ""
    found = connection.execute(sa.text(f"SELECT * FROM change_task WHERE name = :name{suffix}"), {"name": name})
    row = found.mappings().one_or_none()
    return None if row is None else _as_task(row)


def read_task_points(connection: Connection, name: str) -> tuple[TaskRow, dict[int, StoragePoint]] | None:
    """Return a task and shard → point as of one moment, None if there is no such task.

    PostgreSQL shows each statement what is committed by then: a rewind between two of them changes both. So the task is read
    again behind its points.
    """
    task = read_task(connection, name)
    while task is not None:
        points = read_points(connection, name)
        after = read_task(connection, name)
        if after == task:
            return task, points
        task = after
    return None


def list_tasks(connection: Connection, source: str = "") -> list[TaskRow]:
    """Return all tasks, or those of a source, by name."""
    sql = "SELECT * FROM change_task WHERE :source IN ('', source) ORDER BY name"
    return [_as_task(row) for row in connection.execute(sa.text(sql), {"source": source}).mappings()]


def read_points(connection: Connection, task: str) -> dict[int, StoragePoint]:
    """Return shard → point."""
    names = ", ".join(StoragePoint.__dataclass_fields__)
    sql = f"SELECT shard, {names} FROM change_point WHERE task = :task ORDER BY shard"
    return {int(row[0]): StoragePoint(*row[1:]) for row in connection.execute(sa.text(sql), {"task": task})}


def move_point(
    connection: Connection, place: tuple[str, int], before: StoragePoint, after: StoragePoint, *, fence: int
) -> bool:
    """Move the point of (task, shard) from `before` to `after`. Return whether it was `before`: else nothing is written."""
    return _execute_moves(connection, place[0], [Move(place[1], before, after, fence)]) == 1


@dataclass(frozen=True)
class Move:
    """The point of a shard goes from `before` to `after`, under the fence of who moves it; 0: of nobody."""

    shard: int
    before: StoragePoint
    after: StoragePoint
    fence: int = 0


def move_points(connection: Connection, task: str, moves: Sequence[Move]) -> None:
    """Move points of a task's shards. One that is not as its `before` says stays."""
    if moves:
        _execute_moves(connection, task, moves)


def _execute_moves(connection: Connection, task: str, moves: Sequence[Move]) -> int:
    """Return how many moved, of a single one: of several not every driver knows it."""
    at = database_time(connection)
    given = ", ".join(f"{name} = :{name}" for name in StoragePoint.__dataclass_fields__)
    sql = (
        f"UPDATE change_point SET {given}, fence = :fence, at = :at WHERE task = :task AND shard = :shard"
        " AND version_ts = :was_version AND seq = :was_seq AND event_index = :was_index"
    )
    values = [
        {
            **vars(move.after),
            "was_version": move.before.version_ts,
            "was_seq": move.before.seq,
            "was_index": move.before.event_index,
            "task": task,
            "shard": move.shard,
            "fence": move.fence,
            "at": at,
        }
        for move in moves
    ]
    return connection.execute(sa.text(sql), values).rowcount


def replace_points(connection: Connection, task: TaskRow, points: Mapping[int, StoragePoint]) -> None:
    """Give shards other points, and the task its number of shards, generation and version. Shards beyond that number go."""
    connection.execute(
        sa.text(
            "UPDATE change_task SET shards = :shards, generation = :generation, version_ts = :version_ts WHERE name = :name"
        ),
        {"shards": task.shards, "generation": task.generation, "version_ts": task.version_ts, "name": task.name},
    )
    gone = {"task": task.name, "shards": task.shards}
    connection.execute(sa.text("DELETE FROM change_point WHERE task = :task AND shard >= :shards"), gone)
    for shard in points:
        one = {"task": task.name, "shard": shard}
        connection.execute(sa.text("DELETE FROM change_point WHERE task = :task AND shard = :shard"), one)
    _write_points(connection, task.name, points)


def _write_points(connection: Connection, task: str, points: Mapping[int, StoragePoint]) -> None:
    at = database_time(connection)
    names = ("task", "shard", *StoragePoint.__dataclass_fields__, "fence", "at")
    sql = f"INSERT INTO change_point ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"
    rows = [{"task": task, "shard": shard, **asdict(point), "fence": 0, "at": at} for shard, point in points.items()]
    write_rows(connection, sql, rows)


def _as_task(row: Any) -> TaskRow:
    names = {name: row[name] for name in TaskRow.__dataclass_fields__}
    columns = {table: tuple(columns) for table, columns in json.loads(row["columns"]).items()}
    return TaskRow(**{**names, "columns": columns, "tables": tuple(json.loads(row["tables"]))})


def _encode(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# dead letters


@dataclass(frozen=True)
class Letters:
    """Dead letters of a task: `count` of them in the file `place` of a host."""

    task: str
    host: str
    place: str
    count: int


def note_letters(connection: Connection, letters: Letters, *, anew: bool = False) -> None:
    """Record so many dead letters more; `anew`: so many are all that lie there."""
    values = {"task": letters.task, "host": letters.host, "place": letters.place}
    if anew:
        sql = "DELETE FROM change_dead_letter WHERE task = :task AND host = :host AND place = :place"
        connection.execute(sa.text(sql), values)
    if letters.count:
        sql = (
            "INSERT INTO change_dead_letter (task, host, place, letters, at) VALUES (:task, :host, :place, :letters, :at)"
            " ON CONFLICT (task, host, place)"
            " DO UPDATE SET letters = change_dead_letter.letters + excluded.letters, at = excluded.at"
        )
        connection.execute(sa.text(sql), {**values, "letters": letters.count, "at": database_time(connection)})


def read_letters(connection: Connection, task: str) -> list[Letters]:
    """Where dead letters of a task lie."""
    sql = "SELECT task, host, place, letters FROM change_dead_letter WHERE task = :task ORDER BY host, place"
    return [Letters(row[0], row[1], row[2], int(row[3])) for row in connection.execute(sa.text(sql), {"task": task})]


# sinks

WHOLE, PARTIAL, STOPPED = "whole", "partial", "stopped"
"""A sink's table has all rows, only those that changed since, or is not written any more."""


@dataclass(frozen=True)
class SinkBatch:
    """What a sink writes in one go: transactions `first` to before `end`. `version_ts`: of the task at that time."""

    number: int
    first: int
    end: int
    version_ts: int
    is_written: bool = False


@dataclass(frozen=True)
class SinkTable:
    """A table of a sink. `begun`: where a reading of all its rows began that has not ended, 0: none. `seq`: since when its
    state is what it is."""

    name: str
    state: str = WHOLE
    key: tuple[str, ...] = ()
    begun: int = 0
    seq: int = 0
    why: str = ""


def read_batch(connection: Connection, sink: str) -> SinkBatch | None:
    """The newest batch of a sink; None of one that has not begun."""
    sql = "SELECT number, first_seq, end_seq, version_ts, is_written FROM change_sink WHERE name = :name"
    row = connection.execute(sa.text(sql), {"name": sink}).one_or_none()
    return None if row is None else SinkBatch(row[0], row[1], row[2], row[3], bool(row[4]))


def write_batch(connection: Connection, sink: str, batch: SinkBatch) -> None:
    """Record a batch in the place of the former one."""
    connection.execute(sa.text("DELETE FROM change_sink WHERE name = :name"), {"name": sink})
    sql = (
        "INSERT INTO change_sink (name, number, first_seq, end_seq, version_ts, is_written, at)"
        " VALUES (:name, :number, :first, :end, :version_ts, :written, :at)"
    )
    values = {**asdict(batch), "name": sink, "written": int(batch.is_written), "at": database_time(connection)}
    connection.execute(sa.text(sql), values)


def read_sink_tables(connection: Connection, sink: str) -> dict[str, SinkTable]:
    """The tables of a sink, by name."""
    sql = "SELECT name, state, key_columns, begun, seq, why FROM change_sink_table WHERE sink = :sink ORDER BY name"
    found = connection.execute(sa.text(sql), {"sink": sink})
    return {row[0]: SinkTable(row[0], row[1], tuple(json.loads(row[2])), int(row[3]), int(row[4]), row[5]) for row in found}


def write_sink_tables(connection: Connection, sink: str, tables: Sequence[SinkTable]) -> None:
    """Record tables of a sink in the place of what is known of them."""
    for table in tables:
        gone = {"sink": sink, "name": table.name}
        connection.execute(sa.text("DELETE FROM change_sink_table WHERE sink = :sink AND name = :name"), gone)
    sql = (
        "INSERT INTO change_sink_table (sink, name, state, key_columns, begun, seq, why)"
        " VALUES (:sink, :name, :state, :key, :begun, :seq, :why)"
    )
    write_rows(connection, sql, [{**asdict(one), "sink": sink, "key": _encode(one.key)} for one in tables])
