"""Which vanished files are asked whether their points live on, and in which files: before a landing is recorded.

A file is asked about once its site told it as vanished and its bytes are here. Its points may live on in files of its group
(database, region and time partition of the site) that came since and whose names say that a compaction may have made them:
an inner or cross count above 0, or the file's own version under another creation time (an insertion compaction). The answers
are `surviving_points`', the verdict is `rules`'. Source: docs/decisions/0005-vanished-is-two-things.md.
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
from tidemark.tsfiles.names import SourceName, may_hold, parse_source_path

_ANY = ("live", "retired", "reclaimed")


@dataclass(frozen=True)
class Found:
    """`survival` is None where the points could not be compared: `trouble` says why. `by`: paths of the files in which it
    lives on; `proof`: the point, or the fact, that decided."""

    survival: Survival | None
    by: tuple[str, ...] = ()
    proof: str = ""
    trouble: str = ""


NOTHING_FOUND: Mapping[str, Found] = MappingProxyType({})


@dataclass(frozen=True)
class Question:
    """`gone`: the newest row of a vanished file; `made`: files in which its points may live on."""

    gone: CatalogFile
    made: tuple[CatalogFile, ...]

    def make_task(self, root: str) -> SurvivalTask | None:
        """What has to be read for an answer; None where it has points, no file can hold them and none of them is deleted."""
        if not self.made and not self.gone.mods_location and self.gone.points:
            return None
        made = tuple(HeldFile(file.location, file.mods_location) for file in self.made)
        return SurvivalTask(root, self.gone.database, HeldFile(self.gone.location, self.gone.mods_location), made)

    @property
    def bytes(self) -> int:
        """How much is read for an answer, at most."""
        return sum(file.size for file in (self.gone, *self.made))

    def rests_on(self, evidence: Evidence) -> tuple[CatalogFile, ...]:
        """The files whose bytes have to be those that were loaded if the file is to leave for this; none if it stays."""
        if evidence.survival is Survival.GONE:
            return ()
        return (self.gone, *(self.made[place] for place in evidence.rests_on))

    def make_answer(self, evidence: Evidence) -> Found:
        by = tuple(self.made[place].path for place in evidence.rests_on)
        return Found(evidence.survival, by, f"{evidence.proof}, in {', '.join(by)}" if by else evidence.proof)


def group_of(path: str, data: Sequence[str]) -> tuple[str, str, int] | None:
    """(database, region, time partition) of a site's file; None where its path cannot be taken apart."""
    name = parse_source_path(path, data)
    return (name.database, name.region, name.partition) if name else None


def list_questions(connection: Connection, origin: Origin, told: Iterable[DropRow], loads: Sequence[Load]) -> list[Question]:
    """What to ask before these loads and drops are recorded: of every vanished file that is judged with them."""
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
    """Path → its newest drop, of all that is judged now: what is told, what waits, and what is kept of the groups in which
    files arrive, for a mark holds until something comes."""
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
    """The live files beside vanished ones, read once a database and catalog partition: a compaction takes many at once."""

    def __init__(
        self, connection: Connection, origin: Origin, vanished: Iterable[str], arriving: Mapping[str, CatalogFile]
    ) -> None:
        self._connection, self._origin, self._arriving = connection, origin, arriving
        self._vanished = set(vanished)
        self._found: dict[tuple[str, int, int], list[tuple[SourceName, CatalogFile, float]]] = {}

    def made_since(self, gone: CatalogFile) -> tuple[CatalogFile, ...]:
        """Files that came no earlier than this one and that a compaction may have made of it, lowest rank first."""
        name = parse_source_path(gone.path, self._origin.data)
        if name is None:
            return ()
        came = self._first_created([gone]).get((gone.path, gone.sha256), gone.created)
        made = [row for other, row, since in self._live_neighbours(gone) if since >= came and may_hold(other, name)]
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
        """When a content of a path came first: grown mods make rows of their own."""
        first: dict[tuple[str, str], float] = {}
        place = (self._origin.receiver, self._origin.site_id)
        for row in catalog_rows.sources_of_paths(self._connection, *place, [row.path for row in rows], _ANY):
            first.setdefault((row.path, row.sha256), row.created)
        return first
