"""Old hours go in two steps: out of readers' sight at once, off the disk after a grace.

A reader that has a bucket open reads on; who comes later finds the hour gone by name. Hours go from the oldest on, whole,
and never the newest one, so what is left has no hole and a new holder finds the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.changes.store.disk import Disk
from tidemark.changes.store.layout import hour_name, hour_of, parse_hour
from tidemark.changes.store.read import Reader


@dataclass(frozen=True)
class Hour:
    """An hour of the store: its bytes, and the number of its last transaction."""

    hour: int
    bytes: int
    last: int


@dataclass(frozen=True)
class Rules:
    """What stays. `needed`: the lowest transaction that somebody still has to read; None: nobody. `most_bytes`: more than
    this goes although it is needed; 0: no limit."""

    hours: int = 24
    needed: int | None = None
    most_bytes: int = 0
    grace_seconds: int = 3600


@dataclass(frozen=True)
class Retained:
    """Hours that left readers' sight, and folders that left the disk."""

    retired: tuple[str, ...]
    removed: tuple[str, ...]


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


def retain(disk: Disk, rules: Rules, now: float) -> Retained:
    """One round of both steps. `now`: seconds since 1970."""
    retired = [hour_name(hour) for hour in choose_retired(_list_hours(disk), hour_of(int(now * 1_000_000)), rules)]
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
    return Retained(tuple(retired), tuple(removed))


def _list_hours(disk: Disk) -> list[Hour]:
    reader = Reader(disk)
    buckets = reader.view.buckets
    hours: dict[int, Hour] = {}
    for bucket, following in zip(buckets, [*buckets[1:], None], strict=True):
        last = reader.state_before(following).seq if following else reader.view.end.seq
        with disk.open_file(bucket.file.path) as file:
            number = bucket.file.id.hour
            hours[number] = Hour(number, file.size + (hours[number].bytes if number in hours else 0), last)
    return list(hours.values())
