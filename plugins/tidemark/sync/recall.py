"""What a link had told and what was acknowledged, from its manifests in sequence. Pure; for a rebuilt ledger.

A manifest carries all that `file`, `file_extent`, `sent_landing` and `schema_position` need but inodes, which never count
alone, and the digest of a schema log's first bytes, which the receiver's copy gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidemark.formats.landing import LandedFile, Manifest, Part, Receipt
from tidemark.ledger.sender.links import Acked, Extent, Seen
from tidemark.ledger.sender.runs import SentLanding
from tidemark.sync.select.choose import ADOPTED


class Piece(NamedTuple):
    """Bytes of a schema log as they landed: `path` is relative to the receiver's root."""

    start: int
    size: int
    path: str


@dataclass
class Log:
    """A schema log's newest epoch: `position` bytes landed, in `pieces`."""

    epoch: int
    position: int = 0
    pieces: list[Piece] = field(default_factory=list)


@dataclass
class RunStory:
    """A run as far as its manifests tell it. `ended`: its last part is here."""

    run_id: str
    started: float
    at: float
    ended: bool = False
    files: int = 0
    bytes: int = 0
    dropped: int = 0
    schema_bytes: int = 0


@dataclass
class Recalled:
    """A link's state after the manifests taken in so far."""

    acked: dict[str, Acked] = field(default_factory=dict)
    waiting: dict[str, Seen] = field(default_factory=dict)  # told, not acknowledged (again)
    adopted: dict[str, Seen] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)  # told as vanished, the drop waits; acknowledged all the same
    extents: dict[str, Extent] = field(default_factory=dict)
    logs: dict[str, Log] = field(default_factory=dict)
    unverified: dict[str, int] = field(default_factory=dict)  # of acknowledged paths: the generation
    runs: dict[str, RunStory] = field(default_factory=dict)
    landings: list[SentLanding] = field(default_factory=list)
    receipts: dict[str, tuple[Receipt, str]] = field(default_factory=dict)  # by landing
    listed: float | None = None  # when the newest whole listing began that a manifest tells of

    def take(self, manifest: Manifest, sha256: str, receipt: tuple[Receipt, str] | None, folder: str) -> None:
        """The next manifest of the sequence; `receipt`: decoded and as text, `folder`: the landing's."""
        self.listed = manifest.listed or self.listed
        for entry in manifest.added:
            self._tell(Seen(entry.path, entry.size, entry.mtime, 0, entry.reason or None), entry.extent)
        for file in manifest.files:
            self._ack(file, manifest.landing)
        for vanished in (*manifest.superseded, *manifest.dropped):
            self._forget(vanished.path)
        self.held |= {vanished.path for vanished in manifest.held}
        for path in manifest.removed:
            if path not in self.acked:  # never acknowledged; of others only the drop itself counts, it may wait for a cover
                self._forget(path)
        for log in manifest.schema:
            self._log(log.path, log.epoch, log.start, log.part, folder)
        size = sum(part.size for file in manifest.files for part in _parts(file))
        self._run(manifest, size)
        self.landings.append(_sent(manifest, sha256, size))
        if receipt is not None:
            self.receipts[manifest.landing] = receipt

    def answered(self) -> Iterable[SentLanding]:
        """The landings with what is known of their answers, once all manifests are taken in."""
        for landing in self.landings:
            receipt = self.receipts.get(landing.landing)
            known = receipt is not None and not self._asks(receipt[0])
            yield replace(landing, state="answered", receipt=receipt[1]) if receipt and known else landing

    def _tell(self, seen: Seen, extent: Extent) -> None:
        self.extents[seen.path] = extent
        self.gone.discard(seen.path)
        if seen.path in self.held:  # listed again: as it was, or its other content is in this manifest, or comes in the next
            self.held.discard(seen.path)
        elif seen.reason == ADOPTED:
            self.adopted[seen.path] = seen
        else:
            self.waiting[seen.path] = seen

    def _ack(self, file: LandedFile, landing: str) -> None:
        before = self.acked.get(file.path)
        size = file.tsfile.size if file.tsfile else before.size if before else 0
        mods_size, mods_sha256 = (file.mods.size, file.mods.sha256) if file.mods else (0, "")
        if file.verified != "source" or (file.tsfile is None and file.path in self.unverified):
            self.unverified[file.path] = file.generation
        else:
            self.unverified.pop(file.path, None)
        self.acked[file.path] = Acked(
            file.path, size, file.mtime, 0, mods_size, file.generation, file.sha256, mods_sha256, landing
        )
        self._settled(file.path)

    def _settled(self, path: str) -> None:
        self.waiting.pop(path, None)
        self.adopted.pop(path, None)
        self.gone.discard(path)

    def _forget(self, path: str) -> None:
        self._settled(path)
        self.unverified.pop(path, None)
        self.held.discard(path)
        self.gone.add(path)

    def _log(self, path: str, epoch: int, start: int, part: Part, folder: str) -> None:
        log = self.logs.get(path)
        if log is None or epoch > log.epoch:
            log = self.logs[path] = Log(epoch)
        if epoch == log.epoch:
            log.position = max(log.position, start + part.size)
            log.pieces.append(Piece(start, part.size, f"{folder}/{part.path}"))

    def _run(self, manifest: Manifest, size: int) -> None:
        run = self.runs.setdefault(manifest.run_id, RunStory(manifest.run_id, manifest.created, manifest.created))
        run.at = max(run.at, manifest.created)
        run.ended |= manifest.last
        run.files += len(manifest.files)
        run.bytes += size
        run.dropped += len(manifest.dropped)
        run.schema_bytes += sum(log.part.size for log in manifest.schema)

    def reasons(self) -> Mapping[str, str]:
        """{path: why it is not in the centre} of what is acknowledged today and was refused, or waits there."""
        answers = (answer for receipt, _ in self.receipts.values() for answer in receipt.answers)
        told = (a for a in answers if a.outcome in ("refused", "awaited") and self._is_current(a.path, a.generation))
        return {answer.path: f"{answer.outcome}: {answer.reason}" for answer in told}

    def _asks(self, receipt: Receipt) -> bool:
        """Whether something may be sent again for it: then the next run's first step reads the receipt as it always does."""
        asked = any(self._is_current(one.path, one.generation) and one.path not in self.gone for one in receipt.resend)
        return asked or any(
            answer.outcome == "schema"
            or (answer.outcome == "quarantined" and self._is_current(answer.path, answer.generation))
            for answer in receipt.answers
        )

    def _is_current(self, path: str, generation: int) -> bool:
        return path in self.acked and self.acked[path].generation == generation


def recall(papers: Iterable[tuple[Manifest, str, tuple[Receipt, str] | None, str]]) -> Recalled:
    """All of a link's manifests, in sequence, each with its digest, its receipt and its folder."""
    recalled = Recalled()
    for manifest, sha256, receipt, folder in papers:
        recalled.take(manifest, sha256, receipt, folder)
    return recalled


def interrupted(runs: Mapping[str, RunStory], unfinished: Iterable[str]) -> tuple[str | None, list[str]]:
    """(the run to go on with, landing folders to remove) of landings without a manifest.

    Only the newest run is continued, and only where none of its parts landed: what it sent counts then, and its selection
    and inventory are made anew. The bytes of any other are sent again by the next run.
    """
    folders = sorted(unfinished)
    run_of = {folder: folder.rpartition("-")[0] for folder in folders}
    fresh = sorted(run for run in set(run_of.values()) if run not in runs and run > max(runs, default=""))
    kept = fresh[-1] if fresh else None
    return kept, [folder for folder in folders if run_of[folder] != kept or not folder.endswith("-1")]


def _parts(file: LandedFile) -> list[Part]:
    return [part for part in (file.tsfile, file.resource, file.mods) if part is not None]


def _sent(manifest: Manifest, sha256: str, size: int) -> SentLanding:
    return SentLanding(
        landing=manifest.landing,
        run_id=manifest.run_id,
        link=manifest.link,
        part=manifest.part,
        sequence=manifest.sequence,
        previous=manifest.previous,
        state="landed",
        last=manifest.last,
        created=manifest.created,
        manifest_sha256=sha256,
        files=len(manifest.files),
        bytes=size,
    )
