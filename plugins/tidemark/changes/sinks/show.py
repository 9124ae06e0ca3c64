"""What the ledger knows of a sink, for `why` and monitors. Needs no Arrow."""

from __future__ import annotations

from typing import Any

from tidemark.app import App, find_named
from tidemark.errors import UsageError
from tidemark.ledger.delivery import SinkTable, read_batch, read_sink_tables
from tidemark.settings.model import Settings, SinkSettings, SiteSettings


def sink_settings_of(settings: Settings, name: str) -> SinkSettings:
    """The settings of a sink. NotFoundError names those that there are."""
    return find_named(settings.sinks, name, "sink", "sinks stand in the settings: [sinks.NAME]")


def site_of_sink(settings: Settings, sink: SinkSettings) -> SiteSettings:
    """The site whose files a `catalog` sink writes: its store is the sink's target. UsageError: there is none."""
    folder = sink.target.removeprefix("file://").rstrip("/")
    for site in settings.sites.values():
        if site.store.removeprefix("file://").rstrip("/") == folder:
            return site
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


def show_table(table: SinkTable, rows: int = 0) -> dict[str, Any]:
    """A table of a sink as `changes deliver --json` tells it. `rows`: changes of it in this run."""
    return {"name": table.name, "state": table.state, "rows": rows, "why": table.why}
