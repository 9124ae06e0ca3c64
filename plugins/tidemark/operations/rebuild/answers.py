"""A landing's answers, from its manifest, its receipt and the present files at the receiver. Pure.

A rebuild decides nothing anew. The receipt has the answer for each file, and the place of its bytes shows what happened
later. A quarantined file with its bytes among the data files was released. A loaded file without bytes was replaced,
superseded or settled later; its row is kept, with the extent from the site's `.resource`. The rest is the load's:
`admit_files` makes the rows, given the facts and the owners with which it gave the answer then. Source: DESIGN §4 "A lost
ledger can be rebuilt".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.errors import CorruptionError
from tidemark.formats.landing import Answer, LandedFile
from tidemark.formats.layout import data_location, folder_name, mods_location, quarantine_location, refused_location
from tidemark.ledger.receiver.landings import Extent
from tidemark.receiver.load.admit import Admission, LedgerFacts, Load, Origin, Owner, Refusal, Refused, admit_files
from tidemark.receiver.load.check import Examined
from tidemark.tsfiles.companions.resource import ANY_DEVICE
from tidemark.tsfiles.names import SourceName, parse_source_path
from tidemark.tsfiles.statistics import DeviceFacts, FileFacts


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
    """Rebuild the admission of an answered landing. `extents`: of its paths, from the site's inventory.

    Loads claim the devices of their bytes that are not their site's, also those of other sites (`limit_claims`).
    """
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


def limit_claims(admission: Admission, devices: Collection[str]) -> Admission:
    """Return the admission with claims of these devices only."""
    loads = (replace(load, claims=tuple(d for d in load.claims if d in devices)) for load in admission.loads)
    return replace(admission, loads=tuple(loads))


def _admit_answered(
    origin: Origin, one: Answered, known: LedgerFacts, extent: Extent, traces: StoredFiles, at: float
) -> Admission:
    file, answer = one.file, one.answer
    newest = known.newest.get(file.path)
    if newest is not None and newest.generation >= file.generation:
        return Admission(known=(file,))
    taken = bool(one.location) if file.tsfile else newest is not None and newest.sha256 == file.sha256
    released = answer.outcome == "quarantined" and taken and not _is_waiting(origin, one, traces)
    if answer.outcome == "loaded" or released:
        return _admit_loaded(origin, one, known, extent, at)
    if answer.outcome != "refused":
        return _admit_held(origin, one, known, at)
    waiting = known.waiting.get(file.path)
    whole = replace(file, tsfile=waiting.file.tsfile) if file.tsfile is None and waiting else file
    since = known.owners.get(answer.device, Owner(answer.owner, at)).since
    location = refused_location(origin.site_id, origin.landing, file.path)
    return Admission(refusals=(Refusal(whole, Refused(answer.device, Owner(answer.owner, since)), location),))


def _admit_held(origin: Origin, one: Answered, known: LedgerFacts, at: float) -> Admission:
    """Hold a file for the reason in the receipt. Mods alone were sound if `admit_files` gives the same reason for them."""
    file, answer = one.file, one.answer
    faulty = Examined(file.path, file.generation, None, answer.reason, CorruptionError.kind, differs=answer.resend)
    made = admit_files(origin, [(file, faulty)], known, at)
    if file.tsfile is None:
        sound = admit_files(origin, [(file, Examined(file.path, file.generation))], known, at)
        made = sound if [hold.reason for hold in sound.holds] == [answer.reason] else made
    awaits = answer.outcome == "awaited"
    return Admission(holds=tuple(replace(hold, awaits=awaits) for hold in made.holds))


def _is_waiting(origin: Origin, one: Answered, traces: StoredFiles) -> bool:
    """Return whether its bytes still wait among refused or held files."""
    places = (refused_location, quarantine_location)
    paths = [part.path for part in (one.file.tsfile, one.file.mods) if part]
    return any(place(origin.site_id, origin.landing, path) in traces for place in places for path in paths)


def _admit_loaded(origin: Origin, one: Answered, known: LedgerFacts, extent: Extent, at: float) -> Admission:
    """Decide as `admit_files` did then, for any present owners."""
    gone = one.facts is None and one.file.tsfile is not None
    facts = _facts_of_extent(origin, one.file, known, extent) if gone else one.facts
    examined = Examined(one.file.path, one.file.generation, facts)
    made = admit_files(origin, [(one.file, examined)], replace(known, owners={}), at)
    loads = (_move_load(load, one) for load in made.loads)
    told = (replace(load, claims=() if gone else _list_new(origin, load.claims, known)) for load in loads)
    return replace(made, loads=tuple(told), placements=())


def _list_new(origin: Origin, devices: Sequence[str], known: LedgerFacts) -> tuple[str, ...]:
    return tuple(d for d in devices if d not in known.owners or known.owners[d].site_id != origin.site_id)


def _facts_of_extent(origin: Origin, file: LandedFile, known: LedgerFacts, extent: Extent) -> FileFacts:
    """Return all that is known of a file whose bytes are missing; devices of other sites are left out. Format 0: unknown."""
    name = parse_source_path(file.path, origin.data)
    model = "tree" if name is None or name.database.startswith("root.") else "table"
    nobody = Owner(origin.site_id, 0)
    devices = (
        DeviceFacts(device, start, end, 0, {}, False)
        for device, start, end in extent
        if device != ANY_DEVICE and known.owners.get(device, nobody).site_id == origin.site_id
    )
    return FileFacts(0, model, tuple(devices), {}, ())


def _move_load(load: Load, one: Answered) -> Load:
    """Return the load with the real location of the file."""
    if not one.location or one.location == load.row.location:
        return load
    mods = one.file.mods
    mods_place = mods_location(one.location, mods.sha256, mods.path) if mods else ""
    return replace(load, row=replace(load.row, location=one.location, mods_location=mods_place))
