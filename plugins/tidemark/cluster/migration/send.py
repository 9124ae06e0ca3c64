"""Send files to a member of a new group, in this process or in tasks of the Spark job `slot_migrate`.

This process decides what goes where and holds the snapshot, tasks send, and `pull` records what they proved: a lost task
records nothing. `[spark] engine` decides as for loads and merges. If it leaves the choice and the caller wants Spark, small
amounts are still sent by this process: Spark takes longer to start. Source: DESIGN §7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tidemark.cluster.migration.send_task import End, MoveTask, split_into_waves
from tidemark.cluster.nodes.cluster import Cluster, node_address
from tidemark.engines.choose import Engine, EngineChoice, choose_engine
from tidemark.engines.task import Outcome
from tidemark.errors import PermanentError, RetryableError, UsageError
from tidemark.stores.protocol import Store, StoreAddress, without_password
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files
from tidemark.transfer.limits import LineShare

KIND = "slot_migrate"
LITTLE = 64 << 20  # bytes below which no engine is started unless the settings say so
_TRIES = 3  # of a task whose process was lost


class CarrierLostError(RetryableError):
    """The sending engine has died again and again: another source would not help."""


@dataclass(frozen=True)
class Route:
    """From `source` ("": the receiver) to `member`. `label`: of the snapshot there. `engine`: what the caller wants.

    `line`: our share of the receiver's cap, if it has one. It cannot leave this process.
    """

    cluster: Cluster
    source: str
    member: str
    label: str
    engine: EngineChoice
    line: LineShare | None = None


def send_by_engine(
    way: Route, source: Store, target: Store, items: Sequence[SendItem], on_bytes: Callable[[int], None]
) -> Iterator[Sent | Failed]:
    """Send as `transfer.engine.send_files`, by the engine of the settings. CarrierLostError if the engine itself fails."""
    options = SendOptions.of_cluster(way.cluster.settings, retries=2, line=way.line)  # then another member is asked
    engine = _choose_engine(way, sum(item.size for item in items)) if items else None
    if engine is None:
        yield from send_files(source, target, items, options, on_bytes)
        return
    for portions in split_into_waves(items):
        mine = options.divide(len(portions))
        yield from _send_in_tasks(engine, [_make_task(way, portion, mine) for portion in portions])


def _choose_engine(way: Route, size: int) -> Engine | None:
    """Return the engine; None: this process sends, over its open stores."""
    if way.line is not None:
        return None  # its share changes every second in the ledger, which executors do not have
    settings = way.cluster.app.settings.spark
    if any(without_password(end.address.url) != end.address.url for end in _make_ends(way)):
        return None  # a password does not leave this process
    wanted = "pool" if isinstance(way.engine, str) and size < LITTLE else way.engine
    try:
        engine = choose_engine(settings, wanted, 0)
    except (UsageError, PermanentError):
        if settings.engine != "auto":
            raise
        return None  # this process can do the same without Java
    return None if engine.name == "pool" else engine


def _make_ends(way: Route) -> tuple[End, End]:
    cluster = way.cluster

    def end(node: str) -> End:
        if not node:
            return End(StoreAddress.of(cluster.receiver))
        return End(node_address(cluster.app, cluster.nodes[node]), node)

    return end(way.source), end(way.member)


def _make_task(way: Route, items: tuple[SendItem, ...], options: SendOptions) -> MoveTask:
    return MoveTask(way.cluster.identity, *_make_ends(way), items, way.label, options)


def _send_in_tasks(engine: Engine, tasks: Sequence[MoveTask]) -> Iterator[Sent | Failed]:
    """Yield each item's outcome. A task whose process died runs again: files already there are not sent twice."""
    for left in reversed(range(_TRIES)):
        lost: list[MoveTask] = []
        for outcome in _run_tasks(engine, tasks, left):
            task, error = tasks[outcome.index], outcome.error
            if error is None:
                yield from outcome.value.sent
                yield from outcome.value.failed
            elif type(error) is RetryableError and left:  # its process was killed: nothing was refused
                lost.append(task)
            else:
                yield from (Failed(item, error, 0) for item in task.items)
        tasks = lost
        if not tasks:
            return


def _run_tasks(engine: Engine, tasks: Sequence[MoveTask], left: int) -> list[Outcome]:
    """Run the tasks. If the engine itself broke, all count as lost, as long as there are tries `left`."""
    try:
        return list(engine.run(KIND, tasks))
    except RetryableError as broken:
        if not left:
            raise CarrierLostError(broken.message, hint=broken.hint, subject=broken.subject) from broken
        return [Outcome(index, error=broken) for index in range(len(tasks))]
