"""The paper of a merged file that stands alone: what it was made from, and its account.

Once its sources are reclaimed, a merged file is the only copy of their points, and only the ledger knows what it stands
for. `settled/<name>.json` at the receiver says so too, so that a lost ledger can be rebuilt. It is written before the
ledger records the settling; a paper without that record means nothing. Fields: docs/formats/settled.md.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tidemark.errors import CorruptionError
from tidemark.stores.paper_stream import parse_json

SETTLED_FORMAT = 1
FOLDER = "settled"


@dataclass(frozen=True)
class SettledSource:
    """A file that the merged one stands for. `path` is '' where that was a merged file itself."""

    path: str
    generation: int
    location: str
    sha256: str


@dataclass(frozen=True)
class SettledPaper:
    """A merged file that stands alone, and all that went into it (decision 0007)."""

    site_id: str
    database: str
    model: str
    partition_from: int
    partition_to: int
    location: str  # of the merged file, relative to the receiver's root
    sha256: str
    size: int
    points: int
    rank: tuple[int, int, int, int, int]
    batch: str
    points_in: int  # in = points + overwritten + deleted
    overwritten: int
    deleted: int
    merged: float  # when it was published, seconds since 1970
    settled: float
    sources: tuple[SettledSource, ...]


def paper_place(location: str) -> str:
    """Where the paper of the merged file at `location` lies."""
    return f"{FOLDER}/{location.rpartition('/')[2]}.json"


def encode_settled(paper: SettledPaper) -> bytes:
    return json.dumps({"format": SETTLED_FORMAT, **asdict(paper)}, ensure_ascii=False, separators=(",", ":")).encode()


def decode_settled(data: bytes) -> SettledPaper:
    """Raises CorruptionError for torn JSON, a missing field or a newer format."""
    try:
        raw = parse_json(data)
        if raw["format"] > SETTLED_FORMAT:
            raise CorruptionError(f"a settled paper has format {raw['format']}, this Tidemark knows {SETTLED_FORMAT}")
        values = {name: raw[name] for name in SettledPaper.__dataclass_fields__}
        values["rank"] = tuple(int(part) for part in raw["rank"])
        values["sources"] = tuple(
            SettledSource(s["path"], int(s["generation"]), s["location"], s["sha256"]) for s in raw["sources"]
        )
        return SettledPaper(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise CorruptionError(f"a settled paper is not readable: {type(broken).__name__} {broken}") from broken
