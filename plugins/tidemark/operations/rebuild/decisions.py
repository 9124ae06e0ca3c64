"""Write decisions and settled merges from their records into a rebuilt ledger.

A refused file that was loaded later is loaded after the decision that allowed it (`LateLoads`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection

from tidemark.formats.landing import Answer
from tidemark.formats.records import ADOPTED, APPROVE, GIVE_UP, TRANSFER, Decision, Settlement
from tidemark.ledger.receiver import (
    catalog as catalog_rows,
)
from tidemark.ledger.receiver import (
    landings as landing_rows,
)
from tidemark.ledger.receiver import (
    merges as merge_rows,
)
from tidemark.ledger.receiver import (
    rebuild as rebuild_rows,
)
from tidemark.ledger.receiver import (
    refusals as refusal_rows,
)
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.ledger.receiver.merges import Account, MergedFile
from tidemark.ledger.receiver.refusals import OwnerRow
from tidemark.operations.rebuild.answers import Answered, StoredFiles, find_taken_later, rebuild_admission
from tidemark.receiver.load import schema
from tidemark.receiver.load.admit import Admission, Origin
from tidemark.receiver.load.record import known_before
from tidemark.receiver.load.removal.replaced import give_up_kept, leave_approved
from tidemark.receiver.load.retry import record_retried
from tidemark.settings.model import ReceiverSettings
from tidemark.tsfiles.statistics import FileFacts

_ANY = ("live", "retired", "reclaimed")


def replay_decision(connection: Connection, receiver: str, paper: Decision) -> None:
    """Apply a decision as far as it still has an effect, and write its row in the audit table."""
    detail = paper.detail
    if paper.action == TRANSFER:
        before = refusal_rows.owners_of(connection, receiver, [paper.subject]).get(paper.subject)
        landing = before.landing if before else ""
        refusal_rows.put_owners(connection, receiver, [OwnerRow(paper.subject, detail["to"], paper.at, landing)])
    elif paper.action == ADOPTED:
        taken = refusal_rows.owners_of(connection, receiver, detail["owners"])
        rows = [OwnerRow(d, site, paper.at, "adopted") for d, site in sorted(detail["owners"].items()) if d not in taken]
        refusal_rows.put_owners(connection, receiver, rows)
    elif paper.action == APPROVE:
        for site_id, drops in detail["drops"].items():
            named = {(path, generation) for path, generation in drops}
            waiting = landing_rows.read_drops(connection, receiver, site_id, states=("waiting",))
            due = [drop for drop in waiting if (drop.path, drop.generation) in named]
            leave_approved(connection, receiver, site_id, due, paper.at)
    elif paper.action == GIVE_UP:
        for held in refusal_rows.held_of_path(connection, receiver, detail["site"], paper.subject):
            if held.generation == detail["generation"]:
                refusal_rows.end_quarantine(connection, held.quarantine_id, "dropped")
        gone = landing_rows.drops_of_paths(connection, receiver, detail["site"], [paper.subject]).get(paper.subject)
        if gone is not None and gone.generation >= detail["generation"]:
            give_up_kept(connection, receiver, gone, "its bytes had rotted", paper.at, detail["site"])
    rebuild_rows.put_audit(connection, paper.at, paper.who, paper.action, paper.subject, detail)


def replay_settled(
    connection: Connection,
    receiver: ReceiverSettings,
    papers: Sequence[Settlement],
    facts: Mapping[str, FileFacts],
    traces: StoredFiles,
) -> tuple[list[str], list[tuple[str, str]]]:
    """Settle merged files of one group of sources again. Return (troubles, (site, path) of sources with points in no
    readable file). Sources that stay live without their bytes are left out."""
    first = papers[0]
    sources = _find_sources(connection, receiver.name, first)
    there = [paper for paper in papers if paper.location in facts]
    troubles = [
        f"merged file {paper.location}, the only copy of its sources' points, is not here as its paper says"
        for paper in papers
        if paper.location not in facts
    ]
    if not there:
        return troubles, []
    live = [row for row in sources if row.state == "live"]
    merged = [_make_merged_file(receiver, paper, facts[paper.location]) for paper in there]
    ids = merge_rows.publish_merged(connection, receiver.name, live, merged, first.batch, first.merged) if live else None
    if ids is None:
        return [*troubles, f"merged file {first.location}: its sources are not what its paper says; it is not read"], []
    merge_rows.mark_settled(connection, ids, first.settled)
    _claim_devices(connection, receiver.name, first, {d.device for paper in there for d in facts[paper.location].devices})
    for paper, one in zip(there, merged, strict=True):
        schema.write_observed(connection, one.file, facts[paper.location])
    tables = {(paper.database, table): tags for paper in there for table, tags in facts[paper.location].tables.items()}
    catalog_rows.widen_tables(connection, receiver.name, first.site_id, tables)
    gone = [(row.site_id, row.path) for row in sources if row.path and row.location not in traces]
    return troubles, gone if len(there) < len(papers) else []


def _claim_devices(connection: Connection, receiver: str, paper: Settlement, devices: Collection[str]) -> None:
    """Give devices without an owner, of a merged file whose sources are missing, to its site."""
    taken = refusal_rows.owners_of(connection, receiver, devices)
    rows = [OwnerRow(d, paper.site_id, paper.merged, "") for d in sorted(devices) if d not in taken]
    refusal_rows.put_owners(connection, receiver, rows)


def _find_sources(connection: Connection, receiver: str, paper: Settlement) -> list[CatalogFile]:
    """Return the source rows of a merged file; one that is itself a settled merged file is found by its location."""
    wanted = {(source.path, source.generation) for source in paper.sources if source.path}
    rows = catalog_rows.sources_of_paths(connection, receiver, paper.site_id, [path for path, _ in wanted], _ANY)
    places = {source.location for source in paper.sources if not source.path}
    alone = (
        [row.file_id for row in rebuild_rows.catalog_places(connection, receiver) if row.location in places]
        if places
        else []
    )
    return [*(row for row in rows if (row.path, row.generation) in wanted), *catalog_rows.files_by_id(connection, alone)]


def _make_merged_file(receiver: ReceiverSettings, paper: Settlement, facts: FileFacts) -> MergedFile:
    file = CatalogFile(
        receiver=receiver.name,
        site_id=paper.site_id,
        role="merged",
        path="",
        generation=0,
        database=paper.database,
        model=paper.model,
        format=facts.version,
        partition_from=paper.partition_from,
        partition_to=paper.partition_to,
        location=paper.location,
        sha256=paper.sha256,
        size=paper.size,
        mods_location="",
        mods_sha256="",
        points=paper.points,
        rank=paper.rank,
        created=paper.merged,
    )
    devices = tuple(CatalogDevice(d.device, d.start, d.end, d.points) for d in facts.devices)
    return MergedFile(file, devices, Account(paper.points_in, paper.points, paper.overwritten, paper.deleted))


@dataclass
class LateLoads:
    """Refused files with bytes among the data files. `waiting`: (site, path) → their origin and file."""

    waiting: dict[tuple[str, str], tuple[Origin, Answered]] = field(default_factory=dict)
    facts: dict[str, FileFacts] = field(default_factory=dict)  # refused files' data files, by location

    def remember_refused(self, origin: Origin, files: Sequence[Answered], admission: Admission, traces: StoredFiles) -> None:
        """Remember a landing's refused files; mods that came alone include their TsFile's location."""
        self.facts |= {one.location: one.facts for one in files if one.answer.outcome == "refused" and one.facts}
        device = {one.file.path: one.answer.device for one in files}
        for file, place in find_taken_later(origin, admission.refusals, traces):
            answer = Answer(file.path, file.generation, "loaded", device=device[file.path])
            if place in self.facts:
                self.waiting[origin.site_id, file.path] = (origin, Answered(file, answer, place, self.facts[place]))

    def load_transferred(
        self, connection: Connection, receiver: ReceiverSettings, traces: StoredFiles, at: float, whoever: bool = False
    ) -> None:
        """Load files whose device now belongs to their own site, or all with `whoever`, for transfers without a record. `at`
        in seconds since 1970."""
        devices = [one.answer.device for _, one in self.waiting.values()]
        owners = refusal_rows.owners_of(connection, receiver.name, devices)
        for (site_id, path), (origin, one) in list(self.waiting.items()):
            owner = owners.get(one.answer.device)
            if whoever or (owner is not None and owner.site_id == site_id):
                del self.waiting[site_id, path]
                _load_refused(connection, origin, one, traces, at)


def _load_refused(connection: Connection, origin: Origin, one: Answered, traces: StoredFiles, at: float) -> None:
    path, generation = one.file.path, one.file.generation
    refused = [
        row.refusal_id
        for row in refusal_rows.read_refusals(connection, origin.receiver, site_id=origin.site_id)
        if (row.path, row.generation) == (path, generation)
    ]
    devices = {device.device for device in one.facts.devices} if one.facts else set()
    known = known_before(connection, origin, [one.file], devices)
    extents = landing_rows.extents_of(connection, origin.receiver, origin.site_id, [path])
    record_retried(connection, origin, rebuild_admission(origin, [one], known, extents, traces, at), at)
    for refusal_id in refused:
        refusal_rows.end_refusal(connection, refusal_id, "replayed")
