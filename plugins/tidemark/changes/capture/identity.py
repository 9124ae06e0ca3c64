"""The names of the logs that a store's transactions are from.

`source.json` in the store's folder. A position of the store has the number of a log; this says its name.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from functools import lru_cache

from tidemark.changes.store.disk import Disk
from tidemark.errors import CorruptionError, UnsupportedError

PATH = "source.json"
FORMAT = 1


@dataclass(frozen=True)
class Origin:
    """Logs `<base>.<number>`, with `digits` digits at least."""

    base: str
    digits: int

    def name_log(self, number: int) -> str:
        return f"{self.base}.{number:0{self.digits}}"


def origin_of(file: str) -> Origin:
    base, digits = _split_name(file)
    return Origin(base, len(digits))


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
    try:
        data = disk.read(PATH)
    except FileNotFoundError:
        return None
    try:
        found = json.loads(data)
        if found.pop("format") > FORMAT:
            raise UnsupportedError(f"{PATH} is of a newer format", hint="upgrade Tidemark", subject=PATH)
        return Origin(**found)
    except (ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise CorruptionError(
            f"{PATH} of the store is damaged: {wrong}", hint="bring it back from a copy", subject=PATH
        ) from wrong


def write_origin(disk: Disk, origin: Origin) -> None:
    disk.publish(PATH, json.dumps({"format": FORMAT, **asdict(origin)}).encode())
