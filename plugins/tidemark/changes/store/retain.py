"""Old hours go in two steps: out of readers' sight at once, off the disk after a grace. Before that they are compressed.

A reader that has a bucket open reads on; who comes later finds the hour gone by name. Hours go from the oldest on, whole,
and never the newest one, so what is left has no hole and a new holder finds the end.

Compressed, a block keeps its place: its file keeps its size, and has holes that take no disk. So all that tells of places
stays true, and who reads does not care.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest

from tidemark.changes.store.block import compress_block
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.layout import hour_name, hour_of, mirror_path, parse_hour
from tidemark.changes.store.read import Reader
from tidemark.changes.store.view import Bucket, corruption_error, read_first, read_rest, walk_blocks

_PUBLISHED = ("", "holders", "parked", "asked")  # folders of small files that are replaced whole
_HALF_WRITTEN_SECONDS = 3600.0


@dataclass(frozen=True)
class Hour:
    """An hour of the store: its bytes, with the logs that go when it goes, and the number of its last transaction."""

    hour: int
    bytes: int
    last: int


@dataclass(frozen=True)
class Rules:
    """What stays. `needed`: the lowest transaction that somebody still has to read; None: nobody. `most_bytes`: more than
    this goes although it is needed; 0: no limit. `compress_hours`: what is older is compressed harder; 0: never."""

    hours: int = 24
    needed: int | None = None
    most_bytes: int = 0
    grace_seconds: int = 3600
    compress_hours: int = 0


@dataclass(frozen=True)
class Retained:
    """Hours that left readers' sight, folders that left the disk, and buckets that were compressed."""

    retired: tuple[str, ...]
    removed: tuple[str, ...]
    compressed: tuple[str, ...] = ()


def choose_retired(hours: Sequence[Hour], now: int, rules: Rules) -> list[int]:
    """The hours that go, from the oldest on. `now`: the present hour."""
    left = sum(hour.bytes for hour in hours)
    retired = []
    for hour in hours[:-1]:
        is_old = hour.hour + rules.hours < now and (rules.needed is None or hour.last < rules.needed)
        if not is_old and not (rules.most_bytes and left > rules.most_bytes):
            break
        retired.append(hour.hour)
        left -= hour.bytes
    return retired


def retain(disk: Disk, rules: Rules, now: float, is_asked_to_end: Callable[[], bool] = bool) -> Retained:
    """One round of both steps. `now`: seconds since 1970. `is_asked_to_end`: no further bucket is compressed."""
    this_hour = hour_of(int(now * 1_000_000))
    retired = [hour_name(hour) for hour in choose_retired(_list_hours(disk), this_hour, rules)]
    for name in retired:
        # CRASH WINDOW: some hours are gone and younger ones, which should be, are not; the next round goes on.
        disk.rename(f"data/{name}", f"expired/{name}-{int(now)}")
    removed = []
    for name in sorted(disk.list_names("expired")):
        hour, _, since = name.partition("-")
        if parse_hour(hour) is not None and since.isdigit() and int(since) + rules.grace_seconds <= now:
            # CRASH WINDOW: a folder of which some files are left; the next round removes the rest.
            disk.remove_tree(f"expired/{name}")
            removed.append(name)
    _remove_mirrored(disk)
    disk.remove_half_written(_PUBLISHED, now - _HALF_WRITTEN_SECONDS)
    return Retained(tuple(retired), tuple(removed), tuple(_compress_buckets(disk, this_hour, rules, is_asked_to_end)))


def _remove_mirrored(disk: Disk) -> None:
    """Remove the logs that are kept beside the store, of which it has no transaction any more."""
    reader = Reader(disk)
    if reader.view.buckets:
        begin = reader.state_before(reader.view.buckets[0]).info.order[:2]
        # CRASH WINDOW: some logs are gone and others, which should be, are not; the next round goes on.
        disk.remove(path for place, path in _list_mirrored(disk) if place < begin)


def _list_mirrored(disk: Disk) -> list[tuple[tuple[int, int], str]]:
    """((change id, number), path) of each log that is kept, in their order."""
    found = []
    for change_id in disk.list_names("mirror"):
        for log in disk.list_names(f"mirror/{change_id}"):
            number = log.rpartition(".")[2]
            if change_id.isdecimal() and number.isdecimal():
                found.append(((int(change_id), int(number)), mirror_path(int(change_id), log)))
    return sorted(found)


def _compress_buckets(disk: Disk, now: int, rules: Rules, is_asked_to_end: Callable[[], bool]) -> Iterator[str]:
    """Compress the buckets that are old enough and are not yet. The last one of all may still be written to."""
    reader = Reader(disk)
    for bucket in reader.view.buckets[:-1]:
        file = bucket.file
        if not rules.compress_hours or file.id.hour + rules.compress_hours >= now or is_asked_to_end():
            return
        with suppress(FileNotFoundError):  # another round took it out of sight
            if read_first(disk, file)[0].is_dense:
                continue
            left = [f"{file.id.folder}/{name}" for name in disk.list_names(file.id.folder) if name.endswith(".tmp")]
            disk.remove(left)
            if disk.replace_thinly(file.path, _compress_blocks(disk, bucket)):
                yield file.path


def _compress_blocks(disk: Disk, bucket: Bucket) -> Iterator[tuple[bytes, int]]:
    """(bytes, how many zeros follow) of each block that counts."""
    with disk.open_file(bucket.file.path) as file:
        end = file.size if bucket.length is None else bucket.length
        at = 0
        for start, header in walk_blocks(file, bucket.file.id, 0, end):
            yield compress_block(header, read_rest(file, start, header))
            at = start + header.size
        if at != end:
            raise corruption_error(file.path, at)


def _list_hours(disk: Disk) -> list[Hour]:
    reader = Reader(disk)
    buckets = reader.view.buckets
    hours: dict[int, Hour] = {}
    mirrored = _list_mirrored(disk)
    for bucket, following in zip_longest(buckets, buckets[1:]):  # none: a new store is its tail alone
        end = reader.state_before(following) if following else reader.view.end
        number, taken = bucket.file.id.hour, hours[bucket.file.id.hour].bytes if bucket.file.id.hour in hours else 0
        while mirrored and (following is None or mirrored[0][0] < end.info.order[:2]):
            taken += _measure(disk, mirrored.pop(0)[1])
        hours[number] = Hour(number, taken + _measure(disk, bucket.file.path), end.seq)
    return list(hours.values())


def _measure(disk: Disk, path: str) -> int:
    with disk.open_file(path) as file:
        return file.taken
