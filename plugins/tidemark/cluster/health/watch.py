"""The watch of a receiver's groups: one round asks each node once, and mends what it finds.

    watched = watch_groups(app, receiver)      # a round; what it did, and what is left

In this order: who missed too many rounds is offline; a group whose master is offline, or fell behind, gets another, and what
its last commit left in doubt gets an outcome; logs that are not in step are recovered; members that lack files get them; a
master goes home to the first node of its list, once that has answered two rounds.

Any number of schedulers may run it: one round at a time is noted, under the lease `watch:RECEIVER`, and whoever lost it
notes nothing. What a round does to a group it does under the lease of the groups, by what is so then. So a task that wakes
up late, or is run again, finds nothing to do. The only clock is the database's. Source: seed 003 "Master election flow",
"The problem of even Master distribution"; docs/decisions/0024.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemark.app import App
from tidemark.cluster.nodes.cluster import Cluster, require_cluster
from tidemark.cluster.replicas.commit import hold_groups
from tidemark.cluster.replicas.core.placement import plan_switchovers
from tidemark.cluster.replicas.core.roles import Group, Member, Role
from tidemark.cluster.replicas.deliver import lacking_members
from tidemark.cluster.replicas.log import Tail
from tidemark.cluster.replicas.members import MemberLogs, is_behind, read_round, read_rows
from tidemark.cluster.replicas.promote import judge_round, open_group, switch_master
from tidemark.cluster.replicas.recover import find_resting, recover_logs, recover_node
from tidemark.errors import CorruptionError, NoQuorumError, PermanentError, TidemarkError
from tidemark.ledger.cluster.group_logs import GroupLogRow
from tidemark.ledger.cluster.node_watch import WatchRow, note_round
from tidemark.ledger.cluster.recoveries import read_recoveries
from tidemark.ledger.leases import Leases, assert_held
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.settings.model import ClusterSettings, ReceiverSettings

Heard = Mapping[str, tuple[MemberLogs, Mapping[str, Tail]]]


@dataclass(frozen=True)
class Watched:
    """A round. `masters`, `home`: group → its new master. `recovered`: node → groups whose log is in step again; `files`:
    node → files that it got, or that were proved there again; `waiting`: node → what it still lacks. `offline`: node →
    rounds that it missed. `due`: node → hours, of nodes that are to be replaced. `waits`: group → for what."""

    receiver: str
    nodes: int = 0
    groups: int = 0
    masters: Mapping[str, str] = field(default_factory=dict)
    home: Mapping[str, str] = field(default_factory=dict)
    recovered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    offline: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    waits: Mapping[str, str] = field(default_factory=dict)
    errors: tuple[TidemarkError, ...] = ()
    due: Mapping[str, int] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0: every group has a master. 30: one has none and cannot get one. 6: the ledger is not the newest."""
        kinds = {error.kind for error in self.errors}
        return next((kind for kind in (PermanentError.kind, NoQuorumError.kind) if kind in kinds), min(kinds, default=0))

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"ok": not self.errors}
        if self.errors:
            first = next(error for error in self.errors if error.kind == self.exit_code)
            told |= {"error": first.message, "hint": first.hint}
        plain = {key: value for key, value in vars(self).items() if key != "errors"}
        return {**told, **plain, "recovered": {node: list(groups) for node, groups in self.recovered.items()}}


def watch_groups(
    app: App, receiver: ReceiverSettings, progress: Progress = ignore_progress, *, files: bool = True
) -> Watched:
    """Run one round. `files`: also bring members the files that they lack; else they are in `waiting`.

    NotFoundError before `cluster init`, LeaseHeldError while another round is noted. Errors of single groups and nodes are
    in the result. If the ledger is older than the nodes, that is noted, and nothing is done.
    """
    with require_cluster(app, receiver) as cluster:
        headers = sorted(cluster.table.groups_by_header())
        before = read_rows(cluster)  # so no log can be behind them but one that lost something
        heard, seen, ahead = _ask_nodes(cluster, headers, before)
        if ahead:  # a ledger that is older than the nodes gives no group a master
            waits = {header: error.message for header, error in ahead.items()}
            return Watched(receiver.name, len(seen), len(headers), waits=waits, errors=tuple(ahead.values()))
        work = _Round(cluster, heard, seen, before)
        progress(Tick("watch", 0, len(headers)))
        work.give_masters()
        work.recover_logs()
        work.bring_files(progress, files=files)
        work.send_home()
        offline = {node: row.misses for node, row in seen.items() if work.is_offline(node)}
        due = find_due(seen, cluster.table.ring.names, cluster.settings)
        return Watched(
            receiver.name,
            len(seen),
            len(headers),
            work.masters,
            work.home,
            work.recovered,
            work.files,
            offline,
            work.waiting,
            work.waits,
            tuple(work.errors),
            {node: int(away_s / 3600) for node, away_s in due.items()},
        )


def _ask_nodes(
    cluster: Cluster, headers: Collection[str], before: Mapping[str, GroupLogRow]
) -> tuple[Heard, Mapping[str, WatchRow], Mapping[str, PermanentError]]:
    """Ask each node once; note who answered, and which groups are ahead of the ledger. `before`: its rows from before."""
    app, name = cluster.app, cluster.receiver.name
    with Leases(app.ledger, app.identity).hold_lease(f"watch:{name}", f"watch-{uuid.uuid4().hex[:12]}") as lease:
        heard = read_round(cluster, headers)
        answers: dict[str, str] = {}
        for logs, tails in heard.values():
            for node in logs.names:
                error = logs.silent.get(node)
                if node in tails or isinstance(error, CorruptionError):  # it answers, though its log is damaged
                    answers[node] = ""
                elif error is not None:
                    answers.setdefault(node, error.message)
        ahead = judge_round(cluster, before, heard)
        told = {node: ", ".join(h for h in sorted(ahead) if node in heard[h][0].names) for node in answers}
        with app.ledger.write() as connection:
            assert_held(connection, lease)
            seen = note_round(connection, name, answers, told)
    return heard, seen, ahead


class _Round:
    """What one round does, group by group and node by node."""

    def __init__(
        self, cluster: Cluster, heard: Heard, seen: Mapping[str, WatchRow], before: Mapping[str, GroupLogRow]
    ) -> None:
        self._cluster, self._heard, self._seen, self._before = cluster, heard, seen, before
        self.masters: dict[str, str] = {}
        self.home: dict[str, str] = {}
        self.recovered: dict[str, tuple[str, ...]] = {}
        self.files: dict[str, int] = {}
        self.waiting: dict[str, str] = {}
        self.waits: dict[str, str] = {}
        self.errors: list[TidemarkError] = []

    def is_offline(self, node: str) -> bool:
        return self._seen[node].misses >= self._cluster.settings.misses

    def give_masters(self) -> None:
        for header, row in read_rows(self._cluster).items():
            if header not in self._heard:
                continue
            logs, tails = self._heard[header]
            missed = self._seen[row.master].misses if row.master in self._seen else 0
            if row.active and not row.operation and missed and not self.is_offline(row.master):
                of = self._cluster.settings.misses
                self.waits[header] = f"its master {row.master} missed {missed} of {of} rounds"
            elif needs_master(row, logs.names, tails):
                self._give_master(header)

    def _give_master(self, header: str) -> None:
        try:
            with hold_groups(self._cluster) as lease:
                before = read_rows(self._cluster)[header]
                after, _ = open_group(MemberLogs(self._cluster, header, lease), before, lease)
        except TidemarkError as error:
            self.errors.append(error)
            self.waits[header] = error.message
            return
        if after.epoch != before.epoch:
            self.masters[header] = after.master

    def recover_logs(self) -> None:
        """Recover logs of members that answer. A group that waits for its master is left alone."""
        doubted = {
            (header, name)
            for header, (_, tails) in self._heard.items()
            if header in self._before and header not in self.masters.keys() | self.waits.keys()
            for name in tails
            if is_behind(self._before[header], name, tails[name])
        }
        before = read_rows(self._cluster)
        headers = self._heard.keys() - self.waits.keys()
        try:
            answering = [node for node, row in self._seen.items() if not row.misses]
            recover_logs(self._cluster, nodes=answering, headers=headers, doubted=doubted)
        except TidemarkError as error:
            self.errors.append(error)
            return
        for header, row in read_rows(self._cluster).items():
            stood = {n for n in before[header].in_step if (header, n) not in doubted} if header in before else set()
            for node in sorted(set(row.in_step) - stood):
                self.recovered[node] = (*self.recovered.get(node, ()), header)

    def bring_files(self, progress: Progress, *, files: bool) -> None:
        """Recover members that lack files, and those whose recovery died before its last record."""
        with self._cluster.app.ledger.read() as connection:
            left = {node for _, node in read_recoveries(connection, self._cluster.receiver.name)}
            rests = find_resting(connection, self._cluster.receiver.name)
        lacking = self._count_lacking()
        for node in sorted(lacking.keys() | left):
            if node not in self._seen or self._seen[node].misses:
                continue
            if not files or node in rests:
                count = lacking.get(node, 0)
                words = f"{count} {'file' if count == 1 else 'files'}"
                words += f"; its source changed, it begins again in {rests[node]:.0f} s" if node in rests else ""
                self.waiting |= {node: words} if count or node in rests else {}
                continue
            try:
                with self._cluster.app.receiver_store(self._cluster.receiver) as store:
                    got = recover_node(self._cluster, store, node, self._heard.keys() - self.waits.keys()).files
                self.files |= {node: got} if node in lacking else {}
                progress(Tick(f"recover {node}", got, got))
            except TidemarkError as error:
                self.waiting[node] = error.message

    def send_home(self) -> None:
        """Let masters go home. A group that just got its master keeps it for this round."""
        lacking = self._lacking_members()
        groups = {}
        for header, row in read_rows(self._cluster).items():
            if header not in self._heard or header in self.waits or header in self.masters or not row.active:
                continue
            logs, tails = self._heard[header]
            members = [self._as_member(row, name, tails, (header, name) in lacking) for name in logs.names]
            groups[header] = Group(tuple(members), logs.quorum)
        for one in plan_switchovers(groups):
            try:
                with hold_groups(self._cluster) as lease:
                    row = read_rows(self._cluster)[one.group]
                    after = switch_master(MemberLogs(self._cluster, one.group, lease), row, lease, one.new)
            except TidemarkError:
                continue  # it has a master; the next round tries again
            self.home[one.group] = after.master

    def _as_member(self, row: GroupLogRow, name: str, tails: Mapping[str, Tail], lacks: bool) -> Member:
        seen = self._seen.get(name)
        if name not in tails or seen is None:
            return Member(name, Role.OFFLINE)
        if name == row.master:
            return Member(name, Role.MASTER, tails[name].end)
        steady = name in row.in_step and not lacks and not seen.earlier
        return Member(name, Role.SLAVE if steady else Role.UNSYNCED, tails[name].end)

    def _lacking_members(self) -> Mapping[tuple[str, str], int]:
        with self._cluster.app.ledger.read() as connection:
            return lacking_members(connection, self._cluster.receiver.name, self._cluster.table)

    def _count_lacking(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for (_, node), count in self._lacking_members().items():
            found[node] = found.get(node, 0) + count
        return found


def find_due(seen: Mapping[str, WatchRow], ring: Collection[str], settings: ClusterSettings) -> dict[str, float]:
    """Return the nodes that are away for `[cluster] replace_hours`, and for how many seconds; the longest first. Pure."""
    away = {node: row.at - row.since for node, row in seen.items() if node in ring and row.misses >= settings.misses}
    due = [node for node in away if settings.replace_hours and away[node] >= settings.replace_hours * 3600]
    return {node: away[node] for node in sorted(due, key=lambda node: (-away[node], node))}


def needs_master(row: GroupLogRow, names: Collection[str], tails: Mapping[str, Tail]) -> bool:
    """Tell whether a group with these members may lack a master, or have a commit in doubt: `open_group` decides. Pure."""
    if not row.epoch:
        return False  # its first record makes one
    tail = tails.get(row.master)
    if not row.active or row.operation or row.master not in names or tail is None or tail.fence is None:
        return True
    return tail.fence.epoch != row.epoch or tail.end.position.version != row.settled[1]
