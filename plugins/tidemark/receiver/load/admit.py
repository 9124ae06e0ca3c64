"""Decide what becomes of each file of a landing: loaded, refused or held; and which site owns a device. Pure.

`admit_files` is used by a load, by the release of a quarantined file and by the replay of a refused one. Each brings a file
with its manifest entry, the result of `check.examine_file`, and what the ledger knew before. Source: DESIGN §3 "One file's
way", "A file is its content".

A device belongs to the site that first sent it (`claim_devices`): first come, first served, on the full device name. Only a
file that holds a foreign device is refused. In the original the check was off from 0.12 on, and one conflict rejected a
whole storage group (research/iotdb.md B7, B13). Source: seed 000 ("there can only be one data source for one device"),
DESIGN §1 "device owner".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tidemark.errors import CorruptionError
from tidemark.formats.landing import LandedFile, Manifest, Part
from tidemark.formats.layout import (
    UNITS_PER_MS,
    catalog_partition,
    data_location,
    landed_path,
    landing_folder,
    mods_location,
    quarantine_location,
    refused_location,
)
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.receiver.load.check import Examined, parts_of_file
from tidemark.receiver.load.place import Placement
from tidemark.tsfiles.devices import database_below
from tidemark.tsfiles.names import SourceName, parse_source_path, rank_of_source
from tidemark.tsfiles.statistics import FileFacts


@dataclass(frozen=True)
class Origin:
    """The source of files: a site, its landing, and the folder (relative to the receiver's root) that holds them."""

    receiver: str
    site_id: str
    time_unit: str
    site_interval_ms: int
    catalog_interval_ms: int
    data: tuple[str, ...]
    landing: str
    folder: str
    prefix: str = ""

    @classmethod
    def from_manifest(cls, manifest: Manifest, receiver: str, catalog_interval_ms: int) -> Origin:
        """Build the origin of a landing's files in their landing folder."""
        return cls(
            receiver=receiver,
            site_id=manifest.site_id,
            time_unit=manifest.time_unit,
            site_interval_ms=manifest.partition_interval_ms,
            catalog_interval_ms=catalog_interval_ms,
            data=manifest.data,
            landing=manifest.landing,
            folder=landing_folder(manifest.site_id, manifest.landing),
            prefix=manifest.prefix,
        )


@dataclass(frozen=True)
class Waiting:
    """A refused or quarantined generation whose TsFile the receiver has: grown mods join it there."""

    location: str  # of the TsFile, relative to the receiver's root
    file: LandedFile
    refused: Refused | None  # None: it is in quarantine


@dataclass(frozen=True)
class LedgerFacts:
    """What the ledger knew before. `newest`: the newest source row of a path, live or not. `devices`: the devices of these
    rows. `settled`: the rows whose points a settled merged file holds."""

    newest: Mapping[str, CatalogFile]
    devices: Mapping[int, tuple[CatalogDevice, ...]]
    owners: Mapping[str, Owner]
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    settled: Collection[int] = ()


@dataclass(frozen=True)
class Load:
    """A file that enters the catalog. `facts` is None where grown mods came alone. `replaces`: the row it replaces."""

    file: LandedFile
    row: CatalogFile
    devices: tuple[CatalogDevice, ...]
    claims: tuple[str, ...]
    facts: FileFacts | None
    replaces: int | None


@dataclass(frozen=True)
class Refusal:
    file: LandedFile
    refused: Refused
    location: str
    joins: Waiting | None = None


@dataclass(frozen=True)
class Hold:
    """A file that cannot be loaded. `location` is '' where none of its bytes arrived. `resend`: sending the whole file would
    help. `awaits`: the file is sound; it has deletions of a settled file, which the site shall resend."""

    file: LandedFile
    reason: str
    kind: int
    location: str
    joins: Waiting | None = None
    resend: bool = False
    awaits: bool = False


@dataclass(frozen=True)
class Admission:
    """All outcomes. `placements` bring the bytes to the recorded locations. `known`: files whose generation is loaded
    already."""

    loads: tuple[Load, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    holds: tuple[Hold, ...] = ()
    known: tuple[LandedFile, ...] = ()
    placements: tuple[Placement, ...] = ()


Outcome = Load | Refusal | Hold


def admit_files(origin: Origin, files: Sequence[tuple[LandedFile, Examined]], known: LedgerFacts, at: float) -> Admission:
    """Decide every file of one origin. Devices claimed by an earlier file count as owned for the later ones."""
    owners = dict(known.owners)
    outcomes: list[Outcome] = []
    seen: list[LandedFile] = []
    for file, examined in files:
        newest = known.newest.get(file.path)
        if newest is not None and newest.generation >= file.generation:
            seen.append(file)
            continue
        outcome = _decide_file(origin, file, examined, replace(known, owners=owners), at)
        outcomes.append(outcome)
        if isinstance(outcome, Load):
            owners |= {device: Owner(origin.site_id, at) for device in outcome.claims}
    return Admission(
        loads=tuple(o for o in outcomes if isinstance(o, Load)),
        refusals=tuple(o for o in outcomes if isinstance(o, Refusal)),
        holds=tuple(o for o in outcomes if isinstance(o, Hold)),
        known=tuple(seen),
        placements=tuple(p for outcome in outcomes for p in _list_placements(origin, outcome)),
    )


def _decide_file(origin: Origin, file: LandedFile, examined: Examined, known: LedgerFacts, at: float) -> Outcome:
    if examined.trouble:
        held = _hold_file(origin, file, examined.trouble, examined.kind, came=examined.came)
        return replace(held, resend=examined.differs)
    name = parse_source_path(file.path, origin.data)
    if name is None:
        reason = f"{file.path} is not a TsFile's path below the site's data folders"
        return _hold_file(origin, file, reason, CorruptionError.kind)
    if examined.facts is None:
        return _grown_mods(origin, file, known, at)
    facts = examined.facts
    verdict = claim_devices((d.device for d in facts.devices), known.owners, origin.site_id)
    if isinstance(verdict, Refused):
        return Refusal(file, verdict, refused_location(origin.site_id, origin.landing, file.path))
    row = _catalog_row(origin, file, name, facts, at)
    devices = tuple(CatalogDevice(d.device, d.start, d.end, d.points) for d in facts.devices)
    newest = known.newest.get(file.path)
    replaces = newest.file_id if newest is not None and newest.state == "live" else None
    return Load(file, row, devices, verdict.new, facts, replaces)


def _grown_mods(origin: Origin, file: LandedFile, known: LedgerFacts, at: float) -> Outcome:
    """Join mods that arrived alone to their TsFile, wherever that is."""
    assert file.mods is not None  # manifests say so: receiver.load.landings.check_sound
    base = known.newest.get(file.path)
    if base is not None and base.state == "live" and base.sha256 == file.sha256:
        row = replace(
            base,
            generation=file.generation,
            mods_location=mods_location(base.location, file.mods.sha256, file.mods.path),
            mods_sha256=file.mods.sha256,
            visible=True,
            landing=origin.landing,
            created=at,
            file_id=0,
        )
        return Load(file, row, known.devices.get(base.file_id, ()), (), None, base.file_id)
    waiting = known.waiting.get(file.path)
    if waiting is not None and waiting.file.tsfile is not None and waiting.file.sha256 == file.sha256:
        whole = replace(file, tsfile=waiting.file.tsfile)
        if waiting.refused is not None:
            location = refused_location(origin.site_id, origin.landing, file.path)
            return Refusal(whole, waiting.refused, location, waiting)
        return _hold_file(origin, whole, "mods of a TsFile that is in quarantine itself", CorruptionError.kind, waiting)
    gone = base is not None and base.sha256 == file.sha256
    if gone and base is not None and base.file_id in known.settled:
        return replace(_hold_file(origin, file, "its deletions wait until the settled file comes again", 0), awaits=True)
    what = "whose bytes are no longer kept here" if gone else "that is not here"
    reason = f"mods came alone, of a TsFile {what}: the whole file has to be sent again"
    return replace(_hold_file(origin, file, reason, CorruptionError.kind), resend=True)


def _catalog_row(origin: Origin, file: LandedFile, name: SourceName, facts: FileFacts, at: float) -> CatalogFile:
    assert file.tsfile is not None
    first = min((d.start for d in facts.devices), default=None)
    last = max((d.end for d in facts.devices), default=None)
    if first is None or last is None:  # a file without points gets the partition of its site
        first = last = name.partition * origin.site_interval_ms * UNITS_PER_MS[origin.time_unit]
    partition = catalog_partition(first, origin.catalog_interval_ms, origin.time_unit)
    location = data_location(name.database, partition, origin.site_id, file.sha256, file.path)
    return CatalogFile(
        receiver=origin.receiver,
        site_id=origin.site_id,
        role="source",
        path=file.path,
        generation=file.generation,
        database=name.database if facts.model == "mixed" else database_below(origin.prefix, name.database),
        model=facts.model,
        format=facts.version,
        partition_from=partition,
        partition_to=catalog_partition(last, origin.catalog_interval_ms, origin.time_unit),
        location=location,
        sha256=file.sha256,
        size=file.tsfile.size,
        mods_location=mods_location(location, file.mods.sha256, file.mods.path) if file.mods else "",
        mods_sha256=file.mods.sha256 if file.mods else "",
        points=sum(d.points for d in facts.devices),
        rank=rank_of_source(name),
        created=at,
        undecodable=facts.undecodable,
        landing=origin.landing,
        prefix=origin.prefix if facts.model != "table" else "",
    )


def _hold_file(
    origin: Origin, file: LandedFile, reason: str, kind: int, joins: Waiting | None = None, came: bool = True
) -> Hold:
    location = quarantine_location(origin.site_id, origin.landing, file.path) if came else ""
    return Hold(file, reason, kind, location, joins)


def _list_placements(origin: Origin, outcome: Outcome) -> Iterable[Placement]:
    """Yield where the outcome's bytes go, from the landing folder or from where an older generation waits."""
    file = outcome.file

    def landed(part: Part) -> str:
        return f"{origin.folder}/{landed_path(part.path)}"

    if isinstance(outcome, Load):
        if file.tsfile and outcome.facts is not None:
            yield Placement(landed(file.tsfile), outcome.row.location)
        if file.mods:
            yield Placement(landed(file.mods), outcome.row.mods_location)
        return
    if not outcome.location:
        return
    folder = outcome.location.removesuffix(landed_path(file.path))
    for part in parts_of_file(file):
        source = outcome.joins.location if outcome.joins and part is file.tsfile else landed(part)
        yield Placement(source, folder + landed_path(part.path), optional=True)


@dataclass(frozen=True)
class Owner:
    """`since` in seconds since 1970."""

    site_id: str
    since: float


@dataclass(frozen=True)
class Claimed:
    """The file may load. `new`: devices that nobody owned, in name order."""

    new: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """The file may not load. `device`: its first device, by name, that belongs to another site."""

    device: str
    owner: Owner


def claim_devices(devices: Iterable[str], owners: Mapping[str, Owner], site_id: str) -> Claimed | Refused:
    """Decide for one file of `site_id` that holds `devices` (canonical names). `owners` has at least every owned one."""
    new = []
    for device in sorted(set(devices)):
        owner = owners.get(device)
        if owner is None:
            new.append(device)
        elif owner.site_id != site_id:
            return Refused(device, owner)
    return Claimed(tuple(new))


def refusal_reason(refused: Refused, site_name: str, owner_name: str, receiver: str) -> str:
    """Build the reason for the sender and the operator: owner, since when, and the command that takes the device over."""
    since = datetime.fromtimestamp(refused.owner.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f"device {refused.device} belongs to site {owner_name} ({refused.owner.site_id}) since {since}; to take it over: "
        f"./tidemark owners transfer {_quote_for_shell(refused.device)} --to {_quote_for_shell(site_name)} "
        f"--receiver {receiver}"
    )


def _quote_for_shell(word: str) -> str:
    plain = all(c.isalnum() or c in "._-/" for c in word)
    return word if plain else "'" + word.replace("'", "'\\''") + "'"
