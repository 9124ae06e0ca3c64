"""Superseded or dropped: what a vanished file's absence means."""

from __future__ import annotations

from tidemark.sync.vanished import Gone, Live, covers
from tidemark.tsfiles.names import parse_source_path
from tidemark.tsfiles.resource import Extent

DATA = ("data/sequence", "data/unsequence")
D1: Extent = (("root.sg.d1", 0, 10),)


def path(name: str, kind: str = "sequence", place: str = "root.sg/0/0") -> str:
    return f"data/{kind}/{place}/{name}.tsfile"


def gone(path_: str, extent: Extent = D1) -> Gone:
    return Gone(path_, parse_source_path(path_, DATA), extent)


def live(path_: str, extent: Extent = D1, fresh: bool = True) -> Live:
    name = parse_source_path(path_, DATA)
    assert name is not None
    return Live(name, extent, fresh)


def test_its_own_identity_with_a_higher_count_covers_it() -> None:
    target = path("1-1-1-0")
    assert covers([gone(path("1-1-0-0"))], [live(target, extent=())]) == {path("1-1-0-0"): (target,)}


def test_the_identity_alone_without_a_higher_count_does_not() -> None:
    assert covers([gone(path("1-1-1-0"))], [live(path("1-1-0-0"))]) == {path("1-1-1-0"): ()}


def test_files_that_together_cover_devices_and_times() -> None:
    one, two = path("1-1-0-1"), path("2-2-0-1")
    late = gone(path("3-3-0-0", "unsequence"), (("root.sg.d1", 2, 18),))
    targets = [live(one, (("root.sg.d1", 0, 10),)), live(two, (("root.sg.d1", 11, 20),))]
    assert covers([late], targets) == {late.path: (one, two)}
    assert covers([late], targets[:1]) == {late.path: ()}


def test_a_hole_between_covering_files_may_be_where_the_points_were() -> None:
    """Two inner compactions beside a late file that somebody removed: its points at 22..27 are in neither of them."""
    late = gone(path("5-5-0-0", "unsequence"), (("root.sg.d1", 20, 30),))
    sources = [gone(path("1-1-0-0"), (("root.sg.d1", 0, 21),)), gone(path("2-2-0-0"), (("root.sg.d1", 28, 59),))]
    one, two = path("1-1-1-0"), path("2-2-1-0")
    made = [live(one, (("root.sg.d1", 0, 21),)), live(two, (("root.sg.d1", 28, 59),))]
    found = covers([late, *sources], made)
    assert found == {late.path: (), sources[0].path: (one,), sources[1].path: (two,)}


def test_a_sequence_file_is_not_covered_over_a_hole() -> None:
    lost = gone(path("3-3-0-0"), (("root.sg.d1", 5, 25),))
    made = [live(path("1-1-1-0"), (("root.sg.d1", 0, 10),)), live(path("2-2-1-0"), (("root.sg.d1", 20, 30),))]
    assert covers([lost], made) == {lost.path: ()}
    joined = live(path("4-4-1-0"), (("root.sg.d1", 11, 19),))
    assert len(covers([lost], [*made, joined])[lost.path]) == 3, "times that follow each other leave no hole"


def test_a_cross_compaction_cuts_where_the_sequence_files_were() -> None:
    """A late file at 8 and 22 goes into two files; neither has a point between 10 and 20."""
    late = gone(path("3-3-0-0", "unsequence"), (("root.sg.d1", 8, 22),))
    made = [live(path("1-1-0-1"), (("root.sg.d1", 0, 10),)), live(path("2-2-0-1"), (("root.sg.d1", 20, 30),))]
    assert len(covers([late], made)[late.path]) == 2
    beyond = late._replace(extent=(("root.sg.d1", 8, 15),))
    assert covers([beyond], made) == {late.path: ()}, "its last point is in none of them"


def test_an_inner_compaction_of_sequence_files_holds_no_late_point() -> None:
    late, before = gone(path("5-5-0-0", "unsequence")), gone(path("1-1-0-0"), (("root.sg.d1", 0, 99),))
    inner = live(path("1-1-1-0"), (("root.sg.d1", 0, 99),))
    assert covers([late, before], [inner])[late.path] == ()
    crossed_before = gone(path("1-1-0-1"), (("root.sg.d1", 0, 99),))
    assert covers([late, crossed_before], [live(path("1-1-1-1"), (("root.sg.d1", 0, 99),))])[late.path] == ()
    assert covers([late, before], [live(path("1-1-0-1"), (("root.sg.d1", 0, 99),))])[late.path]


def test_late_files_are_compacted_among_themselves() -> None:
    late = gone(path("5-5-0-0", "unsequence"))
    together = live(path("4-4-1-0", "unsequence"), (("root.sg.d1", 0, 99),))
    assert covers([late], [together]) == {late.path: (together.name.path,)}
    sequence = gone(path("5-5-0-0"))
    assert covers([sequence], [together]) == {sequence.path: ()}


def test_a_device_that_no_file_has_is_not_covered() -> None:
    lost = gone(path("3-3-0-0"), (("root.sg.d1", 0, 5), ("root.sg.d2", 0, 5)))
    assert covers([lost], [live(path("1-1-1-0"))]) == {lost.path: ()}


def test_an_old_merged_file_that_spans_the_times_does_not_make_a_deleted_file_compacted() -> None:
    """TTL or a user removed it: its points are nowhere else, the centre must not let go of them."""
    lost = gone(path("3-3-0-0", "unsequence"))
    assert covers([lost], [live(path("1-1-1-0"), (("root.sg.d1", 0, 99),), fresh=False)]) == {lost.path: ()}


def test_a_file_known_before_covers_while_its_source_vanishes_with_the_others() -> None:
    """The listing before fell between the new file and the removal of its sources."""
    target = path("1-1-1-0")
    found = covers([gone(path("1-1-0-0")), gone(path("2-2-0-0"))], [live(target, fresh=False)])
    assert found == {path("1-1-0-0"): (target,), path("2-2-0-0"): (target,)}


def test_a_source_that_vanishes_a_listing_later_is_covered_as_well() -> None:
    """IoTDB removes the sources one after the other; the first one's absence was told already."""
    target = path("1-1-1-0")
    first = parse_source_path(path("1-1-0-0"), DATA)
    assert first is not None
    assert covers([gone(path("2-2-0-0"))], [live(target, fresh=False)], [first]) == {path("2-2-0-0"): (target,)}
    elsewhere = parse_source_path(path("1-1-0-0", place="root.sg/0/1"), DATA)
    assert elsewhere is not None
    assert covers([gone(path("2-2-0-0"))], [live(target, fresh=False)], [elsewhere]) == {path("2-2-0-0"): ()}


def test_another_partition_region_or_database_covers_nothing() -> None:
    lost = gone(path("1-1-0-0"))
    for place in ("root.sg/0/1", "root.sg/1/0", "root.other/0/0"):
        assert covers([lost], [live(path("1-1-1-0", place=place))]) == {lost.path: ()}


def test_a_file_of_unknown_extent_is_covered_by_its_identity_only() -> None:
    lost = gone(path("2-2-0-0"), ())
    assert covers([lost], [live(path("1-1-1-0"))]) == {lost.path: ()}
    assert covers([lost], [live(path("2-2-1-0"))]) == {lost.path: (path("2-2-1-0"),)}


def test_an_index_of_the_whole_file_stands_for_every_device() -> None:
    lost = gone(path("2-2-0-0"), (("**", 0, 10),))
    assert covers([lost], [live(path("1-1-1-0"), (("**", 0, 10),))])[lost.path]
    assert covers([gone(path("2-2-0-0"))], [live(path("1-1-1-0"), (("**", 0, 10),))])[lost.path]


def test_a_path_that_cannot_be_taken_apart_is_dropped() -> None:
    assert covers([gone("elsewhere/x.tsfile")], [live(path("1-1-1-0"))]) == {"elsewhere/x.tsfile": ()}
