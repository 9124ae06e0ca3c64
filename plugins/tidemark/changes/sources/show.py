"""What is known of a source: its store, its server, how far one is behind the other, gaps. For `changes show`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tidemark.app import App
from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.bootstrap.catalog import read_known
from tidemark.changes.bootstrap.state import DONE, GONE, PARKED, Table, read_state
from tidemark.changes.bootstrap.state import State as Bootstrap
from tidemark.changes.capture.identity import read_origin
from tidemark.changes.sources.source import Source, disk_of, find_end, list_gone, pin_resumed, resume_source, wants_of
from tidemark.changes.store.layout import State
from tidemark.changes.store.read import Reader
from tidemark.changes.store.view import read_next_view, walk_blocks
from tidemark.changes.trust.answers import Answers, StoreEnd, ask_server
from tidemark.changes.trust.gaps import OPEN, read_gaps
from tidemark.changes.trust.headroom import measure_headroom
from tidemark.errors import TidemarkError
from tidemark.ledger.delivery import list_tasks, read_letters
from tidemark.ledger.leases import Leases


@dataclass(frozen=True)
class Seen:
    """What the server said, or why it said nothing."""

    answers: Answers | None = None
    trouble: str = ""


def ask_source(source: Source, end: StoreEnd | None) -> Seen:
    """Ask the source's server. Raises nothing that it meets: a source without a server, or one that is away, is told."""
    if not source.settings.url:
        return Seen()
    try:
        login = pin_resumed(resume_source(source))
        return Seen(ask_server(login, wants_of(source.settings), end, source.app.clock))
    except TidemarkError as away:
        return Seen(None, away.message)


def is_captured(app: App, name: str) -> bool:
    """Whether a capture of the source is at work now."""
    return f"capture:{name}" in {row.name for row in Leases(app.ledger, app.identity).list_busy()}


def show_source(source: Source) -> dict[str, Any]:
    """What is known of a source, as the object of `changes show --json`."""
    disk = disk_of(source.settings)
    reader, origin = Reader(disk, read_next_view(disk)), read_origin(disk)
    end, store_end = reader.view.end, find_end(disk)
    gaps = read_gaps(disk)
    seen = ask_source(source, store_end)
    state = "capturing" if is_captured(source.app, source.name) else "idle" if end.seq else "new"
    if any(gap.state == OPEN for gap in gaps):
        state = "gap"
    shown: dict[str, Any] = {"name": source.name, "state": state, "server": source.settings.url}
    if seen.trouble:
        shown["away"] = seen.trouble
    if seen.answers is not None:
        room = measure_headroom(seen.answers, store_end)
        shown |= {"headroom_hours": room.hours, "headroom_red": room.is_red}
    gone = list_gone(source, seen.answers.names) if seen.answers is not None else []
    told = {"gaps": [gap.as_json() for gap in gaps], **_tell_tables(_read_tables(source), seen.answers, gone)}
    if not end.seq or origin is None:
        return {**shown, "transactions": 0, "rows": 0, "bytes": 0, **told}
    rows, size = _count_rows(reader)
    return {
        **shown,
        "change_id": end.info.change_id,
        "position": f"{origin.name_log(end.info.file, end.info.change_id)}:{end.info.offset}",
        "gtid_set": reader.view.gtids,
        "lag_seconds": measure_lag(store_end, end, seen.answers, source.app.clock()),
        "oldest": f"seq:{reader.first}",
        "newest": f"seq:{end.seq}",
        "newest_time": _show_time(end),
        "transactions": end.seq - reader.first + 1,
        "rows": rows,
        "bytes": size,
        **told,
    }


def _read_tables(source: Source) -> Bootstrap:
    """How far the tables are. One of which rows were lost is parked, whatever was read of it before."""
    state = read_state(source.disk)
    if source.settings.metadata != "catalog":
        return state
    parked = read_known(source.disk).parked
    found = {name: replace(state.tables.get(name, Table()), state=PARKED, why=why) for name, why in parked.items()}
    return replace(state, tables={**state.tables, **found})


def _tell_tables(state: Bootstrap, answers: Answers | None, gone: Sequence[str]) -> dict[str, Any]:
    """The tables, and how far those are whose rows are read or were. One that is not read yet or gone is not `captured`."""
    names = sorted({*(answers.tables if answers is not None else ()), *state.tables, *gone})
    known = [(name, state.tables[name]) for name in sorted(state.tables)]
    unread = dict.fromkeys(gone, GONE) | {name: table.state for name, table in known if table.state != DONE}
    return {
        "tables": [{"name": name, "state": unread.get(name, "captured")} for name in names],
        "bootstrap": [
            {"name": name, "state": table.state, "chunks": table.chunks, "rows": table.rows, "why": table.why}
            for name, table in known
        ],
    }


def show_tasks_of(app: App, source: str = "") -> list[dict[str, Any]]:
    """The tasks of a source, or of all, as the objects of `changes show --json`. Those of sources that the settings have."""
    from tidemark.changes.delivery.tasks import show_task  # it imports Arrow

    with app.ledger.read() as connection:
        found = [task for task in list_tasks(connection, source) if task.source in app.settings.sources]
    leases = Leases(app.ledger, app.identity)
    return [show_task(leases, disk_of(app.settings.sources[task.source]), task, app.clock()) for task in found]


def note_source(source: Source) -> dict[str, Any]:
    """What store and ledger alone say of a source: for a monitor that asks each minute, also while the server is away."""
    store_end, view = find_end(source.disk), read_next_view(source.disk)
    gaps = [gap for gap in read_gaps(source.disk) if gap.state == OPEN]
    state = "capturing" if is_captured(source.app, source.name) else "idle" if store_end else "new"
    place = store_end.position if store_end else None
    with source.app.ledger.read() as connection:
        tasks = list_tasks(connection, source.name)
        letters = [one.count for task in tasks for one in read_letters(connection, task.name)]
    return {
        "name": source.name,
        "state": "gap" if gaps else state,
        "position": f"{place.file}:{place.position}" if place else None,
        "newest_time": _show_time(view.end) if store_end else None,
        "gaps": [gap.id for gap in gaps],
        "dead_letters": sum(letters),
        "next": f"./tidemark why gap:{source.name}/{gaps[0].id}" if gaps else "",
    }


def measure_lag(store_end: StoreEnd | None, end: State, answers: Answers | None, now: float) -> float:
    """Seconds since the newest change that the store has; 0 where the server has none that the store does not have."""
    has, there = store_end.gtids if store_end else None, answers.facts.gtids if answers else None
    for kind in (MysqlGtidSet, MariaGtidPosition):
        if isinstance(has, kind) and isinstance(there, kind) and has >= there:  # type: ignore[operator]
            return 0.0
    return round(now - end.newest / 1e6, 1)


def _count_rows(reader: Reader) -> tuple[int, int]:
    """Rows and bytes of a store, by the headers of its blocks."""
    rows = size = 0
    for bucket in reader.view.buckets:
        with suppress(FileNotFoundError), reader.disk.open_file(bucket.file.path) as file:  # retention took it meanwhile
            end = file.size if bucket.length is None else bucket.length
            rows += sum(header.rows for _, header in walk_blocks(file, bucket.file.id, 0, end))
            size += min(end, file.taken)
    rows += sum(group.header.rows for group in reader.view.tail)
    return rows, size + sum(group.header.size for group in reader.view.tail)


def _show_time(state: State) -> str:
    return datetime.fromtimestamp(state.newest / 1e6, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
