"""The recovery of a member: file indexes compared (R1 to R6), logs joined, phases in order (R7 to R15, LastWal)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.cluster.replicas.core.continuity import Log, LogState, Record, check_log, find_fork, is_continued
from tidemark.cluster.replicas.core.recovery_plan import (
    FileInfo,
    Phase,
    Recovery,
    Sight,
    advance,
    choose_starts,
    count_backoff_s,
    plan_files,
    plan_log,
)
from tidemark.cluster.replicas.core.roles import ORIGIN, LogEnd, Position
from tidemark.errors import CorruptionError


def grown(log: Log, versions: int, epoch: int = 1) -> Log:
    """The log with so many more records of this epoch. The CRC of each covers all before it."""
    records, end = list(log.records), log.end
    for _ in range(versions):
        position = Position(epoch, end.position.version + 1)
        records.append(Record(position, hash((end.crc, position)), end.crc, f"{epoch}.{position.version}"))
        end = records[-1].end
    return Log(log.base, tuple(records))


def trimmed(log: Log, upto: int) -> Log:
    """The log without its records up to this version, as retention leaves it."""
    kept = tuple(record for record in log.records if record.position.version > upto)
    return Log(log.end_at(upto), kept)


def versions(records: tuple[Record, ...]) -> list[int]:
    return [record.position.version for record in records]


def file(index: int, name: str = "", magic: str = "m", size: int = 1) -> FileInfo:
    return FileInfo(index, name or f"f{index}", size, magic)


WHOLE = grown(Log(ORIGIN), 130)


def test_r1_files_then_the_log_from_where_the_member_ends() -> None:
    source = trimmed(WHOLE, 94)
    plan = plan_log(Log(ORIGIN, WHOLE.records[:90]), source, archived=WHOLE.end_at(100))
    assert plan.start == WHOLE.end_at(100) and versions(plan.fetch) == list(range(101, 131))


def test_r1_a_member_that_the_source_s_log_reaches_goes_on_from_its_own_end() -> None:
    mine = Log(ORIGIN, WHOLE.records[:97])
    plan = plan_log(mine, trimmed(WHOLE, 94), archived=WHOLE.end_at(100))
    assert (plan.start, versions(plan.fetch), plan.quarantine) == (mine.end, list(range(98, 131)), ())


def test_r2_equal_files_do_not_hide_records_that_differ() -> None:
    """In the original's old code the version was reset only if a file was copied."""
    common = grown(Log(ORIGIN), 10)
    mine, source = grown(common, 5, epoch=1), grown(common, 5, epoch=2)
    assert plan_files([file(1)], [file(1)]).copy == ()
    plan = plan_log(mine, source, archived=ORIGIN)
    assert (plan.start, versions(plan.fetch)) == (common.end, [11, 12, 13, 14, 15])
    assert plan.quarantine == mine.records[10:]


def test_r3_a_file_that_the_source_lacks_is_taken_away() -> None:
    plan = plan_files([file(1), file(9)], [file(1), file(5), file(12)])
    assert (plan.copy, plan.keep, plan.remove) == ((file(9),), (file(1),), (file(5), file(12)))


@pytest.mark.parametrize("other", [file(1, magic="other"), file(1, size=2)], ids=["r4 magic", "r5 size"])
def test_a_file_of_the_same_name_with_other_bytes_is_copied_whole(other: FileInfo) -> None:
    plan = plan_files([file(1)], [other])
    assert (plan.copy, plan.keep, plan.remove) == ((file(1),), (), ())


def test_r6_an_emptied_member_gets_all_oldest_first() -> None:
    assert plan_files([file(7), file(1), file(4)], []).copy == (file(1), file(4), file(7))


def test_r14_what_an_earlier_try_verified_is_not_copied_again() -> None:
    plan = plan_files([file(1), file(2)], [], arrived=[file(1), file(2, magic="torn")])
    assert plan.copy == (file(2),)


@pytest.mark.parametrize("wrong", [[file(0)], [file(1, "a"), file(2, "a")]], ids=["index 0", "twice"])
def test_an_index_that_is_wrong_stops_the_recovery(wrong: list[FileInfo]) -> None:
    for source, target in ((wrong, []), ([], wrong)):
        with pytest.raises(CorruptionError, match="file index"):
            plan_files(source, target)


indexes = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(1, 9), st.sampled_from("xy"), st.integers(0, 1)))


@given(indexes, indexes)
def test_after_its_plan_a_member_has_the_source_s_files_and_copied_only_what_differs(source: Any, target: Any) -> None:
    there, here = ([file(i, name, m, size) for name, (i, m, size) in which.items()] for which in (source, target))
    plan = plan_files(there, here)
    end = {f.name: f for f in here if f not in plan.remove} | {f.name: f for f in plan.copy}
    assert {(f.name, f.size, f.magic) for f in end.values()} == {(f.name, f.size, f.magic) for f in there}
    assert not {(f.name, f.size, f.magic) for f in plan.copy} & {(f.name, f.size, f.magic) for f in here}
    assert plan_files(there, end.values()).copy == plan_files(there, end.values()).remove == ()


lengths = st.integers(0, 12)


@given(lengths, lengths, lengths, lengths, lengths, lengths)
def test_after_its_plan_a_member_s_log_is_the_source_s(
    common: int, mine: int, theirs: int, lost_mine: int, lost_theirs: int, archive: int
) -> None:
    shared = grown(Log(ORIGIN), common)
    member, source = grown(shared, mine, epoch=1), grown(shared, theirs, epoch=2)
    member = trimmed(member, min(lost_mine, member.end.position.version))
    source = trimmed(source, min(lost_theirs, source.end.position.version))
    floor = source.base.position.version
    plan = plan_log(member, source, source.end_at(min(floor + archive, source.end.position.version)))
    kept = tuple(r for r in member.records if r not in plan.quarantine and r.position.version <= plan.start.position.version)
    base = member.base if kept or plan.start == member.base else plan.start
    state, after = check_log(base, [*kept, *plan.fetch])
    assert state is LogState.SOUND and after.end == source.end
    assert set(plan.quarantine) | set(kept) == set(member.records)
    if find_fork(member, source):
        assert not set(plan.quarantine) & set(source.records)


@given(st.integers(1, 9), st.integers(0, 8), st.sampled_from(["unreadable", "skipped", "other"]))
def test_only_the_last_record_may_be_torn(count: int, at: int, damage: str) -> None:
    at = min(at, count - 1)
    log = grown(Log(ORIGIN), count)
    found: list[Record | None] = list(log.records)
    if damage == "unreadable":
        found[at] = None
    elif damage == "skipped":
        del found[at]
    else:
        found[at] = replace(log.records[at], previous_crc=log.records[at].previous_crc ^ 1)
    state, sound = check_log(ORIGIN, found)
    assert sound.records == log.records[:at]
    if damage == "skipped" and at == count - 1:
        assert state is LogState.SOUND
    else:
        assert state is (LogState.TORN if damage == "unreadable" and at == count - 1 else LogState.BROKEN)


def test_an_older_epoch_continues_nothing() -> None:
    log = grown(grown(Log(ORIGIN), 1, epoch=2), 1, epoch=1)
    assert not is_continued(log.records[0].end, log.records[1])
    assert check_log(ORIGIN, log.records)[0] is LogState.BROKEN


def test_logs_that_have_nothing_in_common_part_nowhere() -> None:
    assert find_fork(Log(ORIGIN, WHOLE.records[:9]), trimmed(WHOLE, 20)) is None
    assert find_fork(trimmed(grown(Log(ORIGIN), 30, epoch=2), 20), trimmed(WHOLE, 20)) is None


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
