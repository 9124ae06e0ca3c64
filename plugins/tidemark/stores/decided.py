"""The paper of an operator's decision at a receiver: `decided/<time>-<digest>.json`, so that a lost ledger can be rebuilt.

Manifests and receipts say what came and what was answered; what a person decided afterwards (a device handed to another
site, a drop approved, a held file given up, owners adopted) would stand in the ledger alone. The paper is written before
the ledger's transaction: a decision whose record was cut off is made again by the operator or by the rebuild, both times
to the same effect. Fields: docs/formats/decided.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidemark.errors import CorruptionError
from tidemark.stores.paper_stream import parse_json

DECIDED_FORMAT = 1
FOLDER = "decided"
TRANSFER, ADOPTED, APPROVE, GIVE_UP = "owners transfer", "owners adopted", "approve", "quarantine drop"


@dataclass(frozen=True)
class DecidedPaper:
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


def paper_place(paper: DecidedPaper) -> str:
    """Sorts by time; two decisions of one millisecond have different digests."""
    digest = hashlib.sha256(f"{paper.action}\n{paper.subject}".encode()).hexdigest()
    return f"{FOLDER}/{int(paper.at * 1000):015d}-{digest[:8]}.json"


def encode_decided(paper: DecidedPaper) -> bytes:
    return json.dumps({"format": DECIDED_FORMAT, **asdict(paper)}, ensure_ascii=False, separators=(",", ":")).encode()


def decode_decided(data: bytes) -> DecidedPaper:
    """Raises CorruptionError for torn JSON, a missing field, an unknown action or a newer format."""
    try:
        raw = parse_json(data)
        if raw["format"] > DECIDED_FORMAT:
            raise CorruptionError(f"a decision's paper has format {raw['format']}, this Tidemark knows {DECIDED_FORMAT}")
        detail = _DETAIL[raw["action"]](raw["detail"])
        return DecidedPaper(float(raw["at"]), raw["who"], raw["action"], raw["subject"], detail)
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise CorruptionError(f"a decision's paper is not readable: {type(broken).__name__} {broken}") from broken
