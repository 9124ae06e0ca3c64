"""The findings of a rebuild, and the end of a receiver's rebuild: rows without bytes, and data files without rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import unquote

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.errors import PartialError
from tidemark.formats.layout import MERGED
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import rebuild as rebuild_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.refusals import QuarantineRow, RefusalRow
from tidemark.operations.rebuild.answers import StoredFiles
from tidemark.operations.rebuild.history import ReceiverHistory
from tidemark.receiver.load.landings import waiting_files
from tidemark.settings.model import ReceiverSettings


@dataclass(frozen=True)
class Remains:
    """The files at the receiver; `damaged`: data files that could not be read."""

    traces: StoredFiles
    books: ReceiverHistory
    damaged: frozenset[str]


def conclude_rebuild(app: App, receiver: ReceiverSettings, remains: Remains, findings: Findings) -> None:
    """Mark rows without bytes as reclaimed; live ones among them are lost. Report data files without a row, except merged
    ones whose sources are read instead: those are retired, and housekeeping removes them after the grace. Refused and held
    files whose bytes are gone lose their location."""
    traces, at = remains.traces, app.clock()
    with app.ledger.write() as connection:
        _forget_gone_bytes(connection, receiver.name, traces)
        rows = rebuild_rows.catalog_places(connection, receiver.name)
        gone = [row for row in rows if not _is_here(remains, row)]
        lost = [row for row in gone if row.state == "live"]
        sources = rebuild_rows.source_paths(connection, [row.file_id for row in lost if row.role == "merged"])
        rebuild_rows.mark_gone(connection, [row.file_id for row in gone], at)
        missing = {(row.site_id, row.path) for row in lost if row.path} | set(sources)
        findings.lost += [Lost(receiver.name, site_id, path) for site_id, path in sorted(missing)]
        named = {place for row in rows for place in (row.location, row.mods_location)} | remains.books.to_load(traces)
        stray = [path for path in traces.paths_below("data") if path not in named and not path.endswith(".part")]
        sites = {row.site_id[:8]: row.site_id for row in rows}
        merged = {path for path in stray if MERGED in path and path.rpartition("/")[2][:8] in sites}
        told = {record.location for record in remains.books.settled} - {row.location for row in rows}
        # If something is lost, one of them may be its last copy: nobody reads it, and nobody removes it.
        state = "reclaimed" if findings.lost else "retired"
        _add_unread_rows(connection, receiver, sites, merged, (state, at, traces))
        _add_unread_rows(connection, receiver, sites, told - merged, ("reclaimed", at, traces))
        if not findings.lost:
            findings.derived += len(merged)
            stray = [path for path in stray if path not in merged]
        findings.unknown += stray


def _is_here(remains: Remains, row: rebuild_rows.Place) -> bool:
    mods = not row.mods_location or row.mods_location in remains.traces
    return row.location in remains.traces and row.location not in remains.damaged and mods


def _forget_gone_bytes(connection: Connection, receiver: str, traces: StoredFiles) -> None:
    refused = refusal_rows.read_refusals(connection, receiver) + refusal_rows.refusals_to_sweep(connection, receiver)
    gone = [row.refusal_id for row in refused if not _waits(traces, row)]
    refusal_rows.forget_refused_bytes(connection, gone)
    held = refusal_rows.read_quarantine(connection, receiver) + refusal_rows.quarantine_to_sweep(connection, receiver)
    held += refusal_rows.read_quarantine(connection, receiver, "awaiting")
    refusal_rows.forget_held_bytes(connection, [row.quarantine_id for row in held if not _waits(traces, row)])


def _waits(traces: StoredFiles, row: RefusalRow | QuarantineRow) -> bool:
    return any(path in traces for path in waiting_files(row.location, row.entry))


def _add_unread_rows(
    connection: Connection,
    receiver: ReceiverSettings,
    sites: dict[str, str],
    locations: Iterable[str],
    facts: tuple[str, float, StoredFiles],
) -> None:
    """Add rows of unread merged files; `facts`: their state, since when, the present files."""
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


NOT_IN_DOCUMENTS = (
    "events, and runs but for what their manifests tell",
    "approvals at a link that no run had told yet: its guard trips again and asks again",
    "when a file was first seen, and why files are skipped: the next listing says the latter",
    "merges that had not settled, without data nodes: their sources are read, and the next merge derives them again",
)


@dataclass(frozen=True)
class Lost:
    """A catalog file whose bytes are missing. `next`: the command that brings it back, '' if there is none."""

    receiver: str
    site: str
    path: str
    next: str = ""


@dataclass
class Findings:
    """The findings of all parts of a rebuild."""

    lost: list[Lost] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)  # documents that cannot be used, one sentence each
    derived: int = 0  # merged files that are derived again
    unknown: list[str] = field(default_factory=list)  # data files without a record; they stay in place
    continued: list[str] = field(default_factory=list)  # runs that the next sync continues
    removed: list[str] = field(default_factory=list)  # landings without a manifest, removed


@dataclass(frozen=True)
class RebuildResult:
    """Result of a rebuild. `counts`: rows of the new ledger by kind; `old`: a copy of the replaced ledger, '' without."""

    counts: Mapping[str, int]
    findings: Findings
    old: str = ""

    @property
    def exit_code(self) -> int:
        return PartialError.kind if self.findings.lost or self.findings.troubles else 0

    @property
    def _told(self) -> dict[str, str]:
        """Return `error` and `hint` of a rebuild that is not complete."""
        lost = [f"{one.path} of {one.site} is lost" for one in self.findings.lost]
        left = [*lost, *self.findings.troubles]
        if not left:
            return {}
        more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
        following = next((one.next for one in self.findings.lost if one.next), "./tidemark verify --deep")
        return {"error": f"the rest was done; {left[0]}{more}", "hint": following}

    def as_json(self) -> dict[str, Any]:
        found = self.findings
        return {
            "ok": self.exit_code == 0,
            **self._told,
            **self.counts,
            "derived_again": found.derived,
            "lost": [asdict(lost) for lost in found.lost],
            "troubles": found.troubles,
            "unknown_files": found.unknown,
            "continued_runs": found.continued,
            "removed_landings": found.removed,
            "not_on_paper": list(NOT_IN_DOCUMENTS),
            "old_ledger": self.old,
            "next": "./tidemark verify --deep",
        }
