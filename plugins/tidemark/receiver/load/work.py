"""A load under way: its context, and the rows it writes about a landing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.errors import (
    CorruptionError,
    PartialError,
    RetryableError,
    TidemarkError,
)
from tidemark.formats.landing import Manifest
from tidemark.formats.layout import RECEIPT
from tidemark.ledger.journal import record_event
from tidemark.ledger.leases import assert_held
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.landings import LandingRow
from tidemark.receiver.faults import message_of, require_theirs
from tidemark.receiver.load.admit import Origin
from tidemark.receiver.load.landings import Folder, FoundManifest
from tidemark.receiver.load.result import Tally, Trouble
from tidemark.receiver.session import HeldReceiver


@dataclass(frozen=True)
class Work(HeldReceiver):
    """A load of one receiver."""

    rows: Mapping[tuple[str, str], LandingRow]  # (site, landing) → its row when the load began, of unfinished ones
    finished: Mapping[tuple[str, str], int]  # (site, landing) → its sign when nothing was left to do in it
    done: dict[tuple[str, str], int] = field(default_factory=dict)  # the same for those that this load finished
    placed: list[CatalogFile] = field(default_factory=list)  # files that this load checked and placed
    tally: Tally = field(default_factory=Tally)


@dataclass(frozen=True)
class Landing:
    """A landing that may load now. `row` is written at each of its steps."""

    paper: FoundManifest
    manifest: Manifest
    origin: Origin
    row: LandingRow


def give_up(work: Work, paper: FoundManifest, error: Exception) -> None:
    """Reject a landing after its own failure; its bytes stay where they are. Raises faults of this machine."""
    error = require_theirs(error)
    reason = message_of(error) if isinstance(error, TidemarkError) else f"it cannot be loaded: {message_of(error)}"
    kind = CorruptionError.kind if isinstance(error, CorruptionError) else PartialError.kind
    reject_landing(work, FoundManifest(paper.folder, paper.sha256, None), reason, kind)


def reject_landing(work: Work, paper: FoundManifest, reason: str, kind: int = CorruptionError.kind) -> None:
    """Report a landing that cannot be accepted; its bytes stay where they are."""
    folder = paper.folder
    work.tally.count_rejected(Trouble("landing", folder.landing, folder.path, reason, kind))
    before = work.rows.get((folder.site_id, folder.landing))
    if before is None or (before.state, before.reason) != ("rejected", reason):
        _put_row(work, row_of(work, paper, "rejected", reason), "landing.rejected", reason)


def defer_landing(work: Work, paper: FoundManifest, reason: str) -> None:
    """Report a landing that waits for an earlier one."""
    folder = paper.folder
    work.tally.count_waiting(Trouble("landing", folder.landing, folder.path, reason, RetryableError.kind))
    before = work.rows.get((folder.site_id, folder.landing))
    if before is None or (before.state, before.reason) != ("waiting", reason):
        _put_row(work, row_of(work, paper, "waiting", reason), "landing.gap", reason)


def name_foreign_receipt(work: Work, folder: Folder, reason: str) -> None:
    """Report a receipt that somebody else wrote; it has no other effect."""
    work.tally.troubles.append(Trouble("receipt", folder.landing, f"{folder.path}/{RECEIPT}", reason, PartialError.kind))
    with work.app.ledger.write() as connection:
        assert_held(connection, work.lease)
        record_event(connection, "landing.foreign_receipt", site_id=folder.site_id, landing=folder.landing, reason=reason)


def row_of(work: Work, paper: FoundManifest, state: str, reason: str | None) -> LandingRow:
    """Build the ledger's row of a landing."""
    manifest, folder = paper.manifest, paper.folder
    return LandingRow(
        receiver=work.receiver.name,
        landing=folder.landing,
        site_id=folder.site_id,
        sequence=manifest.sequence if manifest else 0,
        previous=manifest.previous if manifest else None,
        run_id=manifest.run_id if manifest else "",
        part=manifest.part if manifest else 0,
        state=state,
        reason=reason,
        manifest_sha256=paper.sha256,
        files=len(manifest.files) if manifest else 0,
        bytes=sum(p.size for f in manifest.files for p in (f.tsfile, f.resource, f.mods) if p) if manifest else 0,
        found=work.app.clock(),
        listed=manifest.listed if manifest else None,
    )


def _put_row(work: Work, changed: LandingRow, event: str, reason: str) -> None:
    with work.app.ledger.write() as connection:
        assert_held(connection, work.lease)
        landing_rows.put_landing(connection, changed)
        record_event(
            connection, event, site_id=changed.site_id, landing=changed.landing, sequence=changed.sequence, reason=reason
        )
