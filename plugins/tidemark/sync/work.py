"""What every step of a run works with: the link's settings, both stores, the ledger under the run's lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from sqlalchemy.engine import Connection

from tidemark.formats.layout import landing_folder
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Identity, Lease, check_in, this_process
from tidemark.settings.model import LinkSettings, ReceiverSettings, SiteSettings
from tidemark.stores.protocol import Store
from tidemark.sync.parts import PartLimits
from tidemark.sync.seeding import Copies
from tidemark.sync.snapshot import SnapshotFolders


@dataclass(frozen=True)
class Options:
    """What a person asked of one run. `only_paths`: globs of source paths; `plan`: a plan report to be run exactly;
    `adopted`: files that the receiving end has by other ways: known from now on, not sent; such a run sends nothing
    but `exactly`."""

    only_paths: tuple[str, ...] = ()
    adopted: frozenset[str] = frozenset()
    exactly: frozenset[str] | None = None
    send_all_again: bool = False
    plan: Plan | None = None
    no_load: bool = False

    @property
    def plain(self) -> bool:
        return not (self.only_paths or self.send_all_again or self.plan or self.exactly is not None)


@dataclass(frozen=True)
class Plan:
    """A plan report as far as a run has to keep to it: what travels with its bytes, what is told as gone."""

    send: tuple[tuple[str, int], ...] = ()
    drop: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()

    def names(self, path: str) -> bool:
        return path in self._paths

    @cached_property
    def _paths(self) -> frozenset[str]:
        return frozenset([*(path for path, _ in self.send), *self.drop, *self.superseded])


@dataclass(frozen=True)
class Site:
    """What is needed to look at a site and decide; nothing is changed with it."""

    ledger: Ledger
    link: LinkSettings
    site: SiteSettings
    source: Store

    @cached_property
    def folders(self) -> SnapshotFolders:
        """Where the link's runs have their hard links."""
        return SnapshotFolders.of(self.site, self.link.name)


@dataclass(frozen=True)
class Work(Site):
    """One run at work. `again`: the step was begun before and may have left things behind. `beat` gets (files done,
    files in all, bytes done, bytes in all) of the step's progress."""

    target: Store
    receiver: ReceiverSettings
    run_id: str
    lease: Lease
    clock: Callable[[], float]
    again: bool = False
    limits: PartLimits = field(default_factory=PartLimits)
    copies: Copies = field(default_factory=Copies)
    beat: Callable[[int, int, int, int], None] = field(default=lambda *_: None)
    identity: Identity = field(default_factory=this_process)

    @contextmanager
    def recording(self) -> Iterator[Connection]:
        """One transaction that stands only while the lease is still ours (LeaseLostError otherwise)."""
        with self.ledger.write() as connection:
            check_in(connection, self.lease)
            yield connection

    def landing(self, part: int) -> str:
        return f"{self.run_id}-{part}"

    def landing_folder(self, landing: str) -> str:
        return landing_folder(self.site.id, landing)
