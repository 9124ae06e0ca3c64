"""Read a receiver's documents for a rebuilt ledger, in order of time.

These are manifests, receipts, decisions and settled merges. Manifests and receipts are the receiver's own copies
(`formats.answered`). Anybody may write into a landing: a manifest there counts only if it is the answered one, and a receipt
there is no answer. At a receiver without own copies yet, a receipt is *unproved*: it counts as far as data files confirm it,
and it gives no device that has an owner.

`order_moments` orders the events: landings answered, decisions made, merged files settled. A rebuilt ledger replays them in
this order, so that owners, superseded files and merged files come out as they were. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from tidemark.errors import CorruptionError
from tidemark.formats import records
from tidemark.formats.answered import answered_landings, has_begun, kept_manifest, kept_receipt, list_altered, read_landed
from tidemark.formats.landing import Receipt, decode_receipt
from tidemark.formats.layout import RECEIPT
from tidemark.formats.records import Decision, Settlement
from tidemark.operations.rebuild.answers import StoredFiles
from tidemark.receiver.faults import message_of, require_theirs
from tidemark.receiver.load.landings import Folder, FoundManifest, landing_folders, odd_landings, read_found_manifest
from tidemark.stores.protocol import Store, read_records
from tidemark.tsfiles.names import parse_source_path
from tidemark.untrusted_files import MOST_RECORD

T = TypeVar("T")


@dataclass(frozen=True)
class ReceiverHistory:
    """All moments of a receiver. Manifests are read again at their moment: together they may be gigabytes."""

    root: Path
    moments: Sequence[Moment]
    folders: Mapping[tuple[str, str], Folder]
    kept: Collection[tuple[str, str]]  # (site, landing) whose answer the receiver kept itself
    files: Mapping[tuple[str, str], int]  # (site, landing) → files its manifest lists
    unanswered: Sequence[Folder]
    settled: Sequence[records.Settlement]  # with those that do not count
    troubles: Sequence[str]

    def read_records(self, heard: LandingRecord) -> tuple[FoundManifest, Receipt | None, str]:
        """Return the manifest, and the receipt decoded and as text (None and '' if none is readable)."""
        key = (heard.site_id, heard.landing)
        receipt, text = _read_receipt(self.root, self.folders[key], key in self.kept) if heard.answered else (None, "")
        return _read_manifest(self.root, self.folders[key], receipt if key in self.kept else None), receipt, text

    def is_kept(self, heard: LandingRecord) -> bool:
        """Return whether the answer is the receiver's own copy."""
        return (heard.site_id, heard.landing) in self.kept

    @cached_property
    def settled_sources(self) -> Collection[tuple[str, str, int]]:
        """(site, path, generation) of the sources of settled merged files."""
        return {(record.site_id, source.path, source.generation) for record in self.settled for source in record.sources}

    def count_files(self, moment: Moment) -> int:
        """Return about how many files must be described."""
        if isinstance(moment.what, LandingRecord):
            return self.files[moment.what.site_id, moment.what.landing]
        return len(moment.what) if isinstance(moment.what, tuple) else 0

    def to_load(self, traces: StoredFiles) -> set[str]:
        """Return data files of landings that are still to load: a dead load placed them and did not record them."""
        found = set()
        for folder in self.unanswered:
            manifest = _read_landed_manifest(self.root, folder).manifest
            for file in manifest.files if manifest else ():
                name = parse_source_path(file.path, manifest.data) if manifest else None
                if name and (place := traces.data_file(folder.site_id, file, name)):
                    found |= {path for path in traces.sizes if path.startswith(place)}
        return found


def read_history(root: Path, store: Store, traces: StoredFiles) -> ReceiverHistory:
    troubles = [f"{path}: {why}" for path, why in odd_landings(root)]
    kept, begun = answered_landings(root), has_begun(root)
    folders = {key: Folder(*key, answered=True, bulky=False) for key in sorted(kept)}
    folders |= {(folder.site_id, folder.landing): folder for folder in landing_folders(root)}
    heard: list[LandingRecord] = []
    files: dict[tuple[str, str], int] = {}
    for key, folder in sorted(folders.items()):
        receipt, _ = _read_receipt(root, folder, key in kept)
        manifest = _read_manifest(root, folder, receipt if key in kept else None).manifest
        if key in kept:
            answered, told = True, _list_troubles(root, folder, receipt)
        elif begun and folder.answered:
            answered, told = False, [f"{folder.path}/{RECEIPT} is not of this receiver: it is not believed"]
        else:
            answered = folder.answered and (receipt is None or receipt.landing == folder.landing)  # or another's
            told = [f"{folder.path}/{RECEIPT} cannot be read: {_BY_FILES}"] if answered and receipt is None else []
        troubles += told
        sequence = manifest.sequence if manifest else receipt.sequence if receipt and answered else 0
        if not sequence:
            continue  # neither document is readable; a load reports it
        files[key] = len(manifest.files) if manifest else 0
        heard.append(LandingRecord(*key, sequence, receipt.loaded if receipt and answered else None, answered))
    decisions = _decode_records(store, traces.paths_below(records.DECIDED_FOLDER), records.decode_decision, troubles)
    merges = list(_decode_records(store, traces.paths_below(records.SETTLED_FOLDER), records.decode_settlement, troubles))
    moments, gaps = order_moments(heard, decisions, (record for record in merges if _is_settled(record, traces)))
    told_of = {(m.what.site_id, m.what.landing) for m in moments if isinstance(m.what, LandingRecord)}
    unanswered = [folder for key, folder in folders.items() if key not in told_of]
    return ReceiverHistory(root, moments, folders, kept, files, unanswered, merges, [*troubles, *gaps])


_BY_FILES = "its landing counts as loaded, by the files that lie here"


def _list_troubles(root: Path, folder: Folder, receipt: Receipt | None) -> list[str]:
    """List what is wrong with a landing's documents: the receiver's own, and those in the landing."""
    if receipt is None:
        return [f"{kept_receipt(folder.site_id, folder.landing)} cannot be read: {_BY_FILES}"]
    try:
        return list_altered(root, folder.site_id, folder.landing, receipt.manifest_sha256)
    except Exception as error:
        return [f"{folder.path}: its manifest and receipt cannot be compared: {message_of(require_theirs(error))}"]


def _read_manifest(root: Path, folder: Folder, receipt: Receipt | None) -> FoundManifest:
    """Read the manifest that a kept `receipt` answers; without one, the one in the landing."""
    if receipt is None:
        return _read_landed_manifest(root, folder)
    record = _read_landed_manifest(root, folder, kept_manifest(folder.site_id, folder.landing))
    if record.sha256 != receipt.manifest_sha256:  # missing, damaged, or older than kept manifests
        record = _read_landed_manifest(root, folder)
    if record.sha256 == receipt.manifest_sha256:
        return record
    return FoundManifest(folder, receipt.manifest_sha256, None, "the manifest that was loaded is nowhere")


def _read_landed_manifest(root: Path, folder: Folder, kept: str = "") -> FoundManifest:
    """Read the manifest in a landing, or its `kept` copy. Whatever its sender made of it costs that landing alone."""
    try:
        return read_found_manifest(root, folder, kept)
    except Exception as error:
        return FoundManifest(folder, "", None, message_of(require_theirs(error)))


def _is_settled(record: records.Settlement, traces: StoredFiles) -> bool:
    """Return whether a settlement counts. It is written before the ledger's row; with all sources here, they are read."""
    return any(source.location not in traces for source in record.sources)


def _read_receipt(root: Path, folder: Folder, kept: bool) -> tuple[Receipt | None, str]:
    path = kept_receipt(folder.site_id, folder.landing) if kept else f"{folder.path}/{RECEIPT}"
    try:
        data = read_landed(root, path) if kept or folder.answered else None
        return (decode_receipt(data), data.decode()) if data is not None else (None, "")
    except Exception as broken:
        if kept and not isinstance(broken, CorruptionError):
            raise
        require_theirs(broken)
        return None, ""  # `read_history` reports it


def _decode_records(store: Store, paths: Sequence[str], decode: Callable[[bytes], T], troubles: list[str]) -> Iterator[T]:
    named = [path for path in paths if path.endswith(".json")]
    for path, data in zip(named, read_records(store, named, MOST_RECORD), strict=True):
        try:
            if isinstance(data, CorruptionError):
                raise data
            if data is not None:
                yield decode(data)
        except CorruptionError as broken:
            troubles.append(f"{path}: {broken.message}")


@dataclass(frozen=True)
class LandingRecord:
    """A landing by its manifest and its receipt. `loaded`: the receipt's time, None without a readable one; `answered`: the
    receiver answered it, as far as known."""

    site_id: str
    landing: str
    sequence: int
    loaded: float | None
    answered: bool


@dataclass(frozen=True)
class Moment:
    """One event: `what`, `at` seconds since 1970. Merged files of the same sources settled together."""

    at: float
    what: LandingRecord | Decision | tuple[Settlement, ...]


def order_moments(
    heard: Iterable[LandingRecord], decided: Iterable[Decision], settled: Iterable[Settlement]
) -> tuple[list[Moment], list[str]]:
    """Return all moments in order, and the troubles: missing sequence numbers.

    Landings without a receipt, and without a later answered landing, are left out: they are still to load.
    """
    moments: list[Moment] = []
    troubles: list[str] = []
    by_site: dict[str, list[LandingRecord]] = defaultdict(list)
    for one in heard:
        by_site[one.site_id].append(one)
    for site_id, landings in sorted(by_site.items()):
        moments += _order_landings(landings)
        troubles += _find_gaps(site_id, landings)
    moments += [Moment(record.at, record) for record in decided]
    groups: dict[tuple[object, ...], list[Settlement]] = defaultdict(list)
    for record in settled:
        groups[(record.site_id, record.batch, record.sources)].append(record)
    moments += [Moment(max(p.settled for p in group), tuple(group)) for group in groups.values()]
    return sorted(moments, key=_moment_order), troubles


def _moment_order(moment: Moment) -> tuple[float, int]:
    """Sort landings first at equal times: decisions and settlings concern loaded files."""
    return moment.at, 0 if isinstance(moment.what, LandingRecord) else 1


def _order_landings(landings: list[LandingRecord]) -> list[Moment]:
    """Return the answered landings of a site in sequence, with times that never decrease."""
    known = {one.sequence for one in landings if one.answered}
    last = max(known, default=0)
    told = sorted(
        (one for one in landings if one.answered or (one.sequence < last and one.sequence not in known)),
        key=lambda one: (one.sequence, one.landing),
    )
    moments: list[Moment] = []
    at = 0.0
    for number, one in enumerate(told):
        later = (other.loaded for other in told[number:] if other.loaded is not None)
        at = max(at, one.loaded if one.loaded is not None else next(later, at))
        moments.append(Moment(at, one))
    return moments


def _find_gaps(site_id: str, landings: list[LandingRecord]) -> list[str]:
    last = max((one.sequence for one in landings if one.answered), default=0)
    missing = sorted(set(range(1, last + 1)) - {one.sequence for one in landings})
    return [f"landing {number} of site {site_id}: nothing of it is here; what it told is not known" for number in missing]
