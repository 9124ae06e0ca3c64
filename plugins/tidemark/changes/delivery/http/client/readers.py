"""Readers of one source, as a member of a task asks them: their calls, what they told, and which of them to read at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.changes.delivery.http.client.session import ReaderClient, ReaderConnection
from tidemark.changes.delivery.http.requests import ARROW, Checkpoint, Subscription, describe_points, read_points_of
from tidemark.changes.delivery.shards import Sharding
from tidemark.changes.delivery.storage_points import Start
from tidemark.changes.delivery.tasks import Wanted
from tidemark.errors import CorruptionError, UsageError
from tidemark.ledger.delivery import StoragePoint, TaskRow
from tidemark.ledger.leases import Lease

POLL_MILLISECONDS = 1000
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
    the asker. `server`: whose logs the store is from."""

    task: TaskRow | None
    points: Mapping[int, StoragePoint]
    end: int
    newest: int
    server: int | None
    load: float
    held: Mapping[int, int]
    give: Collection[int]
    taken: Collection[int]


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
        told = self._connection.ask("/v1/locate", {"taskName": task.name, "points": describe_points(points)})
        with self._checked("/v1/locate"):
            starts = {
                int(one["shard"]): Start(int(one["seq"]), int(one["index"]), int(one["half"]), str(one["known"]))
                for one in told["starts"]
            }
            return {shard: starts[shard] for shard in points}

    def commit(
        self, task: TaskRow, points: Mapping[int, StoragePoint], member: str, held: Mapping[int, Lease] | None = None
    ) -> Told:
        """Commit points; of shards that are `held`, under the fences of their leases."""
        told = describe_points(points)
        if held is not None:
            told = [{**one, "fence": held[one["shard"]].fence} for one in told]
        return self._ask("/v1/commit", {"taskName": task.name, "points": told, "member": member})

    def connect(self, task: TaskRow, seq: int) -> ReaderClient:
        """A session that gives blocks as stored, from transaction `seq` on."""
        sharding = Sharding(task.shards, task.hash, task.key_change, task.columns)
        point = Checkpoint(seq=seq)
        wanted = Subscription(task.name, task.source, sharding, (0,), ("**",), point, ARROW, is_undivided=True)
        timeout = self._address.timeout * 2 + POLL_MILLISECONDS / 1000
        return ReaderClient(self.url, self._address.token, wanted, timeout=timeout, ca=self._address.ca, whole=WHOLE_SECONDS)

    def close(self) -> None:
        self._connection.close()

    def _ask(self, path: str, body: Mapping[str, Any]) -> Told:
        told = self._connection.ask(path, body)
        with self._checked(path):
            return _read_told(told)

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
        if isinstance(wrong, ValueError | TypeError | LookupError | AttributeError | UsageError):
            raise CorruptionError(f"{self._message}: {wrong}", subject=self._subject) from wrong


def _read_told(told: Mapping[str, Any]) -> Told:
    task = None
    points: dict[int, StoragePoint] = {}
    if "partitionTotal" in told:
        columns = {str(table): tuple(map(str, names)) for table, names in told["columns"].items()}
        names = [str(told[name]) for name in ("taskName", "serviceGroupName")]
        words = [str(told[name]) for name in ("hash", "keyChange")]
        numbers = [int(told[name]) for name in ("generation", "versionTs")]
        shards = int(told["partitionTotal"])
        task = TaskRow(names[0], names[1], shards, words[0], words[1], columns, tuple(map(str, told["tables"])), *numbers)
        Sharding(task.shards, task.hash, task.key_change, task.columns)
        points = read_points_of(told)
        if set(points) != set(range(shards)):
            raise ValueError("points of other shards")
    end, server = told.get("end") or {}, told.get("server")
    return Told(
        task,
        points,
        int(end.get("seq", 0)),
        int(end.get("newest", 0)),
        None if server is None else int(server),
        float(told.get("loadFactor", 0.0)),
        {int(shard): int(fence) for shard, fence in (told.get("held") or {}).items()},
        [int(shard) for shard in told.get("give") or ()],
        [int(shard) for shard in told.get("taken") or ()],
    )
