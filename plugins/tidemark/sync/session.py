"""How a run's files are cut: batches for the transfer engine, parts (landings) for readers (DESIGN §5, §6).

Pure. Both are cut on borders of partitions only, so that a compaction's outputs and the files they stand for come in
one landing. A partition larger than a limit stays whole.
"""

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
from tidemark.tsfiles.names import parse_source_path

Partition = tuple[str, str, int]


@dataclass(frozen=True)
class PartLimits:
    """A batch ends at `batch_bytes` or `batch_files`; a part closes after the batch that reaches its bytes or seconds.

    Each batch begins and ends with empty lines, so that few large ones cost least; how far it came is recorded all along."""

    batch_bytes: int = 1_000_000_000
    batch_files: int = 20_000
    part_bytes: int = 10_000_000_000
    part_seconds: float = 600.0


def partition_of(path: str, data_folders: Sequence[str]) -> Partition:
    """Database, region and partition of a source path; a path that cannot be taken apart stands alone."""
    name = parse_source_path(path, data_folders)
    return (name.database, name.region, name.partition) if name else (path, "", 0)


@dataclass(frozen=True)
class KnownCopies:
    """`places`: source path → path in `store` of a copy with the source's digest."""

    store: Store | None = None
    places: Mapping[str, str] = field(default_factory=dict)


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
    def is_plain(self) -> bool:
        return not (self.only_paths or self.send_all_again or self.plan or self.exactly is not None)


@dataclass(frozen=True)
class Plan:
    """A plan report as far as a run has to keep to it: what travels with its bytes, what is told as gone."""

    send: tuple[tuple[str, int], ...] = ()
    drop: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()

    def names_path(self, path: str) -> bool:
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
        return SnapshotFolders.of_link(self.site, self.link.name)


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
    copies: KnownCopies = field(default_factory=KnownCopies)
    beat: Callable[[int, int, int, int], None] = field(default=lambda *_: None)
    identity: Identity = field(default_factory=this_process)

    @contextmanager
    def write_under_lease(self) -> Iterator[Connection]:
        """One transaction that stands only while the lease is still ours (LeaseLostError otherwise)."""
        with self.ledger.write() as connection:
            assert_held(connection, self.lease)
            yield connection

    def landing_of_part(self, part: int) -> str:
        return f"{self.run_id}-{part}"

    def landing_folder(self, landing: str) -> str:
        return landing_folder(self.site.id, landing)


@dataclass(frozen=True)
class SnapshotFolders:
    """Where the links of one link's runs live. `data`: the site's data folders."""

    data: tuple[str, ...]
    snapshot: str
    link: str

    @classmethod
    def of_link(cls, site: SiteSettings, link: str) -> SnapshotFolders:
        return cls(site.data, site.snapshot, link)

    @cached_property
    def _places(self) -> Sequence[tuple[str, str, int]]:
        """(data folder with its slash, root of its links, its number): who lies in another one comes before it."""
        longest = sorted(enumerate(self.data), key=lambda pair: len(pair[1]), reverse=True)
        return [(data + "/" if data else "", self._root_of_data(data), number) for number, data in longest]

    def root_folders(self) -> list[str]:
        """One folder a data folder, holding a folder a run; some may be the same."""
        return sorted({self._root_of_data(data) for data in self.data})

    def run_folders(self, run_id: str) -> list[str]:
        return [f"{root}/{run_id}" for root in self.root_folders()]

    def link_path(self, run_id: str, path: str) -> str:
        """The link of a source path."""
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
