"""What a receiver writes so that a lost ledger can be rebuilt: decisions of an operator, and settled merges.

Manifests and receipts say what came and what was answered. What a person decided afterwards (a device given to
another site, a drop approved, a held file given up, owners adopted) would stand in the ledger alone. So it is
written to `decided/<time>-<digest>.json` (`Decision`) before the ledger's transaction. A decision whose record
was cut off is made again by the operator or by the rebuild, both times to the same effect.

Once its sources are reclaimed, a merged file is the only copy of their points, and only the ledger knows what it
stands for. `settled/<name>.json` (`Settlement`) says so too: what the file was made from, and its account. It is
written before the ledger records the settling; one without that record means nothing.

Fields: docs/formats/decided.md and docs/formats/settled.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidemark.errors import CorruptionError
from tidemark.formats.json_stream import parse_json

DECIDED_FORMAT = 1
DECIDED_FOLDER = "decided"
TRANSFER, ADOPTED, APPROVE, GIVE_UP = "owners transfer", "owners adopted", "approve", "quarantine drop"


@dataclass(frozen=True)
class Decision:
    """`at` in seconds since 1970. `detail` by action:

    owners transfer   subject: device; {"to": site id}
    owners adopted    subject: link; {"owners": {device: site id}}
    approve           subject: run; {"drops": {site id: [[path, generation], …]}}
    quarantine drop   subject: path; {"site": site id, "generation": int}
    """

    at: float
    who: str
    action: str
    subject: str
    detail: Mapping[str, Any]


_DETAIL: Mapping[str, Callable[[Any], Mapping[str, Any]]] = {  # what is read of it; KeyError, TypeError for what is not it
    TRANSFER: lambda d: {"to": str(d["to"])},
    ADOPTED: lambda d: {"owners": {str(device): str(site) for device, site in d["owners"].items()}},
    APPROVE: lambda d: {"drops": {str(site): [(str(p), int(g)) for p, g in drops] for site, drops in d["drops"].items()}},
    GIVE_UP: lambda d: {"site": str(d["site"]), "generation": int(d["generation"])},
}


def decided_place(paper: Decision) -> str:
    """Sorts by time; two decisions of one millisecond have different digests."""
    digest = hashlib.sha256(f"{paper.action}\n{paper.subject}".encode()).hexdigest()
    return f"{DECIDED_FOLDER}/{int(paper.at * 1000):015d}-{digest[:8]}.json"


def encode_decision(paper: Decision) -> bytes:
    return json.dumps({"format": DECIDED_FORMAT, **asdict(paper)}, ensure_ascii=False, separators=(",", ":")).encode()


def decode_decision(data: bytes) -> Decision:
    """Raises CorruptionError for torn JSON, a missing field, an unknown action or a newer format."""
    try:
        raw = parse_json(data)
        if raw["format"] > DECIDED_FORMAT:
            raise CorruptionError(f"a decision's paper has format {raw['format']}, this Tidemark knows {DECIDED_FORMAT}")
        detail = _DETAIL[raw["action"]](raw["detail"])
        return Decision(float(raw["at"]), raw["who"], raw["action"], raw["subject"], detail)
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise CorruptionError(f"a decision's paper is not readable: {type(broken).__name__} {broken}") from broken


SETTLED_FORMAT = 1
SETTLED_FOLDER = "settled"


@dataclass(frozen=True)
class SettledSource:
    """A file that the merged one stands for. `path` is '' where that was a merged file itself."""

    path: str
    generation: int
    location: str
    sha256: str


@dataclass(frozen=True)
class Settlement:
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


def settled_place(location: str) -> str:
    """Where the paper of the merged file at `location` lies."""
    return f"{SETTLED_FOLDER}/{location.rpartition('/')[2]}.json"


def encode_settlement(paper: Settlement) -> bytes:
    return json.dumps({"format": SETTLED_FORMAT, **asdict(paper)}, ensure_ascii=False, separators=(",", ":")).encode()


def decode_settlement(data: bytes) -> Settlement:
    """Raises CorruptionError for torn JSON, a missing field or a newer format."""
    try:
        raw = parse_json(data)
        if raw["format"] > SETTLED_FORMAT:
            raise CorruptionError(f"a settled paper has format {raw['format']}, this Tidemark knows {SETTLED_FORMAT}")
        values = {name: raw[name] for name in Settlement.__dataclass_fields__}
        values["rank"] = tuple(int(part) for part in raw["rank"])
        values["sources"] = tuple(
            SettledSource(s["path"], int(s["generation"]), s["location"], s["sha256"]) for s in raw["sources"]
        )
        return Settlement(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise CorruptionError(f"a settled paper is not readable: {type(broken).__name__} {broken}") from broken
