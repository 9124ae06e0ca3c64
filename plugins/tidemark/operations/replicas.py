"""`replica verify`: the members of each data group have the same files, by what lies on their disks now.

    folds of the logs → what each member must have → its files digested at the node → a digest tree a member → differences

What a group has is what its log tells up to the last committed record. The ledger is not asked. A member's tree has the
files of its own log, with the digests of its own disk, so equal roots prove equal members. Nothing is changed at a node.
Not cheap: every file is read once at each member, and so is its log, since nothing else shows a damaged byte in the middle
of one: the ledger notes when that was. It notes each digest with size, time and inode of its file; with `cached` a file that
still has them is not read again, nor are logs of members that end as the others do. `coverage` tells by these rows how many
copies are proved, `replica show` when each log was read whole.
Source: seed 003 "Data recovery flow"; docs/decisions/0024.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tidemark.app import App
from tidemark.cluster.nodes.cluster import HELD
from tidemark.cluster.nodes.folder import DATA
from tidemark.cluster.replicas.cache import places_of
from tidemark.cluster.replicas.core.digest_tree import DigestTree, Leaf, compare_trees
from tidemark.cluster.replicas.records.fold import GroupTold, fold_group, join_groups
from tidemark.cluster.slots.routing import slots_of_file
from tidemark.errors import DIFFERENCES_FOUND, TidemarkError
from tidemark.ledger.cluster.group_logs import note_log_readings
from tidemark.ledger.cluster.tables import nodes_of_receiver
from tidemark.ledger.database import database_time
from tidemark.ledger.sql import FileCheck, checks_at_node, file_checks, put_file_checks
from tidemark.operations.rebuild.cluster import SurvivingNodes, open_survivors
from tidemark.operations.rebuild.from_nodes import GroupHeard, Heard, hear_nodes
from tidemark.operations.rebuild.result import Findings
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.settings.model import NodeSettings, ReceiverSettings
from tidemark.stores.protocol import Entry

_AT_ONCE = 512  # files digested in one call
_SETTLED_S = 2  # a file that changed so lately may change again within the same second: it is read the next time
_REPAIR = "./tidemark cluster check --repair"
_RECOVER = "./tidemark replica recover"


@dataclass(frozen=True)
class Difference:
    """A file that a member has otherwise than its group. `found`: in words."""

    location: str
    found: str


@dataclass(frozen=True)
class MemberVerified:
    """`root`: of the tree of its files, "" if it could not be asked; then `why` says so. `files`: with deletions' files."""

    node: str
    root: str = ""
    files: int = 0
    differences: tuple[Difference, ...] = ()
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "differences": [vars(one) for one in self.differences]}


@dataclass(frozen=True)
class GroupVerified:
    """`version`: of the last committed record. `root`: of the tree that all members must have. `doubt`: nobody knows whether
    members that tell nothing have more."""

    group: str
    version: int
    root: str
    members: tuple[MemberVerified, ...]
    doubt: bool = False

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "members": [member.as_json() for member in self.members]}


@dataclass(frozen=True)
class ReplicasVerified:
    receiver: str
    groups: tuple[GroupVerified, ...]

    @property
    def wrong(self) -> tuple[str, ...]:
        """What is not equal or not proved, a sentence each."""
        found = []
        for group in self.groups:
            for member in group.members:
                place = f"node {member.node} of group {group.group}"
                found += [f"{place}: {one.location} {one.found}" for one in member.differences]
                found += [f"{place}: {member.why}"] if member.why else []
            found += [f"group {group.group}: members that tell nothing may have more"] if group.doubt else []
        return tuple(found)

    @property
    def hint(self) -> str:
        """The command that mends files, or else the first member that could not be asked or whose log is damaged."""
        members = [member for group in self.groups for member in group.members]
        silent = [member.node for member in members if member.why]
        return _REPAIR if not silent or any(member.differences for member in members) else f"{_RECOVER} {silent[0]}"

    @property
    def exit_code(self) -> int:
        return DIFFERENCES_FOUND if self.wrong else 0

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"ok": not self.wrong}
        if self.wrong:
            more = f" (and {len(self.wrong) - 1} more)" if len(self.wrong) > 1 else ""
            told |= {"error": self.wrong[0] + more, "hint": self.hint}
        differences = [
            {"group": group.group, "node": member.node, **vars(one)}
            for group in self.groups
            for member in group.members
            for one in member.differences
        ]
        groups = [group.as_json() for group in self.groups]
        return {**told, "receiver": self.receiver, "groups": groups, "differences": differences}


def verify_replicas(
    app: App, receiver: ReceiverSettings, progress: Progress = ignore_progress, *, cached: bool = False
) -> ReplicasVerified:
    """Compare the members of every group. Errors as `hear_nodes`; a member that cannot be asked is in the result.

    `cached`: files that are as they were when the ledger noted their digests are not read again. Nodes that joined and are
    not in the settings are asked at the ledger's addresses.
    """
    app = replace(app, settings=replace(app.settings, nodes={**_read_addresses(app, receiver), **app.settings.nodes}))
    away: dict[str, TidemarkError] = {}
    with open_survivors(app, receiver, Findings(), away) as nodes:
        heard = hear_nodes(app, receiver, nodes, away)
        join_groups(heard.folds, partial(slots_of_file, heard.table))  # settles what each log ends with
        parts = [_Part.of(heard, group, whole=not cached) for group in heard.groups]
        if read := [(part.group.header, name) for part in parts for name in part.read]:
            with app.ledger.write() as connection:
                note_log_readings(connection, receiver.name, read)
        sizes: dict[str, dict[str, int]] = {}
        for part in parts:
            for name, mine in part.mine.items():
                sizes.setdefault(name, {}).update({at: part.sizes.get(at, 0) for at in mine})
        digests = _Digests(app, receiver.name, heard.nodes, progress, cached)
        heard.nodes.stores.call_machines(sorted(sizes), lambda name: digests.compute(name, sizes[name]))
        return ReplicasVerified(receiver.name, tuple(_judge_group(part, digests) for part in parts))


def _read_addresses(app: App, receiver: ReceiverSettings) -> dict[str, NodeSettings]:
    with app.ledger.read() as connection:
        rows = nodes_of_receiver(connection, receiver.name, HELD)
    return {row.node: NodeSettings(row.node, row.store, row.host_key, key=row.key_file) for row in rows}


@dataclass
class _Part:
    """What the members of one group must have. `mine`: member → location → its leaf by its own log; `silent`: why others
    have none; `read`: members whose logs were read whole."""

    group: GroupHeard
    wanted: dict[str, Leaf]
    sizes: dict[str, int]
    mine: dict[str, dict[str, Leaf]]
    silent: dict[str, TidemarkError]
    read: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, heard: Heard, group: GroupHeard, *, whole: bool) -> _Part:
        """`whole`: read the logs of all members whole, since nothing else shows damage in the middle of one."""
        told = heard.folds.get(group.header, GroupTold())
        wanted = {leaf.location: leaf for leaf in _leaves_of(told)}
        sizes = {entry.file.location: entry.file.size for entry in told.files.values()}
        part = cls(group, wanted, sizes, {}, dict(group.silent))
        for name in group.members:
            if name in group.silent:
                continue
            try:
                if whole and heard.nodes.open_log(name, group.header).read_whole():
                    part.read.add(name)
                part.mine[name] = wanted if name in group.holders else _leaves_of_member(heard, group, name)
            except TidemarkError as error:
                part.silent[name] = error
        return part


def _judge_group(part: _Part, digests: _Digests) -> GroupVerified:
    group, whole = part.group, DigestTree(part.wanted.values())
    members = []
    for name in group.members:
        found = digests.known.get(name)
        if error := part.silent.get(name) or digests.failed.get(name):
            members.append(MemberVerified(name, why=error.message))
            continue
        assert found is not None  # every member is silent, has failed, or is known
        mine = part.mine[name]
        equal = mine is part.wanted and all(found[at] == leaf.sha256 for at, leaf in mine.items())
        tree = whole if equal else DigestTree(_leaves_as_found(mine, found))
        differences = () if tree.root == whole.root else tuple(_name_differences(whole, tree, mine, found))
        members.append(MemberVerified(name, tree.root, len(mine), differences))
    return GroupVerified(group.header, group.committed.version, whole.root, tuple(members), not group.sure)


def _leaves_as_found(mine: Mapping[str, Leaf], found: Mapping[str, str | int | None]) -> Iterator[Leaf]:
    return (leaf._replace(sha256=digest) for at, leaf in mine.items() if isinstance(digest := found[at], str))


def _name_differences(
    whole: DigestTree, tree: DigestTree, mine: Mapping[str, Leaf], found: Mapping[str, str | int | None]
) -> Iterator[Difference]:
    for wanted, has in compare_trees(whole, tree).differences:
        location = wanted.location if wanted else has.location if has else ""
        if wanted is None:
            yield Difference(location, "is in its log and not in that of the others")
        elif location not in mine:
            yield Difference(location, "is not in its log")
        elif has is None:
            length = found[location]
            yield Difference(location, "is missing" if length is None else f"has {length} bytes, not those of the catalog")
        elif has.sha256 != wanted.sha256:
            yield Difference(location, f"has digest {has.sha256}, not {wanted.sha256}")
        else:
            yield Difference(location, "stands in its log by another commit")


def _leaves_of(told: GroupTold) -> Iterator[Leaf]:
    for key, entry in sorted(told.files.items()):
        for location, digest in places_of(entry.file):
            yield Leaf(location, digest, told.made_by[key])


def _leaves_of_member(heard: Heard, group: GroupHeard, name: str) -> dict[str, Leaf]:
    """Return what the log of a member that is behind, or has another one, tells."""
    if group.tails[name].fence is None:
        return {}
    slots = partial(slots_of_file, heard.table)
    told = fold_group(heard.nodes.open_log(name, group.header).read_kept(), slots)
    join_groups({group.header: told}, slots)
    return {leaf.location: leaf for leaf in _leaves_of(told)}


class _Digests:
    """Digests of files at nodes. `known`: node → location → digest, as `NodeFolder.compute_digests`; `failed`: node → why it
    has none. `cached`: those that the ledger noted are not computed again. Different nodes may work at once."""

    def __init__(self, app: App, receiver: str, nodes: SurvivingNodes, progress: Progress, cached: bool) -> None:
        self._app, self._receiver, self._nodes, self._progress, self._cached = app, receiver, nodes, progress, cached
        self.known: dict[str, Mapping[str, str | int | None]] = {}
        self.failed: dict[str, TidemarkError] = {}

    def compute(self, name: str, sizes: Mapping[str, int]) -> None:
        """Compute the digests of one node's files. An error of the node goes to `failed`; one of the ledger is raised."""
        whose = checks_at_node(self._receiver, name)
        with self._app.ledger.read() as connection:
            noted = file_checks(connection, whose) if self._cached else {}
            now = database_time(connection)
        for checks in self._digest_batches(name, sizes, noted, now=now):
            with self._app.ledger.write() as connection:
                put_file_checks(connection, whose, checks, database_time(connection))

    def _digest_batches(
        self, name: str, sizes: Mapping[str, int], noted: Mapping[str, FileCheck], *, now: float
    ) -> Iterator[list[FileCheck]]:
        """Yield what is to be noted of each batch of files that was read."""
        try:
            folder = self._nodes.stores.open_folder(name)
            looks = {entry.path: entry for entry in folder.store.list_files([DATA]).entries if entry.path in sizes}
            found: dict[str, str | int | None] = {
                at: noted[at].sha256 for at, entry in looks.items() if at in noted and _is_as_noted(entry, noted[at])
            }
            missing = sorted(sizes.keys() - found.keys())
            for start in range(0, len(missing), _AT_ONCE):
                fresh = folder.compute_digests({at: sizes[at] for at in missing[start : start + _AT_ONCE]})
                yield [_note_of(at, looks.get(at), digest, now) for at, digest in fresh.items()]
                found |= fresh
                self._progress(Tick(f"verify {name}", len(found), len(sizes)))
            self.known[name] = found
        except TidemarkError as error:
            self.failed[name] = error


def _is_as_noted(entry: Entry, noted: FileCheck) -> bool:
    """Tell whether a file is as it was when its digest was noted."""
    if not noted.ctime_ns:
        return False
    return (noted.ctime_ns, noted.size, noted.inode) == (entry.mtime * 10**9, entry.size, entry.inode)


def _note_of(location: str, entry: Entry | None, digest: str | int | None, now: float) -> FileCheck:
    """Return what is noted of a file that was looked at before it was read. One that is missing or may change again within
    the second, or has no digest, has time 0: it is read the next time."""
    known = digest if isinstance(digest, str) else ""
    if entry is None:
        return FileCheck(location, 0, 0, 0, known)
    settled = known and entry.mtime <= now - _SETTLED_S
    return FileCheck(location, entry.size, entry.mtime * 10**9 if settled else 0, entry.inode, known)
