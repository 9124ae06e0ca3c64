"""Plan what a sync of a link would do now: list the site and decide as a run does. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.app import App
from tidemark.errors import UsageError
from tidemark.formats.json_stream import parse_json
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.runs import DROP, MODS, SEND, SUPERSEDE, item_bytes
from tidemark.settings.model import SiteSettings
from tidemark.sync.schema import Piece, plan_pieces
from tidemark.sync.select.choose import Selection
from tidemark.sync.select.owners import Collision, find_collisions
from tidemark.sync.select.select_files import make_selection
from tidemark.sync.session import Options, Plan, Site
from tidemark.sync.start import require_same_ends
from tidemark.tsfiles.names import parse_source_path
from tidemark.tsfiles.times import format_interval


@dataclass(frozen=True)
class DatabaseSum:
    """What a sync would send of a database. `start` and `end`: ISO times; "" where no resource file could be read."""

    database: str
    files: int
    bytes: int
    start: str
    end: str

    def as_json(self) -> dict[str, Any]:
        return {"database": self.database, "files": self.files, "bytes": self.bytes, "from": self.start, "to": self.end}


@dataclass(frozen=True)
class PlanReport:
    """The report of `./tidemark plan` (CONTRACT §1). `bytes` of a path includes its companions. `state`: nothing | ready |
    guard (drops wait) | unfinished (a run that stopped is ended first) | conflict (a first sync of another site's devices
    is refused)."""

    link: str
    state: str
    send: tuple[tuple[str, int], ...] = ()
    drop: tuple[str, ...] = ()
    superseded: tuple[tuple[str, tuple[str, ...]], ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    schema: tuple[Piece, ...] = ()
    conflicts: tuple[Collision, ...] = ()
    guard: str = ""
    databases: tuple[DatabaseSum, ...] = ()  # of `send`

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": True,
            "link": self.link,
            "state": self.state,
            "send": [{"path": path, "bytes": size} for path, size in self.send],
            "drop": [{"path": path} for path in self.drop],
            "superseded": [{"path": path, "by": list(by)} for path, by in self.superseded],
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
            "schema": [{"path": p.path, "from": p.start, "to": p.end, "began_anew": p.began_anew} for p in self.schema],
            "conflicts": [{"path": path, "device": device, "owner": owner} for path, device, owner in self.conflicts],
            "files": len(self.send),
            "bytes": sum(size for _, size in self.send),
            "guard": self.guard,
            "databases": [one.as_json() for one in self.databases],
        }


def plan_sync(app: App, link: str, options: Options = Options()) -> PlanReport:  # noqa: B008 - frozen
    """Return what `sync` would do now. Raises errors of listing the site (UnreachableError …), and PermanentError if the
    settings give the link another site or receiver than it has run between."""
    settings = app.link_settings(link)
    require_same_ends(app, settings)
    site = app.site_settings(settings.site)
    with app.site_store(site) as source:
        looking = Site(app.ledger, settings, site, source, beside=app.links_beside(settings))
        selection = make_selection(looking, options)
        pieces, unlisted = plan_pieces(looking) if site.schema else ((), {})
    with app.ledger.read() as connection:
        known = link_rows.get_link(connection, link)
        unfinished = run_rows.unfinished_run(connection, link) if known else None
        conflicts = find_collisions(connection, looking, selection)
        refused = conflicts and link_rows.fixed_prefix(connection, site.id) is None
    something = selection.items or selection.added or selection.removed or pieces
    held = "unfinished" if unfinished else "guard" if selection.guard else ""
    state = "conflict" if refused else held or ("ready" if something else "nothing")
    return PlanReport(
        link=link,
        state=state,
        send=tuple((i.path, item_bytes(i)) for i in selection.items if i.action in (SEND, MODS)),
        drop=tuple(i.path for i in selection.items if i.action == DROP),
        superseded=tuple((i.path, i.covered_by) for i in selection.items if i.action == SUPERSEDE),
        skipped=_list_skipped(selection, unlisted),
        schema=tuple(pieces),
        conflicts=conflicts,
        guard=selection.guard,
        databases=_sum_databases(selection, site),
    )


def read_plan(data: bytes) -> Plan:
    """Parse a plan report written by `plan --out`. Raises UsageError if it is not one."""
    try:
        raw = parse_json(data)
        return Plan(
            send=tuple((str(s["path"]), int(s["bytes"])) for s in raw["send"]),
            drop=tuple(str(d["path"]) for d in raw["drop"]),
            superseded=tuple(str(s["path"]) for s in raw["superseded"]),
        )
    except (ValueError, KeyError, TypeError) as broken:
        raise UsageError(
            f"this is not a plan: {type(broken).__name__} {broken}", hint="make one: ./tidemark plan LINK --out FILE"
        ) from broken


def _list_skipped(selection: Selection, unlisted: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    left_out = {seen.path: seen.reason for seen in selection.seen if seen.reason}
    return tuple(sorted({**selection.skipped, **left_out, **unlisted}.items()))


def _sum_databases(selection: Selection, site: SiteSettings) -> tuple[DatabaseSum, ...]:
    files: dict[str, list[tuple[str, int]]] = {}
    for item in selection.items:
        if item.action in (SEND, MODS) and (source := parse_source_path(item.path, site.data)):
            files.setdefault(source.database, []).append((item.path, item_bytes(item)))
    return tuple(_sum_files(database, found, selection, site.time_unit) for database, found in sorted(files.items()))


def _sum_files(database: str, files: list[tuple[str, int]], selection: Selection, unit: str) -> DatabaseSum:
    spans = [(first, last, unit) for path, _ in files for _, first, last in selection.extents.get(path, ())]
    start, end = format_interval(spans) if spans else ("", "")
    return DatabaseSum(database, len(files), sum(size for _, size in files), start, end)
