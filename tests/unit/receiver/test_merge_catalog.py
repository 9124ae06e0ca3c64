"""A merge as its user sees it: what is merged, what stays and why, what happens when loads come between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.centre import Centre, InlineEngine
from tests.landing_maker import SITE_B
from tests.small_files import deletion, sealed, source
from tidemark.engines.task import Outcome
from tidemark.errors import LeaseHeldError, NotFoundError, RetryableError
from tidemark.ledger.leases import Leases
from tidemark.receiver.merge.batch import MergeResult
from tidemark.tsfiles.points.codes import DataType

WEEK = 604_800_000


class EventfulEngine(InlineEngine):
    """Something happens after the tasks of the first rounds ran and before anything is published."""

    def __init__(self, event: Callable[[], Any], rounds: int = 1) -> None:
        self.event, self.rounds = event, rounds

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        outcomes = list(super().run(kind, tasks))
        if self.rounds:
            self.rounds -= 1
            self.event()
        yield from outcomes


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path)


def merge(centre: Centre, **options: Any) -> MergeResult:
    return centre.merge(**options)


def values(centre: Centre) -> dict[tuple[str, int], str]:
    return {(f"{device}.{measurement}", time): value for device, measurement, time, _, value in centre.rows()}


def roles(centre: Centre) -> dict[str, int]:
    return dict(centre.sql("SELECT role, count(*) FROM catalog_file WHERE visible = 1 GROUP BY role"))


def one(points: Sequence[tuple[int, int]], device: str = "root.sg.d1", **more: Any) -> dict[str, bytes]:
    return sealed({device: {"s": points}}, **more)


def test_overlapping_files_become_one_and_say_so(centre: Centre) -> None:
    centre.sender().land({source(1): one([(1, 10), (2, 20)]), source(2): one([(2, 21), (3, 31)]), source(3): one([(9, 9)])})
    centre.load()
    result = merge(centre).as_json()
    seconds = result.pop("seconds")
    assert seconds > 0
    assert result == {
        "ok": True,
        "groups": 1,
        "files_in": 2,
        "files_out": 1,
        "rows": 3,
        "kept": [],
        "failed": [],
        "moved": 0,
    }
    assert roles(centre) == {"merged": 1, "source": 1}
    assert values(centre) == {
        ("root.sg.d1.s", 1): "10",
        ("root.sg.d1.s", 2): "21",
        ("root.sg.d1.s", 3): "31",
        ("root.sg.d1.s", 9): "9",
    }
    (location,) = centre.sql("SELECT location FROM catalog_file WHERE role = 'merged'")[0]
    assert location.startswith("data/root.sg/0/0f8e1c52-") and "-merged-" in location
    assert (centre.root / location).exists()


def test_a_catalog_without_overlaps_is_left_alone(centre: Centre) -> None:
    assert merge(centre).groups == 0
    centre.sender().land({source(1): one([(1, 10)]), source(2): one([(2, 20)])})
    centre.load()
    assert merge(centre).groups == 0 and roles(centre) == {"source": 2}


def test_files_of_two_sites_never_meet(centre: Centre) -> None:
    centre.sender().land({source(1): one([(1, 10), (5, 50)])})
    centre.sender(SITE_B, name="plant2").land({source(1): one([(1, 11)], device="root.sg.d2")})
    centre.load()
    assert merge(centre).groups == 0


def test_a_type_clash_is_named_once_tried_once_and_the_rest_is_merged(centre: Centre) -> None:
    centre.sender().land(
        {
            source(1): one([(1, 10), (3, 30)]),
            source(2): one([(2, 20)], data_type=DataType.INT32),
            source(3): one([(1, 10), (3, 30)], device="root.sg.d2"),
            source(4): one([(3, 31)], device="root.sg.d2"),
        }
    )
    centre.load()
    before = centre.rows()
    result = merge(centre)
    assert (result.groups, result.exit_code) == (1, 0)
    ((subject, reason),) = result.kept
    assert subject == "root.sg.d1.s" and "INT64" in reason and "INT32" in reason
    assert centre.rows() == before
    again = merge(centre)
    assert (again.groups, again.kept) == (0, result.kept)


def test_a_late_file_that_ranks_between_gives_the_same_as_if_it_had_come_first(centre: Centre) -> None:
    site = centre.sender()
    site.land({source(1): one([(1, 10), (2, 20)]), source(3): one([(2, 23)])})
    centre.load()
    merge(centre)
    site.land({source(2): one([(1, 12), (2, 22)])})
    centre.load()
    wanted = {("root.sg.d1.s", 1): "12", ("root.sg.d1.s", 2): "23"}
    assert values(centre) == wanted and roles(centre) == {"source": 3}
    assert merge(centre).files_in == 3
    assert values(centre) == wanted and roles(centre) == {"merged": 1}


def test_files_that_lie_between_the_times_of_others_are_merged_beside_them(centre: Centre) -> None:
    """Two groups have no time in common, though the extent of what is made of the first holds the second."""
    first = {"root.sg.d1": {"s": [(1, 10)]}, "root.sg.d2": {"s": [(1, 10)]}}
    second = {"root.sg.d1": {"s": [(1, 11)]}, "root.sg.d2": {"s": [(9, 19)]}}
    between = one([(5, 15)], "root.sg.d2")
    centre.sender().land({source(1): sealed(first), source(2): sealed(second), source(3): between, source(4): between})
    centre.load()
    before = values(centre)
    result = merge(centre)
    assert (result.groups, result.moved, result.exit_code) == (2, 0, 0)
    assert values(centre) == before and roles(centre) == {"merged": 2}


def test_a_load_that_comes_between_is_merged_too(centre: Centre) -> None:
    site = centre.sender()
    site.land({source(1): one([(1, 10), (2, 20)]), source(3): one([(2, 23)])})
    centre.load()
    engine = EventfulEngine(lambda: (site.land({source(2): one([(1, 12), (2, 22)])}), centre.load()))
    result = merge(centre, engine=engine)
    assert (result.groups, result.files_in, result.moved) == (1, 3, 0)
    assert values(centre) == {("root.sg.d1.s", 1): "12", ("root.sg.d1.s", 2): "23"}
    named = centre.sql("SELECT location FROM catalog_file")
    assert centre.files("data") == sorted(name.removeprefix("data/") for (name,) in named)


def test_a_source_that_leaves_between_is_not_brought_back(centre: Centre) -> None:
    site = centre.sender(deletes="apply")
    site.land({source(1): one([(1, 10), (2, 20)]), source(2): one([(2, 22)])})
    centre.load()
    engine = EventfulEngine(lambda: (site.land(dropped=(site.drop(source(1)),), removed=(source(1),)), centre.load()))
    assert merge(centre, engine=engine).groups == 0
    assert values(centre) == {("root.sg.d1.s", 2): "22"}


def test_a_merge_that_never_gets_ahead_of_the_loads_leaves_the_rest_to_the_next(centre: Centre) -> None:
    site = centre.sender()
    site.land({source(100): one([(1, 10), (200, 20)]), source(99): one([(1, 1)])})
    centre.load()
    versions = iter(range(98, 0, -1))
    event = lambda: (site.land({source(next(versions)): one([(1, 5)])}), centre.load())  # noqa: E731
    result = merge(centre, engine=EventfulEngine(event, rounds=98))
    assert (result.groups, result.moved, result.exit_code) == (0, 1, RetryableError.kind)
    assert values(centre) == {("root.sg.d1.s", 1): "10", ("root.sg.d1.s", 200): "20"}


def test_a_database_and_a_partition_can_be_asked_for(centre: Centre) -> None:
    site = centre.sender()
    for database in ("root.sg", "root.two"):
        site.land(
            {
                source(1, database=database): one([(1, 10), (3, 30)], device=f"{database}.d1"),
                source(2, database=database): one([(2, 20)], device=f"{database}.d1"),
                source(3, database=database): one([(WEEK + 1, 1), (WEEK + 3, 3)], device=f"{database}.d1"),
                source(4, database=database): one([(WEEK + 2, 2)], device=f"{database}.d1"),
            }
        )
    centre.load()
    assert merge(centre, database="root.two", partition=1).groups == 1
    assert merge(centre, partition=1).groups == 1
    assert merge(centre, database="root.sg").groups == 1
    assert merge(centre).groups == 1
    with pytest.raises(NotFoundError, match=r"no database 'root.three'.*root\.sg, root\.two"):
        merge(centre, database="root.three")


def test_another_merge_of_the_partition_is_named_and_the_others_go_on(centre: Centre) -> None:
    site = centre.sender()
    for database in ("root.sg", "root.two"):
        site.land({source(n, database=database): one([(1, n), (3, n)], device=f"{database}.d1") for n in (1, 2)})
    centre.load()
    with Leases(centre.app.ledger, centre.app.identity).hold_lease("merge:centre/root.sg/0", "merge-other"):
        with pytest.raises(LeaseHeldError, match="merge-other"):
            merge(centre, database="root.sg")
        result = merge(centre)
    assert result.groups == 1 and result.exit_code == LeaseHeldError.kind
    assert [subject for subject, *_ in result.failed] == ["root.sg, partition 0"]
    assert merge(centre).groups == 1


def test_merges_of_other_partitions_go_on_beside_it(centre: Centre) -> None:
    """Each takes its own, and leaves alone what the other has staged."""
    site = centre.sender()
    for week, numbers in enumerate(((1, 2), (3, 4))):
        site.land({source(n): one([(week * WEEK, n), (week * WEEK + 1, n)]) for n in numbers})
    centre.load()
    beside: list[MergeResult] = []
    engine = EventfulEngine(lambda: beside.append(merge(centre, partition=1)))
    result = merge(centre, partition=0, engine=engine)
    assert [(one.groups, one.exit_code) for one in (result, *beside)] == [(1, 0), (1, 0)]
    assert roles(centre) == {"merged": 2} and centre.files("staging") == []


def test_what_is_given_to_an_iotdb_meanwhile_is_no_business_of_a_merge(centre: Centre) -> None:
    """It lies in staging, too."""
    given = centre.root / "staging" / "iotdb" / "123456789012" / "0" / "a.tsfile"
    given.parent.mkdir(parents=True)
    given.write_bytes(b"on its way")
    centre.sender().land({source(n): one([(1, n)]) for n in (1, 2)})
    centre.load()
    merge(centre)
    assert given.exists()


def test_files_without_a_point_left_stay_as_they_came(centre: Centre) -> None:
    mods = deletion("root.sg.d1.s", 0, 99)
    centre.sender().land({source(1): one([(1, 10)], mods=mods), source(2): one([(1, 11)], mods=mods)})
    centre.load()
    result = merge(centre)
    assert (result.groups, len(result.kept)) == (0, 1) and "deletions leave no point" in result.kept[0][1]
    assert centre.rows() == []


def test_a_source_that_rotted_is_told_with_what_to_run(centre: Centre) -> None:
    centre.sender().land({source(1): one([(1, 10)]), source(2): one([(1, 11)])})
    centre.load()
    (location,) = centre.sql("SELECT location FROM catalog_file ORDER BY file_id")[0]
    place = centre.root / location
    rotten = bytearray(place.read_bytes())
    rotten[40] ^= 1
    place.unlink()  # the landing may still name these bytes
    place.write_bytes(rotten)
    told = merge(centre).as_json()
    assert told["error"].startswith(f"{location} is not what was loaded")
    assert told["hint"] == "./tidemark verify --repair"


def test_a_missing_source_fails_its_group_until_it_is_back(centre: Centre) -> None:
    centre.sender().land({source(1): one([(1, 10)]), source(2): one([(1, 11)])})
    centre.load()
    (location,) = centre.sql("SELECT location FROM catalog_file ORDER BY file_id")[0]
    place = centre.root / location
    place.rename(place.with_suffix(".away"))
    result = merge(centre)
    assert result.exit_code == RetryableError.kind and "is gone" in result.failed[0][1] and result.kept == ()
    told = result.as_json()
    assert "is gone" in told["error"] and told["hint"] == "./tidemark merge"
    place.with_suffix(".away").rename(place)
    assert merge(centre).groups == 1


def test_a_source_that_rotted_is_named_and_kept_until_it_comes_again(centre: Centre) -> None:
    site = centre.sender()
    site.land({source(1): one([(n, n) for n in range(50)]), source(2): one([(1, 11)])})
    centre.load()
    (location,) = centre.sql("SELECT location FROM catalog_file ORDER BY file_id")[0]
    data = bytearray((centre.root / location).read_bytes())
    data[60:80] = b"\xff" * 20
    (centre.root / location).unlink()
    (centre.root / location).write_bytes(data)
    result = merge(centre)
    assert (result.groups, result.exit_code, len(result.kept)) == (0, 7, 1)
    assert roles(centre) == {"source": 2}
    assert merge(centre).exit_code == 0  # known, not tried again
    (centre.root / location).unlink()
    site.land({source(1): one([(n, n) for n in range(50)])})
    centre.load()
    assert merge(centre).groups == 1


def test_what_a_dead_merge_left_behind_is_removed(centre: Centre) -> None:
    centre.sender().land({source(1): one([(1, 10)]), source(2): one([(1, 11)])})
    centre.load()
    left = centre.root / "staging" / "merge" / "root.sg" / "0" / "dead"
    left.mkdir(parents=True)
    (left / "0-0-0.tsfile.tmp").write_bytes(b"half")
    orphan = "data/root.sg/0/0f8e1c52-abc-merged-dead-0-0.tsfile"
    (centre.root / orphan).write_bytes(b"published, never recorded")
    (left / "0.json").write_text(f'["{orphan}"]')
    assert merge(centre).groups == 1
    assert centre.files("staging") == [] and not (centre.root / orphan).exists()
