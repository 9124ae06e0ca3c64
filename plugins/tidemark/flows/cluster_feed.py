"""Files for a reading that goes through many: brought from the nodes as it comes to them, not all before its first row.

As many as the cache may have (`cache_bytes`) come into the cache, and stay there for others. The rest goes to a place of the
reading's own, where a file stays only while the next steps ask for it: so a catalog larger than the cache can be read, where
there is room for the cache and for what one step needs. Source: docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tidemark.flows.cluster_cache import fetch_aside, new_place, places_of, recall
from tidemark.flows.cluster_nodes import Cluster
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.stores.protocol import Store

AHEAD = 64 << 20  # bytes brought at a time: below it a transfer is mostly its start
Step = TypeVar("Step")


@dataclass
class Feed:
    """Called by a `CatalogReader` for a file that is not below the receiver's root; answers where it is."""

    cluster: Cluster
    store: Store  # the receiver's
    root: Path
    left: int | None  # bytes that may still come into the cache; None: any
    place: str = field(default_factory=new_place)
    counted: set[str] = field(default_factory=set)  # locations that are in the cache's account
    own: dict[str, CatalogFile] = field(default_factory=dict)  # that lie in the reading's own place

    def __call__(self, file: CatalogFile) -> Path | None:
        if file.location not in self.own:
            recall(self.cluster, [file])
            return None
        own = self.root / self.place
        if not all((own / at).is_file() for at, _ in places_of(file)):  # swept: the reading took longer than the grace
            fetch_aside(self.cluster, [file], self.place)
        return own

    def bring(self, files: Sequence[CatalogFile]) -> None:
        """These are at hand from now on, and what else lies in the reading's own place is not."""
        shared = [file for file in files if file.location not in self.counted and self._counts(file)]
        aside = {file.location: file for file in files if file.location not in self.counted}
        over = [self.own.pop(at) for at in sorted(self.own.keys() - aside.keys())]
        self.store.remove([f"{self.place}/{at}" for file in over for at, _ in places_of(file)])
        recall(self.cluster, shared)
        missing = [file for at, file in aside.items() if at not in self.own]
        if missing:
            fetch_aside(self.cluster, missing, self.place)
            self.own |= {file.location: file for file in missing}

    def _counts(self, file: CatalogFile) -> bool:
        """Whether it is in the cache, or there is room for it."""
        if self.left is not None and not (self.root / file.location).is_file():
            if file.size > self.left:
                return False
            self.left -= file.size
        self.counted.add(file.location)
        return True


@contextmanager
def feeding(cluster: Cluster | None, root: Path) -> Iterator[Feed | None]:
    """None without a cluster: everything is at the receiver."""
    if cluster is None:
        yield None
        return
    with cluster.app.receiver_store(cluster.receiver) as store:
        feed = Feed(cluster, store, root, cluster.settings.cache_bytes or None)
        try:
            # CRASH WINDOW: files in a place that nobody else uses: housekeeping sweeps it.
            yield feed
        finally:
            store.remove_tree(feed.place)


def through(feed: Feed | None, steps: Iterable[tuple[Step, Sequence[CatalogFile]]]) -> Iterator[Step]:
    """Each step once its files are at hand, those of the following ones with them up to `AHEAD` bytes."""
    if feed is None:
        yield from (step for step, _ in steps)
        return
    ready: list[Step] = []
    files: dict[str, CatalogFile] = {}
    size = 0
    for step, needed in steps:
        new = {file.location: file for file in needed if file.location not in feed.counted}
        more = sum(file.size for at, file in new.items() if at not in files)
        if ready and more and size + more > AHEAD:
            feed.bring(list(files.values()))
            yield from ready
            ready, files, size = [], {}, 0
            more = sum(file.size for file in new.values())
        ready.append(step)
        files |= new
        size += more
    feed.bring(list(files.values()))
    yield from ready
