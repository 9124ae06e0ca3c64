"""The end of a receiver's rebuild: which rows have no bytes, which data files no row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.flows.rebuild_papers import Books
from tidemark.flows.rebuild_result import Findings, Lost
from tidemark.formats.layout import MERGED
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import rebuild as rebuild_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.load.recall import Traces
from tidemark.settings.model import ReceiverSettings


@dataclass(frozen=True)
class Remains:
    """What lies at the receiver; `damaged`: data files that could not be read."""

    traces: Traces
    books: Books
    damaged: frozenset[str]


def conclude(app: App, receiver: ReceiverSettings, remains: Remains, findings: Findings) -> None:
    """Rows whose bytes are gone are read by nobody; live ones among them are lost. Data files without a row are named,
    but merged ones whose sources are read instead: those are retired, and housekeeping removes them after the grace."""
    traces, at = remains.traces, app.clock()
    with app.ledger.write() as connection:
        rows = rebuild_rows.places(connection, receiver.name)
        gone = [row for row in rows if not _is_here(remains, row)]
        lost = [row for row in gone if row.state == "live"]
        sources = rebuild_rows.source_paths(connection, [row.file_id for row in lost if row.role == "merged"])
        rebuild_rows.mark_gone(connection, [row.file_id for row in gone], at)
        missing = {(row.site_id, row.path) for row in lost if row.path} | set(sources)
        findings.lost += [Lost(receiver.name, site_id, path) for site_id, path in sorted(missing)]
        named = {place for row in rows for place in (row.location, row.mods_location)} | remains.books.to_load(traces)
        stray = [path for path in traces.below("data") if path not in named and not path.endswith(".part")]
        sites = {row.site_id[:8]: row.site_id for row in rows}
        merged = {path for path in stray if MERGED in path and path.rpartition("/")[2][:8] in sites}
        told = {paper.location for paper in remains.books.settled} - {row.location for row in rows}
        # Where something is lost one of them may be the last copy of it: nobody reads it, and nobody removes it.
        state = "reclaimed" if findings.lost else "retired"
        _remember(connection, receiver, sites, merged, (state, at, traces))
        _remember(connection, receiver, sites, told - merged, ("reclaimed", at, traces))
        if not findings.lost:
            findings.derived += len(merged)
            stray = [path for path in stray if path not in merged]
        findings.unknown += stray


def _is_here(remains: Remains, row: rebuild_rows.Place) -> bool:
    mods = not row.mods_location or row.mods_location in remains.traces
    return row.location in remains.traces and row.location not in remains.damaged and mods


def _remember(
    connection: Connection,
    receiver: ReceiverSettings,
    sites: dict[str, str],
    locations: Iterable[str],
    facts: tuple[str, float, Traces],
) -> None:
    """Rows of merged files that nobody reads; `facts`: their state, since when, the files that are here."""
    state, at, traces = facts
    for location in sorted(locations):
        file = CatalogFile(
            receiver=receiver.name,
            site_id=sites.get(location.rpartition("/")[2][:8], ""),
            role="merged",
            path="",
            generation=0,
            database=unquote(location.split("/")[1]),
            model="tree",
            format=0,
            partition_from=0,
            partition_to=0,
            location=location,
            sha256="",
            size=traces.sizes.get(location, 0),
            mods_location="",
            mods_sha256="",
            points=0,
            rank=(0, 0, 0, 0, 0),
            created=at,
            state=state,
            visible=False,
            retired=at,
        )
        catalog_rows.add_file(connection, file, ())
