"""Make notes on files that the newest listing of a site skipped, and on files that are not verified at the source.

A folder that could not be listed may hold anything: a run with one does not succeed. Other reasons (a symlink, a name
that is not UTF-8, a file that IoTDB marked as broken) become notes. Reasons that IoTDB's own work explains become notes
after a day. `not_verified` says how many files are not verified at the source and how to verify them later.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy.engine import Connection

from tidemark.ledger.database import database_time
from tidemark.ledger.sender.links import Skipped, skipped_files
from tidemark.progress import format_count
from tidemark.stores.protocol import UNLISTED
from tidemark.tsfiles.sealed import AT_WORK, MISSING, NAMELESS, NO_FOLDER

LET_LIST = "let the site's user list it (its mode, the disk's health); of a symlink name the folder that it leads to"
_TOLD_ELSEWHERE = ("in quarantine as ",)  # sync.select.quarantine
LASTING_SECONDS = 86_400.0  # a file that is written or compacted for longer: IoTDB may have died over it

NAMED = 3  # companions that are listed by name


class PassedOver(NamedTuple):
    """What a listing skipped. `unlisted`: (path, reason) of folders and files of unknown content. `notes`: sentences on the
    rest."""

    unlisted: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def passed_over(connection: Connection, link: str) -> PassedOver:
    """Return what the newest listing of a link's site in this ledger skipped."""
    skipped = skipped_files(connection, link)
    unlisted = sorted((path, one.reason) for path, one in skipped.items() if one.reason.startswith(UNLISTED))
    return PassedOver(tuple(unlisted), make_notes(skipped, link, database_time(connection)) if skipped else ())


def make_notes(skipped: Mapping[str, Skipped], link: str, clock: float) -> tuple[str, ...]:
    """Return one sentence for each reason that a person should know. `clock`: now, by the ledger's clock. Pure."""
    grouped: dict[str, list[str]] = defaultdict(list)  # how the sentence ends, for each of its files
    named: list[str] = []
    for path, (why, since) in sorted(skipped.items()):
        if why.startswith((UNLISTED, *_TOLD_ELSEWHERE)):
            continue
        if why.startswith((NAMELESS, MISSING, NO_FOLDER)):
            named.append(f"{path}: {why}")
            continue
        if why not in AT_WORK:
            grouped[why.partition(" (")[0]].append(f", reason: {why}")
        elif clock - since >= LASTING_SECONDS:
            grouped[why].append(f" for more than a day, reason: {why}")
    sentences = [
        f"{format_count(len(ends), 'file is', 'files are')} passed over{ends[0]};"
        f" ./tidemark plan {link} lists {'them' if ends[1:] else 'it'}"
        for ends in grouped.values()
    ]
    more = f", and {len(named) - NAMED:,} more; ./tidemark plan {link} lists them" if len(named) > NAMED else ""
    return (*sentences, *named[: NAMED - 1], *(text + more for text in named[NAMED - 1 : NAMED]))


def not_verified(count: int, site: str) -> str:
    """Return the note on `count` files of a site (by its name) whose digest was made at the target only."""
    return (
        f"{format_count(count, 'file is', 'files are')} not verified at the source: the digest was made at the target only;"
        f" ./tidemark verify --site {shlex.quote(site)} reads there what was sent, and proves it"
    )
