"""The operator's decisions: quarantine, owners, approval. Each is written to the audit table with its effect.

Ownership decides which site may load a device from now on. Files that the former owner loaded stay in the catalog. If both
have a point, the present owner's is read (docs/decisions/0009, `receiver.view`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.app import App, change_receiver
from tidemark.cluster.replicas.forward import make_visible
from tidemark.cluster.replicas.promote import require_newest
from tidemark.engines.choose import EngineChoice
from tidemark.errors import (
    CorruptionError,
    GuardError,
    NotFoundError,
    OwnershipError,
    TaskLimitError,
    TidemarkError,
    UsageError,
)
from tidemark.formats.landing import Answer, Resend
from tidemark.formats.records import APPROVE, DISMISS, GIVE_UP, TRANSFER, Decision, decided_place, encode_decision
from tidemark.ledger import journal
from tidemark.ledger.journal import record_event
from tidemark.ledger.leases import assert_held
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver.refusals import OwnerRow, QuarantineRow
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.operations.consequences import match_owners
from tidemark.proof.as_of import format_iso
from tidemark.receiver import kept_damage
from tidemark.receiver.load.admit import Hold
from tidemark.receiver.load.examine import remove_copies, site_of
from tidemark.receiver.load.landings import sweep_waiting
from tidemark.receiver.load.place import place_files
from tidemark.receiver.load.removal.replaced import give_up_kept, leave_approved
from tidemark.receiver.load.retry import ask_about_vanished, recheck_waiting, record_retried, replay_refused
from tidemark.receiver.session import HeldReceiver, hold_receiver
from tidemark.settings.model import ReceiverSettings
from tidemark.sync.select import quarantine
from tidemark.sync.send import receipts


@dataclass(frozen=True)
class DecisionResult:
    """Result of an operator's command; `facts` are its keys in JSON."""

    facts: dict[str, Any]

    @property
    def exit_code(self) -> int:
        return 0

    def as_json(self) -> dict[str, Any]:
        return {"ok": True, **self.facts}


@contextmanager
def _hold_newest(app: App, receiver: ReceiverSettings, engine: EngineChoice = "auto") -> Iterator[HeldReceiver]:
    """Open the receiver for a decision. PermanentError if the ledger is older than the nodes: what is decided by it would be
    found by the ledger that is made from them, though the verb failed."""
    with hold_receiver(app, receiver, "operator", engine=engine) as session:
        require_newest(session.cluster)
        yield session


def quarantine_list(app: App, receiver: ReceiverSettings) -> DecisionResult:
    """List every held file with its ID and reason, and kept files whose bytes are damaged."""
    with app.ledger.read() as connection:
        held = refusal_rows.read_quarantine(connection, receiver.name)
        names = {s.site_id: s.name for s in landing_rows.read_sites(connection).values()}
        distrusted = quarantine.list_held(app, connection, receiver)
        rotten = kept_damage.list_damage(app, connection, receiver, names)
    rows = [*distrusted, *rotten, *(_held_json(row, names) for row in held)]
    return DecisionResult({"quarantine": [{**row, "at": format_iso(row["at"])} for row in rows]})


def quarantine_release(app: App, receiver: ReceiverSettings, held_id: str, engine: EngineChoice = "auto") -> DecisionResult:
    """Check a held file again and load it. CorruptionError if it still cannot be loaded, TaskLimitError if a limit ends its
    check again: it stays held.

    OwnershipError if another site owns a device of it: it left the quarantine and is refused. A file that a link holds
    (`s…`) is sent by the link's next run. A file that was already released is not released again.
    """
    if quarantine.is_quarantine_id(held_id):
        return DecisionResult(quarantine.decide_held(app, receiver, held_id, "released"))
    if kept_damage.is_damage_id(held_id):
        raise UsageError(
            f"{held_id} is in the catalog: a kept file whose bytes rotted is whole again, or given up",
            hint=f"put its bytes back from a backup, or ./tidemark quarantine drop {held_id}",
            subject=held_id,
        )
    row = _require_held(app, receiver, held_id, "released", "superseded")
    quarantine_id = row.quarantine_id
    if row.state != "held":
        _require_loaded(app, row)
        return DecisionResult({"id": quarantine_id, "path": row.path, "outcome": row.state})
    with _hold_newest(app, receiver, engine) as session:
        if not row.location:
            raise CorruptionError(
                f"quarantine {quarantine_id}: nothing of {row.path} came: {row.reason}",
                hint="send it again: ./tidemark verify --repair",
                subject=row.path,
            )
        origin, admission = recheck_waiting(session, row)
        if admission.holds:
            remove_copies(session.store, origin)
            raise _still_held(row, admission.holds[0])
        place_files(session.store, admission.placements)
        remove_copies(session.store, origin)
        # CRASH WINDOW: in place, not recorded: the file is still held, releasing it again continues.
        shown = ask_about_vanished(session, origin, admission)

        def record_release(connection: Connection) -> tuple[Answer, ...]:
            assert_held(connection, session.lease)
            answers = record_retried(connection, origin, admission, app.clock(), shown)
            refusal_rows.end_quarantine(connection, quarantine_id, "superseded" if admission.known else "released")
            journal.record_decision(connection, "quarantine release", row.path, id=quarantine_id, site=row.site_id)
            place = {"site_id": row.site_id, "landing": row.landing, "path": row.path}
            record_event(connection, "file.replayed", **place, why=f"released from quarantine {quarantine_id}")
            return answers

        answers = make_visible(
            app, receiver, session.cluster, session.store, [load.row for load in admission.loads], record_release
        )
        sweep_waiting(app.ledger, session.store, row.receiver, session.lease)
    if answers[0].outcome == "refused":
        raise OwnershipError(answers[0].reason, hint="./tidemark owners list", subject=row.path)
    return DecisionResult({"id": quarantine_id, "path": row.path, "outcome": answers[0].outcome})


def _still_held(row: QuarantineRow, hold: Hold) -> TidemarkError:
    message = f"quarantine {row.quarantine_id}: {row.path} still cannot be loaded: {hold.reason}"
    if hold.kind == TaskLimitError.kind:
        return TaskLimitError(message, hint="docs/runbooks/quarantine.md", subject=row.path)
    hint = f"send it again (./tidemark verify --repair), or ./tidemark quarantine drop {row.quarantine_id}"
    return CorruptionError(message, hint=hint, subject=row.path)


def quarantine_drop(app: App, receiver: ReceiverSettings, held_id: str) -> DecisionResult:
    """Give up a held file: its bytes are removed, its row stays. A file that a link holds is not sent with this content. A
    kept file whose bytes are damaged leaves the catalog.

    A file that was already given up is not given up again.
    """
    if quarantine.is_quarantine_id(held_id):
        return DecisionResult(quarantine.decide_held(app, receiver, held_id, "dropped"))
    if kept_damage.is_damage_id(held_id):
        return _give_up_kept(app, receiver, held_id)
    row = _require_held(app, receiver, held_id, "dropped")
    quarantine_id = row.quarantine_id
    if row.state == "dropped":
        return DecisionResult({"id": quarantine_id, "path": row.path})
    with _hold_newest(app, receiver) as session:
        _publish_decision(session, GIVE_UP, row.path, site=row.site_id, generation=row.generation)
        with change_receiver(app, receiver.name, session.store) as connection:
            assert_held(connection, session.lease)
            refusal_rows.end_quarantine(connection, quarantine_id, "dropped")
            journal.record_decision(
                connection, "quarantine drop", row.path, id=quarantine_id, site=row.site_id, reason=row.reason
            )
        # CRASH WINDOW: given up, bytes still there: the next load removes them.
        sweep_waiting(app.ledger, session.store, row.receiver, session.lease)
    return DecisionResult({"id": quarantine_id, "path": row.path})


def _give_up_kept(app: App, receiver: ReceiverSettings, held_id: str) -> DecisionResult:
    with _hold_newest(app, receiver) as session:
        row, drops, why = kept_damage.to_give_up(app, receiver, held_id)
        place = row.path or row.location
        if why:
            for drop in drops:
                at = _publish_decision(session, GIVE_UP, drop.path, site=row.site_id, generation=drop.generation)

            # CRASH WINDOW: written, not recorded: it is kept as before; it leaves by another drop, or in a rebuilt ledger.
            def record_rows(connection: Connection) -> bool:
                assert_held(connection, session.lease)
                for drop in drops:
                    give_up_kept(connection, receiver.name, drop, why, at, row.site_id)
                journal.record_decision(connection, "quarantine drop", place, id=held_id, site=row.site_id, reason=why)
                return True

            make_visible(app, receiver, session.cluster, session.store, (), record_rows)
    return DecisionResult({"id": held_id, "path": place})


def owners_list(app: App, receiver: ReceiverSettings) -> DecisionResult:
    """List every device with its owner, and the refused files that wait."""
    with app.ledger.read() as connection:
        owners = refusal_rows.all_owners(connection, receiver.name)
        refused = refusal_rows.read_refusals(connection, receiver.name)
        names = {s.site_id: s.name for s in landing_rows.read_sites(connection).values()}
    return DecisionResult(
        {
            "owners": [
                {**asdict(row), "site": names.get(row.site_id, row.site_id), "since": format_iso(row.since)}
                for row in owners
            ],
            "refused": [
                {
                    "site": names.get(row.site_id, row.site_id),
                    "path": row.path,
                    "device": row.device,
                    "owner": names.get(row.owner_site, row.owner_site),
                }
                for row in refused
            ],
        }
    )


def owners_transfer(app: App, receiver: ReceiverSettings, pattern: str, to: str) -> DecisionResult:
    """Give the devices that `pattern` names to site `to` (name or UUID) and load the files that were refused for them.

    A repeated call continues: each device is given once, and waiting refused files are tried. NotFoundError if nobody owns
    such a device.
    """
    site_id = site_of(app, to)
    if site_id is None:
        raise UsageError("owners transfer needs --to SITE", subject=pattern)
    with _hold_newest(app, receiver) as session:
        with app.ledger.read() as connection:
            owned = match_owners(connection, receiver.name, pattern)
        if not owned:
            which = f"that matches {pattern!r}" if "*" in pattern else f"named {pattern!r}"
            raise NotFoundError(
                f"nobody owns a device {which} at {receiver.name}", hint="./tidemark owners list", subject=pattern
            )
        given = [row for row in owned if row.site_id != site_id]
        if given:
            # Who has the records alone goes by their times: the former owner's may be of a clock that was ahead.
            times = [_publish_decision(session, TRANSFER, row.device, after=row.since, to=site_id) for row in given]

            # CRASH WINDOW: some or all written, not recorded: the repeated command, or a rebuilt ledger, does it.
            def record_owners(connection: Connection) -> bool:
                assert_held(connection, session.lease)
                rows = [OwnerRow(row.device, site_id, at, row.landing) for row, at in zip(given, times, strict=True)]
                refusal_rows.put_owners(connection, receiver.name, rows)
                for row in given:
                    journal.record_decision(connection, "owners transfer", row.device, source=row.site_id, target=site_id)
                    record_event(connection, "device.transferred", site_id=site_id, path=row.device, source=row.site_id)
                return True

            make_visible(app, receiver, session.cluster, session.store, (), record_owners)
        # CRASH WINDOW: transferred, refused files not replayed: every load replays files that became loadable.
        loaded = replay_refused(session).loaded
        with app.ledger.read() as connection:
            left = refusal_rows.read_refusals(connection, receiver.name, site_id=site_id)
    return DecisionResult(
        {
            "device": pattern,
            "from": ", ".join(sorted({row.site_id for row in given})) or site_id,
            "to": site_id,
            "transferred": [row.device for row in given],
            "replayed": [row.path for row in loaded],
            "still_refused": [{"path": row.path, "device": row.device} for row in left],
        }
    )


def owners_dismiss(app: App, receiver: ReceiverSettings, site: str) -> DecisionResult:
    """Give up all refused files of a site (name or UUID): their bytes are removed, their rows stay."""
    site_id = site_of(app, site)
    if site_id is None:
        raise UsageError("owners dismiss needs a SITE", subject=site)
    with _hold_newest(app, receiver) as session:
        with app.ledger.read() as connection:
            waiting = refusal_rows.read_refusals(connection, receiver.name, site_id=site_id)
        if waiting:
            _publish_decision(session, DISMISS, site_id, files=[(row.path, row.generation) for row in waiting])
            # CRASH WINDOW: written, not recorded: they wait as before; the repeated command, or a rebuilt ledger, does it.
            with change_receiver(app, receiver.name, session.store) as connection:
                assert_held(connection, session.lease)
                for row in waiting:
                    refusal_rows.end_refusal(connection, row.refusal_id, "dismissed")
                paths = [row.path for row in waiting]
                journal.record_decision(connection, "owners dismiss", site_id, receiver=receiver.name, paths=paths)
        # CRASH WINDOW: dismissed, bytes still there: the next load removes them.
        sweep_waiting(app.ledger, session.store, receiver.name, session.lease)
    return DecisionResult({"site": site, "dismissed": [row.path for row in waiting]})


def approve_run(app: App, run_id: str) -> DecisionResult:
    """Approve the drops that wait for a run: at its link (sent by the next run), or at a receiver (done now)."""
    with app.ledger.write() as connection:
        run = run_rows.get_run(connection, run_id)
        link = link_rows.get_link(connection, run.link) if run else None
        if link is not None and link.guard_run == run_id:
            if link.approved_run != run_id:
                link_rows.set_link(connection, link.link, approved_run=run_id)
                journal.record_decision(connection, "approve", run_id, link=link.link, guard=link.guard)
                record_event(connection, "guard.approved", link=link.link, run_id=run_id, who=journal.user_at_host())
            return DecisionResult({"run": run_id, "link": link.link, "approved": link.guard or ""})
    paths = [path for name in app.settings.receivers for path in _approve_at(app, app.receiver_settings(name), run_id)]
    if paths:
        return DecisionResult({"run": run_id, "approved": paths})
    with app.ledger.read() as connection:
        landings = [row for name in app.settings.receivers for row in landing_rows.read_landings(connection, name).values()]
        approved = journal.was_decided(connection, "approve", run_id)
    known = any(row.run_id == run_id for row in landings)
    if run is None and not known:
        raise NotFoundError(f"no run named {run_id!r} has drops that wait", hint="./tidemark status", subject=run_id)
    if link is not None and link.guard_run not in (None, link.approved_run) and not approved:
        raise GuardError(
            f"no drops of run {run_id} wait: {link.guard_run} looked again since, and its drops do: {link.guard}",
            hint=f"look at ./tidemark plan {link.link}; then ./tidemark approve {link.guard_run}",
            subject=run_id,
        )
    return DecisionResult({"run": run_id, "approved": [], "note": "no drops of this run wait for approval"})


def _approve_at(app: App, receiver: ReceiverSettings, run_id: str) -> list[str]:
    """Apply the waiting drops of a run's landings at a receiver; return their paths."""
    with app.ledger.read() as connection:
        landings = [row for row in landing_rows.read_landings(connection, receiver.name).values() if row.run_id == run_id]
        waiting = {
            row.site_id: landing_rows.read_drops(connection, receiver.name, row.site_id, states=("waiting",))
            for row in landings
        }
    ids = {row.landing for row in landings}
    due = {site: [d for d in drops if d.landing in ids] for site, drops in waiting.items()}
    paths = [d.path for drops in due.values() for d in drops]
    if not paths:
        return []
    with _hold_newest(app, receiver) as session:
        named = {site_id: [(d.path, d.generation) for d in drops] for site_id, drops in due.items()}
        at = _publish_decision(session, APPROVE, run_id, drops=named)

        # CRASH WINDOW: written, not recorded: they wait as before; they leave by another approval, or in a rebuilt ledger.
        def record_rows(connection: Connection) -> bool:
            assert_held(connection, session.lease)
            for site_id, drops in due.items():
                late = leave_approved(connection, receiver.name, site_id, drops, at)
                again = [Resend(one.path, one.generation, one.reason) for one in late.again]
                for link in _find_links(app, receiver, site_id):  # links of another ledger read it in the next receipt
                    receipts.send_again(connection, link, run_id, again)
            journal.record_decision(connection, "approve", run_id, receiver=receiver.name, paths=paths)
            return True

        make_visible(app, receiver, session.cluster, session.store, (), record_rows)
    return paths


def _find_links(app: App, receiver: ReceiverSettings, site_id: str) -> list[str]:
    """Return the links of these settings from this site to the receiver."""
    links = app.settings.links.values()
    return [link.name for link in links if link.receiver == receiver.name and app.site_settings(link.site).id == site_id]


def _publish_decision(session: HeldReceiver, action: str, subject: str, *, after: float = 0.0, **detail: Any) -> float:
    """Write the decision at the receiver, in case the ledger is lost; return its time, which is later than `after`."""
    record = Decision(max(session.app.clock(), after + 1), journal.user_at_host(), action, subject, detail)
    session.store.publish(decided_place(record), encode_decision(record))
    return record.at


def _require_loaded(app: App, row: QuarantineRow) -> None:
    """Raise OwnershipError if the released file was refused, and still is."""
    with app.ledger.read() as connection:
        refused = refusal_rows.read_refusals(connection, row.receiver, site_id=row.site_id)
    for one in refused:
        if (one.path, one.generation) == (row.path, row.generation):
            reason = f"{one.path}: {one.device} belongs to another site"
            raise OwnershipError(reason, hint="./tidemark owners list", subject=row.path)


def _require_held(app: App, receiver: ReceiverSettings, held_id: str, *done: str) -> QuarantineRow:
    """Return the row; `done`: other allowed states than held."""
    row = None
    if held_id.isdecimal() and len(held_id) < 19:  # the range of a 64-bit key
        with app.ledger.read() as connection:
            row = refusal_rows.quarantine_of(connection, int(held_id))
    if row is None or row.state not in ("held", *done) or row.receiver != receiver.name:
        state = f": it is {row.state}" if row is not None and row.state != "held" else ""
        raise NotFoundError(
            f"nothing is held in quarantine of {receiver.name} as {held_id}{state}",
            hint="./tidemark quarantine list",
            subject=held_id,
        )
    return row


def _held_json(row: QuarantineRow, names: dict[str, str]) -> dict[str, Any]:
    return {
        "id": row.quarantine_id,
        "site": names.get(row.site_id, row.site_id),
        "path": row.path,
        "generation": row.generation,
        "landing": row.landing,
        "reason": row.reason,
        "kind": row.error_kind,
        "location": row.location,
        "at": row.at,
    }
