"""One source as its commands see it: settings, store, lease. What `./tidemark changes …` does.

A capture holds the lease `capture:<source>`. Its fence is the fence of the store's writer. It is above all fences that
the store has seen, also where the ledger was lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path

from tidemark.app import App
from tidemark.changes import points
from tidemark.changes.bootstrap.run import bootstrap_table
from tidemark.changes.bootstrap.state import Table, read_state
from tidemark.changes.capture.identity import read_origin
from tidemark.changes.capture.run import Captured, Job, OpenDump, Place, capture, open_log_files, parse_gtids
from tidemark.changes.capture.transactions import Rules
from tidemark.changes.connection import model as connection
from tidemark.changes.connection.dump import open_dump
from tidemark.changes.connection.login import open_server
from tidemark.changes.export import Exported, Query, Stream, export
from tidemark.changes.gaps import find_gap, record_gap
from tidemark.changes.store import retain as cleaning
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.holders import Fences
from tidemark.changes.store.layout import hour_name
from tidemark.changes.store.read import Found, Reader
from tidemark.changes.store.verify import Verified, verify_store
from tidemark.changes.trust.answers import StoreEnd, ask_server
from tidemark.errors import BinlogGapError, NotFoundError, RetryableError, TidemarkError, UsageError
from tidemark.ledger.leases import Lease, Leases
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.settings.model import Settings, SourceSettings
from tidemark.settings.values import split_server_url

VERIFIED = "verified"
"""When the store was last found whole: seconds since 1970, as text."""
VERIFY_SECONDS = 86_400
RETAIN_SECONDS = 3600.0
Wants = Callable[[str, str], bool]


@dataclass
class Source:
    """A source of the settings, with its store."""

    app: App
    settings: SourceSettings

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def disk(self) -> Disk:
        return disk_of(self.settings)

    def open_reader(self) -> Reader:
        """The store as it is now. Raises NotFoundError where nothing was captured."""
        reader = Reader(self.disk)
        if not reader.view.end.seq:
            raise NotFoundError(
                f"source {self.name} has no changes yet", hint=f"./tidemark changes capture {self.name}", subject=self.name
            )
        return reader


def settings_of(settings: Settings, name: str) -> SourceSettings:
    found = settings.sources.get(name)
    if found is None:
        known = ", ".join(sorted(settings.sources)) or "none"
        raise NotFoundError(
            f"no source named {name!r}; the settings have: {known}",
            hint="sources stand in the settings: [sources.NAME]",
            subject=name,
        )
    return found


def find_source(app: App, name: str) -> Source:
    return Source(app, settings_of(app.settings, name))


def disk_of(settings: SourceSettings) -> Disk:
    return Disk(Path(settings.store.removeprefix("file://")))


def wants_of(settings: SourceSettings) -> Wants:
    return choose_tables(settings.tables, settings.exclude)


def login_of(settings: SourceSettings) -> connection.SourceSettings:
    """The login at the source's server. Raises UsageError where it has none."""
    if not settings.url:
        raise UsageError(
            f"source {settings.name} has no server",
            hint=f"set its url, or: ./tidemark changes capture {settings.name} --files …",
        )
    user, addresses = split_server_url(settings.url)
    return connection.SourceSettings(
        addresses,
        user,
        password_file=settings.password_file,
        tls=settings.tls,
        ca=settings.ca,
        server_id=settings.server_id,
        heartbeat_seconds=settings.heartbeat_seconds,
        name=settings.name,
    )


def find_end(disk: Disk) -> StoreEnd | None:
    """Where a store ends; None of an empty one."""
    view, origin = Reader(disk).view, read_origin(disk)
    if not view.end.seq or origin is None:
        return None
    info = view.end.info
    return StoreEnd(connection.FilePosition(origin.name_log(info.file), info.offset), parse_gtids(view.gtids))


def choose_tables(tables: Sequence[str], exclude: Sequence[str] = ()) -> Wants:
    """Which tables patterns of `database.table` mean."""

    def wants(database: str, table: str) -> bool:
        name = f"{database}.{table}"
        return any(fnmatchcase(name, p) for p in tables) and not any(fnmatchcase(name, p) for p in exclude)

    return wants


@dataclass(frozen=True)
class Request:
    """A capture as it is asked for. `files`: names or patterns of log files, instead of the server."""

    files: Sequence[str] = ()
    until: str = ""
    follow: bool = False


def capture_source(source: Source, request: Request, progress: Progress = ignore_progress) -> Captured:
    """Capture into the store, as the holder of the source's lease."""
    settings, disk = source.settings, source.disk
    open_events = _open_files(request.files) if request.files else _open_server(source, follow=request.follow)
    until = points.parse_point(request.until) if request.until else None
    rules = Rules(wants_of(settings), stops=settings.unsafe == "stop")
    with _hold_capture(source) as lease:
        cleaning_up = _retain_hourly(source, progress) if request.follow else nullcontext()
        try:
            with cleaning_up:
                return capture(Job(disk, lease.fence, rules, open_events, until, request.follow), progress)
        except BinlogGapError as met:
            if not request.files:
                _record_gap(source, met)
            raise


def _hold_capture(source: Source) -> AbstractContextManager[Lease]:
    """Hold the lease of a source's writer, with a fence above all that its store has seen."""
    holder = f"capture-{datetime.fromtimestamp(source.app.clock(), UTC):%Y%m%dT%H%M%SZ}"
    seen = Fences.of(source.disk.list_names("holders")).claim
    return Leases(source.app.ledger, source.app.identity).hold_lease(f"capture:{source.name}", holder, above=seen)


@contextmanager
def _retain_hourly(source: Source, progress: Progress) -> Iterator[None]:
    """Have a capture that goes on for good clean its store each hour."""
    ended = threading.Event()

    def clean() -> None:
        while not ended.wait(RETAIN_SECONDS):
            try:
                retain_source(source)
            except TidemarkError as trouble:
                progress(Tick(f"not cleaned: {trouble.message}"))

    thread = threading.Thread(target=clean, name="retain", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _record_gap(source: Source, met: BinlogGapError) -> None:
    """Record what the server purged before it was captured. Raises BinlogGapError that names it; returns if it is no gap of
    the server, or the server cannot say now: the next capture meets it again."""
    end = find_end(source.disk)
    if end is None:
        return
    try:
        gap = find_gap(ask_server(login_of(source.settings), wants_of(source.settings), end, source.app.clock), end)
    except RetryableError:
        return
    if gap is None:
        return
    gap = record_gap(source.disk, gap)
    raise BinlogGapError(
        f"gap {gap.id} of source {source.name}: the server purged what follows {gap.start}, and begins with {gap.end}",
        hint=f"./tidemark changes show {source.name} names the tables; what is lost stands in no log: read them anew",
        subject=gap.id,
    ) from met


def bootstrap_source(
    source: Source, patterns: Sequence[str] = ("**",), progress: Progress = ignore_progress
) -> Mapping[str, Table]:
    """Read the tables that are not read yet into the store, as the holder of the source's lease. How far each is."""
    settings, disk = source.settings, source.disk
    wants, asked = wants_of(settings), choose_tables(patterns)
    rules = Rules(wants, stops=settings.unsafe == "stop")
    for database, table in _list_tables(source):
        if not (wants(database, table) and asked(database, table)):
            continue
        with _hold_capture(source) as lease, open_server(login_of(settings)) as server:
            job = Job(disk, lease.fence, rules, _open_server(source, follow=False))
            bootstrap_table(job, server, (database, table), progress)
    return read_state(disk).tables


def _list_tables(source: Source) -> list[tuple[str, str]]:
    """The tables of a source's server of which a snapshot is consistent."""
    with open_server(login_of(source.settings)) as server:
        rows = server.ask(
            "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE'"
            " AND ENGINE = 'InnoDB' AND TABLE_SCHEMA NOT IN ('mysql', 'sys') ORDER BY 1, 2"
        )
    return [(str(row["d"]), str(row["t"])) for row in rows]


def _open_files(patterns: Sequence[str]) -> OpenDump:
    found: dict[Path, None] = {}
    for pattern in patterns:
        names = sorted(glob(pattern))  # noqa: PTH207 (a pattern may be absolute)
        if not names:
            raise UsageError(f"--files {pattern}: there is no such file", subject=pattern)
        found |= dict.fromkeys(map(Path, names))
    return open_log_files(found)


def _open_server(source: Source, *, follow: bool) -> OpenDump:
    """The source's server, from a store's end on; a new store begins with the oldest log that the server has."""
    login = login_of(source.settings)

    def open_events(end: Place | None) -> tuple[connection.Dump, bool]:
        server = open_server(login)
        try:
            logs = [str(row["Log_name"]) for row in server.ask("SHOW BINARY LOGS")]
        except BaseException:
            server.close()
            raise
        if end is None:
            return open_dump(server, connection.FilePosition(logs[0]), follow=follow), False
        if end.gtids is not None and end.position.file not in logs:  # a log without anything new behind it may be purged
            return open_dump(server, end.gtids, follow=follow), False
        return open_dump(server, end.position, follow=follow), True

    return open_events


# reading


def find_in_source(source: Source, point: str) -> tuple[Found | None, int]:
    """Where the first transaction at or after a POINT lies, and how many blocks were read to find it."""
    reader = source.open_reader()
    return points.find_point(reader, point), reader.blocks_read


@dataclass(frozen=True)
class Span:
    """What to read: from `start` on, to before `end` (POINTs; "": all), of some tables."""

    tables: Sequence[str] = ("**",)
    start: str = ""
    end: str = ""


def read_source(source: Source, span: Span, out: Path | Stream) -> Exported:
    """Write what the store holds."""
    reader = source.open_reader()
    first = points.number_of_point(reader, span.start) if span.start else reader.first
    end = points.number_of_point(reader, span.end) if span.end else reader.view.end.seq + 1
    return export(reader, read_origin(source.disk), Query(first, end, choose_tables(span.tables)), out)


def verify_source(source: Source) -> Verified:
    """Every checksum and every seam of the store. When it is whole, that is noted beside it, for `is_verify_due`."""
    source.open_reader()
    proof = verify_store(source.disk)
    if not proof.problems:
        # CRASH WINDOW: it is not noted: the next round verifies again.
        source.disk.publish(VERIFIED, str(int(source.app.clock())).encode())
    return proof


def is_verify_due(source: Source) -> bool:
    """Whether the store was last found whole a day ago, or never. An empty one has nothing to verify."""
    try:
        last = int(source.disk.read(VERIFIED))
    except (FileNotFoundError, ValueError):
        last = 0
    return bool(Reader(source.disk).view.end.seq) and source.app.clock() - last >= VERIFY_SECONDS


def retain_source(source: Source) -> cleaning.Retained:
    """One round of cleaning."""
    rules = cleaning.Rules(hours=source.settings.retain_hours, most_bytes=source.settings.retain_bytes)
    return cleaning.retain(source.disk, rules, source.app.clock())


def name_oldest(source: Source) -> str | None:
    """The oldest transaction of the store as a POINT; None of an empty one."""
    reader = Reader(source.disk)
    return f"seq:{reader.first}" if reader.view.end.seq else None


def name_bucket(found: Found) -> str:
    """The bucket of a place, as `hour/number`; "tail" where no block is closed yet."""
    if found.position is None:
        return "tail"
    return f"{hour_name(found.position.bucket.hour)}/{found.position.bucket.number:05}"
