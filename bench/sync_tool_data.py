"""An edge folder as a real IoTDB 0.12.0 leaves it, for the original Sync Tool and for Tidemark to carry.

Four storage groups of ten devices of ten series of doubles; every storage group has one sealed file a week, whose times
are random within it and whose values walk, with six decimals, so that they hardly compress.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import sync_tool
from bench.sync_tool_rpc import Session

WEEK = 604_800_000  # ms
FIRST_WEEK = 2_700
GROUPS = tuple(f"root.sg{number}" for number in range(4))
DEVICES, SERIES = 10, 10  # of a group, of a device
_FLUSH_EVERY = 10  # weeks: no more files open at once than the server has room for


@dataclass(frozen=True)
class EdgeSet:
    """`name` counts its files; `rows` are the points of one series in one file."""

    name: str
    files: int
    rows: int

    @property
    def weeks(self) -> int:
        return self.files // len(GROUPS)

    @property
    def points(self) -> int:
        return self.files * DEVICES * SERIES * self.rows

    @property
    def rows_of_a_device(self) -> int:
        return self.weeks * self.rows


def make(folder: Path, edge: EdgeSet) -> Path:
    """Has a server write the set; `folder`/data after the server's end. RuntimeError where it is not what it shall be."""
    server = sync_tool.start(folder)
    try:
        session = Session(server.port)
        _create(session)
        random = np.random.default_rng(5)
        for week in range(edge.weeks):
            for group in GROUPS:
                for device in range(DEVICES):
                    _insert(session, f"{group}.d{device}", FIRST_WEEK + week, edge.rows, random)
            if week % _FLUSH_EVERY == _FLUSH_EVERY - 1:
                session.run("flush")
        session.run("flush")
        points = sum(session.count(f"{group}.*") for group in GROUPS)
        session.close()
    finally:
        server.close(kindly=True)
    files = len(tsfiles(folder / "data"))
    if (files, points) != (edge.files, edge.points):
        raise RuntimeError(f"the server made {files} files with {points} points, not {edge.files} with {edge.points}")
    return folder / "data"


def tsfiles(data: Path) -> list[Path]:
    """The sealed files below a server's folder, in sequence."""
    return list((data / "data" / "sequence").rglob("*.tsfile"))


def _create(session: Session) -> None:
    for group in GROUPS:
        session.run(f"set storage group to {group}")
        for device in range(DEVICES):
            for series in range(SERIES):
                session.run(f"create timeseries {group}.d{device}.s{series} with datatype=DOUBLE, encoding=GORILLA")


def _insert(session: Session, device: str, week: int, rows: int, random: np.random.Generator) -> None:
    times = week * WEEK + np.sort(random.choice(WEEK, rows, replace=False))
    values = np.round(100 + random.standard_normal((SERIES, rows)).cumsum(axis=1), 6)
    session.insert(device, [f"s{n}" for n in range(SERIES)], times.astype(">i8").tobytes(), values.astype(">f8").tobytes())
