"""LOAD new catalog files into the IoTDB that a receiver's settings name, in the right order, and count afterwards.

    resolve unknown outcomes → plan (pure) → send, batch by batch → delete what left the catalog → count

The catalog never waits for the server. If it is down, full or refuses a file, the next load tries again. Source: CONTRACT §2
`iotdb`; research/iotdb.md §2; docs/iotdb.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.app import App
from tidemark.cluster.replicas.cache import make_fetcher, recall_files
from tidemark.cluster.replicas.promote import require_newest
from tidemark.connections import read_connection
from tidemark.errors import LeaseLostError, RetryableError, TidemarkError, UsageError
from tidemark.ledger.receiver import (
    catalog as catalog_rows,
)
from tidemark.ledger.receiver import (
    iotdb as iotdb_rows,
)
from tidemark.ledger.receiver import (
    landings as landing_rows,
)
from tidemark.ledger.receiver import (
    refusals as refusal_rows,
)
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.ledger.receiver.iotdb import Target
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.receiver.iotdb.apply import Done, Giver
from tidemark.receiver.iotdb.count import count_open
from tidemark.receiver.iotdb.plan import Batch, Gone, Limits, SourceStatus, plan_load, why_unfit
from tidemark.receiver.iotdb.points import Mender
from tidemark.receiver.iotdb.server import Answering, Connected
from tidemark.receiver.iotdb.staging import Stage
from tidemark.receiver.iotdb.thrift import Server
from tidemark.receiver.load.result import IotdbResult, LoadResult, Trouble
from tidemark.receiver.session import HeldReceiver, hold_receiver, local_root
from tidemark.receiver.view import CatalogReader, SeenDevice, seen_devices
from tidemark.settings.model import ReceiverSettings

Connect = Callable[[Server], Answering]


def with_iotdb(app: App, receiver: ReceiverSettings, loaded: LoadResult, progress: Progress = ignore_progress) -> LoadResult:
    """Add to a load's result what its receiver's IoTDB received; unchanged where the settings name none."""
    if not receiver.iotdb:
        return loaded
    given = load_iotdb(app, receiver, progress)
    return replace(loaded, iotdb=given, troubles=(*loaded.troubles, *given.troubles))


def load_if_any(app: App, receiver: ReceiverSettings, progress: Progress = ignore_progress) -> IotdbResult | None:
    """Call `load_iotdb` if the settings name a server, else return None."""
    return load_iotdb(app, receiver, progress) if receiver.iotdb else None


def load_iotdb(
    app: App, receiver: ReceiverSettings, progress: Progress = ignore_progress, connect: Connect = Connected
) -> IotdbResult:
    """Send the server everything of the catalog that it lacks, and count.

    Faults of the server or of a file are troubles of the result. Raises UsageError for a remote receiver or without `iotdb`,
    LeaseHeldError while another process sends, PermanentError if the ledger is older than the nodes.
    """
    if not receiver.iotdb:
        raise UsageError(f"receiver {receiver.name} has no iotdb in the settings", subject=receiver.name)
    local_root(app, receiver)
    server = server_of(receiver)
    target = Target(receiver.name, server.name)
    with hold_receiver(app, receiver, "iotdb", lease=f"iotdb:{receiver.name}", progress=progress) as session:
        if not _has_work(app, target):
            return IotdbResult(server.name)
        require_newest(session.cluster)  # an older catalog would give the server what was deleted since
        done = Done()
        troubles: list[Trouble] = []
        points = 0
        answering = None
        try:
            answering = connect(server)
            work = _Work(**vars(session), target=target, server=answering, done=done)
            points = work.run(troubles)
        except LeaseLostError:
            raise
        except RetryableError as away:
            troubles.append(Trouble("iotdb", "", server.name, away.message, away.kind))
        except TidemarkError as refused:  # login, version, or too many refusals: nothing more can be sent
            troubles.append(Trouble("iotdb", "", server.name, refused.message, refused.kind))
        finally:
            if answering is not None:
                answering.close()
    return IotdbResult(server.name, **vars(done), counted=points, troubles=tuple(troubles))


def server_of(receiver: ReceiverSettings) -> Server:
    """Return address and login of a receiver's IoTDB; the password is read from its file or connection at each use.

    Without either it is `root`, IoTDB's default password. UsageError if the file cannot be read or a connection has no
    password, and errors as `read_connection`.
    """
    if receiver.iotdb_connection:
        told = read_connection(receiver.iotdb_connection)
        if not told.password:
            raise UsageError(f"Airflow {told.name} has no password for IoTDB", hint=told.next_step, subject=told.id)
        return Server.from_url(receiver.iotdb, told.password, told.login)
    password = "root"
    if receiver.iotdb_password_file:
        try:
            password = Path(receiver.iotdb_password_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as wrong:
            raise UsageError(
                f"the password of receiver {receiver.name}'s IoTDB cannot be read: {receiver.iotdb_password_file}: {wrong}",
                hint="see iotdb_password_file in the settings",
                subject=receiver.name,
            ) from wrong
    return Server.from_url(receiver.iotdb, password)


@dataclass(frozen=True)
class _Work(HeldReceiver):
    target: Target
    server: Answering
    done: Done

    def run(self, troubles: list[Trouble]) -> int:
        """Do everything in order and return the points counted. Troubles are added even if an error ends it."""
        stage = Stage(self.store, self.root, self.target.server, self.server.version.moves_files)
        try:
            with CatalogReader(self.root, make_fetcher(self.cluster)) as reader:
                self._apply_plan(stage, reader)
                stage.clear_folder()
                return count_open(self.app, self.target, self.lease, self._mender_factory(stage, reader), troubles)
        finally:
            troubles[:0] = self._held_troubles()

    def _apply_plan(self, stage: Stage, reader: CatalogReader) -> None:
        standings, gone = self._collect_statuses()
        files = [one.file for one in standings] + [one.file for one in gone]
        seen = self._devices_around(files)
        recall_files(self.cluster, [one.file for one in standings if one.state != "given"])
        recall_files(self.cluster, [one.file for one in gone], if_any=True)
        recall_files(self.cluster, (layer.file for one in seen.values() for layer in one.layers))
        mender = Mender(self.server, stage, self.root, reader, seen)
        giver = Giver(self.app.ledger, self.target, self.lease, self.root, mender, self.app.clock, self.done, set())
        limits = self._server_limits()
        decided = plan_load(standings, gone, limits)
        settled = {one.file.file_id: giver.resolve_outcome(one) for one in decided.unresolved}
        decided = plan_load([settled.get(one.file.file_id, one) for one in standings], gone, limits)
        if decided.held:
            giver.hold_files(decided.held, 6)
        fences = self._known_fences()
        occupied = [self._is_new(batch, fences) and giver.has_earlier_points(batch) for batch in decided.batches]
        number, total = 0, sum(len(batch.files) for batch in decided.batches) + len(decided.points)
        for batch, somebody in zip(decided.batches, occupied, strict=True):
            unknown: Sequence[SourceStatus] = batch.files if somebody else giver.load_batch(batch)
            for one in unknown:
                if giver.resolve_outcome(one).state == "new":
                    giver.load_batch(replace(batch, files=(one,)))
            number += len(batch.files)
            self.progress(Tick("iotdb", done=number, total=total))
        for one in decided.points:
            giver.give_missing_points(one)
            number += 1
            self.progress(Tick("iotdb", done=number, total=total))
        for left in decided.gone:
            giver.delete_gone_points(left)

    def _collect_statuses(self) -> tuple[list[SourceStatus], list[Gone]]:
        """Collect the files that the server may lack, those around them that it has, and those that left the catalog."""
        with self.app.ledger.read() as connection:
            merged = iotdb_rows.open_merged(connection, self.target)
            wanted = [*iotdb_rows.open_files(connection, self.target), *merged]
            left = iotdb_rows.left_files(connection, self.target)
            files = {f.file_id: f for f in catalog_rows.files_by_id(connection, [*wanted, *left])}
            spans = [(f.partition_from, f.partition_to) for f in files.values()]
            span = (min((s[0] for s in spans), default=0), max((s[1] for s in spans), default=0))
            databases = {f.database for f in files.values()}
            around = [i for i in iotdb_rows.neighbour_files(connection, self.target, databases, span) if i not in files]
            files |= {f.file_id: f for f in catalog_rows.files_by_id(connection, around)}
            devices = catalog_rows.devices_of_files(connection, files)
            rows = iotdb_rows.file_rows(connection, self.target, files)
        limits = self._server_limits()
        gone = [Gone(files[i], devices.get(i, ())) for i in left if not why_unfit(files[i], limits)]
        replaced = {(one.file.site_id, one.file.path) for one in gone}
        standings = [
            _status_of_file(
                files[i], devices.get(i, ()), rows[i].state if i in rows else "giving" if i in merged else "", gone, replaced
            )
            for i in (*wanted, *around)
        ]
        return standings, gone

    def _server_limits(self) -> Limits:
        with self.app.ledger.read() as connection:
            units = {row.site_id: row.time_unit for row in landing_rows.read_sites(connection).values()}
        version = self.server.version
        return Limits(version.format, version.has_tables, self.server.unit, units)

    def _devices_around(self, around: Sequence[CatalogFile]) -> dict[str, SeenDevice]:
        """Return devices as readers see them, by their name in the files, in these files' databases and time partitions."""
        first = min((file.partition_from for file in around), default=0)
        last = max((file.partition_to for file in around), default=0)
        with self.app.ledger.read() as connection:
            files: list[CatalogFile] = []
            for database in sorted({file.database for file in around}):
                files += catalog_rows.visible_files(connection, self.receiver.name, database=database)
            files = [file for file in files if file.partition_from <= last and file.partition_to >= first]
            held = catalog_rows.devices_of_files(connection, [file.file_id for file in files])
            names = {device.device for devices in held.values() for device in devices}
            known = refusal_rows.owners_of(connection, self.receiver.name, names)
        owners = {name: row.site_id for name, row in known.items()}
        return {seen.layers[-1].name: seen for seen in seen_devices(files, held, owners, {})}

    def _mender_factory(self, stage: Stage, reader: CatalogReader) -> Callable[[Sequence[CatalogFile]], Mender]:
        return lambda files: Mender(self.server, stage, self.root, reader, self._devices_around(files))

    @staticmethod
    def _is_new(batch: Batch, fences: set[tuple[str, int]]) -> bool:
        """Whether part of the batch goes where this ledger has sent nothing before."""
        return not {(one.file.database, one.file.partition_from) for one in batch.files} <= fences

    def _known_fences(self) -> set[tuple[str, int]]:
        with self.app.ledger.read() as connection:
            rows = iotdb_rows.partitions_in(connection, self.target, ("open", "equal", "differs"))
        return {(row.database, row.partition) for row in rows}

    def _held_troubles(self) -> list[Trouble]:
        with self.app.ledger.read() as connection:
            ids = [*iotdb_rows.open_files(connection, self.target), *iotdb_rows.open_merged(connection, self.target)]
            rows = iotdb_rows.file_rows(connection, self.target, ids)
            files = catalog_rows.files_by_id(connection, [i for i, row in rows.items() if row.state == "held"])
        return [
            Trouble(
                "iotdb",
                file.landing or "",
                file.path or file.location,
                rows[file.file_id].reason or "",
                rows[file.file_id].kind,
            )
            for file in files
        ]


def _status_of_file(
    file: CatalogFile, devices: tuple[CatalogDevice, ...], row: str, gone: Sequence[Gone], replaced: set[tuple[str, str]]
) -> SourceStatus:
    """Return a file's status. For `giving` and `held` it is unknown; of a merged file the server may have some sources."""
    if row == "given":
        return SourceStatus(file, devices, "given")
    changed = (file.site_id, file.path) in replaced or _may_hold_gone_points(devices, gone)
    return SourceStatus(file, devices, "unknown" if row else "new", changed)


def _may_hold_gone_points(devices: Sequence[CatalogDevice], gone: Sequence[Gone]) -> bool:
    """Whether it holds devices at times of a file that left: its points may be there already (compaction)."""
    left: Mapping[str, list[CatalogDevice]] = _by_device(gone)
    return any(d.start <= o.end and o.start <= d.end for d in devices for o in left.get(d.device, ()))


def _by_device(gone: Sequence[Gone]) -> dict[str, list[CatalogDevice]]:
    found: dict[str, list[CatalogDevice]] = {}
    for one in gone:
        for device in one.devices:
            found.setdefault(device.device, []).append(device)
    return found


def _has_work(app: App, target: Target) -> bool:
    """Whether anything is to be compared, sent or counted."""
    with app.ledger.read() as connection:
        return bool(
            iotdb_rows.open_files(connection, target)
            or iotdb_rows.open_merged(connection, target)
            or iotdb_rows.left_files(connection, target)
            or iotdb_rows.partitions_in(connection, target, ("open", "differs"))
        )
