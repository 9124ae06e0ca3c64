"""Patterns of a source that mean no table of its server. Nothing else says that they capture, or leave out, nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from tidemark.changes.connection.login import Server

EVERYTHING = "**"
_SHOWN = 3
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
