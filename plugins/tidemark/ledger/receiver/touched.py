"""Which rows of the catalog a transaction touches: what its group's log has to say.

    with watch_catalog(connection) as touched: …    # `add_files`, `retire_files`, `put_owners`, … note here what they write

Only names of rows are noted; what they are afterwards is read at the end. Nothing is noted while nobody watches. Source:
docs/decisions/0024.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection

_KEY = "tidemark touched"


@dataclass
class Touched:
    """`files`: file ids; `added`: those of them that are new; `settled`: merged files that stand alone from now on.

    `owners`: devices. `widths`: (site, database, table). `series`: (site, series).
    """

    files: set[int] = field(default_factory=set)
    added: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    owners: set[str] = field(default_factory=set)
    widths: set[tuple[str, str, str]] = field(default_factory=set)
    series: set[tuple[str, str]] = field(default_factory=set)


@contextmanager
def watch_catalog(connection: Connection) -> Iterator[Touched]:
    """Note in the value what is written by this connection until the end."""
    touched = connection.info[_KEY] = Touched()
    try:
        yield touched
    finally:
        del connection.info[_KEY]


def note_files(connection: Connection, file_ids: Iterable[int], *, added: bool = False, settled: bool = False) -> None:
    touched = _watcher(connection)
    if touched is not None:
        ids = set(file_ids)
        touched.files |= ids
        touched.added |= ids if added else set()
        touched.settled |= ids if settled else set()


def note_owners(connection: Connection, devices: Iterable[str]) -> None:
    touched = _watcher(connection)
    if touched is not None:
        touched.owners.update(devices)


def note_widths(connection: Connection, site_id: str, widths: Mapping[tuple[str, str], int]) -> None:
    touched = _watcher(connection)
    if touched is not None:
        touched.widths.update((site_id, database, table) for database, table in widths)


def note_series(connection: Connection, series: Iterable[tuple[str, str]]) -> None:
    touched = _watcher(connection)
    if touched is not None:
        touched.series.update(series)


def _watcher(connection: Connection) -> Touched | None:
    found = connection.info.get(_KEY)
    return found if isinstance(found, Touched) else None
