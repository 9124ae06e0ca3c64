"""The recovery of a member: which files and records it lacks, and which phase comes next. Pure.

Files first, then the log, then what arrived meanwhile. Source: seed 003 "Data recovery flow"; seed 004.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidemark.cluster.replicas.core.continuity import Log, Record, find_fork
from tidemark.cluster.replicas.core.roles import ORIGIN, LogEnd, Position
from tidemark.errors import CorruptionError

MOST_AT_ONCE = 2
"""Nodes that are recovered at a time: others are read for them, and also serve (tsMaxSyncNum of the later TDengine)."""


@dataclass(frozen=True, slots=True, order=True)
class FileInfo:
    """A file of a member (seed 003, files 1–3). `index` orders files, the oldest first; `name` is relative to the
    node's folder.

    Name, size and magic say whether two files are the same. `magic` is a digest of the content.
    """

    index: int
    name: str
    size: int  # bytes
    magic: str


@dataclass(frozen=True, slots=True)
class FilePlan:
    """`copy`: from the source, oldest first. `keep`: the same at both. `remove`: to quarantine, the source has no
    such name.
    """

    copy: tuple[FileInfo, ...]
    keep: tuple[FileInfo, ...]
    remove: tuple[FileInfo, ...]


def plan_files(source: Iterable[FileInfo], target: Iterable[FileInfo], arrived: Iterable[FileInfo] = ()) -> FilePlan:
    """Compare two file indexes. `arrived`: verified files of an earlier try, not yet in place; they are not copied again.

    An index may have gaps. CorruptionError if it names a file twice or has an index below 1: the recovery stops.
    """
    there, here = _by_name(source, "source"), _by_name(target, "member")
    done = {_identity(file) for file in arrived}
    same = {name for name, file in there.items() if name in here and _identity(file) == _identity(here[name])}
    lacking = (file for file in there.values() if file.name not in same and _identity(file) not in done)
    return FilePlan(
        tuple(sorted(lacking)),
        tuple(sorted(here[name] for name in same)),
        tuple(sorted(file for file in here.values() if file.name not in there)),
    )


def _by_name(files: Iterable[FileInfo], whose: str) -> dict[str, FileInfo]:
    found: dict[str, FileInfo] = {}
    for file in files:
        if file.index < 1 or file.name in found:
            raise CorruptionError(f"the file index of the {whose} is wrong at {file.name}", subject=file.name)
        found[file.name] = file
    return found


def _identity(file: FileInfo) -> tuple[str, int, str]:
    return file.name, file.size, file.magic


@dataclass(frozen=True, slots=True)
class LogPlan:
    """`start`: the end that the member's log goes on from. `fetch`: the source's records behind it, in order.

    `quarantine`: the member's own records that the source has not; they are moved away, never deleted.
    """

    start: LogEnd
    fetch: tuple[Record, ...]
    quarantine: tuple[Record, ...]


def plan_log(member: Log, source: Log, archived: LogEnd) -> LogPlan:
    """Compare two logs. `archived`: up to where the source's files contain everything; its log keeps all records
    behind that.

    Where the logs have an end in common, the member's goes on from the last one. Otherwise its log begins anew at
    `archived`, which the files have brought (the seed's fversion).
    """
    fork = find_fork(member, source)
    start = fork or archived
    return LogPlan(
        start,
        tuple(record for record in source.records if record.position.version > start.position.version),
        tuple(record for record in member.records if fork is None or record.position.version > fork.position.version),
    )


class Phase(enum.StrEnum):
    """The phases of a recovery (seed 003: INIT, START, FILE, CACHE of the sync module; wal and done are named here)."""

    INIT = "init"
    START = "start"  # the source's files and log are kept from retention
    FILE = "file"
    WAL = "wal"
    CACHE = "cache"  # new operations are forwarded to the member as well, into its inbox
    DONE = "done"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Recovery:
    """A recovery as it is recorded. A task that is killed is run again and goes on from here.

    `epoch`: that of the source, the master. `index_digest`: its file index when the copy began. `target`: the
    position that the member must reach; only in CACHE.
    """

    epoch: int
    phase: Phase = Phase.INIT
    index_digest: str = ""
    target: Position | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look at both ends found. `epoch`: the newest that the ledger gave, if the source wrote its barrier; else None.

    `lacking`: files still to copy. `waiting`: operations in the inbox. `in_flight`: an operation of the
    group has no outcome.
    """

    epoch: int | None
    source: LogEnd
    member: LogEnd
    pinned: bool = True
    index_digest: str = ""
    lacking: int = 0
    sealed: Position = ORIGIN.position  # the end of the source's last sealed segment
    waiting: int = 0
    in_flight: bool = False


def advance(recovery: Recovery, sight: Sight) -> Recovery:
    """Return the recovery after this look: at most one phase further. The same object if there is more to do in its phase.

    In CACHE the target is read by a later look than the one that entered it. So whatever was not forwarded to the member
    is at or below the target, and nothing falls between log and inbox (seed 003 "Data recovery flow", LastWal and
    SYNC_CACHE).
    """
    if recovery.phase in (Phase.DONE, Phase.ABORTED):
        return recovery
    if sight.epoch != recovery.epoch:
        return replace(recovery, phase=Phase.ABORTED)  # not master any more
    match recovery.phase:
        case Phase.INIT:
            return replace(recovery, phase=Phase.START) if sight.pinned else recovery
        case Phase.START:
            return replace(recovery, phase=Phase.FILE, index_digest=sight.index_digest)
        case Phase.FILE:
            if sight.index_digest != recovery.index_digest or not sight.pinned:
                return Recovery(recovery.epoch, restarts=recovery.restarts + 1)
            return recovery if sight.lacking else replace(recovery, phase=Phase.WAL)
        case Phase.WAL:
            return replace(recovery, phase=Phase.CACHE) if sight.member.position >= sight.sealed else recovery
    return _finish(recovery, sight)


def _finish(recovery: Recovery, sight: Sight) -> Recovery:
    """Make the member a slave once it has everything. The end of a file that is read is never taken for the end of
    the log.
    """
    if recovery.target is None:
        return replace(recovery, target=sight.source.position)
    if sight.member.position == sight.source.position and sight.member.crc != sight.source.crc:
        return replace(recovery, phase=Phase.ABORTED)  # diverged: plan the log anew
    caught_up = sight.member.position >= recovery.target and sight.member == sight.source
    return replace(recovery, phase=Phase.DONE) if caught_up and not sight.waiting and not sight.in_flight else recovery


def count_backoff_s(restarts: int, *, first_s: float = 60, longest_s: float = 3600) -> float:
    """Return the seconds before a recovery whose source changed begins again: twice as long each time."""
    return 0 if restarts == 0 else min(first_s * 2.0 ** min(restarts - 1, 30), longest_s)


def choose_starts(waiting: Sequence[tuple[str, str]], running: Iterable[tuple[str, str]], limit: int) -> tuple[int, ...]:
    """Choose which waiting recoveries begin, by place. Each is (node that recovers, node of the source).

    No node has more than `limit` at once, as either end (tsMaxSyncNum of seed 003 "Network connections"). Who waits
    longer goes first.
    """
    busy = Counter(node for pair in running for node in pair)
    chosen = []
    for place, pair in enumerate(waiting):
        if all(busy[node] < limit for node in pair):
            busy.update(pair)
            chosen.append(place)
    return tuple(chosen)
