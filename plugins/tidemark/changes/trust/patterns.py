"""Patterns of a source: those that mean no table of its server, and with which ones a store was captured.

Nothing else says that a pattern captures, or leaves out, nothing. `patterns.json` in the store's folder is written by the
holder of the source's lease, whole and durably: the settings may say something else by now.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from tidemark.changes.connection.login import Server
from tidemark.changes.store.disk import Disk, read_document

PATH = "patterns.json"
FORMAT = 1
EVERYTHING = "**"
_SHOWN = 3
_REMOVE = "bring it back from a copy, or remove it: then all is judged by the patterns of today's settings"
_NAMES = (
    "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t FROM information_schema.TABLES"
    " WHERE TABLE_TYPE NOT IN ('VIEW', 'SYSTEM VIEW')"
)


@dataclass(frozen=True)
class Patterns:
    """What a source captures, as its settings say it. `sinks`: `tables` of its sinks, by the name of each."""

    tables: Sequence[str] = (EVERYTHING,)
    exclude: Sequence[str] = ()
    sinks: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def list_idle(self, names: Collection[str]) -> list[str]:
        """What is to be told of each pattern that means none of the server's tables. Pure."""
        kinds = [("tables", self.tables), ("exclude", self.exclude)]
        kinds += [(f"tables of sink {name}", patterns) for name, patterns in self.sinks.items()]
        return [
            f'{kind}: "{pattern}" means no table that is there now{_name_other_case(pattern, names)}'
            for kind, patterns in kinds
            for pattern in patterns
            if pattern != EVERYTHING and not any(fnmatchcase(name, pattern) for name in names)
        ]


def _name_other_case(pattern: str, names: Collection[str]) -> str:
    found = sorted(name for name in names if fnmatchcase(name.lower(), pattern.lower()))
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"; in another case: {', '.join(found[:_SHOWN])}{more}" if found else ""


def ask_names(server: Server) -> tuple[str, ...]:
    """The names of all tables and sequences that the login sees, as `database.table`. Raises as `Server.ask`."""
    return tuple(sorted(f"{row['d']}.{row['t']}" for row in server.ask(_NAMES)))


@dataclass(frozen=True)
class Taken:
    """From transaction `seq` on a store has the tables that these patterns mean."""

    seq: int
    tables: Sequence[str]
    exclude: Sequence[str]


def read_taken(disk: Disk) -> list[Taken]:
    """With which patterns a store was captured, the first ones first; none where nobody noted it."""
    return read_document(disk, PATH, FORMAT, _decode_taken, hint=_REMOVE) or []


def _decode_taken(found: dict[str, Any]) -> list[Taken]:
    return [Taken(int(one["seq"]), list(one["tables"]), list(one["exclude"])) for one in found["taken"]]


def note_taken(disk: Disk, patterns: Patterns, seq: int) -> None:
    """Note that transactions from `seq` on, the next of the store, are captured with these patterns."""
    known = read_taken(disk)
    kept = [one for one in known if one.seq < seq]
    taken = Taken(seq, list(patterns.tables), list(patterns.exclude))
    if not kept or (kept[-1].tables, kept[-1].exclude) != (taken.tables, taken.exclude):
        kept.append(taken)
    if kept != known:
        # CRASH WINDOW: noted, and nothing is captured with them: the next capture notes its own in their place.
        told = {"format": FORMAT, "taken": [asdict(one) for one in kept]}
        disk.publish(PATH, json.dumps(told, ensure_ascii=False).encode())
