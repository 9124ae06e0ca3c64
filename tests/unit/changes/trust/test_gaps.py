"""Gaps on record: met again, seen to grow, and a death at the moment of recording."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.changes.trust.test_rules import SOUND, end_in, mysql, with_facts
from tidemark.changes.binlog.gtid_sets import MysqlGtidSet
from tidemark.changes.store.disk import Disk
from tidemark.changes.trust.gaps import Gap, find_gap, read_gaps, record_gap
from tidemark.errors import CorruptionError, UnsupportedError

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
GAP = Gap("", "db1:3306", "b.000000:400", "b.000001:4", "0-1-9", "0-1-10", ("shop.orders",), 1e9)


def test_a_gap_lies_between_the_store_and_the_oldest_log() -> None:
    end = end_in("b.000000", "0-1-9").end
    assert end is not None
    found = find_gap(SOUND, end)
    assert found is not None
    assert (found.start, found.end, found.start_gtids, found.end_gtids) == ("b.000000:400", "b.000001:4", "0-1-9", "0-1-10")
    assert found.tables == SOUND.tables
    purged = mysql(8, 4, 0, purged=MysqlGtidSet.parse(f"{UUID}:1-9"))
    end = end_in("b.000000", f"{UUID}:1-8").end
    assert end is not None
    found = find_gap(purged, end)
    assert found is not None and found.end_gtids == f"{UUID}:1-9"


def test_a_log_that_is_missing_between_others_is_a_gap() -> None:
    holed = with_facts(logs=(("b.000001", 900), ("b.000002", 900), ("b.000004", 900), ("b.000005", 900)))
    end = end_in("b.000002", "0-1-9").end
    assert end is not None
    found = find_gap(holed, end)
    assert found is not None and (found.start, found.end) == ("b.000002:400", "b.000004:4")
    behind = end_in("b.000004", "0-1-30").end
    assert behind is not None and find_gap(holed, behind) is None


def test_what_the_server_still_has_is_no_gap() -> None:
    for wanted in (end_in("b.000001"), end_in("b.000000", "0-1-10")):
        assert wanted.end is not None
        assert find_gap(SOUND, wanted.end) is None
    end = end_in("b.000000", "0-1-9").end
    assert end is not None
    assert find_gap(with_facts(logs=()), end) is None, "a login that may not see the logs proves nothing"


def test_a_gap_that_is_met_again_is_the_same_and_grows(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    assert read_gaps(disk) == ()
    first = record_gap(disk, GAP)
    assert first == replace(GAP, id="1")
    assert record_gap(disk, replace(GAP, found=2e9)) == first
    grown = record_gap(disk, replace(GAP, end="b.000002:4", found=2e9))
    assert grown == replace(first, end="b.000002:4")
    other = record_gap(disk, replace(GAP, start="b.000007:4", end="b.000009:4"))
    assert [gap.id for gap in read_gaps(disk)] == ["1", "2"]
    assert read_gaps(disk) == (grown, other)


def test_a_death_before_a_gap_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path)

    def die(_disk: Disk, _path: str, _data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Disk, "publish", die)
        record_gap(disk, GAP)
    assert read_gaps(disk) == ()
    assert record_gap(disk, GAP).id == "1"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "gaps": [{"id": "1"}]}', '{"format": 2}'])
def test_a_damaged_record_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "gaps.json").write_text(text)
    with pytest.raises((CorruptionError, UnsupportedError), match=r"gaps\.json"):
        read_gaps(Disk(tmp_path))
