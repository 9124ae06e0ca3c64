"""Superseded or dropped: in which files a vanished one may live on, as a hint."""

from __future__ import annotations

import pytest

from tidemark.sync.select.vanished import Gone, Live, find_covers
from tidemark.tsfiles.companions.resource import Extent
from tidemark.tsfiles.names import parse_source_path

DATA = ("data/sequence", "data/unsequence")
D1: Extent = (("root.sg.d1", 0, 10),)


def path(name: str, kind: str = "sequence", place: str = "root.sg/0/0") -> str:
    return f"data/{kind}/{place}/{name}.tsfile"


def gone(path_: str, extent: Extent = D1) -> Gone:
    return Gone(path_, parse_source_path(path_, DATA), extent)


def live(path_: str, extent: Extent = D1) -> Live:
    name = parse_source_path(path_, DATA)
    assert name is not None
    return Live(name, extent)


@pytest.mark.parametrize(
    ("before", "made"),
    [
        (path("1-1-0-0"), path("1-1-1-0")),  # inner compaction of sequence files
        (path("2-2-0-0"), path("1-1-1-0")),
        (path("7-7-1-0", "unsequence"), path("10-10-1-0", "unsequence")),  # with a file of a lower count
        (path("5-5-0-0", "unsequence"), path("1-1-0-1")),  # cross compaction
        (path("5-5-0-0", "unsequence"), path("1-1-1-0")),  # and its output compacted again before anybody looked
        (path("1-10-0-0", "unsequence"), path("2-10-0-0")),  # insertion
    ],
)
def test_what_a_compaction_may_have_made_of_it_covers_it(before: str, made: str) -> None:
    assert find_covers([gone(before)], [live(made)]) == {before: (made,)}


@pytest.mark.parametrize(
    "beside",
    [
        path("2-2-0-0"),  # written, not compacted
        path("1-1-1-0", place="root.sg/0/1"),
        path("1-1-1-0", place="root.sg/1/0"),
        path("1-1-1-0", place="root.other/0/0"),
    ],
)
def test_what_no_compaction_made_of_it_does_not(beside: str) -> None:
    assert find_covers([gone(path("1-1-0-0"))], [live(beside)]) == {path("1-1-0-0"): ()}


def test_all_of_them_are_named() -> None:
    late = gone(path("3-3-0-0", "unsequence"), (("root.sg.d1", 2, 18),))
    one, two, far = path("1-1-0-1"), path("2-2-0-1"), path("4-4-0-1")
    made = [
        live(two, (("root.sg.d1", 11, 20),)),
        live(one, (("root.sg.d1", 0, 10),)),
        live(far, (("root.sg.d1", 21, 30),)),
    ]
    assert find_covers([late], made) == {late.path: (one, two)}


def test_times_of_another_device_do_not_count() -> None:
    assert find_covers([gone(path("1-1-0-0"))], [live(path("1-1-1-0"), (("root.sg.d2", 0, 10),))]) == {path("1-1-0-0"): ()}


def test_an_unknown_extent_touches_nothing() -> None:
    assert find_covers([gone(path("2-2-0-0"), ())], [live(path("2-2-1-0"))]) == {path("2-2-0-0"): ()}
    assert find_covers([gone(path("2-2-0-0"))], [live(path("2-2-1-0"), ())]) == {path("2-2-0-0"): ()}


def test_an_index_of_the_whole_file_stands_for_every_device() -> None:
    lost = gone(path("2-2-0-0"), (("**", 0, 10),))
    assert find_covers([lost], [live(path("1-1-1-0"), (("**", 0, 10),))])[lost.path]
    assert find_covers([gone(path("2-2-0-0"))], [live(path("1-1-1-0"), (("**", 0, 10),))])[lost.path]


def test_a_path_that_cannot_be_taken_apart_is_dropped() -> None:
    assert find_covers([gone("elsewhere/x.tsfile")], [live(path("1-1-1-0"))]) == {"elsewhere/x.tsfile": ()}
