"""The recovery of a member: its phases follow each other (R7 to R15, LastWal), and no node has too many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidemark.cluster.replicas.core.continuity import Log, Record, is_continued
from tidemark.cluster.replicas.core.recovery_plan import (
    Phase,
    Recovery,
    Sight,
    advance,
    choose_starts,
    count_backoff_s,
)
from tidemark.cluster.replicas.core.roles import ORIGIN, LogEnd, Position


def grown(log: Log, versions: int, epoch: int = 1) -> Log:
    """The log with so many more records of this epoch. The CRC of each covers all before it."""
    records, end = list(log.records), log.end
    for _ in range(versions):
        position = Position(epoch, end.position.version + 1)
        records.append(Record(position, hash((end.crc, position)), end.crc, f"{epoch}.{position.version}"))
        end = records[-1].end
    return Log(log.base, tuple(records))


WHOLE = grown(Log(ORIGIN), 130)


def test_an_older_epoch_continues_nothing() -> None:
    log = grown(grown(Log(ORIGIN), 1, epoch=2), 1, epoch=1)
    assert not is_continued(log.records[0].end, log.records[1])


END = WHOLE.end
MEMBER_BEHIND = WHOLE.end_at(90)
AT_WORK = Sight(3, END, MEMBER_BEHIND, index_digest="d", lacking=2, sealed=Position(1, 120))


def test_phases_follow_each_other_and_none_is_left_before_its_work_is_done() -> None:
    seen = Recovery(epoch=3)
    assert advance(seen, replace(AT_WORK, pinned=False)) is seen
    seen = advance(seen, AT_WORK)
    assert seen.phase is Phase.START
    seen = advance(seen, AT_WORK)
    assert (seen.phase, seen.index_digest) == (Phase.FILE, "d")
    assert advance(seen, AT_WORK) is seen
    seen = advance(seen, replace(AT_WORK, lacking=0))
    assert seen.phase is Phase.WAL
    assert advance(seen, AT_WORK) is seen
    seen = advance(seen, replace(AT_WORK, member=WHOLE.end_at(120)))
    assert (seen.phase, seen.target) == (Phase.CACHE, None)
    seen = advance(seen, AT_WORK)
    assert (seen.phase, seen.target) == (Phase.CACHE, END.position)
    seen = advance(seen, replace(AT_WORK, member=END))
    assert seen.phase is Phase.DONE
    assert advance(seen, replace(AT_WORK, epoch=None)) is seen


CACHED = Recovery(3, Phase.CACHE, "d", END.position)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "empty: an end of file is not the end of the log"),
        ({"member": WHOLE.end_at(129)}, "it grows, or its last record is torn or not visible yet"),
        ({"member": END, "waiting": 1}, "forwards in the inbox"),
        ({"member": END, "in_flight": True}, "an operation without an outcome"),
        ({"member": END, "source": grown(WHOLE, 1).end}, "rolled to a new segment: the group went on"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_r13_the_last_log_is_read_until_the_member_has_everything(change: dict[str, Any], why: str) -> None:
    assert advance(CACHED, replace(AT_WORK, **change)) is CACHED, why


def test_the_target_is_never_read_by_the_look_that_opens_the_inbox() -> None:
    """Else an operation between the two would be neither forwarded nor below the target."""
    ready = replace(AT_WORK, member=END, lacking=0)
    for phase in (Phase.INIT, Phase.START, Phase.FILE, Phase.WAL):
        assert advance(Recovery(3, phase, "d"), ready).target is None


@pytest.mark.parametrize("change", [{"index_digest": "other"}, {"pinned": False}], ids=str)
def test_r7_a_source_that_changes_while_files_are_copied_begins_anew(change: dict[str, Any]) -> None:
    seen = advance(Recovery(3, Phase.FILE, "d", restarts=1), replace(AT_WORK, **change))
    assert seen == Recovery(3, restarts=2)


def test_each_restart_waits_longer() -> None:
    assert [count_backoff_s(n) for n in (0, 1, 2, 3, 99)] == [0, 60, 120, 240, 3600]


@pytest.mark.parametrize("epoch", [None, 2, 4])
@pytest.mark.parametrize("phase", [Phase.INIT, Phase.FILE, Phase.WAL, Phase.CACHE])
def test_r12_a_source_that_is_not_the_master_of_its_epoch_ends_it(phase: Phase, epoch: int | None) -> None:
    assert advance(Recovery(3, phase), replace(AT_WORK, epoch=epoch)).phase is Phase.ABORTED


def test_r15_records_that_differ_at_the_same_version_end_it() -> None:
    other = LogEnd(END.position, END.crc + 1)
    assert advance(CACHED, replace(AT_WORK, member=other)).phase is Phase.ABORTED


def test_r9_no_node_has_more_recoveries_than_its_limit() -> None:
    waiting = [("b", "a"), ("c", "a"), ("d", "a"), ("d", "c")]
    assert choose_starts(waiting, [], limit=2) == (0, 1, 3)
    assert choose_starts(waiting, [("x", "a"), ("y", "a")], limit=2) == (3,)
    assert choose_starts(waiting, [], limit=1) == (0, 3)
