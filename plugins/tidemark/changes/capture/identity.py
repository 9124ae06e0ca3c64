"""Which logs a store's transactions are from, so that other logs under the same names are not taken for them.

`source.json` in the store's folder. A position of the store has a change id and the number of a log. For each change id this
says how its logs are named and which server wrote them; for the last logs, when each of them was begun. A change id ends
where another server, or the same one with new logs, goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tidemark.changes.connection.model import RawEvent
from tidemark.changes.store.disk import Disk, read_document
from tidemark.errors import UnsupportedError

PATH = "source.json"
FORMAT = 2
MOST_HEADS = 8
"""Logs of which the first event is kept: the store's end is in one of the last two."""


@dataclass(frozen=True)
class Head:
    """What the first event of a log says: when it was written, in seconds since 1970, and the id of the log's server."""

    time: int
    server_id: int

    @classmethod
    def of(cls, first: RawEvent) -> Head:
        return cls(first.header.timestamp, first.header.server_id)


@dataclass(frozen=True)
class Logs:
    """The logs of a change id: `<base>.<number>`, with `digits` digits at least. `heads`: the last ones' first events, by
    number; `server_id`: None where none is kept."""

    base: str
    digits: int
    server_id: int | None = None
    heads: dict[int, Head] = field(default_factory=dict)

    @classmethod
    def of(cls, file: str) -> Logs:
        base, digits = _split_name(file)
        return cls(base, len(digits))

    def may_be(self, file: str, head: Head) -> bool:
        """Whether a log of that name and first event is one of these, or comes behind them."""
        known = self.heads.get(number_of(file))
        return _split_name(file)[0] == self.base and self.server_id in (None, head.server_id) and known in (None, head)

    def with_head(self, number: int, head: Head) -> Logs:
        last = sorted({**self.heads, number: head}.items())[-MOST_HEADS:]
        return replace(self, heads=dict(last), server_id=head.server_id)


@dataclass(frozen=True)
class Origin:
    """All logs that a store is from, by change id."""

    changes: dict[int, Logs] = field(default_factory=dict)

    def name_log(self, number: int, change_id: int) -> str:
        logs = self.changes.get(change_id)
        return f"{logs.base}.{number:0{logs.digits}}" if logs else str(number)

    def with_logs(self, change_id: int, logs: Logs) -> Origin:
        return Origin({**self.changes, change_id: logs})


@lru_cache(maxsize=64)
def number_of(file: str) -> int:
    """The number at the end of a log's name."""
    return int(_split_name(file)[1])


def _split_name(file: str) -> tuple[str, str]:
    found = re.fullmatch(r"(.*)\.(\d+)", file)
    if found is None:
        raise UnsupportedError(f"{file} has no number at its end, as a binary log has", subject=file)
    return found[1], found[2]


def read_origin(disk: Disk) -> Origin | None:
    """The origin of a store's transactions, None before the first one."""
    return read_document(disk, PATH, FORMAT, _decode_origin)


def _decode_origin(found: dict[str, Any]) -> Origin:
    if found["format"] == 1:
        return Origin({1: Logs(found["base"], found["digits"])})
    return Origin({int(change_id): _decode_logs(**logs) for change_id, logs in found["changes"].items()})


def _decode_logs(base: str, digits: int, server_id: int | None, heads: dict[str, list[int]]) -> Logs:
    return Logs(base, digits, server_id, {int(number): Head(*head) for number, head in heads.items()})


def write_origin(disk: Disk, origin: Origin) -> None:
    changes = {
        change_id: {
            "base": logs.base,
            "digits": logs.digits,
            "server_id": logs.server_id,
            "heads": {number: [head.time, head.server_id] for number, head in logs.heads.items()},
        }
        for change_id, logs in origin.changes.items()
    }
    disk.publish(PATH, json.dumps({"format": FORMAT, "changes": changes}).encode())


LOST_PATH = "lost.json"


def write_lost(disk: Disk, seq: int, what: Sequence[str]) -> None:
    """Keep what the logs told as lost behind transaction `seq`, the store's last one. An incident has no GTID: where its
    log is purged, or another server goes on, nothing else says that it was there."""
    if what:
        # CRASH WINDOW: it was met, and is not kept: the next capture reads that log again.
        disk.publish(LOST_PATH, json.dumps({"format": 1, "seq": seq, "what": list(what)}, ensure_ascii=False).encode())
    elif LOST_PATH in disk.list_names("."):
        disk.remove([LOST_PATH])


def read_lost(disk: Disk, seq: int) -> Sequence[str]:
    """What was lost behind transaction `seq`."""
    found = read_document(disk, LOST_PATH, 1, lambda found: (int(found["seq"]), list(map(str, found["what"]))))
    return found[1] if found is not None and found[0] == seq else ()
