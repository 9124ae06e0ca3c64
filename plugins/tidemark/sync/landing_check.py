"""The last look at a landing before it is whole: what lies in it that its manifest does not name, and what it names that
is not there any more.

Between a file's record and its manifest somebody may clear the receiver's landing folder, or unmount its disk. What was
recorded as sent and is not there is sent again; a manifest never names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemark.formats.layout import landed_path
from tidemark.ledger import journal
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.runs import DROP, MODS, PINNED, PLANNED, SUPERSEDE, RunItem, SentLanding
from tidemark.stores.listing import folders_of, glance
from tidemark.sync.manifest import Contents
from tidemark.sync.work import Work
from tidemark.tsfiles.names import RESOURCE


class Found(NamedTuple):
    """Paths at the receiver. `unnamed`: half files, temp files, whole files of items that broke off or were left out.
    `lost`: what the manifest names and is not there, or is of another size."""

    unnamed: list[str]
    lost: frozenset[str]


def look_through(work: Work, landing: str, contents: Contents) -> Found:
    """What lies in a landing's folder against what its manifest will name, by one listing."""
    folder = work.landing_folder(landing)
    named = {f"{folder}/{path}": size for path, size in _named(contents)}
    unnamed, lost = [], set(named)
    for files in folders_of(glance(work.target, [folder], RESOURCE).entries):
        for path, size in zip(map(files.prefix.__add__, files.names), files.sizes, strict=True):
            wanted = named.get(path)
            if wanted is None:
                unnamed.append(path)
            elif size in (wanted, -1):  # a glance leaves sizes of `.resource` files out
                lost.discard(path)
    return Found(unnamed, frozenset(lost))


def withdraw(work: Work, landing: SentLanding, contents: Contents, lost: frozenset[str]) -> None:
    """Take back the number of a landing that nobody has read: what is lost is to be sent again, the rest waits for it.

    CRASH WINDOW: one transaction; before it the rerun finds the same landing reserved and looks again.
    """
    folder = work.landing_folder(landing.landing)
    again = [i for i in contents.files if any(f"{folder}/{landed_path(path)}" in lost for path in _travelled(i))]
    linked = _linked(work, again)
    told = [i for i in contents.items if i.action in (DROP, SUPERSEDE)]
    back = [(i.path, PINNED if i.path in linked else PLANNED) for i in again] + [(i.path, PLANNED) for i in told]
    pieces = [p.path for p in contents.schema if f"{folder}/{landed_path(p.landed_path)}" in lost]
    with work.recording() as connection:
        run_rows.remove_landing(connection, landing.landing)
        run_rows.set_items(connection, work.run_id, [{"path": p, "state": state, "part": None} for p, state in back])
        run_rows.remove_schema(connection, work.run_id, pieces)
        place = {"link": work.link.name, "run_id": work.run_id, "landing": landing.landing}
        journal.record(connection, "landing.withdrawn", **place, lost=len(lost), example=min(lost))


def _named(contents: Contents) -> Iterator[tuple[str, int]]:
    """(path below the landing, bytes) of all that its manifest names."""
    for item in contents.files:
        sizes = {item.path: item.size, item.path + ".resource": item.resource_size, item.mods_path: item.mods_size}
        yield from ((landed_path(path), sizes[path]) for path in _travelled(item))
    yield from ((landed_path(log.landed_path), log.size) for log in contents.schema)


def _travelled(item: RunItem) -> tuple[str, ...]:
    if item.action == MODS:
        return (item.mods_path,)
    return item.paths if item.resource_size else tuple(path for path in item.paths if path != item.path + ".resource")


def _linked(work: Work, items: Sequence[RunItem]) -> frozenset[str]:
    """Those that can be read by their links again; which of them were pinned is not recorded any more."""
    if not work.site.snapshot:
        return frozenset()
    paths = {path: item.path for item in items for path in _travelled(item)}
    links = work.source.stat_many([work.folders.place(work.run_id, path) for path in paths])
    missing = {path for path, link in zip(paths.values(), links, strict=True) if link is None}
    return frozenset(paths.values()) - missing
