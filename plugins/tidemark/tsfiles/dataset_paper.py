"""`_tidemark.json`: which files of a folder are the data set. What it does not name does not exist for readers.

The file is replaced whole, so a reader sees the set before a commit or the set after it (docs/spark.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemark.errors import CorruptionError

PAPER = "_tidemark.json"
FORMAT = 1


@dataclass(frozen=True)
class DatasetPaper:
    """`files`: name → facts, in rank order. `retired`: name → when it left (seconds since 1970), bytes kept for a grace.

    `version` is the highest version number given to a file; `created` the latest creation time in a name, in ms.
    """

    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    retired: Mapping[str, float] = field(default_factory=dict)
    version: int = 0
    created: int = 0

    @property
    def names(self) -> list[str]:
        return list(self.files)

    def encode(self) -> bytes:
        content = {
            "format": FORMAT,
            "version": self.version,
            "created": self.created,
            "files": dict(self.files),
            "retired": dict(self.retired),
        }
        return json.dumps(content, indent=1).encode() + b"\n"


def read_paper(folder: Path) -> DatasetPaper:
    """The paper of a folder; an empty one where there is none. CorruptionError where it cannot be understood."""
    place = folder / PAPER
    try:
        raw = json.loads(place.read_bytes())
        if raw["format"] != FORMAT:
            raise CorruptionError(f"{place}: format {raw['format']!r}; this Tidemark knows {FORMAT}", subject=str(place))
        paper = DatasetPaper(raw["files"], raw["retired"], int(raw["version"]), int(raw["created"]))
        if any("/" in name or name.startswith(".") for name in (*paper.files, *paper.retired)):
            raise CorruptionError(f"{place}: a file name leads out of the folder", subject=str(place))
    except FileNotFoundError:
        return DatasetPaper()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as broken:
        raise CorruptionError(f"{place}: {type(broken).__name__}: {broken}", subject=str(place)) from broken
    return paper
