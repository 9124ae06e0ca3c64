"""One source as its commands see it: settings, store, lease. What `./tidemark changes …` does.

A capture holds the lease `capture:<source>`. Its fence is the fence of the store's writer. It is above all fences that
the store has seen, also where the ledger was lost.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.app import App, find_named
from tidemark.changes.bootstrap import requests
from tidemark.changes.bootstrap.catalog import Catalog, forget_definitions, read_known
from tidemark.changes.bootstrap.chunks import ask_end
from tidemark.changes.bootstrap.requests import list_requests
from tidemark.changes.bootstrap.run import Bootstrapped, Pace, bootstrap_tables
from tidemark.changes.bootstrap.state import DONE, READING, WAITING, Table, read_state
from tidemark.changes.capture.identity import read_origin
from tidemark.changes.capture.run import (
    LEAST_WAIT,
    MOST_WAIT,
    Captured,
    Job,
    OpenDump,
    capture_into,
    open_log_files,
    parse_gtids,
)
from tidemark.changes.capture.transactions import Rules
from tidemark.changes.connection import model as connection
from tidemark.changes.connection.dump import open_dump
from tidemark.changes.connection.login import Server, open_server
from tidemark.changes.delivery import points
from tidemark.changes.delivery.export import Exported, Query, Stream, Wants, choose_tables, export
from tidemark.changes.mirror import Mirror
from tidemark.changes.sources.begin import Begin, BegunElsewhereError, begin_with_tables, open_begun, open_noted, pin_job
from tidemark.changes.store import retain as cleaning
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.holders import Fences
from tidemark.changes.store.layout import hour_name
from tidemark.changes.store.read import Found, Reader, open_whole
from tidemark.changes.store.view import read_next_view
from tidemark.changes.store.write import Writer
from tidemark.changes.trust.answers import StoreEnd, ask_server
from tidemark.changes.trust.gaps import find_gap, record_gap
from tidemark.changes.trust.patterns import Patterns, ask_names
from tidemark.changes.trust.resume import Resume
from tidemark.connections import read_connection
from tidemark.errors import (
    BinlogGapError,
    LeaseHeldError,
    NotFoundError,
    PermanentError,
    RetryableError,
    TidemarkError,
    UnreachableError,
    UsageError,
)
from tidemark.ledger.delivery import read_sink_tables
from tidemark.ledger.leases import Lease, Leases
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.settings.model import Settings, SourceSettings
from tidemark.settings.values import split_server_url

if TYPE_CHECKING:
    from tidemark.changes.delivery.shards import Sharding

RETAIN_SECONDS = 3600.0
ASK_SECONDS = 0.5
"""How often who waits for another's capture looks."""
BOOTSTRAP = "bootstrap"
"""Where a new store begins, if not at a POINT."""


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
        reader = open_whole(self.disk)
        if not reader.view.end.seq:
            raise NotFoundError(
                f"source {self.name} has no changes yet", hint=f"./tidemark changes capture {self.name}", subject=self.name
            )
        return reader


def settings_of(settings: Settings, name: str) -> SourceSettings:
    return find_named(settings.sources, name, "source", "sources stand in the settings: [sources.NAME]")


def find_source(app: App, name: str) -> Source:
    return Source(app, settings_of(app.settings, name))


def disk_of(settings: SourceSettings) -> Disk:
    return Disk(Path(settings.store.removeprefix("file://")))


def wants_of(settings: SourceSettings) -> Wants:
    return choose_tables(settings.tables, settings.exclude)


def patterns_of(settings: SourceSettings) -> Patterns:
    return Patterns(settings.tables, settings.exclude)


def login_of(settings: SourceSettings) -> connection.SourceSettings:
    """The login at the source's server. UsageError where it has none, or a connection without a password; else as
    `read_connection`."""
    if not settings.url:
        raise UsageError(
            f"source {settings.name} has no server",
            hint=f"set its url, or: ./tidemark changes capture {settings.name} --files …",
        )
    user, addresses = split_server_url(settings.url)
    told = read_connection(settings.connection, ("mysql", "generic")) if settings.connection else None
    if told is not None and not told.password:
        raise UsageError(f"Airflow {told.name} has no password", hint=told.next_step, subject=told.id)
    return connection.SourceSettings(
        addresses,
        told.login or user if told else user,
        password_file=settings.password_file,
        password=told.password if told else "",
        tls=settings.tls,
        ca=settings.ca,
        server_id=settings.server_id,
        heartbeat_seconds=settings.heartbeat_seconds,
        name=settings.name,
    )


def find_end(disk: Disk) -> StoreEnd | None:
    """Where a store ends; None of an empty one."""
    view, origin = read_next_view(disk), read_origin(disk)
    if not view.end.seq or origin is None:
        return None
    info = view.end.info
    logs, name = origin.changes.get(info.change_id), origin.name_log(info.file, info.change_id)
    head = logs.heads.get(info.file) if logs else None
    return StoreEnd(connection.FilePosition(name, info.offset), parse_gtids(view.gtids), head)


def list_gone(source: Source, names: Collection[str]) -> list[str]:
    """The tables of a store that its server has no more: of those that were read whole, and those of its sinks. `names`:
    the server's."""
    sinks = [sink.name for sink in source.app.settings.sinks.values() if sink.source == source.name]
    with source.app.ledger.read() as ledger:
        known = {name for sink in sinks for name in read_sink_tables(ledger, sink)}
    known |= {name for name, table in read_state(source.disk).tables.items() if table.state == DONE}
    return sorted(known.difference(names))


class Reading(enum.Enum):
    """When the rows are read that tables have: by this capture, by a later bootstrap, or not at all."""

    NOW = "now"
    LATER = "later"
    NEVER = "never"


@dataclass(frozen=True)
class Request:
    """A capture as it is asked for. `files`: names or patterns of log files, instead of the server. `start`: "" is what the
    settings say. With an `until`, rows are read later. `leaves_refused`: a table that could not be read is no error.
    `login`: at the server whose events are read; None: any of url."""

    files: Sequence[str] = ()
    start: str = ""
    until: str = ""
    follow: bool = False
    reading: Reading = Reading.NOW
    leaves_refused: bool = False
    login: connection.SourceSettings | None = None


@dataclass(frozen=True)
class Done:
    """What a capture did, and the tables whose rows it read to their end. `idle`: what is told of its patterns that mean no
    table of the server."""

    captured: Captured
    tables: Sequence[str] = ()
    idle: Sequence[str] = ()


def capture_source(source: Source, request: Request, progress: Progress = ignore_progress) -> Done:
    """Capture into the store, as the holder of the source's lease. A new store begins where `start` says.

    PermanentError: also where a table could not be read, after everything else is captured.
    """
    while True:
        try:
            return _capture_once(source, request, progress)
        except BegunElsewhereError as away:
            progress(Tick(f"{away.message}: it begins there"))


def _capture_once(source: Source, request: Request, progress: Progress) -> Done:
    disk = source.disk
    until = points.parse_point(request.until) if request.until else None
    with hold_capture(source) as lease:
        rules = _make_rules(source, progress, files=bool(request.files))
        is_new = not read_next_view(disk).end.seq
        if request.start and not is_new:
            raise UsageError(
                f"source {source.name} has changes already: a capture goes on where they end",
                hint="leave --from out, or give the source another store",
                subject=source.name,
            )
        begin = _begin_store(source, request) if is_new else Begin()
        mirror = None if request.files else _open_mirror(source)
        resume = None if request.files else resume_source(source, rules, mirror, follow=request.follow, progress=progress)
        if resume and request.login:
            resume = replace(resume, login=request.login)
        idle = _list_idle(source, resume, progress) if resume else []
        open_events = open_begun(resume, begin) if resume else open_files(request.files)
        reads = request.reading is Reading.NOW and not request.files and until is None
        asked = (lambda: bool(list_requests(disk))) if reads else bool
        switch = resume.open_behind if resume else None
        job = Job(
            disk, lease.fence, rules, open_events, until, begin.start, request.follow, asked, switch=switch, mirror=mirror
        )
        cleaning_up = _retain_hourly(source, progress) if request.follow else nullcontext()
        patterns = patterns_of(source.settings)
        with cleaning_up, _recording_gap(source, files=bool(request.files)), open_noted(job, patterns) as writer:
            parts: list[Captured] = []
            tables: list[str] = []
            while True:
                made = _read_tables(source, job, begin, writer, progress) if reads else None
                parts += [made.captured] if made else []
                tables += made.done if made else []
                ends = not request.follow and not request.files and until is None
                ending = _end_job(job, resume, begin) if resume and ends else job
                parts.append(capture_into(ending, writer, progress))
                if not (request.follow and job.is_asked()):
                    break
    if made is not None and made.refused is not None and not request.leaves_refused:
        raise made.refused
    _tell_parked(source, rules)
    rows, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
    return Done(Captured(parts[0].first, parts[-1].last, rows, size), tables, idle)


def _list_idle(source: Source, resume: Resume, progress: Progress) -> list[str]:
    """Tell of the patterns of the source that mean no table. Nothing, where the server does not answer: the capture asks it
    again, and has its trouble."""
    patterns = patterns_of(source.settings)
    if patterns == Patterns():
        return []
    try:
        with open_resumed(resume) as server:
            idle = patterns.list_idle(ask_names(server))
    except TidemarkError:
        return []
    for told in idle:
        progress(Tick(told))
    return idle


def _end_job(job: Job, resume: Resume, begin: Begin) -> Job:
    """A job up to where a server's log ends now, with the events of that server. Who does not follow goes as far: a server
    that is written to faster than it is read would keep it for good."""
    with open_resumed(resume) as server:
        end = ask_end(server)
        job = pin_job(job, resume, begin, server)
    return replace(job, until=points.parse_point(f"{end.file}:{end.position}") if end else None)


def _open_mirror(source: Source) -> Mirror | None:
    """What keeps the server's logs, if the settings say so."""
    if not source.settings.mirror:
        return None
    login = login_of(source.settings)
    return Mirror(source.disk, lambda address, start: open_dump(replace(login, addresses=(address,)), start))


def _make_rules(source: Source, progress: Progress, *, files: bool = False) -> Rules:
    """What a capture takes. For the holder of the lease."""
    settings, catalog = source.settings, None
    if settings.metadata == "catalog" and not files:
        catalog = Catalog(source.disk, login_of(settings), progress)
    else:
        forget_definitions(source.disk)  # statements come that nobody holds against them
    renamed = partial(requests.ask_renamed, source.disk)
    return Rules(wants_of(settings), stops=settings.unsafe == "stop", catalog=catalog, on_renames=renamed)


def _tell_parked(source: Source, rules: Rules) -> None:
    """Raise PermanentError where rows of a table are lost that is wanted, and not read anew."""
    for name, why in sorted(rules.catalog.parked.items() if rules.catalog else ()):
        if rules.wants(*name.split(".", 1)):
            raise PermanentError(
                f"{name} is parked: {why}", hint=f"./tidemark changes bootstrap {source.name} --tables {name}", subject=name
            )


def _begin_store(source: Source, request: Request) -> Begin:
    """Decide where a new store begins. Where that is with a bootstrap, its tables are asked for."""
    start = request.start or (source.settings.start if not request.files else "earliest")
    if start != BOOTSTRAP:
        if start in ("latest", "now") or start.startswith("seq:"):
            raise UsageError(f"{start} is no place in a server's logs", hint='"bootstrap", "earliest", or another POINT')
        return Begin(start=points.parse_point(start))
    if request.reading is Reading.NEVER:
        return Begin()
    return begin_with_tables(source.disk, login_of(source.settings), wants_of(source.settings))


def _read_tables(source: Source, job: Job, begin: Begin, writer: Writer, progress: Progress) -> Bootstrapped:
    """Read the tables that are asked for. Who follows asks a server again that is away, and tells of a table that cannot be
    read."""
    follow = job.follow
    resume = resume_source(source, job.rules, job.mirror, progress=progress)
    job = replace(job, open_dump=open_begun(resume, begin), switch=resume.open_behind, follow=False)

    def pin(job: Job, server: Server) -> Job:
        return pin_job(job, resume, begin, server)

    pace, wait = Pace(source.settings.bootstrap_rows), LEAST_WAIT
    while True:
        try:
            made = bootstrap_tables(job, writer, lambda: open_resumed(resume), pace, pin=pin, progress=progress)
        except UnreachableError as away:
            if not follow:
                raise
            progress(Tick(f"{away.message}: again in {wait:g} s"))
            time.sleep(wait)
            wait = min(2 * wait, MOST_WAIT)
            continue
        if made.refused is not None:
            progress(Tick(f"not read: {made.refused.message}"))
        return made


@contextmanager
def _recording_gap(source: Source, *, files: bool = False) -> Iterator[None]:
    try:
        yield
    except BinlogGapError as met:
        if not files:
            _record_gap(source, met)
        raise


def hold_capture(source: Source) -> AbstractContextManager[Lease]:
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
                retain_source(source, ended.is_set)
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
        login = pin_resumed(resume_source(source))
        gap = find_gap(ask_server(login, wants_of(source.settings), end, source.app.clock), end)
    except RetryableError:
        return
    if gap is None:
        return
    gap = record_gap(source.disk, gap)
    raise BinlogGapError(
        f"gap {gap.id} of source {source.name}: the server purged what follows {gap.start}, and begins with {gap.end}",
        hint=f"./tidemark changes repair {source.name} reads the tables anew; what is lost stands in no log",
        subject=gap.id,
    ) from met


def bootstrap_source(source: Source, progress: Progress = ignore_progress) -> Mapping[str, Table]:
    """Read the tables that are asked for and not read yet, as the holder of the source's lease. How far each is.

    PermanentError: a table could not be read; the others are. LeaseHeldError: a capture is at work, which may do it.
    """
    disk = source.disk
    with hold_capture(source) as lease:
        found = read_state(disk)
        if not list_requests(disk) and not found.list_open() and not read_known(disk).parked:
            return found.tables
        rules = _make_rules(source, progress)
        mirror = _open_mirror(source)
        resume = resume_source(source, rules, mirror, progress=progress)
        job = Job(disk, lease.fence, rules, resume.open_from(), switch=resume.open_behind, mirror=mirror)
        with _recording_gap(source), open_noted(job, patterns_of(source.settings)) as writer:
            made = _read_tables(source, job, Begin(), writer, progress)
    if made.refused is not None:
        raise made.refused
    return read_state(disk).tables


def ask_bootstrap(
    source: Source, request: requests.Request, *, wait: bool = True, progress: Progress = ignore_progress
) -> Mapping[str, Table]:
    """Ask for tables, or for no more of them. It is done here, or by the capture that is at work, which is waited for;
    without `wait`, by the next that comes by. How far each table is."""
    if not request.cancel:
        open_server(login_of(source.settings)).close()
    path = requests.write_request(source.disk, request)
    while wait:
        try:
            if not request.cancel:
                return bootstrap_source(source, progress)
            with hold_capture(source):
                requests.cancel(source.disk)
            break
        except LeaseHeldError as held:
            busy = any(table.state in (WAITING, READING) for table in read_state(source.disk).tables.values())
            if path not in list_requests(source.disk) and not busy:
                break
            progress(Tick(held.message))
            time.sleep(ASK_SECONDS)
    return read_state(source.disk).tables


def open_files(patterns: Sequence[str]) -> OpenDump:
    """The log files of patterns. Raises UsageError where one finds none."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        names = sorted(glob(pattern))  # noqa: PTH207 (a pattern may be absolute)
        if not names:
            raise UsageError(f"--files {pattern}: there is no such file", subject=pattern)
        found |= dict.fromkeys(map(Path, names))
    return open_log_files(found)


def resume_source(
    source: Source,
    rules: Rules | None = None,
    mirror: Mirror | None = None,
    *,
    follow: bool = False,
    progress: Progress = ignore_progress,
) -> Resume:
    """What opens the server's events from where the store ends on."""
    catalog = rules.catalog if rules else None

    def tell_server(address: tuple[str, int]) -> None:
        if isinstance(catalog, Catalog):
            catalog.use_server(address)
        if mirror is not None:
            mirror.use_server(address)

    return Resume(source.disk, login_of(source.settings), wants_of(source.settings), follow, tell_server, progress)


def open_resumed(resume: Resume) -> Server:
    """Log in at a server that can go on from where the store ends, if there is one."""
    end = find_end(resume.disk)
    return resume.open_server(end.gtids if end else None)


def pin_resumed(resume: Resume) -> connection.SourceSettings:
    """The login at the server of `open_resumed`."""
    if len(resume.login.addresses) == 1:
        return resume.login
    with open_resumed(resume) as server:
        return server.pin_login()


# reading


def find_in_source(source: Source, point: str) -> tuple[Found | None, int]:
    """Where the first transaction at or after a POINT lies, and how many blocks were read to find it."""
    reader = source.open_reader()
    return points.find_point(reader, point), reader.blocks_read


@dataclass(frozen=True)
class Span:
    """What to read: from `start` on, to before `end` (POINTs; "": all), of some tables, of one shard (None: of all)."""

    tables: Sequence[str] = ("**",)
    start: str = ""
    end: str = ""
    sharding: Sharding | None = None
    shard: int = 0


def read_source(source: Source, span: Span, out: Path | Stream) -> Exported:
    """Write what the store holds."""
    reader = source.open_reader()
    first = points.number_of_point(reader, span.start) if span.start else reader.first
    end = points.number_of_point(reader, span.end) if span.end else reader.view.end.seq + 1
    query = Query(first, end, choose_tables(span.tables), span.sharding, span.shard)
    return export(reader, read_origin(source.disk), query, out)


def retain_source(source: Source, is_asked_to_end: Callable[[], bool] = bool) -> cleaning.Retained:
    """One round of cleaning. What a task still has to read stays, up to `retain_bytes`."""
    from tidemark.changes.delivery.tasks import needed_of  # it imports Arrow

    settings, needed = source.settings, needed_of(source.app.ledger, source.name)
    rules = cleaning.Rules(
        settings.retain_hours, needed=needed, most_bytes=settings.retain_bytes, compress_hours=settings.compress_hours
    )
    return cleaning.retain(source.disk, rules, source.app.clock(), is_asked_to_end)


def name_oldest(source: Source) -> str | None:
    """The oldest transaction of the store as a POINT; None of an empty one."""
    reader = Reader(source.disk, read_next_view(source.disk))
    return f"seq:{reader.first}" if reader.view.end.seq else None


def name_bucket(found: Found) -> str:
    """The bucket of a place, as `hour/number`; "tail" where no block is closed yet."""
    if found.position is None:
        return "tail"
    return f"{hour_name(found.position.bucket.hour)}/{found.position.bucket.number:05}"
