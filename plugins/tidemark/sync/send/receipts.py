"""Read the receiver's receipts of landings at the start of the next run.

A receipt says for every file whether it was loaded, refused (another site owns a device) or quarantined. A quarantined
file is sent again, whole, if the receiver lacks bytes of it. If its bytes arrived as promised, the site's present copy is
compared: a different copy is sent as a new generation; an equal copy is corrupt at the site and is reported. A schema log
with missing bytes is sent from its start under a new epoch. Files that the receiver needs to replace a settled file are
sent again, whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from sqlalchemy.engine import Connection

from tidemark.errors import CorruptionError
from tidemark.formats.landing import Answer, Receipt, Resend, decode_receipt
from tidemark.formats.layout import RECEIPT
from tidemark.ledger import journal
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.runs import SentLanding
from tidemark.stores.protocol import Range, read_record
from tidemark.sync.session import Work
from tidemark.untrusted_files import MOST_DOCUMENT

OUTCOMES = ("loaded", "refused", "quarantined")


def read_receipts(work: Work) -> Mapping[str, int]:
    """Read and record every receipt. Returns {"answered": landings, "loaded", "refused", "quarantined": files}."""
    with work.ledger.read() as connection:
        waiting = run_rows.sent_landings(connection, work.link.name, state="landed")
    total: Counter[str] = Counter()
    for landing in waiting:
        text = read_record(work.target, f"{work.landing_folder(landing.landing)}/{RECEIPT}", MOST_DOCUMENT)
        if text is None:
            continue
        receipt = _decode_answer(landing.landing, text)
        if receipt.landing != landing.landing or receipt.manifest_sha256 != landing.manifest_sha256:
            raise CorruptionError(
                f"the receipt of {landing.landing} answers another manifest ({receipt.landing})",
                hint="look at the landing at the receiver: ./tidemark why " + landing.landing,
                subject=landing.landing,
            )
        resend = _to_resend(work, receipt)
        with work.write_under_lease() as connection:
            _record_receipt(connection, work, landing, receipt, text.decode(), resend)
        total.update(answered=1, **count_outcomes(receipt.answers))
    return {name: total[name] for name in ("answered", *OUTCOMES)}


def _decode_answer(landing: str, text: bytes) -> Receipt:
    try:
        return decode_receipt(text)
    except CorruptionError as broken:
        raise CorruptionError(
            f"the receipt of {landing} cannot be read: {broken.message}",
            hint=f"at the receiver: remove landing/…/{landing}/{RECEIPT}; ./tidemark load writes it again",
            subject=landing,
        ) from broken


def count_outcomes(answers: Iterable[Answer]) -> Mapping[str, int]:
    """Return {outcome: number of files}."""
    return Counter(answer.outcome for answer in answers)


def _to_resend(work: Work, receipt: Receipt) -> frozenset[str]:
    """Return the quarantined files to send again: the receiver lacks bytes, or the site's copy differs now. Only
    acknowledged generations count: a newer one is being sent already."""
    held = {a.path: a for a in receipt.answers if a.outcome == "quarantined"}
    if not held:
        return frozenset()
    with work.ledger.read() as connection:
        known = link_rows.acked_digests(connection, work.link.name, sorted(held))
    current = [path for path, (_, _, generation) in known.items() if generation == held[path].generation]
    asked = [path for path in current if not held[path].resend]
    now = dict(zip(asked, work.source.digest_ranges([Range(path) for path in asked]), strict=True))
    differing = [path for path in asked if now[path] is not None and now[path] != known[path][0]]
    return frozenset([*differing, *(path for path in current if held[path].resend)])


def _record_receipt(
    connection: Connection, work: Work, landing: SentLanding, receipt: Receipt, text: str, resend: frozenset[str]
) -> None:
    link = work.link.name
    run_rows.set_landing(connection, landing.landing, state="answered", receipt=text)
    for answer in receipt.answers:
        if answer.outcome == "schema" and not answer.resend:
            continue  # reported in the receipt; sending the same bytes would not help
        if answer.outcome == "schema":
            link_rows.forget_schema_prefix(connection, link, answer.path)
            journal.record_event(
                connection, "file.resend", link=link, run_id=work.run_id, path=answer.path, why=answer.reason
            )
        elif answer.path in resend:
            link_rows.mark_resend(connection, link, [answer.path], f"was quarantined: {answer.reason}")
            journal.record_event(
                connection, "file.resend", link=link, run_id=work.run_id, path=answer.path, why=answer.reason
            )
        elif answer.outcome != "loaded":
            link_rows.note_reason(connection, link, [answer.path], f"{answer.outcome}: {answer.reason}")
    send_again(connection, link, work.run_id, receipt.resend)
    counted = count_outcomes(receipt.answers)
    journal.record_event(
        connection,
        "landing.answered",
        link=link,
        run_id=work.run_id,
        landing=landing.landing,
        loaded=counted.get("loaded", 0),
        refused=counted.get("refused", 0),
        quarantined=counted.get("quarantined", 0),
    )


def send_again(connection: Connection, link: str, run_id: str, resend: Iterable[Resend]) -> None:
    """Mark the files that the receiver asks for, if the site still has them and no newer generation was sent."""
    asked = {one.path: one for one in resend}
    here = link_rows.acked_paths(connection, link, sorted(asked))
    for path, (_, _, generation) in link_rows.acked_digests(connection, link, sorted(here)).items():
        if generation == asked[path].generation:
            link_rows.mark_resend(connection, link, [path], asked[path].reason)
            journal.record_event(connection, "file.resend", link=link, run_id=run_id, path=path, why=asked[path].reason)
