"""Close the gaps of a source: go on behind what its server purged, and read its tables anew."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemark.changes.bootstrap.catalog import forget_definitions
from tidemark.changes.bootstrap.state import DONE, GONE, read_state, settle, write_state
from tidemark.changes.connection.login import open_server
from tidemark.changes.sources.source import (
    Request,
    Source,
    bootstrap_source,
    capture_source,
    hold_capture,
    list_gone,
    login_of,
)
from tidemark.changes.trust.gaps import OPEN, REPAIRED, Gap, pass_gap, read_gaps, update_gap
from tidemark.changes.trust.patterns import ask_names
from tidemark.errors import NotFoundError, PermanentError
from tidemark.progress import Progress, ignore_progress


@dataclass(frozen=True)
class Repaired:
    """The gaps that were closed, their tables, how many rows were read, and the tables that the server has no more: where
    they were dropped in a gap, the store does not say so."""

    gaps: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    rows: int = 0
    gone: tuple[str, ...] = ()


def repair_source(source: Source, gap_id: str = "", progress: Progress = ignore_progress) -> Repaired:
    """Close the open gaps of a source, or one of them: go on behind it, and read its tables anew.

    Any death is made good by calling it again. Raises NotFoundError for a gap that is not known, PermanentError where a
    table cannot be read, or the server is one of which none is: then the gap stays open.
    """
    disk, gaps = source.disk, read_gaps(source.disk)
    if gap_id and gap_id not in [gap.id for gap in gaps]:
        raise NotFoundError(f"source {source.name} has no gap {gap_id}", hint=f"./tidemark changes show {source.name}")
    wanted = [gap for gap in gaps if gap.state == OPEN and gap_id in ("", gap.id)]
    tables = tuple(sorted({table for gap in wanted for table in gap.tables}))
    if not wanted:
        return Repaired()
    with open_server(login_of(source.settings)) as server:  # it is there
        gone = list_gone(source, ask_names(server))
    for gap in wanted:
        if not gap.is_passed:
            _go_behind(source, gap)
    bootstrap_source(source, progress)
    capture_source(source, Request(), progress)
    read = {name: table for name, table in read_state(disk).tables.items() if name in tables}
    if left := [name for name in tables if name not in read or read[name].state not in (DONE, GONE)]:
        raise PermanentError(
            f"gap {wanted[0].id} of source {source.name} stays open: not read are {', '.join(left)}",
            hint=f"./tidemark changes bootstrap {source.name} --tables {left[0]}, then repair again",
            subject=left[0],
        )
    for gap in wanted:
        # CRASH WINDOW: its tables are read, and it is open: the next repair finds nothing to read, and closes it.
        update_gap(disk, replace(gap, is_passed=True, state=REPAIRED))
    rows = sum(table.rows for table in read.values())
    return Repaired(tuple(gap.id for gap in wanted), tables, rows, tuple(gone))


def _go_behind(source: Source, gap: Gap) -> None:
    """Have the store go on behind a gap, and its tables be read anew."""
    disk = source.disk
    with hold_capture(source) as lease:
        forget_definitions(disk)  # statements are lost, too
        pass_gap(disk, lease.fence, gap)
        # CRASH WINDOW: it is passed, and nothing says so: it is not passed twice.
        write_state(disk, settle(disk, read_state(disk)).with_anew(gap.tables))
        # CRASH WINDOW: its tables are asked for, and nothing says so: they are asked for once more, from the start.
        update_gap(disk, replace(gap, is_passed=True))
