"""Every point of a merge is accounted for; newest wins; partitions are cut where they should."""

from __future__ import annotations

import numpy as np
import pytest

from tidemark.load.overlay import Counts, Layer, cut, lay, split_counts
from tidemark.tsfiles.codes import DataType
from tidemark.tsfiles.column import Column


def column(points: dict[int, int], data_type: DataType = DataType.INT64) -> Column:
    return Column(data_type, np.array(sorted(points), np.int64), np.array([points[t] for t in sorted(points)], np.int64))


def as_dict(one: Column) -> dict[int, int]:
    return dict(zip(one.times.tolist(), one.values.tolist(), strict=True))


def test_the_later_layer_wins_and_what_it_replaced_is_counted() -> None:
    merged, counts = lay([Layer(column({1: 10, 2: 20}), 2), Layer(column({2: 21, 3: 31}), 2), Layer(column({2: 22}), 1)])
    assert as_dict(merged) == {1: 10, 2: 22, 3: 31}
    assert counts == Counts(points_in=5, points_out=3, overwritten=2, deleted=0)


def test_what_a_file_deleted_of_its_own_is_no_overwriting() -> None:
    merged, counts = lay([Layer(column({1: 10}), 3, deleted=2), Layer(column({1: 11}), 1)])
    assert as_dict(merged) == {1: 11}
    assert counts == Counts(points_in=4, points_out=1, overwritten=1, deleted=2)


def test_points_that_later_chunks_of_the_same_file_replaced_count_as_overwritten() -> None:
    _, counts = lay([Layer(column({1: 10}), 3)])
    assert counts == Counts(points_in=3, points_out=1, overwritten=2, deleted=0)


def test_types_are_never_mixed() -> None:
    with pytest.raises(ValueError, match=r"INT64.*TIMESTAMP"):
        lay([Layer(column({1: 1}), 1), Layer(column({1: 1}, DataType.TIMESTAMP), 1)])


def test_partitions_round_down_before_1970_too() -> None:
    parts = cut(column({-11: 0, -10: 1, -1: 2, 0: 3, 9: 4, 10: 5, 35: 6}), 10)
    assert {partition: as_dict(part) for partition, part in parts.items()} == {
        -2: {-11: 0},
        -1: {-10: 1, -1: 2},
        0: {0: 3, 9: 4},
        1: {10: 5},
        3: {35: 6},
    }
    assert cut(column({}), 10) == {}


def test_accounts_of_the_parts_add_up_and_each_agrees() -> None:
    parts = cut(column({1: 0, 11: 0, 12: 0}), 10)
    accounts = split_counts(Counts(8, 3, 4, 1), parts)
    assert accounts == {0: Counts(6, 1, 4, 1), 1: Counts(2, 2, 0, 0)}
    assert all(account.balanced for account in accounts.values())
    assert sum(accounts.values(), Counts()) == Counts(8, 3, 4, 1)
