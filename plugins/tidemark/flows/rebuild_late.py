"""Refused files that were taken after all, in a rebuilt ledger: they load when the decision comes that let them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection

from tidemark.formats.landing import Answer
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.load.recall import Answered, Traces, recall, taken_later
from tidemark.receiver.load.admit import Admission, Origin
from tidemark.receiver.load.record import known_before
from tidemark.receiver.load.retry import take
from tidemark.settings.model import ReceiverSettings
from tidemark.tsfiles.statistics import FileFacts


@dataclass
class Late:
    """`waiting`: (site, path) → origin and file of refused files whose bytes are among the data files."""

    waiting: dict[tuple[str, str], tuple[Origin, Answered]] = field(default_factory=dict)
    facts: dict[str, FileFacts] = field(default_factory=dict)  # of refused files' data files, by place

    def remember(self, origin: Origin, files: Sequence[Answered], admission: Admission, traces: Traces) -> None:
        """Look at what a landing had refused; mods that came alone bring their TsFile's place with them."""
        self.facts |= {one.location: one.facts for one in files if one.answer.outcome == "refused" and one.facts}
        device = {one.file.path: one.answer.device for one in files}
        for file, place in taken_later(origin, admission.refusals, traces):
            answer = Answer(file.path, file.generation, "loaded", device=device[file.path])
            if place in self.facts:
                self.waiting[origin.site_id, file.path] = (origin, Answered(file, answer, place, self.facts[place]))

    def take(
        self, connection: Connection, receiver: ReceiverSettings, traces: Traces, at: float, whoever: bool = False
    ) -> None:
        """Load those whose device belongs to their own site now; `whoever` owns it, where no paper tells of the handing
        over. `at` in seconds since 1970."""
        devices = [one.answer.device for _, one in self.waiting.values()]
        owners = refusal_rows.owners_of(connection, receiver.name, devices)
        for (site_id, path), (origin, one) in list(self.waiting.items()):
            owner = owners.get(one.answer.device)
            if whoever or (owner is not None and owner.site_id == site_id):
                del self.waiting[site_id, path]
                _load(connection, origin, one, traces, at)


def _load(connection: Connection, origin: Origin, one: Answered, traces: Traces, at: float) -> None:
    path, generation = one.file.path, one.file.generation
    refused = [
        row.refusal_id
        for row in refusal_rows.refusals(connection, origin.receiver, site_id=origin.site_id)
        if (row.path, row.generation) == (path, generation)
    ]
    devices = {device.device for device in one.facts.devices} if one.facts else set()
    known = known_before(connection, origin, [one.file], devices)
    extents = landing_rows.extents_of(connection, origin.receiver, origin.site_id, [path])
    take(connection, origin, recall(origin, [one], known, extents, traces, at), at)
    for refusal_id in refused:
        refusal_rows.end_refusal(connection, refusal_id, "replayed")
