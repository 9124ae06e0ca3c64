"""Back up, upgrade and rebuild the ledger.

A rebuild makes the new ledger in a file of its own, then copies it over the old one in one transaction. A rebuild that dies
leaves the ledger as it was, and is run again. Source: DESIGN §4, docs/runbooks/ledger-lost.md.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tidemark.app import App, adopt_mark, write_mark
from tidemark.errors import LeaseHeldError, PermanentError
from tidemark.formats.layout import folder_name
from tidemark.ledger import journal
from tidemark.ledger.backup import back_up, copy_rows, used_tables
from tidemark.ledger.database import Ledger, is_unmade, make_folder
from tidemark.ledger.leases import Leases, load_lease, this_process
from tidemark.ledger.migrations import migrate_ledger, schema_version
from tidemark.ledger.receiver import rebuild as rebuild_rows
from tidemark.operations.rebuild.cluster import open_survivors, write_cluster, write_schemas
from tidemark.operations.rebuild.from_nodes import note_doubts, restore_catalog
from tidemark.operations.rebuild.links import rebuild_link
from tidemark.operations.rebuild.receiver import rebuild_receiver
from tidemark.operations.rebuild.result import Findings, Lost, RebuildResult
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.receiver.merge.batch import Place
from tidemark.settings.model import ReceiverSettings, Settings
from tidemark.stores.open import open_store
from tidemark.stores.protocol import StoreAddress

_GONE = "its bytes were gone from the receiver when the ledger was rebuilt"


@dataclass(frozen=True)
class BackupResult:
    """The path of the copy and its size."""

    path: str
    bytes: int

    @property
    def exit_code(self) -> int:
        return 0

    def as_json(self) -> dict[str, Any]:
        return {"ok": True, **asdict(self)}


@dataclass(frozen=True)
class UpgradeResult:
    """Schema versions: as found, as it is now, and the steps applied between."""

    found: int
    schema: int
    applied: tuple[int, ...]

    @property
    def exit_code(self) -> int:
        return 0

    def as_json(self) -> dict[str, Any]:
        return {"ok": True, **asdict(self), "applied": list(self.applied)}


def backup_ledger(app: App, out: Path | None = None) -> BackupResult:
    """Copy the ledger at this moment, in use or not, into an SQLite file (default: `var/backup/`)."""
    target = out or app.settings.root / "var" / "backup" / f"ledger-{_format_stamp(app.clock())}.db"
    target = target if target.is_absolute() else Path.cwd() / target
    return BackupResult(str(target), back_up(app.ledger, target))


def upgrade_ledger(settings: Settings) -> UpgradeResult:
    """Apply the migrations that the ledger lacks. Raises SchemaTooNewError for a ledger of a newer Tidemark."""
    ledger = Ledger(settings.ledger.url, settings.root)
    try:
        found = schema_version(ledger)
        applied = tuple(migrate_ledger(ledger))
        return UpgradeResult(found, schema_version(ledger), applied)
    finally:
        ledger.close()


def rebuild_ledger(
    settings: Settings, progress: Progress = ignore_progress, replace: bool = False, clock: Callable[[], float] = time.time
) -> RebuildResult:
    """Make a new ledger from manifests, receipts, decisions and files at every receiver of the settings.

    A ledger unchanged since a rebuild is only compared, and stays. Raises PermanentError if it has other rows (with
    `replace` they are replaced, a copy is kept), LeaseHeldError while a lease is held or another rebuild runs, and the
    errors of reading a receiver.
    """
    target = Ledger(settings.ledger.url, settings.root)
    try:
        migrate_ledger(target)
        _require_idle(target)
        with target.read() as connection:
            stays = not replace and rebuild_rows.as_rebuilt(connection)
        old = "" if stays else _keep_old_ledger(settings, target, replace)
        with _open_scratch_app(settings, clock) as app:
            findings = Findings()
            _build_ledger(app, findings, progress)
            with app.ledger.read() as connection:
                counts = rebuild_rows.count_rows(connection)
            # CRASH WINDOW: all is in the scratch file, the ledger is as it was: the next rebuild begins anew.
            progress(Tick("write"))
            if not stays:
                copy_rows(app.ledger, target, replace)
        # CRASH WINDOW: the new ledger is ahead of its receivers' marks, which is harmless: the next load writes them.
        _write_marks(target, settings)
    finally:
        target.close()
    return RebuildResult(counts, findings, old)


def has_rows(settings: Settings) -> bool:
    """Tell whether there is a ledger that a new one would take the place of. One of another version counts as such."""
    if is_unmade(settings.ledger.url, settings.root):
        return False
    ledger = Ledger(settings.ledger.url, settings.root)
    try:
        return bool(used_tables(ledger))
    finally:
        ledger.close()


def _require_idle(target: Ledger) -> None:
    if busy := Leases(target, this_process()).list_busy():
        raise LeaseHeldError(
            f"{busy[0].name} is held by {busy[0].holder}: nobody may work with a ledger that is replaced",
            hint="./tidemark down, and wait for what runs",
            subject=busy[0].name,
        )


def _keep_old_ledger(settings: Settings, target: Ledger, replace: bool) -> str:
    """Refuse a ledger that has rows, or keep a copy of it; return the copy's path."""
    used = used_tables(target)
    if not used:
        return ""
    if not replace:
        raise PermanentError(
            f"the ledger has rows already: {', '.join(used[:3])}{' …' if len(used) > 3 else ''}",
            hint="./tidemark ledger rebuild --replace puts a new one in its place and keeps a copy",
        )
    path = settings.root / "var" / "backup" / f"ledger-before-rebuild-{_format_stamp(datetime.now(UTC).timestamp())}.db"
    back_up(target, path)
    return str(path)


@contextmanager
def _open_scratch_app(settings: Settings, clock: Callable[[], float]) -> Iterator[App]:
    """Open an app with an empty ledger in `var/rebuild/`, deleted at the end; one rebuild at a time."""
    folder = settings.root / "var" / "rebuild"
    make_folder(folder)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases it when this process dies
        except BlockingIOError:
            raise LeaseHeldError(f"another rebuild runs here ({folder})", hint="wait for it") from None
        path = folder / "ledger.db"
        _remove_database(path)  # left by a dead rebuild
        ledger = Ledger(f"sqlite:///{path}")
        sa.event.listen(ledger.engine, "connect", _without_syncs)
        migrate_ledger(ledger)
        try:
            yield App(settings=settings, ledger=ledger, identity=this_process(), clock=clock)
        finally:
            ledger.close()
            _remove_database(path)


def _without_syncs(connection: Any, _record: object) -> None:
    """Turn off syncs: nobody needs the scratch file after a power loss."""
    connection.execute("PRAGMA synchronous=OFF")


def _build_ledger(app: App, findings: Findings, progress: Progress) -> None:
    for link in app.settings.links.values():
        rebuild_link(app, link, findings, progress)
    for receiver in app.settings.receivers.values():
        root = app.receiver_root(receiver)
        if root is not None:
            _build_receiver(app, receiver, root, findings, progress)
    _send_again(app, findings)
    with app.ledger.write() as connection:
        names = [f"link:{name}" for name in app.settings.links]
        for name in app.settings.receivers:
            names += [load_lease(name), f"cluster:{name}"]
            places = [Place(folder_name(d), number) for d, number in rebuild_rows.catalog_partitions(connection, name)]
            names += [place.lease_name(name) for place in places]
        # Fences count from 1: seconds since 1970 are above all fences of the lost ledger, and of an earlier rebuild.
        rebuild_rows.put_fences(connection, names, int(app.clock()))
        counts = rebuild_rows.count_rows(connection)
        told = {**counts, "lost": len(findings.lost), "troubles": len(findings.troubles)}
        journal.record_many(connection, rebuild_rows.REBUILT, [told])
        journal.record_decision(connection, "ledger rebuild", str(app.settings.path.name), **counts)


def _build_receiver(app: App, receiver: ReceiverSettings, root: Path, findings: Findings, progress: Progress) -> None:
    """Rebuild a receiver; files that only its data nodes have are fetched first."""
    with open_survivors(app, receiver, findings) as nodes:
        if nodes is not None:
            with app.receiver_store(receiver) as store:
                nodes.bring_back(store, progress)
        # CRASH WINDOW: files of the nodes are in the receiver's cache, the ledger is as it was: it is run again.
        rebuild_receiver(app, receiver, root, findings, progress)
        if nodes is not None:
            with app.receiver_store(receiver) as store:
                restore_catalog(app, receiver, store, nodes)
        with app.ledger.write() as connection:
            adopt_mark(connection, receiver.name, root)
        if nodes is not None:
            write_schemas(app, receiver, nodes)
            write_cluster(app, receiver, nodes, progress)
            note_doubts(app, receiver, nodes)


def _write_marks(ledger: Ledger, settings: Settings) -> None:
    for receiver in settings.receivers.values():
        if receiver.store.startswith("file://"):
            with closing(open_store(StoreAddress.of(receiver))) as store:
                write_mark(ledger, receiver.name, store)


def _send_again(app: App, findings: Findings) -> None:
    """Let files that the catalog lost and the site still has be sent by the site's next run."""
    lost = sorted(set(findings.lost), key=lambda one: (one.receiver, one.site, one.path))
    findings.lost = []
    for one in lost:
        links = [
            x for x in app.settings.links.values() if x.receiver == one.receiver and app.site_settings(x.site).id == one.site
        ]
        with app.ledger.write() as connection:
            sent = [link.name for link in links if rebuild_rows.request_resend(connection, link.name, one.path, _GONE)]
        findings.lost.append(_with_next(one, sent))


def _with_next(one: Lost, links: list[str]) -> Lost:
    return replace(one, next=f"./tidemark sync {links[0]}" if links else "")


def _format_stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%SZ")


def _remove_database(path: Path) -> None:
    for end in ("", "-wal", "-shm", "-journal"):
        Path(str(path) + end).unlink(missing_ok=True)
