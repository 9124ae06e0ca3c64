"""What a listing passed over, reason: what is told, what is no news."""

from __future__ import annotations

import pytest

from tidemark.ledger.sender.links import Skipped
from tidemark.sync.notes import LASTING_SECONDS, make_notes

AT = 1_700_000_000.0


def said(skipped: dict[str, str], hours: float = 0.0) -> tuple[str, ...]:
    since = AT - hours * 3600
    return make_notes({path: Skipped(reason, since) for path, reason in skipped.items()}, "plant1", AT)


@pytest.mark.parametrize(
    "reason",
    [
        "still open (no .resource yet)",
        "being compacted (.inner)",
        "unfinished output of a compaction",
        "its TsFile is not there",
    ],
)
def test_the_work_of_a_server_is_news_when_it_lasts(reason: str) -> None:
    assert said({"a": reason, "b": reason}, hours=23) == ()
    lasting = f"2 files are passed over for more than a day, reason: {reason}; ./tidemark plan plant1 lists them"
    assert said({"a": reason, "b": reason}, LASTING_SECONDS / 3600) == (lasting,)


def test_files_of_one_reason_are_one_sentence() -> None:
    found = said({"a": "too short to be a TsFile (5 bytes)", "b": "too short to be a TsFile (7 bytes)", "c": "is a symlink"})
    assert found == (
        "2 files are passed over, reason: too short to be a TsFile (5 bytes); ./tidemark plan plant1 lists them",
        "1 file is passed over, reason: is a symlink; ./tidemark plan plant1 lists it",
    )


def test_what_is_told_elsewhere_is_not_told_twice() -> None:
    elsewhere = {"a": "in quarantine as s1: block differs", "b": "cannot be listed: Permission denied"}
    assert said(elsewhere, hours=99) == ()


def test_companions_that_count_as_missing_are_told_by_name() -> None:
    why = "sent without its devices being known: torn"
    found = said(dict.fromkeys("abcde", why))
    assert found[:2] == (f"a: {why}", f"b: {why}")
    assert found[2:] == (f"c: {why}, and 2 more; ./tidemark plan plant1 lists them",)
    assert said({"a": why}) == (f"a: {why}",)
