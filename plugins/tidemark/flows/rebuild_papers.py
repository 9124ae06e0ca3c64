"""The papers at a receiver, read for a rebuilt ledger: manifests, receipts, decisions, settled merges, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tidemark.errors import CorruptionError
from tidemark.load.chronicle import Heard, Moment, chronicle
from tidemark.load.manifests import Folder, Paper, landing_folders, read_paper
from tidemark.load.recall import Traces
from tidemark.stores import decided, settled
from tidemark.stores.landing import RECEIPT, Receipt
from tidemark.stores.landing_papers import decode_receipt
from tidemark.stores.protocol import Store
from tidemark.tsfiles.names import parse_source_path

T = TypeVar("T")


@dataclass(frozen=True)
class Books:
    """All moments of a receiver. Manifests are read again when their moment comes: together they may be gigabytes."""

    root: Path
    moments: Sequence[Moment]
    folders: Mapping[tuple[str, str], Folder]
    files: Mapping[tuple[str, str], int]  # (site, landing) → files its manifest lists
    unanswered: Sequence[Folder]
    settled: Sequence[settled.SettledPaper]  # those too that do not count
    troubles: Sequence[str]

    def papers_of(self, heard: Heard) -> tuple[Paper, Receipt | None, str]:
        """The manifest, and the receipt decoded and as text (None and '' where there is none that can be read)."""
        folder = self.folders[heard.site_id, heard.landing]
        receipt, text = _receipt(self.root, folder)
        return read_paper(self.root, folder), receipt, text

    def weight(self, moment: Moment) -> int:
        """Files to describe, about."""
        if isinstance(moment.what, Heard):
            return self.files[moment.what.site_id, moment.what.landing]
        return len(moment.what) if isinstance(moment.what, tuple) else 0

    def to_load(self, traces: Traces) -> set[str]:
        """Data files of landings that are still to load: a load that died placed them and did not record them."""
        found = set()
        for folder in self.unanswered:
            manifest = read_paper(self.root, folder).manifest
            for file in manifest.files if manifest else ():
                name = parse_source_path(file.path, manifest.data) if manifest else None
                if name and (place := traces.data_file(folder.site_id, file, name)):
                    found |= {path for path in traces.sizes if path.startswith(place)}
        return found


def read_books(root: Path, store: Store, traces: Traces) -> Books:
    troubles: list[str] = []
    folders = {(folder.site_id, folder.landing): folder for folder in landing_folders(root)}
    heard: list[Heard] = []
    files: dict[tuple[str, str], int] = {}
    for key, folder in folders.items():
        manifest = read_paper(root, folder).manifest
        receipt, _ = _receipt(root, folder)
        if folder.answered and receipt is None:
            troubles.append(
                f"{folder.path}/{RECEIPT} cannot be read: its landing counts as loaded, by the files that lie here"
            )
        sequence = manifest.sequence if manifest else receipt.sequence if receipt else 0
        if not sequence:
            continue  # neither paper can be read; a load names it
        files[key] = len(manifest.files) if manifest else 0
        mine = receipt is None or receipt.landing == folder.landing  # a stray copy of another landing's folder
        loaded = receipt.loaded if receipt and mine else None
        heard.append(Heard(folder.site_id, folder.landing, sequence, loaded, folder.answered and mine))
    decisions = _read(store, traces.below(decided.FOLDER), decided.decode_decided, troubles)
    merges = list(_read(store, traces.below(settled.FOLDER), settled.decode_settled, troubles))
    moments, gaps = chronicle(heard, decisions, (paper for paper in merges if _counts(paper, traces)))
    told = {(m.what.site_id, m.what.landing) for m in moments if isinstance(m.what, Heard)}
    unanswered = [folder for key, folder in folders.items() if key not in told]
    return Books(root, moments, folders, files, unanswered, merges, [*troubles, *gaps])


def _counts(paper: settled.SettledPaper, traces: Traces) -> bool:
    """A paper is written before the settling is recorded. While every source is here, its sources are read instead."""
    return any(source.location not in traces for source in paper.sources)


def _receipt(root: Path, folder: Folder) -> tuple[Receipt | None, str]:
    if not folder.answered:
        return None, ""
    data = (root / folder.path / RECEIPT).read_bytes()
    try:
        return decode_receipt(data), data.decode()
    except CorruptionError:
        return None, ""  # `read_books` names it


def _read(store: Store, paths: Sequence[str], decode: Callable[[bytes], T], troubles: list[str]) -> Iterator[T]:
    for path, data in store.read_many([path for path in paths if path.endswith(".json")]):
        if data is None:
            continue
        try:
            yield decode(data)
        except CorruptionError as broken:
            troubles.append(f"{path}: {broken.message}")
