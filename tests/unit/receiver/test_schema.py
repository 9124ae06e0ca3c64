"""Who says what a series is, and where two disagree."""

from __future__ import annotations

from dataclasses import replace

from tidemark.ledger.receiver.schemas import SeriesRow
from tidemark.receiver.load.schema import merge_series

S = SeriesRow("centre", "a", "root.sg.d.s", "root.sg", "INT64", "PLAIN", "LZ4", False, "mlog.bin")
FILE = replace(S, type="INT32", source="1-1-0-0.tsfile")


def test_a_log_speaks_before_a_file() -> None:
    changed, clashes = merge_series([], [S], [FILE])
    assert [(r.type, r.clash) for r in changed] == [("INT64", "INT32 in 1-1-0-0.tsfile")] and clashes == changed


def test_a_file_speaks_where_no_log_does() -> None:
    assert merge_series([], [], [FILE]) == ([FILE], [])


def test_a_clash_is_told_once_and_stays_written_down() -> None:
    changed, _ = merge_series([], [S], [FILE])
    assert merge_series(changed, [], [FILE]) == ([], [])
    assert merge_series(changed, [], [replace(FILE, type="INT64")]) == ([], [])


def test_a_log_that_declares_anew_ends_a_clash() -> None:
    changed, _ = merge_series([], [S], [FILE])
    after, clashes = merge_series(changed, [replace(S, type="INT32")], [])
    assert [(r.type, r.clash) for r in after] == [("INT32", None)] and clashes == []


def test_sites_that_disagree_are_both_marked() -> None:
    other = replace(S, site_id="b", type="DOUBLE")
    changed, clashes = merge_series([S], [other], [])
    assert {r.site_id: r.clash for r in changed} == {"a": "DOUBLE at site b", "b": "INT64 at site a"}
    assert clashes == changed


def test_a_deleted_series_clashes_with_nothing() -> None:
    gone = replace(S, state="deleted")
    assert merge_series([gone], [replace(S, site_id="b", type="DOUBLE")], [])[1] == []
