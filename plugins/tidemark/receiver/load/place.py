"""Where loaded, refused and quarantined files lie at the receiver, and how they get there.

Placing is a hard link from the landing (a copy where the disk has none), or a rename of the copy that was taken of it: the
bytes are durable under their place before the ledger speaks of it, and the landing still has them until the receipt is
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
    """The file at `source` gets the name `target` too, a copy that was taken only that one; both relative to the receiver's
    root.

    `optional`: a source that is not there is passed over (what came of a file for the quarantine may be incomplete).
    """

    source: str
    target: str
    optional: bool = False


def place_files(store: Store, placements: Iterable[Placement]) -> None:
    """Make every placement durable under its target name, all in one bundle.

    A target that is the source itself (one inode) stays. Any other is replaced, also one of the same size: it may have
    rotted since it was placed, and the source was checked just now.

    SourceVanishedError where neither the source nor the target of a placement that is not optional is there.
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
    # CRASH WINDOW: some have their final names, the ledger knows none of them: the next load finds them and goes on.
    # Those in place are sealed once more: their names may not have reached the disk before an earlier load died.
    store.make_folders(sorted({p.target.rpartition("/")[0] for p in copies}))
    linked = [(p.target + PART, p.target) for p in (*(p for p, _ in missing), *placed)]
    store.seal_parts([*((p.source, p.target) for p in copies), *linked])


def _one_file(one: Entry, other: Entry) -> bool:
    return bool(one.inode) and (one.inode, one.size) == (other.inode, other.size)


def _link_or_copy(store: Store, placements: Sequence[tuple[Placement, int]]) -> None:
    """Give each source its target's `.part` name too; a copy (size in bytes) where the disk knows no hard links."""
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
