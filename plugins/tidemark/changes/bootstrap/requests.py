"""What is asked of the capture of a source by others who do not hold it: to read tables, or to stop reading.

A file a request, `asked/<nanoseconds>.json` in the store's folder, published whole. The holder of the source's lease takes
them in their order.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

from tidemark.changes.bootstrap.state import OPEN, State, read_state, write_state
from tidemark.changes.bootstrap.tables import Name
from tidemark.changes.capture.definitions import Place
from tidemark.changes.store.disk import Disk, read_document
from tidemark.changes.store.view import read_next_view

FOLDER = "asked"
FORMAT = 1


@dataclass(frozen=True)
class Request:
    """Read the tables that patterns of `database.table` mean, those that are read already where `again`; or `cancel`: read
    no more of any."""

    tables: Sequence[str] = ()
    cancel: bool = False
    again: bool = False


def write_request(disk: Disk, request: Request, clock: Callable[[], int] = time.time_ns) -> str:
    """Ask. Returns the path of the file: it is gone when the request is taken."""
    path = f"{FOLDER}/{clock():020}.json"
    disk.publish(path, json.dumps({"format": FORMAT, **asdict(request)}, ensure_ascii=False).encode())
    return path


def ask_renamed(disk: Disk, renames: Sequence[tuple[str, str]], place: Place) -> None:
    """Ask for the tables of a statement, (former, new) name of each, where one of them is not read whole. A name has the
    rows of another table then: what was read of it does not count, and what is read of another does not stand there.
    `place`: of its transaction. The one with which the store ends is read again each time, and was asked for.

    A table that is read whole counts, too, where the statement stands behind its rows and before the place at which it was
    looked for: a snapshot of MariaDB gives them under the new name."""
    if place <= read_next_view(disk).end.info.order[:3]:
        return
    # A server with lower_case_table_names names a table in another case than its statements.
    names = {name.lower() for pair in renames for name in pair}
    tables = {name: table for name, table in read_state(disk).tables.items() if name.lower() in names}
    if any(table.state in OPEN or place < table.looked for table in tables.values()):
        wanted = {name for _, new in renames for name in (new, new.lower())}
        # CRASH WINDOW: asked, and the statement is not stored: it comes again, and they are read from the start once more.
        write_request(disk, Request(sorted(map(escape, wanted)), again=True))


def list_requests(disk: Disk) -> list[str]:
    """The paths of what is asked, the oldest first."""
    return sorted(f"{FOLDER}/{name}" for name in disk.list_names(FOLDER) if re.fullmatch(r"\d+\.json", name))


def take_requests(disk: Disk, state: State, there: Mapping[str, Name], wants: Callable[[str, str], bool]) -> State:
    """Do what is asked. `there`: the server's tables; `wants(database, table)`: of the source."""
    for path in list_requests(disk):
        request = _read_request(disk, path)
        if request.cancel:
            state = state.with_cancelled()
        else:
            wanted = [name for name in there if wants(there[name].database, there[name].table)]
            names = [name for name in wanted if any(fnmatchcase(name, p) for p in request.tables)]
            state = state.with_anew(names) if request.again else state.with_waiting(names)
        write_state(disk, state)
        # CRASH WINDOW: done, and still asked: it is done again, which changes nothing, or reads from the start once more.
        disk.remove([path])
    return state


def cancel(disk: Disk) -> None:
    """Do what is asked where it is to read no more. For a holder who reads nothing now."""
    take_requests(disk, read_state(disk), {}, lambda *_: False)


def _read_request(disk: Disk, path: str) -> Request:
    return read_document(disk, path, FORMAT, _decode_request, hint="remove it, and ask again") or Request()


def _decode_request(found: dict[str, Any]) -> Request:
    return Request(**{key: value for key, value in found.items() if key != "format"})
