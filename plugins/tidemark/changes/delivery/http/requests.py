"""What clients ask, as JSON: subscriptions, fetches, points of a task. Pure. The names of the fields are the original's.

Raises UsageError that names the field. Every number is bounded here, so nothing behind asks how large one is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from uuid import UUID

from tidemark.changes.capture.identity import Logs, Origin
from tidemark.changes.delivery.shards import MIXED, MOST_SHARDS, SPLIT, Sharding
from tidemark.changes.delivery.spans import MOST_PARTS, Span, SpanAsked
from tidemark.changes.delivery.storage_points import point_fields, read_point_fields
from tidemark.changes.delivery.tasks import Wanted
from tidemark.changes.store.model import Shape
from tidemark.errors import UsageError
from tidemark.ledger.delivery import StoragePoint

EARLIEST, LATEST, NORMAL = "EARLIEST", "LATEST", "NORMAL"
PROTOCOL_BUFFER, ARROW = "PROTOCOL_BUFFER", "ARROW"
MOST_EVENTS, MOST_BYTES, MOST_MILLISECONDS = 100_000, 4 << 20, 60_000
MOST_TABLES, MOST_TEXT, MOST_NAME = 1000, 1 << 14, 256
MOST_SHAPE = 8 << 20
"""Characters of a table's shape: 4,096 columns, and as many words of an ENUM as one may have."""
LARGEST_SEQ, MOST_GENERATIONS = (1 << 62) - 1, 1 << 31
_LARGEST = (1 << 63) - 1
_MEMBER = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_MISSING = object()


@dataclass(frozen=True)
class Checkpoint:
    """Where a client goes on: behind this event, or where `mode` says. What is not known is 0 or "".

    `seq`: with this transaction of the reader's store. `stored`: behind this storage point, whatever else is said.
    """

    mode: str = NORMAL
    gtid_set: str = ""
    uuid: str = ""
    transaction_id: int = 0
    event_index: int = -1
    server_id: int = 0
    file: int = 0
    offset: int = 0
    milliseconds: int = 0
    seq: int = 0
    stored: StoragePoint | None = None


@dataclass(frozen=True)
class Subscription:
    """What a client wants: of a source, for a task, some shards of some tables, from a point on."""

    task: str
    source: str
    sharding: Sharding
    shards: tuple[int, ...]
    tables: tuple[str, ...] = ("**",)
    checkpoint: Checkpoint = Checkpoint()
    codec: str = PROTOCOL_BUFFER
    is_undivided: bool = False
    is_compressed: bool = True
    needs_end: bool = True
    needs_ddl: bool = True


@dataclass(frozen=True)
class Fetch:
    """How much a client takes at once, and how long it waits for the first of it."""

    events: int = 1000
    milliseconds: int = 50
    bytes: int = 1_000_000


@dataclass(frozen=True)
class Commit:
    """That a shard's events are dealt with, up to `checkpoint`. `version_ts`: of the point that the client began from."""

    task: str
    shard: int
    checkpoint: Checkpoint
    version_ts: int


@dataclass(frozen=True)
class CommitPoints:
    """That shards are dealt with up to storage points. `fences`: of leases that `member` has."""

    task: str
    points: Mapping[int, StoragePoint]
    member: str = ""
    fences: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Begin:
    """A task that is to be there; where `wanted.start` is "" it is only looked at. `points`: those that another reader of
    the source has of it, of `generation`. Where a rewind was of some shards, these alone have its version."""

    wanted: Wanted
    generation: int = 1
    points: Mapping[int, StoragePoint] = field(default_factory=dict)


@dataclass(frozen=True)
class Hold:
    """What a member has and would have: it reads `generation`, is done with the shards `release`, wants no others than
    `only` (None: its share)."""

    task: str
    member: str
    generation: int
    release: tuple[int, ...] = ()
    only: tuple[int, ...] | None = None
    leaves: bool = False


@dataclass(frozen=True)
class Locate:
    """Where shards go on in this reader's store."""

    task: str
    points: Mapping[int, StoragePoint]


@dataclass(frozen=True)
class Rewind:
    """That a task is to go on from POINT `to`, in all or some shards. Without `apply`: what that would mean."""

    task: str
    to: str
    shards: tuple[int, ...] = ()
    apply: bool = False


@dataclass(frozen=True)
class AskSpan:
    """A span of a source's store, asked for in the name of a task, which needs not have begun."""

    task: str
    source: str
    asked: SpanAsked


def parse_task(body: bytes) -> str:
    return Fields(parse_object(body), "").text("taskName")


def parse_begin(body: bytes) -> Begin:
    fields = Fields(parse_object(body), "")
    columns = None
    if fields.values.get("columns") is not None:
        columns = parse_columns(fields.group("columns"))
    wanted = Wanted(
        fields.text("taskName"),
        fields.text("serviceGroupName"),
        fields.number("partitionTotal", 0, least=1, most=MOST_SHARDS) if "partitionTotal" in fields.values else None,
        fields.text("hash", "") or None,
        fields.text("keyChange", "") or None,
        columns,
        texts_of(fields, "tables") if fields.values.get("tables") is not None else None,
        "" if fields.flag("look", default=False) else fields.text("start", "earliest"),
    )
    points = _parse_points(fields)
    if points and sorted(points) != list(range(wanted.shards or 0)):
        raise UsageError("points: one of each of `partitionTotal` shards is wanted, or none")
    return Begin(wanted, fields.number("generation", 1, least=1, most=MOST_GENERATIONS), points)


def parse_hold(body: bytes) -> Hold:
    fields = Fields(parse_object(body), "")
    only = shards_of(fields, "only") if fields.values.get("only") is not None else None
    return Hold(
        fields.text("taskName"),
        _parse_member(fields),
        fields.number("generation", 1, least=1, most=MOST_GENERATIONS),
        shards_of(fields, "release"),
        only,
        fields.flag("leaves", default=False),
    )


def parse_locate(body: bytes) -> Locate:
    fields = Fields(parse_object(body), "")
    return Locate(fields.text("taskName"), _parse_points(fields))


def parse_commit(body: bytes) -> Commit | CommitPoints:
    fields = Fields(parse_object(body), "")
    if "points" in fields.values:
        points, member = _parse_points(fields), _parse_member(fields) if "member" in fields.values else ""
        told = [Fields(one, "points") for one in fields.list("points", ())]
        fences = {one.values["shard"]: one.number("fence", 0) for one in told if "fence" in one.values}
        return CommitPoints(fields.text("taskName"), points, member, fences)
    point = fields.group("buffaloCheckpoint")
    version = point.number("versionTs", -1, least=0)
    return Commit(fields.text("taskName"), fields.number("shard", -1, most=MOST_SHARDS), _parse_checkpoint(point), version)


def parse_rewind(body: bytes) -> Rewind:
    fields = Fields(parse_object(body), "")
    apply = fields.flag("apply", default=False)
    return Rewind(fields.text("taskName"), fields.text("to"), shards_of(fields, "shards"), apply)


def parse_span(body: bytes) -> AskSpan:
    fields = Fields(parse_object(body), "")
    is_stored = fields.values.get("point") is not None
    asked = SpanAsked(
        _read_stored(fields.values["point"], "point") if is_stored else fields.text("from", "earliest"),
        fields.text("to", ""),
        fields.number("rows", 0),
        fields.number("partRows", 0),
        fields.text("table", ""),
    )
    return AskSpan(fields.text("taskName"), fields.text("serviceGroupName"), asked)


def describe_span_asked(asked: SpanAsked) -> dict[str, Any]:
    """What `parse_span` reads, beside the task and the source."""
    is_stored = isinstance(asked.start, StoragePoint)
    body: dict[str, Any] = {"point": point_fields(asked.start)} if is_stored else {"from": asked.start}  # type: ignore[arg-type]
    body |= {"to": asked.end} if asked.end else {}
    body |= {"rows": asked.most_rows} if asked.most_rows else {}
    body |= {"partRows": asked.part_rows} if asked.part_rows else {}
    return body | ({"table": asked.table} if asked.table else {})


def describe_span(span: Span) -> dict[str, Any]:
    """A span as JSON."""
    logs = span.origin.changes if span.origin else {}
    return {
        "points": [point_fields(point) for point in span.cuts],
        "exact": span.is_exact,
        "shapes": [shape.as_json() for shape in span.shapes],
        "logs": [{"changeId": number, "base": one.base, "digits": one.digits} for number, one in sorted(logs.items())],
    }


def read_span(told: Any, asked: SpanAsked) -> Span:
    """The span of an answer. Raises UsageError, ValueError, TypeError or LookupError where it is none of what was asked."""
    fields, points = Fields(told, "the answer"), told["points"]
    if not isinstance(points, list) or not 1 <= len(points) <= MOST_PARTS + 1:
        raise UsageError("points: a list is wanted, of one at least")
    cuts = [read_point_fields(point) for point in points]
    shapes = [Shape.from_json(_check_text(text, "shapes", MOST_SHAPE)) for text in fields.list("shapes", ())]
    if any(one.seq >= other.seq for one, other in pairwise(cuts)) or any(cut.event_index for cut in cuts):
        raise ValueError("points that do not follow each other")
    is_exact = fields.flag("exact", default=False)
    if is_exact and isinstance(asked.start, StoragePoint) and cuts[0].seq != asked.start.seq:
        raise ValueError("another place than was asked for")
    if any(f"{shape.database}.{shape.table}" != asked.table for shape in shapes):
        raise ValueError("shapes of another table")
    logs = [Fields(one, "logs") for one in fields.list("logs", ())]
    named = {one.number("changeId", 0): Logs(one.text("base"), one.number("digits", 0, most=40)) for one in logs}
    return Span(cuts, is_exact, shapes, Origin(named) if named else None)


def parse_object(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body or b"{}")
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as wrong:
        raise UsageError("the body is not JSON", hint="send a JSON object in UTF-8") from wrong
    return Fields(found, "the body").values


def parse_subscription(body: bytes) -> Subscription:
    """ReaderConnectionConfig, with `codec` for a subscription."""
    fields = Fields(parse_object(body), "")
    group, parts = fields.group("serviceGroupInfo"), fields.group("partitionClusterInfo")
    total = parts.number("partitionTotal", 1, most=MOST_SHARDS)
    columns = parse_columns(parts.group("columns"))
    sharding = Sharding(total, parts.text("hash", MIXED), parts.text("keyChange", SPLIT), columns)
    shards = parts.list("partitionSet", range(total))
    for shard in shards:
        if type(shard) is not int or not 0 <= shard < total:
            raise UsageError(f"partitionSet: {str(shard)[:40]} is no shard of {total}")
    tables = [pattern for each in group.list("databaseInfoSet", ()) for pattern in _parse_database(each)]
    if len(tables) > MOST_TABLES:
        raise UsageError(f"databaseInfoSet: more than {MOST_TABLES} tables", hint="write a pattern, such as shop.*")
    codec = fields.text("codec", PROTOCOL_BUFFER)
    if codec not in (PROTOCOL_BUFFER, ARROW):
        raise UsageError(f"codec {codec!r} is not known: {PROTOCOL_BUFFER}, {ARROW}")
    return Subscription(
        group.text("taskName"),
        group.text("serviceGroupName"),
        sharding,
        tuple(sorted(set(shards))),
        tuple(tables) or ("**",),
        _parse_checkpoint(fields.group("buffaloCheckpoint")),
        codec,
        is_undivided=fields.flag("undivided", default=False),
        is_compressed=fields.flag("compressed", default=True),
        needs_end=fields.flag("needEndTransaction", default=True),
        needs_ddl=fields.flag("needDDL", default=True),
    )


def parse_fetch(body: bytes) -> Fetch:
    fields = Fields(parse_object(body), "")
    default = Fetch()
    return Fetch(
        max(1, min(MOST_EVENTS, fields.number("batchSize", default.events))),
        min(MOST_MILLISECONDS, fields.number("timeoutMs", default.milliseconds)),
        max(1, min(MOST_BYTES, fields.number("maxByteSize", default.bytes))),
    )


def parse_columns(columns: Fields) -> dict[str, tuple[str, ...]]:
    return {
        _check_text(table, "columns", 2 * MOST_NAME): tuple(_check_text(name, "columns", MOST_NAME) for name in names)
        for table, names in columns.values.items()
        if _check_list(names, "columns")
    }


def _parse_points(fields: Fields) -> dict[int, StoragePoint]:
    found: dict[int, StoragePoint] = {}
    for one in fields.list("points", ()):
        shard = Fields(one, "points").number("shard", -1, most=MOST_SHARDS)
        found[shard] = _read_stored(one, "points")
    return found


def _read_stored(value: Any, where: str) -> StoragePoint:
    try:
        return read_point_fields(value)
    except (ValueError, TypeError, LookupError) as wrong:
        raise UsageError(f"{where}: no storage point: {wrong}", hint="send it as /v1/points gave it") from wrong


def describe_points(points: Mapping[int, StoragePoint]) -> list[dict[str, Any]]:
    """Points of shards as JSON, as requests and answers have them."""
    return [{"shard": shard, **point_fields(point)} for shard, point in sorted(points.items())]


def read_points_of(told: Any) -> dict[int, StoragePoint]:
    """The points of an answer. Raises UsageError where they are none."""
    return _parse_points(Fields(told, "the answer"))


def shards_of(fields: Fields, name: str, most: int = MOST_SHARDS) -> tuple[int, ...]:
    shards = fields.list(name, ())
    if not all(type(shard) is int and 0 <= shard < most for shard in shards):
        raise UsageError(f"{name}: numbers of shards are wanted")
    return tuple(sorted(set(shards)))


def texts_of(fields: Fields, name: str) -> tuple[str, ...]:
    return tuple(_check_text(text, name, 2 * MOST_NAME) for text in fields.list(name, ()))


def _parse_member(fields: Fields) -> str:
    member = fields.text("member")
    if not _MEMBER.fullmatch(member):
        raise UsageError("member: letters, digits, `_`, `.` and `-` are wanted")
    return member


def _parse_database(value: Any) -> list[str]:
    database = Fields(value, "databaseInfoSet")
    name = _check_text(database.values.get("databaseName"), "databaseName", MOST_NAME)
    tables = database.list("tableNames", ()) or ["*"]
    return [f"{name}.{_check_text(table, 'tableNames', MOST_NAME)}" for table in tables]


def _parse_checkpoint(fields: Fields) -> Checkpoint:
    """A point of `/v1/points` is known by its `seq` and `changeId`: its `eventIndex` counts rows, and names none."""
    if "seq" in fields.values:
        if "changeId" in fields.values:
            return Checkpoint(stored=_read_stored(fields.values, "buffaloCheckpoint"))
        return Checkpoint(seq=fields.number("seq", 0, least=1, most=LARGEST_SEQ))
    mode = fields.text("checkpointMode", NORMAL if fields.values else EARLIEST)
    if mode not in (EARLIEST, LATEST, NORMAL):
        raise UsageError(f"checkpointMode {mode!r} is not known: {EARLIEST}, {LATEST}, {NORMAL}")
    uuid = fields.text("uuid", "")
    try:
        uuid = str(UUID(uuid)) if uuid else ""
    except ValueError as wrong:
        raise UsageError(f"uuid {uuid[:40]!r} is none") from wrong
    server = fields.number("serverId", 0, least=-(1 << 31), most=(1 << 32) - 1)
    return Checkpoint(
        mode,
        fields.text("gtidSet", ""),
        "" if uuid == str(UUID(int=0)) else uuid,
        fields.number("transactionId", 0, least=-1),
        fields.number("eventIndex", -1, least=-1),
        server & 0xFFFFFFFF if server < -1 else max(server, 0),
        max(fields.number("binlogFile", 0, least=-1, most=(1 << 32) - 1), 0),
        max(fields.number("binlogOffset", 0, least=-1), 0),
        max(fields.number("timestamp", 0, least=-1, most=1 << 48), 0),
    )


class Fields:
    """The fields of an object, of whoever it is. `where`: its name in what went wrong."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise UsageError(f"{where}: an object is wanted")
        self.values: Mapping[str, Any] = value

    def group(self, name: str) -> Fields:
        return Fields(self.values.get(name) or {}, name)

    def text(self, name: str, default: Any = _MISSING) -> str:
        if name not in self.values and default is not _MISSING:
            return str(default)
        return _check_text(self.values.get(name), name)

    def list(self, name: str, default: Sequence[Any]) -> Sequence[Any]:
        value = self.values.get(name)
        return default if value is None else _check_list(value, name)

    def number(self, name: str, default: int, *, least: int = 0, most: int = _LARGEST) -> int:
        value = self.values.get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise UsageError(f"{name}: a whole number from {least} to {most} is wanted")
        return value

    def share(self, name: str) -> float:
        """A number from 0 to 1; 0 where there is none."""
        value = self.values.get(name, 0)
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise UsageError(f"{name}: a number from 0 to 1 is wanted")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise UsageError(f"{name}: true or false is wanted")
        return value


def _check_text(value: Any, name: str, most: int = MOST_TEXT) -> str:
    if not isinstance(value, str) or not value or len(value) > most:
        raise UsageError(f"{name}: a text is wanted, of {most} characters at most")
    return value


def _check_list(value: Any, name: str) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) > MOST_TABLES * 8:
        raise UsageError(f"{name}: a list is wanted")
    return value
