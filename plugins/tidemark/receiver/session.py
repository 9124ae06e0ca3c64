"""A receiver of this machine, opened for one verb: settings, ledger, store, nodes; and the lease that keeps others out.

    with hold_receiver(app, receiver, "load", engine=engine, progress=progress) as session: ...

A verb that needs more has a class of its own on top (`receiver.load.load.Work`). A verb that takes its leases one by one
opens the receiver without one (`open_receiver`). Not for remote receivers: the Tidemark on that machine works on them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidemark.app import App, require_disk
from tidemark.cluster.nodes.cluster import Cluster, open_cluster
from tidemark.engines.choose import EngineChoice
from tidemark.errors import PermanentError, UsageError
from tidemark.formats.layout import UNITS_PER_MS, catalog_partition
from tidemark.ledger.cluster.tables import current_epoch
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Lease, Leases, load_lease
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.progress import Progress, ignore_progress
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.protocol import Store


@dataclass(frozen=True)
class ReceiverSession:
    """A receiver that is open: `root` is its folder, `cluster` is None where it alone has its data. `engine`: what
    the caller wants."""

    app: App
    receiver: ReceiverSettings
    root: Path
    store: Store
    cluster: Cluster | None
    engine: EngineChoice
    progress: Progress


@dataclass(frozen=True)
class HeldReceiver(ReceiverSession):
    """A receiver that is open, and the lease under which its rows are written."""

    lease: Lease


def local_root(app: App, receiver: ReceiverSettings) -> Path:
    """Return the receiver's folder. Raises UsageError where the receiver is remote."""
    root = app.receiver_root(receiver)
    if root is None:
        raise UsageError(
            f"receiver {receiver.name} is remote ({receiver.store}): only a Tidemark on that machine loads and reads it",
            hint="run it there; here a sync ends with the landing, and ./tidemark status tells what was sent",
            subject=receiver.name,
        )
    return root


def refuse_other_interval(ledger: Ledger, receiver: ReceiverSettings) -> None:
    """Raise PermanentError if the catalog's files lie in other partitions than the settings give them.

    Which files may overlap is looked up by partition. With two intervals in one catalog a late file would not be compared
    with merged ones. A site's unit of time may have been mended since, so any unit counts.
    """
    with ledger.read() as connection:
        newest = catalog_rows.newest_placed(connection, receiver.name)
    if newest is None:
        return
    interval = receiver.partition_interval_ms
    spans = [tuple(catalog_partition(t, interval, unit) for t in (newest.first, newest.last)) for unit in UNITS_PER_MS]
    if (newest.partition_from, newest.partition_to) not in spans:
        raise PermanentError(
            f"receiver {receiver.name}: its catalog was made with another partition_interval_ms than {interval}"
            f" ({newest.location} would lie elsewhere): late files would not be compared with merged ones",
            hint=f"write partition_interval_ms of [receivers.{receiver.name}] as it was; it stays for the catalog's life",
            subject=f"receivers.{receiver.name}.partition_interval_ms",
        )


@contextmanager
def open_receiver(
    app: App, receiver: ReceiverSettings, *, engine: EngineChoice = "auto", progress: Progress = ignore_progress
) -> Iterator[ReceiverSession]:
    """Open the receiver's store and nodes for a block. Raises UsageError for a remote receiver, PermanentError for one whose
    catalog was made with another partition interval, or whose files lie at nodes that the settings do not have."""
    root = local_root(app, receiver)
    refuse_other_interval(app.ledger, receiver)
    with app.receiver_store(receiver) as store, open_cluster(app, receiver) as cluster:
        if cluster is None:
            _require_no_nodes(app, receiver)
        yield ReceiverSession(app, receiver, root, store, cluster, engine, progress)


def _require_no_nodes(app: App, receiver: ReceiverSettings) -> None:
    with app.ledger.read() as connection:
        epoch = current_epoch(connection, receiver.name)
    if epoch:
        raise PermanentError(
            f"the files of receiver {receiver.name} lie at data nodes, by partition table {epoch}, and the settings have no"
            " [cluster] of it: what would be written here would be at none of them",
            hint="[cluster] and [nodes.NAME] as they were belong into the settings",
            subject=receiver.name,
        )


@contextmanager
def hold_writers_lease(app: App, receiver: ReceiverSettings, verb: str, *, lease: str = "") -> Iterator[Lease]:
    """Hold the lease of the receiver's writers, or `lease`; `verb` names the holder to others. LeaseHeldError while somebody
    else holds it."""
    holder = f"{verb}-{uuid.uuid4().hex[:12]}"
    with Leases(app.ledger, app.identity).hold_lease(lease or load_lease(receiver.name), holder) as held:
        yield held


@contextmanager
def hold_receiver(
    app: App,
    receiver: ReceiverSettings,
    verb: str,
    *,
    lease: str = "",
    engine: EngineChoice = "auto",
    progress: Progress = ignore_progress,
) -> Iterator[HeldReceiver]:
    """Open the receiver under the lease of its writers, or under `lease`; `verb` names the holder to others.

    Raises UsageError for a remote receiver, LeaseHeldError while somebody else holds the lease, DiskAwayError for a folder
    that has lost what it had.
    """
    local_root(app, receiver)
    require_disk(app, receiver)
    with (
        hold_writers_lease(app, receiver, verb, lease=lease) as held,
        open_receiver(app, receiver, engine=engine, progress=progress) as session,
    ):
        yield HeldReceiver(**vars(session), lease=held)
