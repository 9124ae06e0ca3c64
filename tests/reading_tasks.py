"""What a child does with a file that nobody trusts: read all of it, and say what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tidemark.errors import CorruptionError
from tidemark.tsfiles.points import column as canonical
from tidemark.tsfiles.reader import TsFile


@dataclass(frozen=True)
class ReadTask:
    path: str
    database: str

    @property
    def subject(self) -> str:
        return self.path


@dataclass
class Found:
    """`points`: (device, measurement) → type, times, texts; `named`: what could not be read, with why."""

    points: dict[tuple[str, str], tuple[str, list[int], list[str]]] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)


def read_points(task: ReadTask) -> Found:
    """All points of a file; what cannot be read is named."""
    found = Found()
    with TsFile(Path(task.path), task.database) as file:
        for device in file.list_devices():
            try:
                names = file.list_measurements(device)
            except CorruptionError as broken:
                found.named[device] = broken.message
                continue
            for name in names:
                try:
                    column = file.read_column(device, name)
                except CorruptionError as broken:
                    found.named[f"{device}.{name}"] = broken.message
                    continue
                if len(column):
                    texts = canonical.format_values(column.type, column.values)
                    found.points[device, name] = (column.type.name, column.times.tolist(), texts)
    return found
