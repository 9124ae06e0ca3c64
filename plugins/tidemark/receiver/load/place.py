"""Give loaded, refused and quarantined files their places at the receiver.

A file is placed by a hard link from the landing (a copy where the disk has no links), or by renaming the copy below
`taken/`. The bytes are durable in their place before the ledger names it. The landing keeps its files until the receipt is
written. Source: CONTRACT §3, DESIGN §3, docs/decisions/0021.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemark.errors import DiskFullError, PermanentError, PermissionDeniedError, SourceVanishedError
from tidemark.formats.layout import TAKEN
from tidemark.stores.protocol import Entry, Store

_COPY_BLOCK = 4 << 20
PART = ".part"


@dataclass(frozen=True)
class Placement:
    """The file at `source` also gets the name `target`; a copy below `taken/` gets only that. Both are relative to the
    receiver's root. `optional`: a missing source is skipped (a file for the quarantine may be incomplete)."""

    source: str
    target: str
    optional: bool = False


def place_files(store: Store, placements: Iterable[Placement]) -> None:
    """Make every placement durable under its target name, all in one bundle.

    A target that is the same inode as its source stays. Any other is replaced, even one of the same size: it may have rotted
    since, and the source was checked just now.

    SourceVanishedError if a placement that is not optional has neither source nor target.
    """
    wanted = list({p.target: p for p in placements}.values())
    sources = store.stat_many([p.source for p in wanted])
    targets = store.stat_many([p.target for p in wanted])
    missing: list[tuple[Placement, int]] = []
    placed: list[Placement] = []
    for p, source, target in zip(wanted, sources, targets, strict=True):
        if source is not None and (target is None or not _one_file(source, target)):
            missing.append((p, source.size))
        elif target is None and not p.optional:
            raise SourceVanishedError(f"{p.source} is gone from the receiver", hint="./tidemark load", subject=p.source)
        elif target is not None:
            placed.append(p)
    copies = [p for p, _ in missing if p.source.startswith(f"{TAKEN}/")]
    missing = [(p, size) for p, size in missing if not p.source.startswith(f"{TAKEN}/")]
    # CRASH WINDOW: links named .part without a record; the next load finds its landing unanswered and makes them again.
    _link_or_copy(store, missing)
    # CRASH WINDOW: some have their final names, the ledger has none of them: the next load finds them and goes on.
    # Files in place are sealed again: their names may not have reached the disk before an earlier load died.
    store.make_folders(sorted({p.target.rpartition("/")[0] for p in copies}))
    linked = [(p.target + PART, p.target) for p in (*(p for p, _ in missing), *placed)]
    store.seal_parts([*((p.source, p.target) for p in copies), *linked])


def _one_file(one: Entry, other: Entry) -> bool:
    return bool(one.inode) and (one.inode, one.size) == (other.inode, other.size)


def _link_or_copy(store: Store, placements: Sequence[tuple[Placement, int]]) -> None:
    """Give each source its target's `.part` name too; copy it (size in bytes) where the disk has no hard links."""
    if store.properties.hard_links:
        try:
            store.link([(p.source, p.target + PART) for p, _ in placements])
        except PermanentError as unlinkable:
            if isinstance(unlinkable, DiskFullError | PermissionDeniedError):
                raise
        else:
            return
    for p, size in placements:
        store.remove([p.target + PART])  # it may be a link: writing into it would write into the landing
        store.write_part(p.target + PART, 0, store.read_chunks(p.source, 0, size, _COPY_BLOCK))
