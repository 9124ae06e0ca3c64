"""What is said to servers of each version, word for word."""

from __future__ import annotations

import pytest

from tidemark.errors import PermanentError
from tidemark.receiver.iotdb import server as words
from tidemark.receiver.iotdb.server import Span, Version

OLD, MIDDLE, NEW = (
    Version.parse_version("0.12.0"),
    Version.parse_version("1.3.2"),
    Version.parse_version("2.0.1-beta (Build: x)"),
)


def test_each_version_has_its_own_load() -> None:
    named = "load '/f' autoregister=true,sglevel=2,verify=true"
    assert words.load_statements(OLD, "/f", "root.a.b", False) == [named, "load '/f' true 2"]
    assert words.load_statements(MIDDLE, "/f", "root.sg", False) == ["load '/f' sglevel=1 verify=true onSuccess=none"]
    tree = "load '/f' with ('on-success'='none','convert-on-type-mismatch'='false','database-level'='2')"
    assert words.load_statements(NEW, "/f", "root.a.b", False) == [tree]
    table = "load '/f' with ('on-success'='none','convert-on-type-mismatch'='false','database-name'='works')"
    assert words.load_statements(NEW, "/f", "works", True) == [table]


def test_refusals_are_read() -> None:
    assert words.is_syntax_error("401 Error occurred while parsing SQL to physical plan: line 1:26 mismatched input ','")
    assert not words.is_syntax_error("1100 not a valid tsfile")
    assert words.is_already_there("300 root.plant1 has already been set to storage group")


def test_a_quote_in_a_path_is_doubled_or_refused() -> None:
    assert words.load_statements(NEW, "/it's", "root.sg", False)[0].startswith("load '/it''s' ")
    with pytest.raises(PermanentError, match="quote"):
        words.load_statements(OLD, "/it's", "root.sg", False)


@pytest.mark.parametrize("text", ["", "0.11.2", "MySQL", "0.8.1"])
def test_a_version_whose_load_nobody_knows_is_refused(text: str) -> None:
    with pytest.raises(PermanentError):
        Version.parse_version(text)


def test_versions_know_what_they_read() -> None:
    assert (OLD.format, MIDDLE.format, NEW.format) == (3, 3, 4)
    assert (OLD.has_tables, NEW.has_tables, OLD.moves_files, MIDDLE.moves_files, NEW.moves_files) == (
        False,
        True,
        True,
        False,
        False,
    )


def test_databases_by_version() -> None:
    assert words.database_statement(OLD, "root.sg", False) == "set storage group to root.sg"
    assert words.database_statement(NEW, "root.sg", False) == "create database root.sg"
    assert words.database_statement(NEW, 'a"b', True) == 'create database if not exists "a""b"'


def test_a_device_of_a_table_is_named_by_its_tags_null_ones_too() -> None:
    told = words.table_points(r"works.t.r\.0.\N.it's", ["region", "plant", "line", "x"], ["v"], "works", Span(-5, 9))
    tagged = 'where "region" = \'r.0\' and "plant" is null and "line" = \'it\'\'s\' and "x" is null and'
    assert told == f'select time, "v" from "works"."t" {tagged} time >= -5 and time <= 9 order by time'


@pytest.mark.parametrize("device", ["root.sg.d1", "root.sg.`a.b`.c", "root.sg.`(x)`"])
def test_a_counted_column_says_its_device(device: str) -> None:
    assert words.counted_device(f"count({device}.`s.1`)") == words.counted_device(f"count({device}.s)") == device
