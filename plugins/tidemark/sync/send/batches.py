"""Divide a run's files into batches for the transfer engine and parts (landings) for readers (DESIGN §5, §6). Pure.

Both end at borders of partitions only, so that a compaction's outputs and the files they replace are in one landing. A
partition larger than a limit stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from tidemark.sync.session import Partition, PartLimits


class Weighed(NamedTuple):
    """A path to send and its size in bytes, companions included."""

    path: str
    size: int


def cut_batches(files: Iterable[Weighed], key: Callable[[str], Partition], limits: PartLimits) -> Iterator[list[Weighed]]:
    """Yield batches of whole partitions, in order. A batch ends after the partition that reaches a limit."""
    batch: list[Weighed] = []
    size = 0
    ordered = sorted((key(file.path), file) for file in files)
    for _, group in groupby(ordered, key=itemgetter(0)):
        for _, file in group:
            batch.append(file)
            size += file.size
        if size >= limits.batch_bytes or len(batch) >= limits.batch_files:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def part_is_full(size: int, seconds: float, limits: PartLimits) -> bool:
    return size >= limits.part_bytes or seconds >= limits.part_seconds
