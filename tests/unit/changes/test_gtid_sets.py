"""GTID sets of MySQL and positions of MariaDB: as the servers' own functions answer."""

from __future__ import annotations

import pytest

from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.errors import UsageError

A, B = "0198b1a1-c2d3-11f0-8899-aabbccddeeff", "97c7af02-4c50-11ec-acd8-681842034964"
parse = MysqlGtidSet.parse


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", ""),
        (f"{B}:1-5:7,\n {A.upper()}:3", f"{A}:3,{B}:1-5:7"),
        (f"{A}:5:1-3:4", f"{A}:1-5"),
        (f"{A}:1-7:9-10", f"{A}:1-7:9-10"),
        (f"{A.replace('-', '')}:1", f"{A}:1"),
        (f"{A}:2:Tag_b:7:tag_a:1:1,{A}:1", f"{A}:1-2:tag_a:1:tag_b:7"),
        (f"{A}:9223372036854775806", f"{A}:9223372036854775806"),
    ],
)
def test_a_set_is_read_and_printed_as_servers_print_it(text: str, printed: str) -> None:
    assert str(parse(text)) == printed
    assert parse(printed) == parse(text)


@pytest.mark.parametrize(
    "text", [A, f"{A}:", f"{A}:0", f"{A}:3-2", f"{A}:1-", f"{A}:9223372036854775807", "x:1", f"{A[:-1]}:1", f"{A}:1:%"]
)
def test_what_is_no_set_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="is no "):
        parse(text)


def test_union_difference_contains_and_count() -> None:
    """The examples of GTID_SUBTRACT and GTID_SUBSET in MySQL's manual, and a gap that must not close."""
    one, two = parse(f"{A}:21-57"), parse(f"{A}:22-57")
    assert str(one - two) == f"{A}:21"
    assert str(one - parse(f"{A}:20-25")) == f"{A}:26-57"
    assert str(parse(f"{A}:1-10") - parse(f"{A}:2:4-6:9-20")) == f"{A}:1:3:7-8"
    assert parse(f"{A}:23") - one == parse("") and one >= parse(f"{A}:23-57") and not one >= parse(f"{A}:20-25")
    gap = parse(f"{A}:1-7:9-10")
    assert str(gap | parse(f"{B}:1")) == f"{A}:1-7:9-10,{B}:1"
    assert [gap.contains(A, "", number) for number in (0, 1, 7, 8, 9, 10, 11)] == [
        False,
        True,
        True,
        False,
        True,
        True,
        False,
    ]
    assert not gap.contains(A, "tag", 1) and not gap.contains(B, "", 1)
    assert gap.count() == 9 and (gap | parse(f"{A}:t:5")).count() == 10
    assert gap & parse(f"{A}:7-9,{B}:1") == parse(f"{A}:7:9")


def test_positions_of_mariadb() -> None:
    position = MariaGtidPosition.parse("5-2-7, 0-1-231")
    assert str(position) == "0-1-231,5-2-7" and position.count() == 238
    assert str(position | MariaGtidPosition.parse("0-3-232,6-1-1")) == "0-3-232,5-2-7,6-1-1"
    assert position - MariaGtidPosition.parse("0-1-200,5-9-8") == {0: (201, 231)}
    assert position >= MariaGtidPosition.parse("0-9-231") and not position >= MariaGtidPosition.parse("1-1-1")
    assert position.contains(0, 231) and not position.contains(0, 232) and not position.contains(1, 1)
    assert MariaGtidPosition.parse("") >= MariaGtidPosition.parse("")


@pytest.mark.parametrize("text", ["0-1", "0-1-2-3", "a-1-1", "4294967296-1-1", "0-1-18446744073709551616", "0-1-1,0-2-2"])
def test_what_is_no_position_is_named(text: str) -> None:
    with pytest.raises(UsageError):
        MariaGtidPosition.parse(text)
