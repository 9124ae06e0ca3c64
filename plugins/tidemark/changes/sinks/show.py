"""What the ledger knows of a sink, for `why` and monitors. Needs no Arrow."""

from __future__ import annotations

from typing import Any

from tidemark.app import App, find_named
from tidemark.changes.delivery.storage_points import measure_behind
from tidemark.changes.sources.source import disk_of
from tidemark.changes.store.read import Reader
from tidemark.errors import UsageError
from tidemark.ledger.delivery import PARTIAL, STOPPED, SinkTable, read_batch, read_points, read_sink_tables
from tidemark.settings.model import Settings, SinkSettings, SiteSettings, find_site_of_sink


def sink_settings_of(settings: Settings, name: str) -> SinkSettings:
    """The settings of a sink. NotFoundError names those that there are."""
    return find_named(settings.sinks, name, "sink", "sinks stand in the settings: [sinks.NAME]")


def site_of_sink(settings: Settings, sink: SinkSettings) -> SiteSettings:
    """The site whose files a `catalog` sink writes: its store is the sink's target. UsageError: there is none."""
    if site := find_site_of_sink(settings, sink):
        return site
    folder = sink.target.removeprefix("file://").rstrip("/")
    raise UsageError(
        f"no site has the folder of sink {sink.name} as its store: {folder}",
        hint=f'a [sites.{sink.name}] with store = "{folder}" and an id, and a [links.{sink.name}] of that site',
        subject=sink.name,
    )


def show_sink(app: App, name: str) -> dict[str, Any]:
    """A sink: its settings, how its tables are (of a `delta` or `catalog` sink), and its newest batch."""
    settings = sink_settings_of(app.settings, name)
    with app.ledger.read() as connection:
        batch, tables = read_batch(connection, name), read_sink_tables(connection, name)
    shown = {"name": name, "source": settings.source, "kind": settings.kind, "target": settings.target}
    newest = None
    if batch is not None:
        spans = {"from": f"seq:{batch.first}", "to": f"seq:{batch.end - 1}"}
        newest = {"number": batch.number, **spans, "written": batch.is_written}
    return {**shown, "batch": newest, "tables": [show_table(table) for table in tables.values()]}


def note_sink(app: App, name: str) -> dict[str, Any]:
    """What the ledger and the store alone say of a sink, for a monitor that asks each minute. `failed`: a table is not
    written any more, or retention took what comes next. `behind`: transactions of the store that it has not written, and how
    much older the last one is that it has than the store's last; null where it has none."""
    settings = sink_settings_of(app.settings, name)
    reader = Reader(disk_of(app.settings.sources[settings.source]))
    with app.ledger.read() as connection:
        batch, tables = read_batch(connection, name), read_sink_tables(connection, name)
        point = min(read_points(connection, name).values(), key=lambda one: one.order, default=None)
    end, seq = reader.view.end, point.seq if point else 1
    behind, seconds = measure_behind(reader, point)
    by_state = {state: [one for one in tables.values() if one.state == state] for state in (STOPPED, PARTIAL)}
    state, why = "late" if behind else "current", ""
    if batch is None:
        state = "new"
    elif end.seq and seq < reader.first:
        state, why = "overrun", f"retention took what is before seq:{reader.first}, and it is at seq:{seq}"
    elif found := by_state[STOPPED] or by_state[PARTIAL]:
        state, why = found[0].state, f"{found[0].name}: {found[0].why}"
    following = f"./tidemark why sink:{name}" if why else f"./tidemark changes deliver {name}" if behind else ""
    return {
        "name": name,
        "source": settings.source,
        "state": state,
        "point": f"seq:{seq}",
        "behind_transactions": behind,
        "behind_seconds": seconds,
        "batch": batch.number if batch else None,
        "failed": state in ("overrun", STOPPED),
        "why": why,
        "next": following,
    }


def show_table(table: SinkTable, rows: int = 0) -> dict[str, Any]:
    """A table of a sink as `changes deliver --json` tells it. `rows`: changes of it in this run."""
    return {"name": table.name, "state": table.state, "rows": rows, "why": table.why}
