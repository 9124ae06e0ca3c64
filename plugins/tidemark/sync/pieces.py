"""The files on the wire for an item of a run: where each is read, where it lands."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.formats.layout import landed_path
from tidemark.ledger.sender.runs import MODS, PINNED, RunItem
from tidemark.sync.work import Work
from tidemark.transfer.engine import SendItem

TSFILE, RESOURCE, MODS_FILE = "tsfile", "resource", "mods"


class Piece(NamedTuple):
    """One file on the wire for an item."""

    item: RunItem
    role: str
    send: SendItem


def pieces_of(work: Work, item: RunItem, landing: str) -> list[Piece]:
    """What travels for an item, companions first: the links of a pinned one, the files themselves otherwise."""
    folder = work.landing_folder(landing)

    def piece(role: str, path: str, size: int) -> Piece:
        return Piece(item, role, SendItem(source_of(work, item, path), f"{folder}/{landed_path(path)}", size))

    mods = [piece(MODS_FILE, item.mods_path, item.mods_size)] if item.mods_path else []
    if item.action == MODS:
        return mods
    resource = [piece(RESOURCE, item.path + ".resource", item.resource_size)] if item.resource_size else []
    return [*resource, *mods, piece(TSFILE, item.path, item.size)]


def source_of(work: Work, item: RunItem, path: str) -> str:
    """Where one of the item's files is read at the source."""
    return work.folders.place(work.run_id, path) if item.state == PINNED else path
