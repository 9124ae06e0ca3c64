"""What a server is given next: as a file, in points, after asking, or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.receiver.iotdb.plan import Gone, Limits, Plan, SourceStatus, State, plan_load, why_unfit

LIMITS = Limits(format=4, tables=True, unit="ms", units={"a": "ms", "b": "us"})


def file(number: int, *, site: str = "a", version: int = 0, unsequence: int = 0, **facts: object) -> CatalogFile:
    plain: dict[str, object] = {
        "database": "root.sg",
        "model": "tree",
        "format": 4,
        "size": 1000,
        "points": 10,
        "partition_from": 0,
        "partition_to": 0,
        "mods_location": "",
        **facts,
    }
    return CatalogFile(
        receiver="centre",
        site_id=site,
        role="source",
        path=f"data/sequence/root.sg/0/0/1-{version or number}-0-0.tsfile",
        generation=1,
        location=f"data/root.sg/0/{number}",
        sha256="",
        mods_sha256="",
        rank=(unsequence, version or number, 0, 0, 0),
        created=0.0,
        file_id=number,
        **plain,  # type: ignore[arg-type]
    )


def standing(one: CatalogFile, *spans: tuple[str, int, int], state: State = "new", changed: bool = False) -> SourceStatus:
    devices = tuple(CatalogDevice(device, start, end, 5) for device, start, end in spans or (("root.sg.d", 0, 9),))
    return SourceStatus(one, devices, state, changed)


def decided(standings: Iterable[SourceStatus], gone: tuple[Gone, ...] = ()) -> Plan:
    return plan_load(standings, gone, LIMITS)


def numbers(plan: Plan) -> list[list[int]]:
    return [[one.file.file_id for one in batch.files] for batch in plan.batches]


def test_files_that_do_not_meet_go_together_and_those_that_meet_in_their_order() -> None:
    free = [standing(file(n), (f"root.sg.d{n}", 0, 9)) for n in (1, 2, 3)]
    over = standing(file(4), ("root.sg.d2", 5, 20))
    top = standing(file(1, unsequence=1, version=1), ("root.sg.d2", 15, 30))
    for order in itertools.permutations([*free, over, top]):
        assert numbers(decided(order))[0] == [1, 2, 3]
        assert len(numbers(decided(order))) == 3


def test_touching_times_meet_and_neighbouring_ones_do_not() -> None:
    one = standing(file(1), ("root.sg.d", 0, 9))
    assert numbers(decided([one, standing(file(2), ("root.sg.d", 10, 19))])) == [[1, 2]]
    assert numbers(decided([one, standing(file(2), ("root.sg.d", 9, 19))])) == [[1], [2]]


@pytest.mark.parametrize("state", ["given", "unknown"])
def test_a_file_below_one_that_may_be_there_goes_in_points(state: State) -> None:
    above = standing(file(5), state=state)
    plan = decided([above, standing(file(2)), standing(file(7))])
    assert (numbers(plan), [one.file.file_id for one in plan.points]) == ([[7]], [2])
    assert [one.file.file_id for one in plan.unresolved] == ([5] if state == "unknown" else [])


def test_files_of_two_sites_that_meet_go_in_points_since_ownership_decides() -> None:
    mine = standing(file(1, site="a"), state="given")
    assert decided([mine, standing(file(9, site="c"))]).points
    together = decided([standing(file(1, site="a")), standing(file(9, site="c"))])
    assert (numbers(together), [one.file.file_id for one in together.points]) == ([[1]], [9])


def test_a_changed_file_and_one_without_points_go_in_points() -> None:
    plan = decided([standing(file(1), changed=True), standing(file(2, points=0))])
    assert not plan.batches and len(plan.points) == 2


def test_a_load_has_a_measure_and_one_database_and_model() -> None:
    many = [standing(file(n), (f"root.sg.d{n}", 0, 9)) for n in range(1, 131)]
    assert [len(batch) for batch in numbers(decided(many))] == [64, 64, 2]
    big = [standing(file(n, size=700 << 20), (f"root.sg.d{n}", 0, 9)) for n in (1, 2, 3)]
    assert numbers(decided(big)) == [[1], [2], [3]]
    two = [standing(file(1)), standing(file(2, database="works", model="table"), ("works.t.a", 0, 9))]
    assert [(batch.database, batch.table) for batch in decided(two).batches] == [("root.sg", False), ("works", True)]


def test_what_a_server_cannot_take_is_held_with_the_reason() -> None:
    old = Limits(format=3, tables=False, unit="", units={})
    assert "up to version 3" in why_unfit(file(1), old)
    assert "no table model" in why_unfit(file(1, format=3, model="table"), old)
    assert "both models" in why_unfit(file(1, model="mixed"), LIMITS)
    assert "times are in ms, the site's in us" in why_unfit(file(1, site="b"), LIMITS)
    assert why_unfit(file(1, format=3), old) == why_unfit(file(1), LIMITS) == ""
    plan = decided([standing(file(1, model="mixed")), standing(file(2))])
    assert ([one.file.file_id for one in plan.held], numbers(plan)) == ([1], [[2]])


def test_what_the_server_has_is_left_alone() -> None:
    assert decided([standing(file(1), state="given")]) == Plan()
