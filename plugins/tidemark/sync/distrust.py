"""The link's quarantine: files whose bytes did not arrive as they are, however often they were sent.

A disk that flips bits, here or there, would otherwise cost the same tries in every run, for ever. Such a file is kept out of
the link's runs, by name and with the block that differed, until its content is another one or the operator releases it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy.engine import Connection

from tidemark.errors import CorruptionError, TidemarkError
from tidemark.ledger import journal
from tidemark.ledger.sender import holds as hold_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.holds import Held
from tidemark.sync.plan import Change, Changes
from tidemark.sync.work import Work

QUARANTINED = "in quarantine as "
"""How the reason of a file begins that the link keeps back."""


def hold(connection: Connection, work: Work, errors: Mapping[str, TidemarkError]) -> Mapping[str, str]:
    """Put the files that failed by their bytes into quarantine: {path: why, with the ID}."""
    paths = [path for path, error in errors.items() if isinstance(error, CorruptionError)]
    told = {}
    for item in run_rows.items_at(connection, work.run_id, paths):
        reason = errors[item.path].message
        row = Held(0, work.link.name, item.path, item.size, item.mtime, item.mods_size, work.run_id, 0.0, reason)
        name = hold_rows.hold(connection, row)
        told[item.path] = f"{QUARANTINED}{name}: {reason}"
        journal.record(
            connection, "file.distrusted", link=work.link.name, run_id=work.run_id, path=item.path, id=name, reason=reason
        )
    return told


def kept_back(connection: Connection, link: str, found: Changes) -> Changes:
    """The changes without files in quarantine whose content is the same still; those are passed over, and told."""
    held = {one.path: one for one in hold_rows.kept(connection, link)}
    if not held:
        return found
    back = [c for c in found.changed if c.file.entry.path in held and _same(c, held[c.file.entry.path])]
    paths = {c.file.entry.path for c in back}
    reasons = ((path, f"{QUARANTINED}{held[path].name}: {held[path].reason}") for path in sorted(paths))
    changed = tuple(c for c in found.changed if c.file.entry.path not in paths)
    return replace(found, changed=changed, skipped=(*found.skipped, *reasons))


def _same(change: Change, held: Held) -> bool:
    file = change.file
    return (file.entry.size, file.entry.mtime, file.mods.size if file.mods else 0) == (held.size, held.mtime, held.mods_size)
