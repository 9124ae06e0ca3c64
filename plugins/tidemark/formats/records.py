"""Records of a receiver for rebuilding a lost ledger: decisions of an operator, and settled merges.

Manifests and receipts record what came and what was answered. Later decisions of a person (a device given to another site, a
drop approved, a held file given up, owners adopted) would be only in the ledger. So each is written to
`decided/<time>-<digest>.json` (`Decision`) before the ledger's transaction. If a crash comes between the two, the operator
or the rebuild makes the decision again, with the same effect.

Once its sources are reclaimed, a merged file is the only copy of their points, and only the ledger knows its sources.
`settled/<name>.json` (`Settlement`) records them too, with its account. It is written before the ledger records the
settling; without the ledger's record it has no meaning.

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
DISMISS = "owners dismiss"


@dataclass(frozen=True)
class Decision:
    """A decision. `at` in seconds since 1970. `detail` by action:

    owners transfer   subject: device; {"to": site id}
    owners adopted    subject: link; {"owners": {device: site id}}
    approve           subject: run; {"drops": {site id: [[path, generation], …]}}
    quarantine drop   subject: path; {"site": site id, "generation": int}
    owners dismiss    subject: site id; {"files": [[path, generation], …]}
    """

    at: float
    who: str
    action: str
    subject: str
    detail: Mapping[str, Any]


_DETAIL: Mapping[str, Callable[[Any], Mapping[str, Any]]] = {  # the fields read; KeyError, TypeError if one is wrong
    TRANSFER: lambda d: {"to": str(d["to"])},
    ADOPTED: lambda d: {"owners": {str(device): str(site) for device, site in d["owners"].items()}},
    APPROVE: lambda d: {"drops": {str(site): [(str(p), int(g)) for p, g in drops] for site, drops in d["drops"].items()}},
    GIVE_UP: lambda d: {"site": str(d["site"]), "generation": int(d["generation"])},
    DISMISS: lambda d: {"files": [(str(path), int(generation)) for path, generation in d["files"]]},
}


def decided_place(record: Decision) -> str:
    """Return the place of a decision, sorted by time; the digest separates decisions of one millisecond."""
    digest = hashlib.sha256(f"{record.action}\n{record.subject}".encode()).hexdigest()
    return f"{DECIDED_FOLDER}/{int(record.at * 1000):015d}-{digest[:8]}.json"


def encode_decision(record: Decision) -> bytes:
    return json.dumps({"format": DECIDED_FORMAT, **asdict(record)}, ensure_ascii=False, separators=(",", ":")).encode()


def decode_decision(data: bytes) -> Decision:
    """Decode a decision. CorruptionError for torn JSON, a missing field, an unknown action or a newer format."""
    try:
        raw = parse_json(data)
        if raw["format"] > DECIDED_FORMAT:
            raise CorruptionError(f"a decision's record has format {raw['format']}, this Tidemark knows {DECIDED_FORMAT}")
        detail = _DETAIL[raw["action"]](raw["detail"])
        return Decision(float(raw["at"]), raw["who"], raw["action"], raw["subject"], detail)
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise CorruptionError(f"a decision's record is not readable: {type(broken).__name__} {broken}") from broken


SETTLED_FORMAT = 1
SETTLED_FOLDER = "settled"


@dataclass(frozen=True)
class SettledSource:
    """A source of a merged file. `path` is '' for a source that was a merged file itself."""

    path: str
    generation: int
    location: str
    sha256: str


@dataclass(frozen=True)
class Settlement:
    """A merged file that stands alone, and its sources (decision 0007)."""

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
    """Return the place of the record of the merged file at `location`."""
    return f"{SETTLED_FOLDER}/{location.rpartition('/')[2]}.json"


def encode_settlement(record: Settlement) -> bytes:
    return json.dumps({"format": SETTLED_FORMAT, **asdict(record)}, ensure_ascii=False, separators=(",", ":")).encode()


def decode_settlement(data: bytes) -> Settlement:
    """Decode a settlement. CorruptionError for torn JSON, a missing field or a newer format."""
    try:
        raw = parse_json(data)
        if raw["format"] > SETTLED_FORMAT:
            raise CorruptionError(f"a settled record has format {raw['format']}, this Tidemark knows {SETTLED_FORMAT}")
        values = {name: raw[name] for name in Settlement.__dataclass_fields__}
        values["rank"] = tuple(int(part) for part in raw["rank"])
        values["sources"] = tuple(
            SettledSource(s["path"], int(s["generation"]), s["location"], s["sha256"]) for s in raw["sources"]
        )
        return Settlement(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise CorruptionError(f"a settled record is not readable: {type(broken).__name__} {broken}") from broken
