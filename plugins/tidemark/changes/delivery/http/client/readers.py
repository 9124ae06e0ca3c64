"""Readers of one source, as a member of a task asks them: their calls, what they told, and which of them to read at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from tidemark.changes.delivery.http.client.session import ReaderClient, ReaderConnection
from tidemark.changes.delivery.http.requests import (
    ARROW,
    LARGEST_SEQ,
    MOST_GENERATIONS,
    Checkpoint,
    Fields,
    Subscription,
    describe_points,
    describe_span_asked,
    parse_columns,
    read_points_of,
    read_span,
    shards_of,
    texts_of,
)
from tidemark.changes.delivery.shards import MOST_SHARDS, Sharding
from tidemark.changes.delivery.spans import Span, SpanAsked
from tidemark.changes.delivery.storage_points import Start
from tidemark.changes.delivery.tasks import Wanted
from tidemark.changes.store.block import Chosen
from tidemark.errors import CorruptionError, RetryableError, UsageError
from tidemark.ledger.delivery import StoragePoint, TaskRow
from tidemark.ledger.leases import Lease

POLL_MILLISECONDS = 1000
POINTS_OF_A_CALL = 100
"""A reader looks each of them up in its store, and has to answer in time."""
NO_FENCE = 0
"""Of a lease that the reader which is read at now has not told of yet: it is ours there unless another has it."""
WHOLE_SECONDS = 60.0
"""A fetch takes so long at most."""


@dataclass(frozen=True)
class Address:
    """Readers of one source, and how to speak to them."""

    urls: Sequence[str]
    token: str
    ca: str = ""
    timeout: float = 2.5
    """Seconds in which a reader must answer what is no fetch. Where there is no other one it has four times as long."""
    look_seconds: float = 2.0
    late_seconds: float = 4.0
    patience_seconds: float = 10.0
    """How often other readers are looked at; a reader that lacks for so long what another has is late; how long readers may
    refuse before a member stops."""


@dataclass(frozen=True)
class Told:
    """What a reader says of a task and its store. `task` is None where it has not begun there. `held`: shard → fence, of
    the asker. `server`: whose logs the store is from. `refused`: shards of which a commit moved no point."""

    task: TaskRow | None
    points: Mapping[int, StoragePoint]
    end: int
    newest: int
    server: int | None
    load: float
    held: Mapping[int, int]
    give: Collection[int]
    taken: Collection[int]
    refused: Collection[int]


@dataclass(frozen=True)
class Look:
    """A reader as it was seen. `trouble`: why it cannot be read at now."""

    load: float = 0.0
    newest: int = 0
    trouble: Exception | None = None


def order_readers(looks: Sequence[Look], last: Collection[int], late: float, chance: Callable[[], float]) -> list[int]:
    """The readers that may be read at, the best first: no late one before one that is not, then the one with least to do.
    `late`: seconds. Among loads that are about equal chance decides, so that consumers spread."""
    newest = max((one.newest for one in looks if one.trouble is None), default=0)

    def rank(number: int) -> tuple[bool, bool, int, float]:
        one = looks[number]
        return number in last, one.newest < newest - late * 1e6, int(one.load * 5), chance()

    return sorted((number for number, one in enumerate(looks) if one.trouble is None), key=rank)


def most_telling(reasons: Sequence[Exception]) -> Exception:
    """What says most about why nothing can be read: what lasts before what may pass."""
    return next((one for one in reasons if not isinstance(one, RetryableError)), reasons[0])


class Reader:
    """The calls of one reader that are about a task."""

    def __init__(self, address: Address, url: str) -> None:
        timeout = address.timeout * (1 if len(address.urls) > 1 else 4)
        self.url = url
        self._address = address
        self._connection = ReaderConnection(url, address.token, ca=address.ca, timeout=timeout, whole=timeout)

    def begin(self, wanted: Wanted, task: TaskRow | None = None, points: Mapping[int, StoragePoint] | None = None) -> Told:
        """The task at this reader; begun where there is none. Without `wanted.start`: looked at."""
        body: dict[str, Any] = {"taskName": wanted.name, "serviceGroupName": wanted.source}
        body |= {"start": wanted.start} if wanted.start else {"look": True}
        shape = wanted if task is None else task
        body |= {"hash": shape.hash} if shape.hash else {}
        body |= {"keyChange": shape.key_change} if shape.key_change else {}
        body |= {"partitionTotal": shape.shards} if shape.shards is not None else {}
        body |= {"columns": {table: list(names) for table, names in shape.columns.items()}} if shape.columns else {}
        body |= {"tables": list(shape.tables)} if shape.tables is not None else {}
        if task is not None and points:
            body |= {"generation": task.generation, "points": describe_points(points)}
        return self._ask("/v1/begin", body)

    def hold(
        self, task: TaskRow, member: str, release: Sequence[int], only: Sequence[int] | None, *, leaves: bool = False
    ) -> Told:
        body = {"taskName": task.name, "member": member, "generation": task.generation}
        return self._ask("/v1/hold", {**body, "release": list(release), "only": only, "leaves": leaves})

    def locate(self, task: TaskRow, points: Mapping[int, StoragePoint]) -> dict[int, Start]:
        """Where shards go on at this reader. What is done is what their points say, whatever the reader says of that."""
        starts: dict[int, Start] = {}
        for some in _split(points):
            found = self._connection.ask("/v1/locate", {"taskName": task.name, "points": describe_points(some)})
            with self._checked("/v1/locate"):
                told = {one.number("shard", -1): one for one in map(_fields_of, Fields(found, "").list("starts", ()))}
                starts |= {shard: _read_start(told[shard], point) for shard, point in some.items()}
        return starts

    def commit(
        self, task: TaskRow, points: Mapping[int, StoragePoint], member: str, held: Mapping[int, Lease] | None = None
    ) -> Told:
        """Commit points; of shards that are `held`, under the fences of their leases."""
        fences = {shard: lease.fence for shard, lease in (held or {}).items() if lease.fence != NO_FENCE}
        refused: list[int] = []
        for some in _split(points):
            body = [
                {**one, "fence": fences[one["shard"]]} if one["shard"] in fences else one for one in describe_points(some)
            ]
            told = self._ask("/v1/commit", {"taskName": task.name, "points": body, "member": member})
            refused += told.refused
        return replace(told, refused=refused)

    def find_span(self, task: str, source: str, asked: SpanAsked) -> Span:
        """A span of the reader's store. The task needs not have begun."""
        told = self._connection.ask("/v1/span", {"taskName": task, "serviceGroupName": source, **describe_span_asked(asked)})
        with self._checked("/v1/span"):
            return read_span(told, asked)

    def connect(self, task: TaskRow, seq: int, chosen: Chosen | None = None) -> ReaderClient:
        """A session that gives blocks as stored, from transaction `seq` on. `chosen`: the columns that are decoded."""
        sharding = Sharding(task.shards, task.hash, task.key_change, task.columns)
        point = Checkpoint(seq=seq)
        wanted = Subscription(task.name, task.source, sharding, (0,), ("**",), point, ARROW, is_undivided=True)
        timeout = self._address.timeout * 2 + POLL_MILLISECONDS / 1000
        address = self._address
        return ReaderClient(
            self.url, address.token, wanted, timeout=timeout, ca=address.ca, whole=WHOLE_SECONDS, chosen=chosen
        )

    def close(self) -> None:
        self._connection.close()

    def _ask(self, path: str, body: Mapping[str, Any]) -> Told:
        told = self._connection.ask(path, body)
        with self._checked(path):
            return _read_told(told, body)

    def _checked(self, path: str) -> _Checked:
        return _Checked(f"the reader {self.url} answers {path} with something else than it should", self.url)


class _Checked:
    """What is read in here was told by a reader: where it is not as it should be, CorruptionError says so."""

    def __init__(self, message: str, subject: str) -> None:
        self._message = message
        self._subject = subject

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, wrong: BaseException | None, trace: object) -> None:
        if isinstance(wrong, ArithmeticError | ValueError | TypeError | LookupError | AttributeError | UsageError):
            raise CorruptionError(f"{self._message}: {wrong}", subject=self._subject) from wrong


def _split(points: Mapping[int, StoragePoint]) -> Iterator[Mapping[int, StoragePoint]]:
    left = iter(sorted(points.items()))
    while some := dict(islice(left, POINTS_OF_A_CALL)):
        yield some


def _fields_of(value: Any) -> Fields:
    return Fields(value, "the answer")


def _read_start(told: Fields, point: StoragePoint) -> Start:
    seq, index, half = (told.number(name, -1, most=LARGEST_SEQ) for name in ("seq", "index", "half"))
    if not seq or index not in (0, point.event_index) or (index and half < seq):
        raise ValueError("a start that is none of its point")
    if told.values.get("known", "") not in ("", point.gtids):
        raise ValueError("other transactions are done than its point says")
    return Start(seq, index, half, point.gtids)


def _read_told(found: Mapping[str, Any], asked: Mapping[str, Any]) -> Told:
    """What was answered to a call. Each number is in its range, and the task is the one that was asked for."""
    told, task = Fields(found, "the answer"), None
    points: dict[int, StoragePoint] = {}
    if "partitionTotal" in found:
        task, points = _read_task(told), read_points_of(found)
        for name in ("taskName", "serviceGroupName", "hash", "keyChange", "columns", "tables"):
            if name in asked and found[name] != asked[name]:
                raise ValueError(f"a task of another {name}")
        if set(points) != set(range(task.shards)) or any(one.version_ts > task.version_ts for one in points.values()):
            raise ValueError("points of other shards, or of a later version than the task's")
    most = task.shards if task is not None else 0
    held, end = told.group("held"), told.group("end")
    holds = {shard: held.number(str(shard), 0, least=1) for shard in range(most) if str(shard) in held.values}
    if len(holds) < len(held.values):
        raise ValueError("shards that the task has not")
    return Told(
        task,
        points,
        end.number("seq", 0, most=LARGEST_SEQ),
        end.number("newest", 0, most=LARGEST_SEQ),
        None if found.get("server") is None else told.number("server", 0),
        told.share("loadFactor"),
        holds,
        shards_of(told, "give", most),
        shards_of(told, "taken", most),
        [shard for shard in range(most) if str(shard) in told.group("refused").values],
    )


def _read_task(told: Fields) -> TaskRow:
    task = TaskRow(
        told.text("taskName"),
        told.text("serviceGroupName"),
        told.number("partitionTotal", 0, least=1, most=MOST_SHARDS),
        told.text("hash"),
        told.text("keyChange"),
        parse_columns(told.group("columns")),
        texts_of(told, "tables"),
        told.number("generation", 0, least=1, most=MOST_GENERATIONS),
        told.number("versionTs", -1),
    )
    Sharding(task.shards, task.hash, task.key_change, task.columns)  # or it raises
    return task
