"""Input and results of a transfer, and the `Wire`: its two stores, byte counts and limits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tidemark.errors import DiskFullError, SourceVanishedError, TidemarkError
from tidemark.stores.protocol import Entry, Store, Tier
from tidemark.transfer.limits import FileDeadlines, LineShare, TokenBucket

if TYPE_CHECKING:
    from tidemark.settings.model import ClusterSettings, LinkSettings
    from tidemark.stores.sftp.session import BulkWire


SMALL = 1 << 20  # files up to here (and up to a block, and a pace of a capped link) are sent whole, in bundles
ALWAYS_SMALL = 1 << 15  # and up to here in any case: larger ones may have a journal of a try with a lower cap
DIRECT, RELAYED = "direct", "relayed: "


@dataclass(frozen=True)
class SendItem:
    """A request to copy the first `size` bytes of `source_path` to `target_path`. `sha256`: their digest, if known."""

    source_path: str
    target_path: str
    size: int
    sha256: str = ""

    @property
    def may_have_an_old_journal(self) -> bool:
        """Whether an earlier try, with a lower cap or a longer line, may have left a journal for a file sent whole now."""
        return self.size > ALWAYS_SMALL


@dataclass(frozen=True)
class SendOptions:
    """How files are sent. Settings become options here alone: those of a link by `of`, of a cluster by `of_cluster`."""

    block_bytes: int = 4_194_304
    retries: int = 5  # tries after the first
    bandwidth: float = 0.0  # bytes a second, 0: no cap
    should_stop: Callable[[], bool] | None = None  # asked between blocks and bundles; True ends the send there
    connections: int = 16  # to a remote end, at most
    digest_at_source: bool = True  # False: at the target alone, "not verified at the source"
    slowest: float = 1000.0  # bytes a second; a slower file fails (`limits`); 0: no limit
    reserve: int = 0  # bytes of the target's disk that stay free
    line: LineShare | None = None  # a cap shared with other processes, above `bandwidth`; does not leave this process
    direct: bool = False  # two far ends send to each other directly if they can (`route`)

    @classmethod
    def of(
        cls,
        link: LinkSettings,
        *,
        reserve: int = 0,
        line: LineShare | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> SendOptions:
        """Return the options of a run of `link`. The others are fields of this class."""
        return cls(
            block_bytes=link.block_bytes,
            retries=link.retries,
            bandwidth=link.bandwidth,
            should_stop=should_stop,
            connections=link.connections,
            digest_at_source=link.digest == "both",
            slowest=link.slowest,
            reserve=reserve,
            line=line,
        )

    @classmethod
    def of_cluster(cls, settings: ClusterSettings | None, retries: int, line: LineShare | None = None) -> SendOptions:
        """Return the options between a receiver and its nodes. `settings`: whose bandwidth limits it; None: no limit of the
        cluster's own."""
        return cls(bandwidth=settings.bandwidth if settings else 0.0, retries=retries, line=line, direct=True)

    def divide(self, tasks: int) -> SendOptions:
        """Return the part of bandwidth and connections that each of so many tasks may use. Pure."""
        return replace(self, bandwidth=self.bandwidth / tasks, connections=max(1, self.connections // tasks))


@dataclass(frozen=True)
class Sent:
    """A file that is durable under its final name. `verified`: where its digest was made: "source" (there too) or "target"
    (there alone). `path`: DIRECT, or RELAYED and why; "" if there was no choice."""

    item: SendItem
    sha256: str
    wire_bytes: int
    verified: str
    path: str = ""


@dataclass(frozen=True)
class Failed:
    """A file that was not sent, and its error."""

    item: SendItem
    error: TidemarkError
    wire_bytes: int


class TryAgain(Exception):
    """This try of a file failed, another may succeed: a digest differs, or the source changed meanwhile."""

    def __init__(self, error: TidemarkError) -> None:
        super().__init__(str(error))
        self.error = error


@runtime_checkable
class BulkWriting(Store, Protocol):
    """Further calls of a store over SFTP. `reads_back`: it can make a digest there only by reading the file back."""

    reads_back: bool

    def bulk_session(self) -> BulkWire:
        """Return the session of its own calls, or a new one if that is broken."""
        ...

    def locate_path(self, path: str) -> str: ...

    def explain_error(self, error: OSError, path: str) -> TidemarkError:
        """Translate an error of the server."""
        ...

    def name_durable(self, renames: Sequence[tuple[str, str, int]]) -> list[int]:
        """Rename durable parts, (part, final, size) each. Returns the numbers of those that were missing or different."""
        ...


@dataclass
class Wire:
    source: Store
    target: Store
    options: SendOptions
    on_bytes: Callable[[int], None]
    bucket: TokenBucket = field(init=False)
    deadlines: FileDeadlines = field(init=False)  # by source path
    spent: dict[str, int] = field(default_factory=dict)  # wire bytes by target path, of all tries of the item

    path: str = ""  # of the current round, see `Sent`
    litter: list[str] = field(default_factory=list)  # leftover files at the target, to be removed
    _counting: threading.Lock = field(default_factory=threading.Lock)  # one thread counts, another makes outcomes

    def __post_init__(self) -> None:
        slowest = self.options.slowest
        self.bucket = TokenBucket(self.options.bandwidth, line=self.options.line)
        self.deadlines = FileDeadlines(
            min(slowest, self.bucket.least_rate / 4) if self.bucket.most_rate else slowest
        )  # a cap must not make a file late

    @property
    def small_limit(self) -> int:
        """Files up to so many bytes are sent whole."""
        return min(self.options.block_bytes, max(ALWAYS_SMALL, min(SMALL, self.bucket.pace_bytes or SMALL)))

    @property
    def proven_at_source(self) -> bool:
        """Whether the source can digest its files: this process on a local disk, or a tool of the far end."""
        return self.source.properties.tier is not Tier.SFTP

    @property
    def has_far_digests(self) -> bool:
        """Whether the far end digests the source after it was read: only that shows that nothing changed meanwhile."""
        return self.source.properties.tier in (Tier.PYTHON, Tier.POSIX)

    def is_stopped(self) -> bool:
        return self.options.should_stop is not None and self.options.should_stop()

    def count_bytes(self, item: SendItem, size: int) -> None:
        """Count and report `size` bytes of `item` that crossed."""
        self.add_spent([(item.target_path, size)])
        self.on_bytes(size)

    def add_spent(self, pieces: Iterable[tuple[str, int]]) -> None:
        """Count wire bytes, (target path, bytes) each. Any thread may call it."""
        with self._counting:
            for path, size in pieces:
                self.spent[path] = self.spent.get(path, 0) + size

    def make_sent(self, item: SendItem, sha256: str) -> Sent:
        return self.make_all_sent([(item, sha256)])[0]

    def make_all_sent(self, files: Iterable[tuple[SendItem, str]]) -> list[Sent]:
        """Make the outcomes of files, (item, SHA-256) each. Any thread may call it."""
        verified = "source" if self.proven_at_source and self.options.digest_at_source else "target"
        with self._counting:
            return [Sent(item, sha256, self.spent.pop(item.target_path, 0), verified, self.path) for item, sha256 in files]

    def make_failed(self, item: SendItem, error: TidemarkError) -> Failed:
        with self._counting:
            return Failed(item, error, self.spent.pop(item.target_path, 0))


def require_source(item: SendItem, entry: Entry | TidemarkError | None) -> Entry:
    """Return the source's entry. Raises SourceVanishedError if it vanished or is shorter than when it was selected."""
    if isinstance(entry, TidemarkError):
        raise entry
    if entry is None:
        raise SourceVanishedError(
            f"{item.source_path} is gone at the source", hint="the next run lists again", subject=item.source_path
        )
    if entry.size < item.size:
        raise source_shorter_error(item, entry.size)
    return entry


def source_shorter_error(item: SendItem, size: int) -> SourceVanishedError:
    return SourceVanishedError(
        f"{item.source_path} has {size} bytes, {item.size} were selected",
        hint="the next run lists again",
        subject=item.source_path,
    )


def no_room_for(wire: Wire, item: SendItem, missing: int, room: int) -> DiskFullError:
    """Make the error before a file's first byte: `missing` bytes are to come, there is room for `room`."""
    return DiskFullError(
        f"{wire.target.url} has room for {room} bytes, {item.target_path} needs {missing}",
        hint="free space there, then run again",
        subject=item.target_path,
    )


def no_room_left(wire: Wire, free: int, missing: int) -> DiskFullError:
    """Make the error while bytes come: `missing` more are to come, `free` are free."""
    reserve = wire.options.reserve
    return DiskFullError(
        f"{wire.target.url} has {free} bytes free, {missing} are still to come"
        + (f" and {reserve} are to stay free" if reserve else ""),
        hint="free space there, then run again: it goes on from what is there",
        subject=wire.target.url,
    )


def source_changed_error(item: SendItem) -> TryAgain:
    return TryAgain(
        SourceVanishedError(
            f"{item.source_path} changed while it was read",
            hint="the next run lists again; is the file still being written?",
            subject=item.source_path,
        )
    )
