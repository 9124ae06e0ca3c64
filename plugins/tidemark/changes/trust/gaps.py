"""Gaps of a store: stretches of a source's history that no log of its server holds any more.

`gaps.json` in the store's folder. Written by the holder of the source's lease, whole and durably. A gap that is met again is
the same one. A gap is repaired in three steps: a transaction that stands for it is appended, behind which a capture goes on;
its tables are read anew; it is closed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from tidemark.changes.binlog.gtid_sets import contains_gtid
from tidemark.changes.capture.identity import number_of
from tidemark.changes.capture.run import GAP, parse_gtids
from tidemark.changes.store.disk import Disk, read_document
from tidemark.changes.store.model import BinlogInfo, Mark, Transaction
from tidemark.changes.store.write import Writer
from tidemark.changes.trust.answers import Answers, StoreEnd, find_rest
from tidemark.changes.trust.headroom import find_before, has_other_logs, has_rest
from tidemark.errors import BinlogGapError, PermanentError

PATH = "gaps.json"
FORMAT = 1
OPEN, REPAIRED = "open", "repaired"


@dataclass(frozen=True)
class Gap:
    """What is missing: behind `start`, before `end`, each `FILE:POS`, and beside it the GTID sets that were known there.

    `tables`: those whose rows may be wrong since. `found`: seconds since 1970.
    """

    id: str
    server: str
    start: str
    end: str
    start_gtids: str
    end_gtids: str
    tables: tuple[str, ...]
    found: float
    state: str = OPEN
    is_passed: bool = False
    """The store goes on behind it. Its tables are to be read, or to be read on."""

    def as_json(self) -> dict[str, Any]:
        """As `changes show --json` tells it."""
        return {
            "id": self.id,
            "server": self.server,
            "from": self.start,
            "to": self.end,
            "from_gtids": self.start_gtids,
            "to_gtids": self.end_gtids,
            "tables": list(self.tables),
            "found": self.found,
            "state": self.state,
        }


def find_gap(answers: Answers, end: StoreEnd) -> Gap | None:
    """The gap between a store's end and the oldest log of its server; None where the server has what follows. Pure.

    Raises BinlogGapError where the store cannot go on behind it: the server has other logs than the store is from.
    """
    names = [name for name, _ in answers.facts.logs]
    if not names or has_rest(answers, end):
        return None
    start, first = f"{end.position.file}:{end.position.position}", find_rest(names, end.position.file)[0]
    if has_other_logs(answers, end):
        raise BinlogGapError(
            f"{answers.address} has other logs than the store, and no more what follows {start}",
            hint="let url name a server that has it; one of its own is a source of its own, with a store of its own",
            subject=answers.address,
        )
    return Gap(
        id="",
        server=answers.address,
        start=start,
        end=f"{first}:4",
        start_gtids=str(end.gtids or ""),
        end_gtids=str(find_before(answers) or ""),
        tables=answers.tables,
        found=answers.time,
    )


def is_in_gap(gap: Gap, info: BinlogInfo, gtid: str) -> bool:
    """Whether a transaction lies in a gap: by the sets at its ends where there are some, else by its place. Pure."""
    if gtid and gap.start_gtids and gap.end_gtids:
        return contains_gtid(parse_gtids(gap.end_gtids), gtid) and not contains_gtid(parse_gtids(gap.start_gtids), gtid)
    return _parse_place(gap.start) < (info.file, info.offset) < _parse_place(gap.end)


def _parse_place(text: str) -> tuple[int, int]:
    file, _, position = text.rpartition(":")
    return number_of(file), int(position)


def read_gaps(disk: Disk) -> tuple[Gap, ...]:
    """The gaps of a store, in the order in which they were found."""
    return read_document(disk, PATH, FORMAT, _decode_gaps) or ()


def _decode_gaps(found: dict[str, Any]) -> tuple[Gap, ...]:
    return tuple(Gap(**{**gap, "tables": tuple(gap["tables"])}) for gap in found["gaps"])


def pass_gap(disk: Disk, fence: int, gap: Gap) -> None:
    """Append the transaction that stands for a gap, unless it is there. A capture goes on behind it.

    Raises PermanentError where the gap does not lie behind the store: its logs are not those that the store is from.
    """
    file, position = _parse_place(gap.end)
    with Writer(disk, fence) as writer:
        state = writer.state
        info = state.info._replace(file=file, offset=position, uuid=bytes(16), transaction_id=0, event_index=0)
        if state.info.order >= info.order > (info.change_id, *_parse_place(gap.start), 0):
            return
        if info.order <= state.info.order:
            raise PermanentError(
                f"gap {gap.id} ends at {gap.end}, before the store's end: {gap.server} has other logs than the store",
                hint="let url name the former server; one of its own is a source of its own, with a store of its own",
                subject=gap.id,
            )
        known, there = parse_gtids(writer.gtids), parse_gtids(gap.end_gtids)
        gtids = known | there if known is not None and type(known) is type(there) else there or known  # type: ignore[operator]
        offset = max(state.gtid_offset, gtids.count() if gtids is not None else 0)
        writer.append(Transaction(info, "", offset, (Mark(GAP, gap.id),)), "" if gtids is None else gtids)


def update_gap(disk: Disk, gap: Gap) -> None:
    """Record what became of a gap."""
    gaps = [asdict(gap if one.id == gap.id else one) for one in read_gaps(disk)]
    disk.publish(PATH, json.dumps({"format": FORMAT, "gaps": gaps}, ensure_ascii=False).encode())


def record_gap(disk: Disk, gap: Gap) -> Gap:
    """Record a gap, or the new end of one that is known: a server goes on purging. Returns it with its id."""
    known = read_gaps(disk)
    former = next((one for one in known if one.start == gap.start and one.state == OPEN), None)
    gap = replace(gap, id=former.id if former else str(len(known) + 1), found=former.found if former else gap.found)
    if gap != former:
        # CRASH WINDOW: the gap is not recorded. The next capture meets it, and records it.
        kept = [one for one in known if one.id != gap.id]
        gaps = [asdict(one) for one in (*kept, gap)]
        disk.publish(PATH, json.dumps({"format": FORMAT, "gaps": gaps}, ensure_ascii=False).encode())
    return gap
