"""`tidemark merge`: turn overlapping files of a site into merged files, and on several nodes files that span partitions.

    plan (from the ledger) → tasks (pool or Spark, into staging) → publish (rename, synced) → one transaction per group

Readers get the same points before, during and after. A group is swapped in one transaction, and only while its sources are
what they were when it was planned. Otherwise the outputs are removed and the group is planned anew. The next run of the same
database cleans up after a crash. Source: DESIGN §3 "Sources and merges", §7; CONTRACT §1 `merge`.
"""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.replicas.cache import give_back, places_of, recall_files
from tidemark.cluster.replicas.catch_up import remove_everywhere
from tidemark.cluster.replicas.forward import make_visible, withdraw_left
from tidemark.cluster.replicas.promote import require_newest
from tidemark.engines.choose import EngineChoice, choose_engine
from tidemark.engines.task import Outcome
from tidemark.errors import CorruptionError, NoQuorumError, NotFoundError, TaskLimitError, TidemarkError
from tidemark.formats.json_stream import parse_json
from tidemark.formats.layout import UNITS_PER_MS, folder_name
from tidemark.ledger.leases import Lease, assert_held
from tidemark.ledger.receiver import (
    catalog as catalog_rows,
)
from tidemark.ledger.receiver import (
    landings as landing_rows,
)
from tidemark.ledger.receiver import (
    merges as merge_rows,
)
from tidemark.ledger.receiver import (
    settled as settled_rows,
)
from tidemark.ledger.receiver.merges import Kept
from tidemark.ledger.sql import forget_file_checks
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.receiver.merge.batch import STAGING, MergeLeases, MergeResult, Place, Tally, outputs_of
from tidemark.receiver.merge.plan import Group, Plan, Unit, plan_merge, portions_of, tasks_of
from tidemark.receiver.merge.task import MergeOutcome, MergeTask
from tidemark.receiver.session import ReceiverSession, open_receiver
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.protocol import read_record
from tidemark.untrusted_files import MOST_RECORD

_ROUNDS = 5  # how often a merge plans anew after concurrent loads; the rest is left to the next one
_INTENT = ".json"


@dataclass(frozen=True)
class _Work(ReceiverSession):
    """A merge of all partitions that have something to merge, each under its own lease."""

    database: str | None
    partition: int | None
    batch: str  # id of this merge: in its lease, its staging folders, its files' names, its accounts
    leases: MergeLeases
    tally: Tally = field(default_factory=Tally)

    def lease_of_group(self, group: Group) -> Lease:
        return self.leases.held[Place.of_group(group)]


def merge(
    app: App,
    receiver: ReceiverSettings,
    database: str | None = None,
    partition: int | None = None,
    engine: EngineChoice = "auto",
    progress: Progress = ignore_progress,
) -> MergeResult:
    """Merge what overlaps at a receiver, or in one database, or only what touches one catalog partition.

    `engine`: what the caller wants. Raises UsageError for a remote receiver, NotFoundError for a database that the catalog
    lacks, LeaseHeldError while other merges hold all partitions of the wanted database, PermanentError if the ledger is
    older than the nodes.
    """
    begun = time.monotonic()
    _check_database(app, receiver, database)
    batch = uuid.uuid4().hex[:12]
    with (
        open_receiver(app, receiver, engine=engine, progress=progress) as session,
        MergeLeases(app, receiver.name, batch).kept_alive() as leases,
    ):
        require_newest(session.cluster)
        work = _Work(**vars(session), database=database, partition=partition, batch=batch, leases=leases)
        _take_leases(work, _left_over(work))
        _merge_in_rounds(work)
        tally = work.tally
    with app.ledger.read() as connection:
        kept = merge_rows.kept_groups(connection, receiver.name).values()
    return MergeResult(
        groups=tally.groups,
        files_in=tally.files_in,
        files_out=tally.files_out,
        rows=tally.rows,
        seconds=time.monotonic() - begun,
        kept=(*((one.subject, one.reason) for one in kept), *tally.waiting),
        failed=tuple(tally.failed),
        moved=tally.moved,
    )


def _check_database(app: App, receiver: ReceiverSettings, wanted: str | None) -> None:
    if wanted is None:
        return
    with app.ledger.read() as connection:
        known = sorted({file.database for file in merge_rows.mergeable_files(connection, receiver.name)})
    if wanted not in known:
        names = ", ".join(known) or "none"
        raise NotFoundError(f"no database {wanted!r} at {receiver.name}; the catalog has: {names}", subject=wanted)


def _take_leases(work: _Work, places: Iterable[Place]) -> bool:
    """Acquire the free ones of `places` and clean up after crashed merges there. Return whether any is new."""
    new = work.leases.acquire_free(places)
    for place in new:
        _clean_up(work, place)
    return bool(new)


def _report_refused(work: _Work, places: Iterable[Place]) -> None:
    """Report those of `places` that other merges hold. Raise LeaseHeldError if none of the wanted database is free."""
    told = {subject for subject, *_ in work.tally.failed}
    for place in sorted(set(places) & work.leases.refused.keys()):
        taken = work.leases.refused[place]
        if work.database is not None and not work.leases.held:
            raise taken
        if str(place) not in told:
            work.tally.failed.append((str(place), taken.message, taken.kind))


def _left_over(work: _Work) -> list[Place]:
    """List the places where earlier merges left files."""
    store, wanted = work.store, None if work.database is None else folder_name(work.database)
    return [
        Place(database, int(partition))
        for database in store.list_folder(STAGING)
        if wanted in (None, database)
        for partition in store.list_folder(f"{STAGING}/{database}")
        if store.list_folder(f"{STAGING}/{database}/{partition}")
    ]


def _clean_up(work: _Work, place: Place) -> None:
    """Remove what batches of a partition left. The lease shows that none of them still runs."""
    for batch in work.store.list_folder(place.folder):
        _clean_up_batch(work, f"{place.folder}/{batch}")


def _clean_up_batch(work: _Work, staged: str) -> None:
    intents = [f"{staged}/{name}" for name in work.store.list_folder(staged) if name.endswith(_INTENT)]
    read = (read_record(work.store, path, MOST_RECORD) for path in intents)
    meant = [target for data in read if data for target in parse_json(data)]
    withdraw_left(work.cluster, lambda row: row.subject in meant)
    with work.app.ledger.read() as connection:
        known = merge_rows.known_locations(connection, work.receiver.name, meant)
    _remove_outputs(work, [target for target in meant if target not in known])
    # CRASH WINDOW: targets removed, intents still there: the next run finds nothing left to remove.
    work.store.remove_tree(staged)


def _merge_in_rounds(work: _Work) -> None:
    turns = itertools.count()
    for _ in range(_ROUNDS):
        plan = _plan_groups(work)
        places = [Place.of_group(group) for group in (*plan.groups, *(group for group, *_ in plan.kept))]
        if _take_leases(work, places):
            plan = _plan_groups(work)  # others may have merged something before the lease was acquired
        _report_refused(work, places)
        for group, subject, reason in plan.kept:
            if Place.of_group(group) in work.leases.held:
                _remember_unmerged(work, group, subject, reason)
        work.tally.waiting = plan.waiting
        most = work.cluster.settings.cache_bytes if work.cluster is not None else 0
        portions = portions_of(_leased_groups(work, plan), most)
        moved = False
        for portion in portions:
            moved |= _run_groups(work, portion, f"{work.batch}-{next(turns)}")
            if len(portions) > 1:
                assert work.cluster is not None  # without a cluster there is one portion
                give_back(work.cluster, work.store, work.tally.fetched)
        if not moved:
            return
    work.tally.moved += len(_leased_groups(work, _plan_groups(work)))


def _leased_groups(work: _Work, plan: Plan) -> list[Group]:
    return [group for group in plan.groups if Place.of_group(group) in work.leases.held]


def _plan_groups(work: _Work) -> Plan:
    """Plan what is to merge now."""
    with work.app.ledger.read() as connection:
        files = merge_rows.mergeable_files(connection, work.receiver.name, work.database)
        devices = catalog_rows.devices_of_files(connection, [file.file_id for file in files])
        to_go = settled_rows.waiting_for_sources(connection, work.receiver.name)
        tried = set(merge_rows.kept_groups(connection, work.receiver.name)) | work.tally.given_up
    units = (Unit(file, devices.get(file.file_id, ())) for file in files)
    return plan_merge(units, tried, work.partition, to_go, cut=work.cluster is not None)


def _run_groups(work: _Work, groups: Sequence[Group], batch: str) -> bool:
    """Merge the groups. Return whether any must be planned anew because the catalog changed."""
    app = work.app
    with app.ledger.read() as connection:
        sites = landing_rows.read_sites(connection)
    groups = [group for group in groups if _at_hand(work, group)]
    tasks: list[MergeTask] = []
    for number, group in enumerate(groups):
        interval = work.receiver.partition_interval_ms * UNITS_PER_MS[sites[group.units[0].file.site_id].time_unit]
        tasks += tasks_of(group, number, str(work.root), _staging_folder(group, batch), interval)
    waiting = Counter(task.group for task in tasks)
    finished: dict[int, list[Outcome]] = defaultdict(list)
    engine = choose_engine(app.settings.spark, work.engine, sum(group.work for group in groups))
    moved = False
    # CRASH WINDOW: staged files that no one will publish: `_clean_up` of the next run removes them.
    folders = sorted({_staging_folder(group, batch) for group in groups})
    try:
        for done, outcome in enumerate(engine.run("merge", tasks), 1):
            work.progress(Tick("merge", done=done, total=len(tasks)))
            number = tasks[outcome.index].group
            finished[number].append(outcome)
            if len(finished[number]) == waiting[number]:
                moved |= not _conclude_group(work, groups[number], f"{batch}-{number}", finished.pop(number))
    except Exception:
        for folder in folders:  # as the next run would: partial outputs use disk space
            with suppress(TidemarkError):
                _clean_up_batch(work, folder)
        raise
    for folder in folders:
        work.store.remove_tree(folder)
    return moved


def _at_hand(work: _Work, group: Group) -> bool:
    """Whether all files of a group are at the receiver or could be fetched from its nodes; if not, the group fails."""
    try:
        files, at = [unit.file for unit in group.units], work.app.clock()
        came = {*recall_files(work.cluster, files, at=at), *work.tally.fetched}
        work.tally.fetched |= {place: at for file in files for place, _ in places_of(file) if place in came}
    except TidemarkError as away:
        _fail_group(work, group, away)
        return False
    return True


def _conclude_group(work: _Work, group: Group, name: str, outcomes: Sequence[Outcome]) -> bool:
    """Publish a group whose tasks are all done, or record why not. False: it must be planned anew."""
    for outcome in outcomes:
        if outcome.error is not None:
            _fail_group(work, group, outcome.error)
            return True
    made: list[MergeOutcome] = [outcome.value for outcome in outcomes]
    refused = next((one.refused for one in sorted(made, key=lambda m: m.number) if one.refused), None)
    if refused is not None:
        _remember_unmerged(work, group, *refused)
        return True
    if not any(one.staged for one in made):
        _remember_unmerged(work, group, group.units[0].file.location, "deletions leave no point of these files to write")
        return True
    try:
        return _publish_group(work, group, name, made)
    except NoQuorumError as few:
        _fail_group(work, group, few)
        return True


def _publish_group(work: _Work, group: Group, name: str, made: Sequence[MergeOutcome]) -> bool:
    """Publish a group. `name` makes the outputs' names unique. False: the ledger changed, and the outputs are removed."""
    at = work.app.clock()
    outputs = outputs_of(group, made, name, at)
    targets = [output.row.file.location for output in outputs]
    staging = outputs[0].staged.location.rpartition("/")[0]
    work.store.publish(f"{staging}/{name}{_INTENT}", json.dumps(targets).encode())
    # CRASH WINDOW: some outputs have their final names, no row has them: `_clean_up` finds them by the intent.
    work.store.make_folders(sorted({target.rpartition("/")[0] for target in targets}))
    work.store.seal_parts([(output.staged.location, output.row.file.location) for output in outputs])
    sources = [unit.file for unit in group.units]
    rows = [output.row for output in outputs]

    def record_rows(connection: Connection) -> tuple[int, ...] | None:
        assert_held(connection, work.lease_of_group(group))
        return merge_rows.publish_merged(connection, work.receiver.name, sources, rows, work.batch, at)

    try:
        ids = make_visible(work.app, work.receiver, work.cluster, work.store, [row.file for row in rows], record_rows)
    except NoQuorumError:
        _remove_outputs(work, targets)
        raise
    # CRASH WINDOW: recorded, the intent still there: `_clean_up` sees that the catalog has the outputs and keeps them.
    if ids is None:
        _remove_outputs(work, targets)
        return False
    work.tally.groups += 1
    work.tally.files_in += len(sources)
    work.tally.files_out += len(outputs)
    work.tally.rows += sum(output.staged.points for output in outputs)
    return True


def _remove_outputs(work: _Work, targets: Sequence[str]) -> None:
    """Remove outputs that no reader has seen."""
    remove_everywhere(work.cluster, targets)
    work.store.remove(targets)


def _fail_group(work: _Work, group: Group, error: TidemarkError) -> None:
    """Record a failed group. A group with an unreadable source stays unmerged until a new generation arrives. So does one
    that exceeds a task's limits: its files are sound and are read unmerged. Any other failure is tried again."""
    subject = error.subject or group.units[0].file.location
    work.tally.given_up.add(group.digest)
    if isinstance(error, CorruptionError):
        with work.app.ledger.write() as connection:  # the next read digests them again
            places = [place for unit in group.units for place, _ in places_of(unit.file)]
            forget_file_checks(connection, work.receiver.name, places)
    if isinstance(error, CorruptionError | TaskLimitError):
        _remember_unmerged(work, group, subject, error.message)
    if not isinstance(error, TaskLimitError):
        work.tally.failed.append((subject, error.message, error.kind))


def _remember_unmerged(work: _Work, group: Group, subject: str, reason: str) -> None:
    with work.app.ledger.write() as connection:
        assert_held(connection, work.lease_of_group(group))
        kept = Kept(group.file_ids, subject, reason)
        merge_rows.remember_unmerged(connection, work.receiver.name, kept, group.digest, work.app.clock())


def _staging_folder(group: Group, batch: str) -> str:
    return f"{Place.of_group(group).folder}/{batch}"
