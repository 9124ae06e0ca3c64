"""One task of a migration: send files from one store to another, proved at both ends. Runs in any process of an engine.

It opens both ends itself, by addresses that name key files by path and hold no secret. It may run twice, or two may run at
once: files already at the target with the right bytes are not sent again, a broken file goes on at its last verified block.
It records nothing: the caller, which has the lease, records the proved copies. Source: issue D part 3, DESIGN §7;
docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files

AT_ONCE = 4  # tasks at once: together they use the connections and the bandwidth of one sending
TASK_BYTES = 1 << 30  # a lost task begins again and proves its files once more
TASK_FILES = 512
SMALLEST = 16 << 20  # bytes that are worth a task of their own


@dataclass(frozen=True)
class End:
    """One end. `node`: whose folder it must be; "" for the receiver's own."""

    address: StoreAddress
    node: str = ""

    def __str__(self) -> str:
        return f"node {self.node}" if self.node else "the receiver"


@dataclass(frozen=True)
class MoveTask:
    """Files to send. `items`: from `source` to `target`, by paths below their roots. `cluster`: the identity of the nodes.

    `label`: of the snapshot at the source with the items' source paths, "" if they are read in place.
    """

    cluster: str
    source: End
    target: End
    items: tuple[SendItem, ...]
    label: str = ""
    options: SendOptions = field(default_factory=SendOptions)

    @property
    def subject(self) -> str:
        """The task's name in errors."""
        return f"move of {len(self.items)} files from {self.source} to {self.target}"


@dataclass(frozen=True)
class MoveOutcome:
    """Result of a task. `sent`: durable at the target, each with its digest there; `failed`: each with its error."""

    sent: tuple[Sent, ...] = ()
    failed: tuple[Failed, ...] = ()


def run_move(task: MoveTask) -> MoveOutcome:
    """Send the task's files. Raises the errors of opening the stores, PermanentError for a folder that is not the node's."""
    sent: list[Sent] = []
    failed: list[Failed] = []
    with closing(_open_end(task.source, task.cluster)) as source, closing(_open_end(task.target, task.cluster)) as target:
        for outcome in send_files(source, target, task.items, task.options):
            if isinstance(outcome, Sent):
                sent.append(outcome)
            else:
                failed.append(outcome)
    return MoveOutcome(tuple(sent), tuple(failed))


def split_into_waves(items: Sequence[SendItem], at_once: int = AT_ONCE) -> Iterator[list[tuple[SendItem, ...]]]:
    """Split items into tasks, in their order, and yield the tasks that run at once. Pure."""
    total = sum(item.size for item in items)
    most = min(TASK_BYTES, max(SMALLEST, -(-total // at_once)))
    portions: list[tuple[SendItem, ...]] = []
    mine: list[SendItem] = []
    weight = 0
    for item in items:
        if mine and (weight + item.size > most or len(mine) == TASK_FILES):
            portions.append(tuple(mine))
            mine, weight = [], 0
        mine.append(item)
        weight += item.size
    if mine:
        portions.append(tuple(mine))
    for start in range(0, len(portions), at_once):
        yield portions[start : start + at_once]


def _open_end(end: End, cluster: str) -> Store:
    store = open_store(end.address)
    try:
        if end.node:
            NodeFolder(store, end.node).require_owner(cluster)
    except BaseException:
        store.close()
        raise
    return store
