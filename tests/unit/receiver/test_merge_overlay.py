"""Newest wins; partitions are cut where they should."""

from __future__ import annotations

import numpy as np
import pytest

from tidemark.receiver.merge.device import cut_by_partition, overlay_series
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column


def column(points: dict[int, int], data_type: DataType = DataType.INT64) -> Column:
    return Column(data_type, np.array(sorted(points), np.int64), np.array([points[t] for t in sorted(points)], np.int64))


def as_dict(one: Column) -> dict[int, int]:
    return dict(zip(one.times.tolist(), one.values.tolist(), strict=True))


def test_the_later_layer_wins() -> None:
    assert as_dict(overlay_series([column({1: 10, 2: 20}), column({2: 21, 3: 31}), column({2: 22})])) == {
        1: 10,
        2: 22,
        3: 31,
    }


def test_types_are_never_mixed() -> None:
    with pytest.raises(ValueError, match=r"INT64.*TIMESTAMP"):
        overlay_series([column({1: 1}), column({1: 1}, DataType.TIMESTAMP)])


def test_partitions_round_down_before_1970_too() -> None:
    parts = cut_by_partition(column({-11: 0, -10: 1, -1: 2, 0: 3, 9: 4, 10: 5, 35: 6}), 10)
    assert {partition: as_dict(part) for partition, part in parts.items()} == {
        -2: {-11: 0},
        -1: {-10: 1, -1: 2},
        0: {0: 3, 9: 4},
        1: {10: 5},
        3: {35: 6},
    }
    assert cut_by_partition(column({}), 10) == {}
