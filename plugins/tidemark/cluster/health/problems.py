"""Find the differences between a cluster and its table, from the ledger's records and the nodes' answers. Pure.

While a slot moves, only its members that acknowledged, and those that had it before, must have all of it. Source: CONTRACT
§1 (`cluster check`); docs/decisions/0015.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from tidemark.cluster.nodes.cluster import command_of_change
from tidemark.cluster.slots.routing import RoutedFile, home_slot, routes_of
from tidemark.cluster.slots.table import PartitionTable
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.cluster.moves import MoveRow
from tidemark.ledger.cluster.operations import OperationRow
from tidemark.ledger.cluster.tables import ChangeRow, NodeRow

LONG_SECONDS = 3600.0
"""An operation that is proposed, a schema that is to be told, or bytes that are going, for longer than this past their time
were forgotten."""

LOAD, SHOW, DOCTOR = "./tidemark load", "./tidemark cluster show", "./tidemark doctor"
MEND = "./tidemark cluster check --repair"

_PART = re.compile(r"\.part(\.[^/]*)?$")


@dataclass(frozen=True)
class Problem:
    """One difference. `next`: the command that mends it. `slot` is None, `node` and `location` are '' if they do not apply.
    `kind`: copy (missing or wrong) | stranger (an unwanted copy) | left_over (a file without a record) | schema (of the
    database in `location`) | table | other."""

    problem: str
    node: str = ""
    slot: int | None = None
    location: str = ""
    next: str = ""
    kind: str = "other"

    def as_json(self) -> dict[str, Any]:
        keys = ("node", "slot", "location", "problem", "next", "kind")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class Expected:
    """A catalog file (or its mods) as recorded. `live`: readers may need it; otherwise it is removed after its grace."""

    location: str
    sha256: str
    slot: int
    live: bool
    wanted: frozenset[str]  # nodes that must have it now
    allowed: frozenset[str]  # nodes that may have it now: while a slot moves, both groups


@dataclass(frozen=True)
class Recorded:
    """The ledger's records, read in one transaction. `table_bytes`: the table as stored; `at`: seconds."""

    table: PartitionTable
    table_bytes: bytes
    change: ChangeRow | None
    nodes: Mapping[str, NodeRow]
    files: Mapping[str, Expected]  # by location
    copies: Mapping[str, Mapping[str, CopyRow]]  # node → location → row
    moves: Mapping[int, MoveRow]  # open ones only
    states: Mapping[tuple[str, int], tuple[str, int]]  # (node, slot) → (state, epoch)
    proposed: Sequence[OperationRow]
    withdrawn: Set[str]  # locations whose transfer was given up: housekeeping removes what is there
    late: Mapping[str, Sequence[OperationRow]]  # node → operations of its groups that it lacks, by the ledger
    databases: Mapping[str, int]  # of live files → slot of its schema
    at: float
    grace: float  # seconds that a copy nobody needs stays

    @property
    def in_flight(self) -> Set[str]:
        """Locations being brought to nodes, or left by a dead process for the next load or housekeeping."""
        return {row.subject for row in self.proposed if row.kind == "put"} | self.withdrawn


@dataclass(frozen=True)
class Found:
    """A node's answer. `away`: why it could not be asked; `wrong`: what is wrong with its own files."""

    node: str
    away: str = ""
    wrong: str = ""
    table: tuple[int, bytes] | None = None
    digests: Mapping[str, str | int | None] = field(default_factory=dict)  # as `NodeFolder.compute_digests`
    listed: Sequence[str] = ()  # files below data/ that had no row when listed
    schemas: Mapping[str, str] = field(default_factory=dict)  # database → digest of its schema there; without damaged ones


def expected_of(
    table: PartitionTable,
    file: RoutedFile,
    digests: tuple[str, str],
    live: bool,
    acknowledged: Mapping[int, Collection[str]],
) -> Iterator[Expected]:
    """Yield a catalog file and its mods. `digests`: of both; `acknowledged`: moving slot → members that have all of it."""
    wanted: set[str] = set()
    allowed: set[str] = set()
    for route in routes_of(table, file):
        allowed.update(route.members, route.before)
        moving = route.slot in table.moving
        wanted.update(
            name for name in route.members if not moving or name in route.before or name in acknowledged.get(route.slot, ())
        )
    slot = home_slot(table, file)
    for location, sha256 in zip((file.location, file.mods_location), digests, strict=True):
        if location:
            yield Expected(location, sha256, slot, live, frozenset(wanted if live else ()), frozenset(allowed))


def problems_of(recorded: Recorded, found: Iterable[Found]) -> list[Problem]:
    """Return all problems, by node, slot and location."""
    answers = {one.node: one for one in found}
    problems = [*_check_ring(recorded), *_check_records(recorded), *_check_unheld(recorded)]
    for node, row in recorded.nodes.items():
        if row.state == "left":
            continue
        answer = answers.get(node)
        problems += _check_copies(recorded, node, answer)
        if answer is None or answer.away:
            why = answer.away if answer is not None else "it was not asked"
            problems.append(Problem(f"it cannot be looked at: {why}", node, next=DOCTOR))
        else:
            problems += _check_table(recorded, row, answer)
            problems += _check_leftovers(recorded, answer)
            problems += _check_schemas(recorded, answer)
    return sorted(problems, key=lambda one: (one.node, -1 if one.slot is None else one.slot, one.location, one.problem))


def problem_keys(problems: Iterable[Problem]) -> set[tuple[str, str, str]]:
    """Identify problems between two readings: one that only the first shows came from work that went on meanwhile."""
    return {(one.node, one.location, one.problem) for one in problems}


def _check_ring(recorded: Recorded) -> Iterator[Problem]:
    """Check that each node of the table is known and serves. The form of the table ensures one header for each slot."""
    table = recorded.table
    for name in table.ring.names:
        state = recorded.nodes[name].state if name in recorded.nodes else "unknown"
        if state != "serving":
            yield Problem(f"it is a node of table {table.epoch}, and {state} in the ledger", name, next=SHOW)
    for name, row in recorded.nodes.items():
        if row.state == "serving" and name not in table.ring:
            yield Problem(f"it serves in the ledger, and is no node of table {table.epoch}", name, next=SHOW)
    for slot, header in enumerate(table.owners):
        if header not in table.ring:
            yield Problem(f"its header {header} is no node of the table", slot=slot, next=SHOW)


def _check_records(recorded: Recorded) -> Iterator[Problem]:
    """Find operations that wait too long, and states and moves without a change."""
    for row in recorded.proposed:
        if recorded.at - row.at > LONG_SECONDS:
            long = f"operation {row.version} of the group of {row.header} is proposed since {recorded.at - row.at:.0f} s"
            yield Problem(long, slot=row.slot, location=row.subject, next=LOAD)
    for (node, slot), (state, epoch) in recorded.states.items():
        if slot not in recorded.moves:
            yield Problem(f"the slot is {state} by epoch {epoch}, and does not move", node, slot, next=_go_on(recorded))
    if recorded.change is None and recorded.moves:
        slots = sorted(recorded.moves)
        yield Problem(f"{len(slots)} slots move without a change", slot=slots[0], next="./tidemark cluster rebalance")


def _check_unheld(recorded: Recorded) -> Iterator[Problem]:
    """Find live files that no node holds. Until `init` has moved a slot, the receiver alone may have its files."""
    held = {location for rows in recorded.copies.values() for location, row in rows.items() if row.state == "held"}
    for location, file in recorded.files.items():
        move = recorded.moves.get(file.slot)
        if file.live and not file.wanted and location not in held and not (move is not None and not move.old):
            yield Problem("no node has it", slot=file.slot, location=location, next=LOAD)


def _check_table(recorded: Recorded, row: NodeRow, answer: Found) -> Iterator[Problem]:
    """Check that the node's table is the ledger's. A newer one belongs to a change whose phase 1 stopped before its swap. A
    node that joins by that change may have none yet, or an old one."""
    if answer.wrong:
        yield Problem(answer.wrong, row.node, next=MEND, kind="table")
        return
    if row.state == "joining" and recorded.change is not None:
        return
    epoch = recorded.table.epoch
    if answer.table is None:
        yield Problem("no partition table lies in its folder", row.node, next=MEND, kind="table")
        return
    theirs, record = answer.table
    planned = recorded.change is not None and recorded.change.state == "planned"
    if (theirs > epoch and not planned) or (theirs < epoch and row.state != "leaving"):
        yield Problem(f"its folder has table {theirs}, {epoch} is in force", row.node, next=MEND, kind="table")
    elif theirs == epoch and record != recorded.table_bytes:
        yield Problem(f"its table {epoch} is not the ledger's, byte by byte", row.node, next=MEND, kind="table")


def _check_copies(recorded: Recorded, node: str, answer: Found | None) -> Iterator[Problem]:
    rows = recorded.copies.get(node, {})
    for location, file in recorded.files.items():
        if node in file.wanted and (location not in rows or rows[location].state != "held"):
            yield Problem("it has no copy", node, file.slot, location, MEND, "copy")
    for location, row in rows.items():
        known = recorded.files.get(location)
        if row.state == "going":
            if recorded.at - row.at > recorded.grace + LONG_SECONDS:
                yield Problem("its copy was to be removed long ago", node, row.slot, location, "./tidemark load")
            continue
        if known is None and location not in recorded.in_flight:
            yield Problem("it holds a file the catalog does not know", node, row.slot, location, MEND, "stranger")
        elif known is not None and known.live and node not in known.allowed:
            yield Problem("it holds a copy of a slot that is not its own", node, row.slot, location, MEND, "stranger")
        if answer is not None and location in answer.digests:
            yield from _check_digest(node, row, known, answer.digests[location])


def _check_digest(node: str, row: CopyRow, known: Expected | None, found: str | int | None) -> Iterator[Problem]:
    right = known.sha256 if known is not None and known.sha256 else row.sha256  # a rebuilt ledger has none of a retired file
    if found is None:
        yield Problem("its copy is gone", node, row.slot, row.location, MEND, "copy")
    elif isinstance(found, int):
        yield Problem(f"its copy has {found} bytes, {row.size} are right", node, row.slot, row.location, MEND, "copy")
    elif found != right:
        said = f"its copy has digest {found[:12]}, {right[:12]} is right"
        yield Problem(said, node, row.slot, row.location, MEND, "copy")


def _check_schemas(recorded: Recorded, answer: Found) -> Iterator[Problem]:
    """Find schemas that are late by the node's folder, missing or damaged. A load puts schemas after its files are in the
    catalog. Until then, or until the next load if it dies, nothing is wrong."""
    late = recorded.late.get(answer.node, ())
    for row in late:
        if recorded.at - row.at <= LONG_SECONDS:
            continue
        if row.kind.endswith("_database") and answer.schemas.get(row.subject, "") != row.sha256:
            what = "it lacks the schema" if row.kind == "create_database" else "it still has the schema"
            yield Problem(f"{what} of {row.subject}", answer.node, row.slot, next=LOAD)
    told = {row.subject for row in late} | set(answer.schemas)
    for database, slot in recorded.databases.items():
        if database not in told and slot not in recorded.moves and answer.node in recorded.table.group_of(slot):
            yield Problem(f"the schema of {database} is gone or torn", answer.node, slot, database, MEND, "schema")


def _check_leftovers(recorded: Recorded, answer: Found) -> Iterator[Problem]:
    rows = recorded.copies.get(answer.node, {})
    for path in answer.listed:
        whole = whole_name(path)
        file = recorded.files.get(whole)
        coming = file is not None and file.live and answer.node in file.allowed and file.slot in recorded.moves
        going = file is not None and not file.live
        if path in rows or coming or going or whole in recorded.in_flight:
            continue
        if path == whole and file is not None and answer.node in file.wanted:
            continue  # reported already: it has no copy that counts
        yield Problem("left over: the ledger does not know it", answer.node, None, path, MEND, "left_over")


def whole_name(path: str) -> str:
    """Return the location that a part, or the journal of a part, belongs to; a whole file's own."""
    return _PART.sub("", path)


def _go_on(recorded: Recorded) -> str:
    change = recorded.change
    if change is None or change.kind == "init":
        return "./tidemark cluster init" if change is not None else "./tidemark load"
    return command_of_change(str(change))
