"""Files that are gone at their site and kept: how they are counted, listed and said. Pure but for the one query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.ledger.sql import report
from tidemark.proof.explanation import listed

SHOWN = 1_000
"""Listed one by one; the count is of all."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """`points`: those that it holds, before its deletions; how many of them readers see, `verify --deep` tells."""

    path: str
    points: int


def kept_files(connection: Connection, receiver: str) -> Mapping[str, tuple[KeptFile, ...]]:
    """Site → the files that it has no more and a receiver keeps, by path."""
    found: dict[str, list[KeptFile]] = defaultdict(list)
    for row in report(connection, "kept_files", receiver=receiver):
        found[row["site_id"]].append(KeptFile(row["path"], int(row["points"])))
    return {site_id: tuple(files) for site_id, files in found.items()}


def kept_json(kept: Sequence[KeptFile]) -> dict[str, Any]:
    """`kept_files`: how many; `kept`: the first of them."""
    return {"kept_files": len(kept), "kept": [{"path": one.path, "points": one.points} for one in kept[:SHOWN]]}


def kept_note(kept: Sequence[KeptFile]) -> tuple[str, ...]:
    """One line for a person, none without such files."""
    if not kept:
        return ()
    files = f"{len(kept):,} files are" if len(kept) > 1 else "1 file is"
    names = listed([one.path for one in kept])
    return (f"{files} gone at the site and kept, and only fill times at which it has nothing: {names}",)


def given_up_note(connection: Connection, receiver: str, site_id: str) -> tuple[str, ...]:
    """One line on kept files whose bytes rotted here and that the operator gave up, none without such files."""
    paths = [row["path"] for row in report(connection, "given_up", receiver=receiver, site=site_id)]
    if not paths:
        return ()
    files = f"{len(paths):,} files that were" if len(paths) > 1 else "1 file that was"
    return (f"{files} gone at the site and kept rotted here, and the operator gave up their points: {listed(paths)}",)
