"""The receiver's own copies of files that its nodes hold: a cache, fetched when read, evicted when there are many.

A file is fetched by its digest into a folder of that fetch and renamed, so two readers never share a part. A file is evicted
if all its nodes have it and nobody asked for it within the grace (a day), the longest unused first. The folders of dead
fetches are removed later.

`open_feed` brings the files of a long reading step by step, not all before its first row. Up to `cache_bytes` come into the
cache, and stay there for others. The rest goes to a folder of that reading, where a file stays only while the next steps
need it. So a catalog larger than the cache can be read, given room for the cache and for one step.

Source: docs/decisions/0015.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas import plan
from tidemark.cluster.replicas.plan import Cached
from tidemark.errors import DiskFullError, NotFoundError, RetryableError, TidemarkError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.stores.protocol import Store
from tidemark.transfer import engine
from tidemark.transfer.engine import SendItem, SendOptions, Sent

FOLDER = "recall"  # below the receiver's root: files being fetched
GRACE = 86_400.0  # seconds that a requested file stays, and that a reader may take
_OPTIONS = SendOptions.of_cluster(None, retries=2)  # another node may have it, too
_turn = itertools.count()  # which node is asked first: one after another


def recall_files(
    cluster: Cluster | None, files: Iterable[CatalogFile], if_any: bool = False, at: float | None = None
) -> tuple[str, ...]:
    """Make sure that these files (with their mods) lie below the receiver's root; return the locations that were fetched.

    Their use is noted (`at`: when; None: now), so that they stay for the grace. Raises NotFoundError if no node has a file,
    RetryableError if its nodes cannot be reached: both name the file and the nodes. `if_any`: a file that no node has is
    skipped. Without a cluster nothing is done.
    """
    if cluster is None:
        return ()
    root = cluster.app.receiver_root(cluster.receiver)
    wanted = {at: digest for file in files for at, digest in places_of(file)}
    if root is None or not wanted:
        return ()
    with cluster.app.ledger.write() as connection:  # before the check, so that a housekeeping in between leaves them
        copy_rows.put_uses(connection, cluster.receiver.name, wanted, cluster.app.clock() if at is None else at)
    missing = [location for location in sorted(wanted) if not (root / location).is_file()]
    if missing:
        _fetch_files(cluster, {location: wanted[location] for location in missing}, if_any)
    return tuple(missing)


def fetch_aside(cluster: Cluster, files: Iterable[CatalogFile], folder: str) -> None:
    """Fetch files with their mods below `folder` of the receiver, for one reading alone. Errors as `recall_files`. The
    caller removes them."""
    wanted = {at: digest for file in files for at, digest in places_of(file)}
    with cluster.app.receiver_store(cluster.receiver) as store:
        _fetch_in_turns(_FetchRoute(cluster, store, folder, aside=True), _find_holders(cluster, wanted, if_any=False))


def restore_file(cluster: Cluster | None, location: str, sha256: str) -> bool:
    """Replace a wrong file here by a node's copy; False if no node has one to give."""
    if cluster is None:
        return False
    try:
        _fetch_files(cluster, {location: sha256}, if_any=False)
    except (NotFoundError, RetryableError):
        return False
    return True


def give_back(cluster: Cluster, store: Store, fetched: dict[str, float]) -> None:
    """Remove files that the caller fetched and has used up. `fetched`: location → the time it noted; emptied.

    `store`: the receiver's. A file that was requested since stays, and so does one that no node holds.
    """
    with cluster.app.ledger.read() as connection:
        uses = copy_rows.last_uses(connection, cluster.receiver.name, fetched)
        copies = copy_rows.copies_of(connection, cluster.receiver.name, fetched)
    held = {at for at, rows in copies.items() if any(row.state == "held" for row in rows)}
    # CRASH WINDOW: some are removed: readers fetch them again, housekeeping evicts the rest after the grace.
    store.remove(sorted(at for at, when in fetched.items() if at in held and uses.get(at, 0.0) <= when))
    fetched.clear()


def make_fetcher(cluster: Cluster | None) -> Callable[[CatalogFile], None] | None:
    """Return the function that a reader calls for a missing file; None without a cluster."""

    def fetch(file: CatalogFile) -> None:
        recall_files(cluster, [file])

    return None if cluster is None else fetch


def evict_cache(cluster: Cluster | None, store: Store, keep_bytes: int) -> tuple[int, int]:
    """Evict files beyond `keep_bytes`, the longest unused first; return (files, bytes). 0 keeps everything.

    `store`: the receiver's, whose load lease the caller holds. A file stays if some node still lacks it, or if it was
    requested within the grace.
    """
    if cluster is None or not keep_bytes:
        return 0, 0
    receiver = cluster.receiver.name
    with cluster.app.ledger.read() as connection:
        files = catalog_rows.live_files(connection, receiver)
        uses = copy_rows.last_uses(connection, receiver)
        pieces = plan.pieces_of(cluster.table, files)
        held = plan.held_of(copy_rows.copies_of(connection, receiver, [piece.location for piece in pieces]))
    came = {location: file.created for file in files for location, _ in places_of(file)}
    here = {entry.path: entry.size for entry in store.stat_many([piece.location for piece in pieces]) if entry}
    cached = [Cached(at, size, max(came[at], uses.get(at, 0.0))) for at, size in here.items()]
    unsafe = {piece.location for mine in plan.lacking_pieces(cluster.table, pieces, held).values() for piece in mine}
    gone = plan.choose_evictable(cached, here.keys() - unsafe, keep_bytes, cluster.app.clock() - GRACE)
    # CRASH WINDOW: some are removed: readers fetch them again, the next housekeeping evicts the rest.
    store.remove([one.location for one in gone])
    with cluster.app.ledger.write() as connection:
        copy_rows.forget_uses(connection, receiver, (uses.keys() - here.keys()) | {one.location for one in gone})
    return len(gone), sum(one.size for one in gone)


def sweep_dead_fetches(store: Store, before: float) -> None:
    """Remove the folders of dead fetches: those without a write since `before` (seconds since 1970)."""
    newest: dict[str, float] = {}
    for entry in store.list_files([FOLDER]).entries:
        place = "/".join(entry.path.split("/")[:2])
        newest[place] = max(newest.get(place, 0.0), entry.mtime)
    for place, at in newest.items():
        if at < before:
            store.remove_tree(place)


def places_of(file: CatalogFile) -> list[tuple[str, str]]:
    """Return (location, digest) of the TsFile and of its mods."""
    places = [(file.location, file.sha256)]
    return [*places, (file.mods_location, file.mods_sha256)] if file.mods_location else places


@dataclass(frozen=True)
class _FetchRoute:
    """Where fetched files go: to `folder` of the receiver's store, then to their own places unless `aside`."""

    cluster: Cluster
    store: Store
    folder: str
    aside: bool = False


def _fetch_files(cluster: Cluster, wanted: Mapping[str, str], if_any: bool) -> None:
    """Fetch files to their places. `wanted`: location → digest."""
    holders = _find_holders(cluster, wanted, if_any)
    place = new_place()
    with cluster.app.receiver_store(cluster.receiver) as store:
        try:
            # CRASH WINDOW: a part in a folder of this fetch alone: housekeeping removes it.
            _fetch_in_turns(_FetchRoute(cluster, store, place), holders)
        finally:
            store.remove_tree(place)


def new_place() -> str:
    """Return a new folder name below the receiver's root."""
    return f"{FOLDER}/{uuid.uuid4().hex[:12]}"


def _find_holders(cluster: Cluster, wanted: Mapping[str, str], if_any: bool) -> dict[str, list[CopyRow]]:
    """Return location → copies to fetch it from. NotFoundError for a file without any; `if_any`: it is left out."""
    with cluster.app.ledger.read() as connection:
        copies = copy_rows.copies_of(connection, cluster.receiver.name, wanted)
    holders = {
        at: [c for c in copies.get(at, ()) if (c.state, c.sha256) == ("held", digest)] for at, digest in wanted.items()
    }
    nowhere = [location for location, rows in holders.items() if not rows]
    if nowhere and if_any:
        holders = {location: rows for location, rows in holders.items() if rows}
    elif nowhere:
        raise NotFoundError(
            f"{nowhere[0]} is neither at receiver {cluster.receiver.name} nor at any of its nodes"
            f" ({', '.join(sorted(cluster.nodes))})",
            hint="./tidemark verify --repair fetches what the site still has",
            subject=nowhere[0],
        )
    return holders


def _fetch_in_turns(way: _FetchRoute, holders: Mapping[str, Sequence[CopyRow]]) -> None:
    """Fetch every file from one of its holders, from the next one if that fails."""
    left = dict(holders)
    failed: dict[str, list[str]] = {}
    turn = next(_turn)
    for number in range(max(map(len, holders.values()), default=0)):
        asked: dict[str, list[CopyRow]] = {}
        for rows in left.values():
            if number < len(rows):
                row = rows[(turn + number) % len(rows)]
                asked.setdefault(row.node, []).append(row)
        for node, rows in sorted(asked.items()):
            for row, error in _fetch_from_node(way, node, rows):
                if error is None:
                    del left[row.location]
                elif isinstance(error, DiskFullError):
                    raise error
                else:
                    failed.setdefault(row.location, []).append(f"{node}: {error.message}")
    if left:
        location = min(left)
        raise RetryableError(
            f"{location} is not at receiver {way.cluster.receiver.name}, and no node that has it gives it: "
            + "; ".join(failed.get(location, [])),
            hint="./tidemark cluster check names what is wrong with the nodes; then run it again",
            subject=location,
        )


def _fetch_from_node(way: _FetchRoute, node: str, rows: Sequence[CopyRow]) -> Iterator[tuple[CopyRow, TidemarkError | None]]:
    """Fetch files from one node into place; yield each row with None, or with its error."""
    by_path = {f"{way.folder}/{row.location}": row for row in rows}
    items = [SendItem(row.location, path, row.size, row.sha256) for path, row in by_path.items()]
    try:
        outcomes = list(engine.send_files(way.cluster.open_store(node), way.store, items, _OPTIONS))
    except TidemarkError as error:
        yield from ((row, error) for row in rows)
        return
    sent = [] if way.aside else [outcome.item for outcome in outcomes if isinstance(outcome, Sent)]
    way.store.make_folders(sorted({item.source_path.rpartition("/")[0] for item in sent}))
    way.store.seal_parts([(item.target_path, item.source_path) for item in sent])
    for outcome in outcomes:
        yield by_path[outcome.item.target_path], None if isinstance(outcome, Sent) else outcome.error


AHEAD = 64 << 20  # bytes brought at a time: in a smaller transfer most of the time is the start
Step = TypeVar("Step")


@dataclass
class Feed:
    """Called by a `CatalogReader` for a file that is not below the receiver's root; returns the root that it is below."""

    cluster: Cluster
    store: Store  # the receiver's
    root: Path
    left: int | None  # bytes that may still come into the cache; None: any
    place: str = field(default_factory=new_place)
    counted: set[str] = field(default_factory=set)  # locations that are counted to the cache
    own: dict[str, CatalogFile] = field(default_factory=dict)  # in the reading's own folder

    def __call__(self, file: CatalogFile) -> Path | None:
        if file.location not in self.own:
            recall_files(self.cluster, [file])
            return None
        own = self.root / self.place
        if not all((own / at).is_file() for at, _ in places_of(file)):  # removed: the reading took longer than the grace
            fetch_aside(self.cluster, [file], self.place)
        return own

    def bring_files(self, files: Sequence[CatalogFile]) -> None:
        """Make these files readable, and remove the others from the reading's own folder."""
        shared = [file for file in files if file.location not in self.counted and self._admit_to_cache(file)]
        aside = {file.location: file for file in files if file.location not in self.counted}
        over = [self.own.pop(at) for at in sorted(self.own.keys() - aside.keys())]
        self.store.remove([f"{self.place}/{at}" for file in over for at, _ in places_of(file)])
        recall_files(self.cluster, shared)
        missing = [file for at, file in aside.items() if at not in self.own]
        if missing:
            fetch_aside(self.cluster, missing, self.place)
            self.own |= {file.location: file for file in missing}

    def _admit_to_cache(self, file: CatalogFile) -> bool:
        """Return whether the file is in the cache, or there is room for it."""
        if self.left is not None and not (self.root / file.location).is_file():
            if file.size > self.left:
                return False
            self.left -= file.size
        self.counted.add(file.location)
        return True


@contextmanager
def open_feed(cluster: Cluster | None, root: Path) -> Iterator[Feed | None]:
    """Open a feed. None without a cluster: everything is at the receiver."""
    if cluster is None:
        yield None
        return
    with cluster.app.receiver_store(cluster.receiver) as store:
        feed = Feed(cluster, store, root, cluster.settings.cache_bytes or None)
        try:
            # CRASH WINDOW: files in a folder of this reading alone: housekeeping removes it.
            yield feed
        finally:
            store.remove_tree(feed.place)


def feed_steps(feed: Feed | None, steps: Iterable[tuple[Step, Sequence[CatalogFile]]]) -> Iterator[Step]:
    """Yield each step once its files are readable, together with those of the following steps up to `AHEAD` bytes."""
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
            feed.bring_files(list(files.values()))
            yield from ready
            ready, files, size = [], {}, 0
            more = sum(file.size for file in new.values())
        ready.append(step)
        files |= new
        size += more
    feed.bring_files(list(files.values()))
    yield from ready
