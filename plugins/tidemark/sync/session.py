"""The data that every step of a run uses: options, limits, the site, both stores, and the ledger under the run's lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from sqlalchemy.engine import Connection

from tidemark.formats.layout import landing_folder
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Identity, Lease, assert_held, this_process
from tidemark.settings.model import LinkSettings, ReceiverSettings, SiteSettings
from tidemark.stores.protocol import Store
from tidemark.tsfiles.names import parse_former_path

Partition = tuple[str, str, int]


@dataclass(frozen=True)
class PartLimits:
    """Limits of batches and parts (landings). A batch ends at `batch_bytes` or `batch_files`. A part closes after the batch
    that reaches its bytes or seconds.

    The line is idle at the begin and end of a batch, so few large batches cost least. Progress is recorded within a batch.
    """

    batch_bytes: int = 1_000_000_000
    batch_files: int = 20_000
    part_bytes: int = 10_000_000_000
    part_seconds: float = 600.0


def partition_of(path: str, data_folders: Sequence[str]) -> Partition:
    """Return database, region and partition of a source path. A path that cannot be parsed is a partition of its own."""
    name = parse_former_path(path, data_folders)
    return (name.database, name.region, name.partition) if name else (path, "", 0)


@dataclass(frozen=True)
class KnownCopies:
    """Copies at the receiver. `places`: source path → path in `store` of a copy with the source's digest."""

    store: Store | None = None
    places: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """The options of one run. `only_paths`: globs of source paths. `plan`: a plan report to be run exactly. `adopted`: files
    that the receiver got by other means: known from now on, not sent. Such a run sends only `exactly`."""

    only_paths: tuple[str, ...] = ()
    adopted: frozenset[str] = frozenset()
    exactly: frozenset[str] | None = None
    send_all_again: bool = False
    plan: Plan | None = None
    no_load: bool = False


@dataclass(frozen=True)
class Plan:
    """The part of a plan report that binds a run: files to send with their bytes, files to report as vanished."""

    send: tuple[tuple[str, int], ...] = ()
    drop: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()

    def names_path(self, path: str) -> bool:
        return path in self.paths

    @cached_property
    def paths(self) -> frozenset[str]:
        return frozenset([*(path for path, _ in self.send), *self.drop, *self.superseded])


@dataclass(frozen=True)
class Site:
    """What is needed to list a site and decide. It changes nothing at the site. `beside`: the other links of the settings
    to the same receiver."""

    ledger: Ledger
    link: LinkSettings
    site: SiteSettings
    source: Store
    beside: frozenset[str] = field(default=frozenset(), kw_only=True)

    @cached_property
    def folders(self) -> SnapshotFolders:
        """The folders of the hard links of the link's runs."""
        return SnapshotFolders.of_link(self.site, self.link.name)


@dataclass(frozen=True)
class Work(Site):
    """One active run. `again`: the step was begun before and may have left files behind. `beat` receives the step's
    progress: (files done, files in all, bytes done, bytes in all)."""

    target: Store
    receiver: ReceiverSettings
    run_id: str
    lease: Lease
    clock: Callable[[], float]
    again: bool = False
    limits: PartLimits = field(default_factory=PartLimits)
    copies: KnownCopies = field(default_factory=KnownCopies)
    beat: Callable[[int, int, int, int], None] = field(default=lambda *_: None)
    identity: Identity = field(default_factory=this_process)

    @contextmanager
    def write_under_lease(self) -> Iterator[Connection]:
        """Open a transaction that requires the run's lease. Raises LeaseLostError if the lease is lost."""
        with self.ledger.write() as connection:
            assert_held(connection, self.lease)
            yield connection

    def landing_of_part(self, part: int) -> str:
        return f"{self.run_id}-{part}"

    def landing_folder(self, landing: str) -> str:
        return landing_folder(self.site.id, landing)


@dataclass(frozen=True)
class SnapshotFolders:
    """The folders of the hard links of one link's runs. `data`: the site's data folders."""

    data: tuple[str, ...]
    snapshot: str
    link: str

    @classmethod
    def of_link(cls, site: SiteSettings, link: str) -> SnapshotFolders:
        return cls(site.data, site.snapshot, link)

    @cached_property
    def _places(self) -> Sequence[tuple[str, str, int]]:
        """(data folder with its slash, root of its hard links, its number), nested data folders before their parents."""
        longest = sorted(enumerate(self.data), key=lambda pair: len(pair[1]), reverse=True)
        return [(data + "/" if data else "", self._root_of_data(data), number) for number, data in longest]

    def root_folders(self) -> list[str]:
        """Return the folders, without duplicates, that hold one folder for each run."""
        return sorted({self._root_of_data(data) for data in self.data})

    def run_folders(self, run_id: str) -> list[str]:
        return [f"{root}/{run_id}" for root in self.root_folders()]

    def link_path(self, run_id: str, path: str) -> str:
        """Return the path of a source path's hard link. Raises ValueError if it is below no data folder."""
        for data, root, number in self._places:
            if path.startswith(data):
                return f"{root}/{run_id}/{number}/{path[len(data) :].lstrip('/')}"
        raise ValueError(f"{path} is not below a data folder of the site: {', '.join(self.data)}")

    def _root_of_data(self, data: str) -> str:
        parent = data.rstrip("/").rpartition("/")[0]
        below = f"{self.snapshot}/{self.link}"
        if parent or data.startswith("/"):
            return f"{parent}/{below}"
        return below
