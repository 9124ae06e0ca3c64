"""An IoTDB as small as it can be, in memory, for tests of what it is given: the rules of LOAD and no more.

What is LOADed last wins, whatever its age; deletions beside a file apply to that file; questions are those that Tidemark
asks. It understands nothing else: another statement fails the test. The real servers' tests are in e2e/test_iotdb_target.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tidemark.errors import OutcomeUnknownError, UnreachableError
from tidemark.receiver.iotdb.server import Version
from tidemark.receiver.iotdb.session import Cells, RefusedError, Rows
from tidemark.tsfiles.companions.mods import NO_DELETIONS, parse_mods
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import VALUE_DTYPES
from tidemark.tsfiles.reader import TsFile

_LOAD = re.compile(r"load '([^']+)' with \('on-success'='none',.*\)")
_COUNT = re.compile(r"select count\(\*\) from (.+) where time >= (-?\d+) and time <= (-?\d+)")
_POINTS = re.compile(r"select (\S+) from (.+) where time >= (-?\d+) and time <= (-?\d+)")
_DELETE = re.compile(r"delete from (.+)\.(\w+) where time >= (-?\d+) and time <= (-?\d+)")
Series = dict[int, Any]


@dataclass
class SmallIoTDB:
    """The server's memory. `loads`: names of the files of each LOAD; `refuse`: (file) → why it is refused, '' for not;
    `around`: what happens around each change (a crash)."""

    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    types: dict[tuple[str, str], DataType] = field(default_factory=dict)
    databases: set[str] = field(default_factory=set)
    loads: list[list[str]] = field(default_factory=list)
    refuse: Callable[[Path], str] = lambda _: ""
    around: Callable[[str, Callable[[], None]], None] = lambda _, act: act()
    down: bool = False
    lose_answers: int = 0  # the next so many LOADs happen, and nobody hears of it
    astray: dict[tuple[str, str], Series] = field(default_factory=dict)  # told instead where all series are asked for

    def connect(self, _server: object) -> SmallSession:
        if self.down:
            raise UnreachableError("IoTDB does not answer")
        return SmallSession(self)

    def rows(self) -> list[tuple[str, str, int, str, str]]:
        """Everything, as a tall read gives it (INT64 only)."""
        return sorted(
            (device, name, time, self.types[device, name].name, str(value))
            for (device, name), points in self.series.items()
            for time, value in points.items()
        )

    def load(self, folder: Path) -> None:
        files = [folder] if folder.is_file() else sorted(folder.rglob("*.tsfile"))
        for path in files:
            if why := self.refuse(path):
                raise RefusedError(why)
        self.loads.append([path.name for path in files])
        for path in files:
            self._take(path)

    def _take(self, path: Path) -> None:
        mods = next((m for end in ("mods2", "mods") if (m := path.with_name(f"{path.name}.{end}")).exists()), None)
        form = "mods2" if mods and mods.suffix == ".mods2" else "mods"
        deletions = parse_mods(mods.read_bytes(), form, "") if mods else NO_DELETIONS
        with TsFile(path) as file:
            for device in file.list_devices():
                for name in file.list_measurements(device):
                    column = file.read_column(device, name, deletions=deletions)
                    if self.types.setdefault((device, name), column.type) is not column.type:
                        raise RefusedError(f"1100 {device}.{name} has another type")
                    points = zip(column.times.tolist(), column.values.tolist(), strict=True)
                    self.series.setdefault((device, name), {}).update(points)


class SmallSession:
    """One connection to it."""

    version = Version("2.0.1-beta", 2, 0)
    unit = "ms"

    def __init__(self, server: SmallIoTDB) -> None:
        self.server = server

    def close(self) -> None:
        pass

    def run(self, statement: str, table: bool = False) -> None:
        assert not table
        server = self.server
        if server.down:
            raise OutcomeUnknownError("the connection broke")
        if found := _LOAD.fullmatch(statement):
            server.around(f"LOAD {found[1]}", lambda: server.load(Path(found[1])))
            if server.lose_answers:
                server.lose_answers -= 1
                raise OutcomeUnknownError("the connection broke")
        elif found := _DELETE.fullmatch(statement):
            server.around(statement, lambda: self._delete(found[1], found[2], int(found[3]), int(found[4])))
        else:
            name = statement.removeprefix("create database ")
            assert name != statement, statement
            if name in server.databases:
                raise RefusedError(f"501 {name} has already been created as database")
            server.around(statement, lambda: server.databases.add(name))

    def rows(self, statement: str, table: bool = False) -> Rows:
        assert not table
        if self.server.down:
            raise UnreachableError("the connection broke")
        if found := _COUNT.fullmatch(statement):
            cells = []
            for (device, name), points in sorted(self.server.series.items()):
                if device in found[1].split(", "):
                    some = [t for t in points if int(found[2]) <= t <= int(found[3])]
                    cells.append(cell(f"count({device}.{name})", DataType.INT64, [len(some)]))
            return Rows(np.empty(0, np.int64), tuple(cells))
        found = _POINTS.fullmatch(statement)
        assert found, statement
        asked, device, start, end = found[1], found[2], int(found[3]), int(found[4])
        mine = {n: p for (d, n), p in self.server.series.items() if d == device and asked in ("*", n)}
        if asked == "*":
            mine = {n: {**p, **self.server.astray.get((device, n), {})} for n, p in mine.items()}
        times = sorted({t for points in mine.values() for t in points if start <= t <= end})
        told = [cell(f"{device}.{n}", self.server.types[device, n], [p.get(t) for t in times]) for n, p in mine.items()]
        return Rows(np.array(times, np.int64), tuple(told))

    def _delete(self, device: str, name: str, start: int, end: int) -> None:
        points = self.server.series[device, name]
        for time in [t for t in points if start <= t <= end]:
            del points[time]


def cell(name: str, kind: DataType, values: list[Any]) -> Cells:
    present = np.array([value is not None for value in values], np.bool_)
    return Cells(name, kind, np.array([v for v in values if v is not None], VALUE_DTYPES[kind]), present)
