"""Choose which vanished files are searched for in which newer files, before a landing is recorded.

A file is searched for when its site reported it as vanished and the receiver has its bytes. Its points may live on in files
of its group (database, region and time partition of the site) that arrived later. The name of such a file shows that a
compaction may have made it: an inner or cross count above 0, or the vanished file's version under another creation time (an
insertion compaction). A file of the same name in another data folder is the vanished one, moved: it may have arrived before.
`surviving_points` searches, `rules` decides. Source: docs/decisions/0005-vanished-is-two-things.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sqlalchemy.engine import Connection

from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.landings import DropRow
from tidemark.receiver.load.admit import Load, Origin
from tidemark.receiver.load.removal.rules import Survival
from tidemark.receiver.load.removal.surviving_points import Evidence, HeldFile, SurvivalTask
from tidemark.tsfiles.names import SourceName, is_same_file, may_hold, parse_former_path, parse_source_path

_ANY = ("live", "retired", "reclaimed")


@dataclass(frozen=True)
class Found:
    """What became of a vanished file's points. `survival` is None where they could not be compared: `trouble` says why.
    `by`: paths of the files that hold them now. `proof`: the point, or the fact, that decided."""

    survival: Survival | None
    by: tuple[str, ...] = ()
    proof: str = ""
    trouble: str = ""


NOTHING_FOUND: Mapping[str, Found] = MappingProxyType({})


@dataclass(frozen=True)
class Question:
    """One search to do. `gone`: the newest row of a vanished file. `made`: files in which its points may live on."""

    gone: CatalogFile
    made: tuple[CatalogFile, ...]

    def make_task(self, root: str) -> SurvivalTask | None:
        """Build the task. None where nothing needs reading: it has points, no deletions, and no file can hold the points."""
        if not self.made and not self.gone.mods_location and self.gone.points:
            return None
        gone, *made = (HeldFile(file.location, file.mods_location, file.prefix) for file in (self.gone, *self.made))
        is_moved = [file.sha256 for file in self.made] == [self.gone.sha256]
        return SurvivalTask(root, self.gone.database, gone, tuple(made), is_moved)

    @property
    def bytes(self) -> int:
        """How many bytes the search reads at most."""
        return sum(file.size for file in (self.gone, *self.made))

    def rests_on(self, evidence: Evidence) -> tuple[CatalogFile, ...]:
        """Return the files whose digests must be right before the file may leave for this evidence; none if it stays."""
        if evidence.survival is Survival.GONE:
            return ()
        return (self.gone, *(self.made[place] for place in evidence.rests_on))

    def make_answer(self, evidence: Evidence) -> Found:
        by = tuple(self.made[place].path for place in evidence.rests_on)
        return Found(evidence.survival, by, f"{evidence.proof}, in {', '.join(by)}" if by else evidence.proof)


def group_of(path: str, data: Sequence[str]) -> tuple[str, str, int] | None:
    """Return (database, region, time partition) of a site's file; None where its path cannot be parsed."""
    name = parse_former_path(path, data)
    return (name.database, name.region, name.partition) if name else None


def list_questions(connection: Connection, origin: Origin, told: Iterable[DropRow], loads: Sequence[Load]) -> list[Question]:
    """List the searches to do before these loads and drops are recorded: one per vanished file judged with them."""
    due = due_drops(connection, origin, told, [load.file.path for load in loads])
    if not due:
        return []
    place = (origin.receiver, origin.site_id)
    gone = {row.path: row for row in catalog_rows.sources_of_paths(connection, *place, due)}
    beside = _Neighbours(connection, origin, due.keys(), {load.row.path: load.row for load in loads})
    return [Question(row, beside.made_since(row)) for row in gone.values()]


def due_drops(
    connection: Connection, origin: Origin, told: Iterable[DropRow], arriving: Iterable[str]
) -> dict[str, DropRow]:
    """Return path → its newest drop, for every vanished file that is judged now: newly reported, waiting, or kept in a group
    in which files arrive. A kept file is not judged again before that."""
    place = (origin.receiver, origin.site_id)
    new = [*landing_rows.read_drops(connection, *place, states=("pending",)), *told]
    touched = {group_of(path, origin.data) for path in arriving}
    kept: dict[str, DropRow] = {}
    if touched:
        rows = catalog_rows.kept_sources(connection, *place)
        paths = [row.path for row in rows if group_of(row.path, origin.data) in touched]
        kept = {p: d for p, d in landing_rows.drops_of_paths(connection, *place, paths).items() if d.state == "done"}
    newest = dict(kept)
    for drop in new:
        if drop.path not in newest or newest[drop.path].generation <= drop.generation:
            newest[drop.path] = drop
    return newest


class _Neighbours:
    """The live files next to vanished ones, read once per database and partition: one compaction replaces many files."""

    def __init__(
        self, connection: Connection, origin: Origin, vanished: Iterable[str], arriving: Mapping[str, CatalogFile]
    ) -> None:
        self._connection, self._origin, self._arriving = connection, origin, arriving
        self._vanished = set(vanished)
        self._found: dict[tuple[str, int, int], list[tuple[SourceName, CatalogFile, float]]] = {}

    def made_since(self, gone: CatalogFile) -> tuple[CatalogFile, ...]:
        """List files that may hold its points, lowest rank first. Only the same file, moved, may have arrived earlier. Where
        its bytes are the same, it alone is listed: points that were deleted there since are no loss."""
        name = parse_former_path(gone.path, self._origin.data)
        if name is None:
            return ()
        came = self._first_created([gone]).get((gone.path, gone.sha256), gone.created)
        made = [
            row
            for other, row, since in self._live_neighbours(gone)
            if may_hold(other, name) and (since >= came or is_same_file(other, name))
        ]
        moved = [row for row in made if row.sha256 == gone.sha256]
        if moved:
            return (moved[0],)
        return tuple(sorted(made, key=lambda row: row.rank))

    def _live_neighbours(self, gone: CatalogFile) -> list[tuple[SourceName, CatalogFile, float]]:
        key = (gone.database, gone.partition_from, gone.partition_to)
        if key not in self._found:
            rows = {row.path: row for row in catalog_rows.sources_beside(self._connection, gone) if not row.kept}
            rows |= self._arriving
            named = [(other, rows[path]) for path in rows if (other := parse_source_path(path, self._origin.data))]
            fitting = [(other, row) for other, row in named if other.path not in self._vanished]
            first = self._first_created([row for _, row in fitting])
            self._found[key] = [(other, row, first.get((row.path, row.sha256), row.created)) for other, row in fitting]
        return self._found[key]

    def _first_created(self, rows: Iterable[CatalogFile]) -> dict[tuple[str, str], float]:
        """Return (path, sha256) → when it arrived first. Mods that grow make new rows with the same TsFile."""
        first: dict[tuple[str, str], float] = {}
        place = (self._origin.receiver, self._origin.site_id)
        for row in catalog_rows.sources_of_paths(self._connection, *place, [row.path for row in rows], _ANY):
            first.setdefault((row.path, row.sha256), row.created)
        return first
