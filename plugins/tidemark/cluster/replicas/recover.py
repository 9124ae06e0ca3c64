"""A member gets back into step: its files by the catalog, then its log by the master's, while loading goes on.

    recovered = recover_node(cluster, store, "n2")       # files and logs of all its groups
    recover_logs(cluster)                                # the logs alone; if all are in step, one query

    init   a row in the ledger for each group; from now on nothing that may be read is removed (`is_source_pinned`)
    start  the partition table that tells which files are wanted is noted
    file   what the catalog wants there and no proved copy is of comes from the receiver or another node, by digest
    wal    its log gets what the master has behind its end, under the lease of the groups
    cache  what was committed meanwhile comes as well; it must reach the position that a later look read
    done   the row goes: it is in step

`recovery_plan.advance` decides the phase after each look at the ledger. A process that dies leaves the row: the next one
goes on there, and what arrived is not sent again. If the table or the master changes, it begins anew; the watch and the DAG
wait with that, longer each time. One process at a time recovers a node, `MOST_AT_ONCE` recover nodes of a receiver.
Source: seed 003 "Data recovery flow"; seed 004; docs/decisions/0024.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from sqlalchemy.engine import Connection

from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.nodes.formats import schema_bytes_of
from tidemark.cluster.replicas.commit import hold_groups
from tidemark.cluster.replicas.core.epochs import Fence
from tidemark.cluster.replicas.core.recovery_plan import (
    MOST_AT_ONCE,
    Phase,
    Recovery,
    Sight,
    advance,
    choose_starts,
    count_backoff_s,
)
from tidemark.cluster.replicas.core.roles import ORIGIN, LogEnd, Position
from tidemark.cluster.replicas.deliver import Delivery, advance_applied, bring_to_node, late_members, share_line
from tidemark.cluster.replicas.members import MemberLogs, read_rows
from tidemark.cluster.replicas.plan import Piece, pieces_of, wanting_nodes
from tidemark.cluster.replicas.promote import open_group, write_row
from tidemark.errors import NoQuorumError, RetryableError, TidemarkError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs
from tidemark.ledger.cluster.recoveries import (
    NOT_READ,
    RecoveryRow,
    end_recoveries,
    find_at_work,
    put_recoveries,
    read_recoveries,
    recovery_lease,
)
from tidemark.ledger.database import database_time
from tidemark.ledger.leases import Lease, Leases, assert_held
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.sql import hold_locks
from tidemark.stores.protocol import Store

_ROUNDS = 10  # of what was committed while others came
_PORTION_BYTES, _PORTION_FILES = 256 << 20, 1024  # that come between two records of what came
_NO_MASTER = "its group has no master"

Member = tuple[str, str]
"""Header of a group, and a node of it."""


@dataclass(frozen=True)
class Recovered:
    """What a node got. `groups`: those whose log is in step again; `left`: those whose log is not."""

    node: str
    files: int = 0
    bytes: int = 0
    groups: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@contextmanager
def hold_node(cluster: Cluster, node: str) -> Iterator[Lease]:
    """Hold the lease under which a node gets what it lacks. LeaseHeldError while another process brings it."""
    leases = Leases(cluster.app.ledger, cluster.app.identity)
    with leases.hold_lease(recovery_lease(cluster.receiver.name, node), f"recover-{uuid.uuid4().hex[:12]}") as lease:
        yield lease


def recover_node(cluster: Cluster, store: Store, node: str, headers: Collection[str] | None = None) -> Recovered:
    """Bring a node back into step in its groups, or in those of `headers`. `store`: the receiver's.

    The first error of the files, once everything was tried; UnreachableError if the node is away, LeaseHeldError if another
    process recovers it, RetryableError if `MOST_AT_ONCE` others are recovered or the nodes change meanwhile, PermanentError
    if the nodes are ahead of the ledger. The rows of the ledger say why it stopped.
    """
    with hold_node(cluster, node) as lease:
        run = _Run(cluster, store, node, headers, lease)
        before = _find_fallen(cluster, node, headers)
        run.begin()
        try:
            run.go_on()
        except TidemarkError as error:
            with suppress(TidemarkError):  # the ledger may be what is away
                run.note_stop(error.message)
            raise
        left = _find_fallen(cluster, node, headers)
        run.note_stop("its log is not in step")
    return Recovered(node, run.files, run.bytes, tuple(sorted(before - left)), tuple(sorted(left)))


class _Run:
    """One process that recovers a node: it looks, `advance` decides, it acts by the phases of the groups."""

    def __init__(self, cluster: Cluster, store: Store, node: str, headers: Collection[str] | None, lease: Lease) -> None:
        self._cluster, self._store, self._node, self._lease = cluster, store, node, lease
        groups = cluster.table.groups_by_header()
        self._headers = [h for h in sorted(groups) if node in groups[h] and (headers is None or h in headers)]
        self._rows: dict[str, RecoveryRow] = {}
        self._logs: Mapping[str, GroupLogRow] = {}
        self._lacking = _Lacking()
        self._asked: frozenset[str] | None = None  # the files of the last try; None before the first
        self.files = self.bytes = 0

    def begin(self) -> None:
        """Take over what an earlier process left, and note which groups there is to recover."""
        receiver, node = self._cluster.receiver.name, self._node
        leases = Leases(self._cluster.app.ledger, self._cluster.app.identity)
        groups = self._cluster.table.groups_by_header()
        self._lacking = _find_lacking(self._cluster, node)
        with self._cluster.app.ledger.write() as connection:
            assert_held(connection, self._lease)
            hold_locks(connection, f"recoveries:{receiver}")
            known, at = read_recoveries(connection, receiver), database_time(connection)
            running = {name for _, name in find_at_work(connection, leases, receiver, known)} - {node}
            # All bytes pass this process, so the receiver is the one source.
            if not choose_starts([(node, receiver)], [(name, receiver) for name in sorted(running)], MOST_AT_ONCE):
                raise _too_many_error(node, running)
            for header, name in known:
                if name not in groups.get(header, ()):
                    end_recoveries(connection, receiver, name, [header])
            logs = read_group_logs(connection, receiver)
            for header in self._headers:
                log, old = logs.get(header, GroupLogRow(receiver, header)), known.get((header, node))
                if old is not None:
                    self._rows[header] = replace(old, fence=self._lease.fence, why="", at=at)
                elif self._lacking.counts[header] or (log.epoch and node not in log.in_step):
                    began = RecoveryRow(receiver, header, node, log.epoch, Phase.INIT.value)
                    self._rows[header] = replace(began, fence=self._lease.fence, begun=at, at=at)
            put_recoveries(connection, list(self._rows.values()))

    def go_on(self) -> None:
        for _ in range(_ROUNDS):
            # CRASH WINDOW: the phase is recorded, not all of it is done: the next process goes on in this phase.
            while self._look():
                pass
            if not self._act():
                break

    def note_stop(self, why: str) -> None:
        """Note why it stopped in groups that are not in step. Nothing is noted by who lost the lease."""
        if self._rows:
            with self._cluster.app.ledger.write() as connection:
                assert_held(connection, self._lease)
                rows = [replace(row, why=row.why or why) for row in self._rows.values()]
                put_recoveries(connection, rows)

    def _look(self) -> bool:
        """Record the phase of each group by what the ledger says now. Return whether one has another phase.

        RetryableError if another partition table is in force.
        """
        receiver = self._cluster.receiver.name
        self._lacking = _find_lacking(self._cluster, self._node)
        with self._cluster.app.ledger.write() as connection:
            assert_held(connection, self._lease)
            at, epoch = database_time(connection), table_rows.current_epoch(connection, receiver)
            self._logs = read_group_logs(connection, receiver)
            asked = self._lacking.count_of(self._asked)
            found = {}
            for header, row in self._rows.items():
                log = self._logs.get(header, GroupLogRow(receiver, header))
                look = Look(asked[header], self._lacking.counts[header], f"table {epoch}", at)
                found[header] = look_again(row, log, look)
            after = {header: row for header, row in found.items() if row is not None}
            moved = {h: row.phase for h, row in after.items()} != {h: row.phase for h, row in self._rows.items()}
            moved |= {h: row.target for h, row in after.items()} != {h: row.target for h, row in self._rows.items()}
            if after != self._rows:
                put_recoveries(connection, [row for header, row in after.items() if row != self._rows[header]])
                end_recoveries(connection, receiver, self._node, self._rows.keys() - after.keys())
            self._rows = after
        if epoch != self._cluster.epoch:
            raise RetryableError(
                f"the nodes changed while {self._node} recovered: what belongs there is another now",
                hint=f"./tidemark replica recover {self._node}; what arrived is not sent again",
                subject=self._node,
            )
        return moved

    def _act(self) -> bool:
        """Do what the phases wait for. Return whether something was done."""
        done = False
        stuck = [h for h in self._rows if h in self._logs and self._lacks_outcome(h)]
        if stuck:
            done |= self._open_groups(stuck)
        if self._lacking.pieces or self._asked is None:
            done |= self._bring_files()
        headers = [h for h, row in self._rows.items() if row.phase in (Phase.WAL, Phase.CACHE)]
        before = _find_fallen(self._cluster, self._node, headers)
        if before:
            recover_logs(self._cluster, nodes=[self._node], headers=headers)
            done |= _find_fallen(self._cluster, self._node, headers) < before
        return done

    def _lacks_outcome(self, header: str) -> bool:
        """Tell whether the group waits for a master, or its last commit for its outcome."""
        log, phase = self._logs[header], self._rows[header].phase
        return bool(log.epoch) and (not log.active or (phase == Phase.CACHE and bool(log.operation)))

    def _open_groups(self, headers: Sequence[str]) -> bool:
        done = False
        with hold_groups(self._cluster) as lease:
            for header in headers:
                before = read_rows(self._cluster)[header]
                with suppress(NoQuorumError):  # it waits for its master
                    done |= open_group(MemberLogs(self._cluster, header, lease), before, lease)[0] != before
        return done

    def _bring_files(self) -> bool:
        """Bring what the node lacks, and record it by portions. Raises the first error once everything was tried."""
        lacking, schemas = self._lacking, self._lacking.schemas
        self._asked = frozenset(piece.location for piece in lacking.pieces)
        error: TidemarkError | None = None
        came = 0
        with share_line(self._cluster, self._lease.holder) as options:
            for portion in _divide(lacking.pieces):
                parcel = Delivery(self._node, schemas, portion)
                brought = bring_to_node(self._cluster, self._store, parcel, lacking.holders, options=options)
                # CRASH WINDOW: files are there, some are recorded: the others are found by their digests, not sent again.
                error, schemas = error or brought.error, {}
                came += len(brought.pieces)
                self.files += len(brought.pieces)
                self.bytes += sum(piece.size for piece in brought.pieces)
                if brought.error is not None and not brought.pieces:
                    break
        if error is not None:
            raise error
        with self._cluster.app.ledger.write() as connection:
            assert_held(connection, self._lease)
            advance_applied(connection, self._cluster, self._node)
        return bool(came)


@dataclass(frozen=True)
class Look:
    """What a look at a group found. `asked`: how many of the files that were asked for are not there; `lacking`: of all
    files. `index`: what decides which files the group has. `at`: by the database's clock."""

    asked: int
    lacking: int
    index: str
    at: float


def look_again(row: RecoveryRow, log: GroupLogRow, look: Look) -> RecoveryRow | None:
    """Return the recovery after a look, None if it is done. Pure.

    The CRCs of both ends are 0 here: who is in step by the ledger proved at the node that its log ends as the master's does.
    """
    settled, phase = LogEnd(Position(*log.settled), 0), Phase(row.phase)
    has_master = log.active or not log.epoch
    if phase is Phase.INIT and not has_master:
        return replace(row, why=_NO_MASTER)
    sight = Sight(
        log.epoch if has_master else None,
        settled,
        settled if not log.epoch or row.node in log.in_step else ORIGIN,
        index_digest=look.index,
        lacking=look.asked,
        sealed=settled.position,
        waiting=look.lacking,
        in_flight=bool(log.operation),
    )
    epoch = log.epoch if phase is Phase.INIT else row.epoch
    target = None if row.target == NOT_READ else Position(*row.target)
    now = advance(Recovery(epoch, phase, row.source_index, target, row.restarts), sight)
    if now.phase is Phase.DONE:
        return None
    if now.phase is Phase.ABORTED:  # another master: its log may end elsewhere
        now = Recovery(log.epoch, restarts=row.restarts + 1)
    return replace(
        row,
        epoch=now.epoch,
        phase=now.phase.value,
        source_index=now.index_digest,
        target=(now.target.epoch, now.target.version) if now.target else NOT_READ,
        restarts=now.restarts,
        files=look.lacking if phase is Phase.START else row.files,
        again=look.at + count_backoff_s(now.restarts) if now.restarts > row.restarts else row.again,
        at=look.at,
        why="",
    )


def find_resting(connection: Connection, receiver: str) -> dict[str, float]:
    """Return node → seconds that the watch and the DAG still wait before they recover it anew: its source changed."""
    now = database_time(connection)
    rests: dict[str, float] = {}
    for (_, node), row in read_recoveries(connection, receiver).items():
        rests[node] = max(rests.get(node, 0), row.again - now)
    return {node: left for node, left in rests.items() if left > 0}


def recover_logs(
    cluster: Cluster,
    *,
    nodes: Collection[str] | None = None,
    headers: Collection[str] | None = None,
    doubted: Collection[Member] = (),
) -> None:
    """Bring members whose logs are not in step back into it: what they lack comes from the master, and a log that parted
    from the master's is set aside. `nodes`, `headers`: only these. `doubted`: in step by the ledger, and do not answer so.

    A group without a master waits for its next record. PermanentError if the nodes are ahead of the ledger.
    """

    def fallen_of(row: GroupLogRow) -> list[str]:
        if not row.epoch or not row.in_step or (headers is not None and row.header not in headers):
            return []
        in_step = {name for name in row.in_step if (row.header, name) not in doubted}
        names = cluster.table.groups_by_header().get(row.header, ())
        return [name for name in names if name not in in_step and (nodes is None or name in nodes)]

    def find_fallen() -> dict[str, list[str]]:
        return {header: names for header, row in read_rows(cluster).items() if (names := fallen_of(row))}

    if not find_fallen():
        return
    with hold_groups(cluster) as lease:
        for header, fallen in find_fallen().items():
            logs, row = MemberLogs(cluster, header, lease), read_rows(cluster)[header]
            stays = tuple(name for name in row.in_step if (header, name) not in doubted)
            if stays and stays != row.in_step:
                logs.doubt_files([name for name in row.in_step if name not in stays])
                # CRASH WINDOW: its files do not count, it is in step by the ledger: the next recovery finds it so again.
                row = write_row(logs, row, replace(row, in_step=stays), lease)
            # CRASH WINDOW: it is unsynced by the ledger, its log is as it was: the next recovery goes on.
            try:
                row, end = open_group(logs, row, lease)
            except NoQuorumError:
                continue
            back = logs.recover(fallen, Fence(cluster.identity, row.epoch, row.master), end)
            # CRASH WINDOW: its log is whole, the ledger does not know: the next record or recovery tells.
            if back:
                write_row(logs, row, replace(row, in_step=tuple(dict.fromkeys((*row.in_step, *back)))), lease)


def _find_fallen(cluster: Cluster, node: str, headers: Collection[str] | None) -> set[str]:
    """Return headers of the node's groups in which it is not in step."""
    mine = {
        h for h, names in cluster.table.groups_by_header().items() if node in names and (headers is None or h in headers)
    }
    return {header for header, row in read_rows(cluster).items() if header in mine and row.epoch and node not in row.in_step}


@dataclass(frozen=True)
class _Lacking:
    """What a node lacks: files, who has each, and the schemas that belong there. `headers`: location → its groups that the
    node is a member of."""

    pieces: tuple[Piece, ...] = ()
    holders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    schemas: Mapping[str, bytes] = field(default_factory=dict)
    headers: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        """Header → files that it lacks of this group."""
        return self.count_of(None)

    def count_of(self, some: Collection[str] | None) -> Counter[str]:
        """The same of `some` locations, None for all."""
        return Counter(
            header
            for piece in self.pieces
            if some is None or piece.location in some
            for header in self.headers[piece.location]
        )


def _find_lacking(cluster: Cluster, node: str) -> _Lacking:
    """Find what the node lacks. What moves to it by a change of the nodes comes by that."""
    receiver, table = cluster.receiver.name, cluster.table
    with cluster.app.ledger.read() as connection:
        coming = {slot for name, slot in move_rows.slot_states(connection, receiver) if name == node}
        held = {row.location: row.sha256 for row in copy_rows.copies_at(connection, receiver, node) if row.state == "held"}
        wanted = {
            piece.location: piece
            for piece in pieces_of(table, catalog_rows.live_files(connection, receiver))
            if node in wanting_nodes(table, piece) and coming.isdisjoint(piece.slots)
        }
        for late in late_members(connection, receiver, table).get(node, ()):  # retired, and still a source of a merge
            if late.kind == "put":
                piece = Piece(late.subject, late.sha256, late.size, late.slot, (late.slot,), "")
                wanted.setdefault(late.subject, piece)
        pieces = tuple(piece for at, piece in sorted(wanted.items()) if held.get(at) != piece.sha256)
        copies = copy_rows.copies_of(connection, receiver, [piece.location for piece in pieces])
        schemas = _schemas_at(connection, cluster, node)
    holders = {at: [row.node for row in rows if row.state == "held" and row.node != node] for at, rows in copies.items()}
    headers = {
        piece.location: frozenset(table.owners[slot] for slot in piece.slots if node in table.group_of(slot))
        for piece in pieces
    }
    return _Lacking(pieces, holders, schemas, headers)


def _divide(pieces: Sequence[Piece]) -> list[tuple[Piece, ...]]:
    """Divide files into portions, in their order. Without files there is one portion without any: schemas come with it."""
    portions: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces:
        if portions[-1] and (size + piece.size > _PORTION_BYTES or len(portions[-1]) >= _PORTION_FILES):
            portions.append([])
            size = 0
        portions[-1].append(piece)
        size += piece.size
    return [tuple(portion) for portion in portions]


def _too_many_error(node: str, running: Collection[str]) -> RetryableError:
    return RetryableError(
        f"{' and '.join(sorted(running))} are recovered already, and at most {MOST_AT_ONCE} nodes at a time",
        hint=f"./tidemark replica show tells how far they are; then ./tidemark replica recover {node}",
        subject=node,
    )


def _schemas_at(connection: Connection, cluster: Cluster, node: str) -> dict[str, bytes]:
    receiver = cluster.receiver.name
    known = catalog_rows.known_databases(connection, receiver, catalog_rows.list_databases(connection, receiver))
    mine = [name for name in sorted(known) if node in cluster.table.route_schema(name).members]
    return {name: schema_bytes_of(connection, receiver, name) for name in mine}
