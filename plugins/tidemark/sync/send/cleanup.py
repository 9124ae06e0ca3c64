"""The first and the last step of a run: recover settles what a dead run left, cleanup removes the snapshot.

Both may be repeated without harm. Cleanup removes the snapshot only after every landing of the run is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.errors import CorruptionError, PermanentError, RetryableError
from tidemark.formats.landing import Manifest, decode_manifest, read_documents
from tidemark.formats.layout import MANIFEST
from tidemark.ledger import journal
from tidemark.ledger.database import database_time
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.runs import FAILED, HELD, PLANNED, SENT, VANISHED
from tidemark.sync.select import snapshot
from tidemark.sync.send.finish import conclude_landings, require_all_sent
from tidemark.sync.send.receipts import read_receipts
from tidemark.sync.session import Work

_TIME = len("20260101T000000Z")  # of a run id


def recover(work: Work) -> Mapping[str, int]:
    """Settle reserved landings, read receipts, and remove hard links of dead runs. Returns their counts. Raises
    PermanentError if the ledger is older than the receiver."""
    settled = conclude_landings(work)
    require_known_landings(work)
    answers = read_receipts(work)
    if work.site.snapshot:
        _remove_dead_links(work)
    return {"settled": settled, **answers}


def require_known_landings(work: Work) -> None:
    """Raise PermanentError if a complete landing of this link at the receiver is not in the ledger.

    Then an older ledger was restored, and its next sequence number is used already. Run ids sort by time, so only landings
    as new as the newest known one are read.
    """
    with work.ledger.read() as connection:
        known = set(run_rows.landing_names(connection, work.link.name))
    newest = max(known, default="")[:_TIME]
    folder = f"landing/{work.site.id}"
    names = [n for n in work.target.list_folder(folder) if n[:_TIME] >= newest and n not in known]
    for data in read_documents(work.target, [f"{folder}/{name}/{MANIFEST}" for name in names]):
        manifest = _decode_if_readable(data)
        if manifest is not None and manifest.link == work.link.name:
            raise PermanentError(
                f"landing {manifest.landing} (sequence {manifest.sequence}) of link {work.link.name} is at the receiver, "
                "and the ledger does not know of it: the ledger is older than the receiver",
                hint="./tidemark ledger rebuild --replace (docs/runbooks/ledger-lost.md)",
                subject=manifest.landing,
            )


def _decode_if_readable(data: bytes | None) -> Manifest | None:
    """Decode a manifest. None for a landing without one, and for a corrupt one, which every load reports."""
    try:
        return None if data is None else decode_manifest(data)
    except CorruptionError:
        return None


def cleanup(work: Work) -> Mapping[str, int]:
    """Remove the snapshot, then end the run. Returns {"pending": items left for later}. Raises RetryableError while items of
    the run have not landed."""
    require_all_sent(work)
    with work.ledger.read() as connection:
        counted = run_rows.count_items(connection, work.run_id)
        landings = run_rows.sent_landings(connection, work.link.name, run_id=work.run_id)
    if any(state in (SENT, PLANNED) for _, state in counted) or any(one.state == "closing" for one in landings):
        raise RetryableError(
            f"run {work.run_id} cannot end: its last landing is not closed",
            hint=f"run the step finish before it: ./tidemark sync {work.link.name}",
            subject=work.run_id,
        )
    sent = any(action in ("send", "mods") for action, _ in counted)
    # CRASH WINDOW: everything has landed and the links are still there; the rerun removes them.
    if sent and work.site.snapshot:
        snapshot.remove_snapshot(work.source, work.folders, work.run_id)
    left = sum(n for (_, state), n in counted.items() if state in (FAILED, VANISHED, HELD))
    if sent or landings:  # remove a part in which no file was completed
        work.target.remove_tree(work.landing_folder(work.landing_of_part(len(landings) + 1)))
    with work.write_under_lease() as connection:
        run = run_rows.get_run(connection, work.run_id)
        assert run is not None
        at = database_time(connection)
        run_rows.set_run(
            connection,
            work.run_id,
            state="finished",
            step="done",
            ended=at,
            pending=left,
            error_kind=None,
            error=None,
            hint=None,
        )
        run_rows.set_success(connection, work.link.name, work.run_id, at)
        journal.record_event(
            connection, "run.finished", link=work.link.name, run_id=work.run_id, files=run.files, bytes=run.bytes
        )
    return {"pending": left}


def _remove_dead_links(work: Work) -> None:
    """Remove hard links of this ledger's other runs, and of forsaken runs. Those of another Tidemark stay."""
    others = snapshot.list_other_runs(work.source, work.folders, keep=work.run_id)
    if not others:
        return
    with work.ledger.read() as connection:
        ours = run_rows.known_runs(connection, work.link.name, {run for _, run in others})
    for folder, run in others:
        if run in ours or snapshot.is_forsaken(run, work.clock()):
            work.source.remove_tree(folder)
