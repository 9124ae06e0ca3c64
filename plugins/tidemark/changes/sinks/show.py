"""What the ledger knows of a sink, for `why` and monitors. Needs no Arrow."""

from __future__ import annotations

from typing import Any

from tidemark.app import App, find_named
from tidemark.ledger.delivery import SinkTable, read_batch, read_sink_tables
from tidemark.settings.model import Settings, SinkSettings


def sink_settings_of(settings: Settings, name: str) -> SinkSettings:
    """The settings of a sink. NotFoundError names those that there are."""
    return find_named(settings.sinks, name, "sink", "sinks stand in the settings: [sinks.NAME]")


def show_sink(app: App, name: str) -> dict[str, Any]:
    """A sink: its settings, how its tables are (of a `delta` sink), and its newest batch."""
    settings = sink_settings_of(app.settings, name)
    with app.ledger.read() as connection:
        batch, tables = read_batch(connection, name), read_sink_tables(connection, name)
    shown = {"name": name, "source": settings.source, "kind": settings.kind, "target": settings.target}
    newest = None
    if batch is not None:
        spans = {"from": f"seq:{batch.first}", "to": f"seq:{batch.end - 1}"}
        newest = {"number": batch.number, **spans, "written": batch.is_written}
    return {**shown, "batch": newest, "tables": [show_table(table) for table in tables.values()]}


def show_table(table: SinkTable, rows: int = 0) -> dict[str, Any]:
    """A table of a sink as `changes deliver --json` tells it. `rows`: changes of it in this run."""
    return {"name": table.name, "state": table.state, "rows": rows, "why": table.why}
