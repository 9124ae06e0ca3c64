"""A landing's answers, from its manifest, its receipt and the present files at the receiver. Pure.

A rebuild decides nothing anew. The receipt has the answer for each file, and the place of its bytes shows what happened
later. A quarantined file with its bytes among the data files was released. A refused one was loaded after its device changed
owner (`find_taken_later`). A loaded file without bytes was replaced, superseded or settled later; its row is kept, with the
extent from the site's `.resource`. Source: DESIGN §4 "A lost ledger can be rebuilt".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.errors import CorruptionError
from tidemark.formats.landing import Answer, LandedFile
from tidemark.formats.layout import (
    UNITS_PER_MS,
    catalog_partition,
    data_location,
    folder_name,
    mods_location,
    quarantine_location,
    refused_location,
)
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.ledger.receiver.landings import Extent
from tidemark.receiver.load.admit import Admission, Hold, LedgerFacts, Load, Origin, Owner, Refusal, Refused, admit_files
from tidemark.receiver.load.check import Examined
from tidemark.tsfiles.companions.resource import ANY_DEVICE
from tidemark.tsfiles.names import SourceName, parse_source_path, rank_of_source
from tidemark.tsfiles.statistics import FileFacts


class StoredFiles:
    """The files at a receiver: path → bytes, with the data files by name."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for path in sizes:
            if path.startswith("data/"):
                self._by_name[path.rpartition("/")[2]].append(path)

    def __contains__(self, path: str) -> bool:
        return path in self.sizes

    def paths_below(self, folder: str) -> list[str]:
        return sorted(path for path in self.sizes if path.startswith(folder + "/"))

    def data_file(self, site_id: str, file: LandedFile, name: SourceName) -> str:
        """Return the TsFile's path among the data files, '' if it is not there. Its partition may differ from today's."""
        wanted = data_location(name.database, 0, site_id, file.sha256, file.path).rpartition("/")[2]
        folder = f"data/{folder_name(name.database)}/"
        size = file.tsfile.size if file.tsfile else None
        found = [p for p in self._by_name.get(wanted, ()) if p.startswith(folder) and size in (None, self.sizes[p])]
        return min(found, default="")


@dataclass(frozen=True)
class Answered:
    """A landed file, its answer, its data file's location ('': missing) and content (None: missing, or mods alone)."""

    file: LandedFile
    answer: Answer
    location: str = ""
    facts: FileFacts | None = None


def rebuild_admission(
    origin: Origin,
    files: Sequence[Answered],
    known: LedgerFacts,
    extents: Mapping[str, Extent],
    traces: StoredFiles,
    at: float,
) -> Admission:
    """Rebuild the admission of an answered landing. `extents`: of its paths, from the site's inventory."""
    owners = dict(known.owners)
    made = Admission()
    for one in files:
        before = replace(known, owners=owners)
        admission = _admit_answered(origin, one, before, extents.get(one.file.path, ()), traces, at)
        owners |= {device: Owner(origin.site_id, at) for load in admission.loads for device in load.claims}
        made = Admission(
            loads=made.loads + admission.loads,
            refusals=made.refusals + admission.refusals,
            holds=made.holds + admission.holds,
            known=made.known + admission.known,
        )
    return made


def without_claims(admission: Admission) -> Admission:
    """Return the admission without claims: the receiver's own receipt lists the claimed devices."""
    return replace(admission, loads=tuple(replace(load, claims=()) for load in admission.loads))


def limit_claims(admission: Admission, known: LedgerFacts) -> Admission:
    """Return the admission with claims only of devices without an owner, and of files whose bytes are among the data files:
    other claims in an unproved document may be false."""
    loads = []
    for load in admission.loads:
        held = load.claims if load.facts is not None else ()
        loads.append(replace(load, claims=tuple(device for device in held if device not in known.owners)))
    return replace(admission, loads=tuple(loads))


def find_taken_later(origin: Origin, refusals: Iterable[Refusal], traces: StoredFiles) -> Iterator[tuple[LandedFile, str]]:
    """Yield refused files that do not wait any more and whose bytes are among the data files: (file, location)."""
    for refusal in refusals:
        name = parse_source_path(refusal.file.path, origin.data)
        place = traces.data_file(origin.site_id, refusal.file, name) if name and not refusal.location else ""
        if place:
            yield refusal.file, place


def _admit_answered(
    origin: Origin, one: Answered, known: LedgerFacts, extent: Extent, traces: StoredFiles, at: float
) -> Admission:
    file, answer = one.file, one.answer
    newest = known.newest.get(file.path)
    if newest is not None and newest.generation >= file.generation:
        return Admission(known=(file,))
    waiting = known.waiting.get(file.path)
    taken = bool(one.location) if file.tsfile else newest is not None and newest.sha256 == file.sha256
    released = answer.outcome == "quarantined" and taken and not _is_waiting(origin, one, traces)
    if answer.outcome == "loaded" or released:
        return _admit_loaded(origin, one, known, extent, at)
    whole = replace(file, tsfile=waiting.file.tsfile) if file.tsfile is None and waiting else file
    if answer.outcome == "refused":
        owner = known.owners.get(answer.device, Owner(answer.owner, at))
        location = refused_location(origin.site_id, origin.landing, file.path)
        refused = Refused(answer.device, Owner(answer.owner, owner.since))
        return Admission(refusals=(Refusal(whole, refused, location if location in traces else ""),))
    location = quarantine_location(origin.site_id, origin.landing, file.path)
    location = location if _has_companion(location, whole, traces) else ""
    hold = Hold(whole, answer.reason, CorruptionError.kind, location, waiting, answer.resend)
    hold = replace(hold, awaits=answer.outcome == "awaited")
    return Admission(holds=(hold,))


def _is_waiting(origin: Origin, one: Answered, traces: StoredFiles) -> bool:
    """Return whether its bytes still wait among refused or held files."""
    places = (refused_location, quarantine_location)
    paths = [part.path for part in (one.file.tsfile, one.file.mods) if part]
    return any(place(origin.site_id, origin.landing, path) in traces for place in places for path in paths)


def _has_companion(location: str, file: LandedFile, traces: StoredFiles) -> bool:
    """Return whether any companion of a held file came."""
    return any(location + end in traces for end in ("", ".resource", ".mods", ".mods2"))


def _admit_loaded(origin: Origin, one: Answered, known: LedgerFacts, extent: Extent, at: float) -> Admission:
    """Decide as `admit_files` did then, for any present owners; other sites' devices change owner with it."""
    if one.facts is None and one.file.tsfile is not None:
        load = _make_gone_load(origin, one.file, known, extent, at)
        return Admission(loads=(load,)) if load else Admission()
    examined = Examined(one.file.path, one.file.generation, one.facts)
    made = admit_files(origin, [(one.file, examined)], replace(known, owners={}), at)
    loads = tuple(
        replace(load, claims=_select_unowned(origin, load.claims, known), row=_with_location(load.row, one))
        for load in made.loads
    )
    return replace(made, loads=loads, placements=())


def _with_location(row: CatalogFile, one: Answered) -> CatalogFile:
    """Return the row with the real location of the file."""
    if not one.location or one.location == row.location:
        return row
    mods = one.file.mods
    return replace(
        row, location=one.location, mods_location=mods_location(one.location, mods.sha256, mods.path) if mods else ""
    )


def _select_unowned(origin: Origin, devices: Iterable[str], known: LedgerFacts) -> tuple[str, ...]:
    return tuple(d for d in devices if d not in known.owners or known.owners[d].site_id != origin.site_id)


def _make_gone_load(origin: Origin, file: LandedFile, known: LedgerFacts, extent: Extent, at: float) -> Load | None:
    """Rebuild a load whose bytes are missing. None if its path is not a source path."""
    name = parse_source_path(file.path, origin.data)
    if name is None or file.tsfile is None:
        return None
    mine = Owner(origin.site_id, at)
    devices = tuple(
        CatalogDevice(device, start, end, 0)
        for device, start, end in extent
        if device != ANY_DEVICE and known.owners.get(device, mine).site_id == origin.site_id
    )
    first = name.partition * origin.site_interval_ms * UNITS_PER_MS[origin.time_unit]
    start = min((d.start for d in devices), default=first)
    end = max((d.end for d in devices), default=start)
    partition = catalog_partition(start, origin.catalog_interval_ms, origin.time_unit)
    location = data_location(name.database, partition, origin.site_id, file.sha256, file.path)
    row = CatalogFile(
        receiver=origin.receiver,
        site_id=origin.site_id,
        role="source",
        path=file.path,
        generation=file.generation,
        database=name.database,
        model="tree" if name.database.startswith("root.") else "table",
        format=0,  # unknown without the bytes
        partition_from=partition,
        partition_to=catalog_partition(end, origin.catalog_interval_ms, origin.time_unit),
        location=location,
        sha256=file.sha256,
        size=file.tsfile.size,
        mods_location=mods_location(location, file.mods.sha256, file.mods.path) if file.mods else "",
        mods_sha256=file.mods.sha256 if file.mods else "",
        points=0,
        rank=rank_of_source(name),
        created=at,
        landing=origin.landing,
    )
    newest = known.newest.get(file.path)
    replaces = newest.file_id if newest is not None and newest.state == "live" else None
    return Load(file, row, devices, _select_unowned(origin, (d.device for d in devices), known), None, replaces)
