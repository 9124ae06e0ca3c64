"""Runs of points laid over each other and statistics put together: compiled code and numpy agree with a plain model."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tidemark.tsfiles.points import column as weaving
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import VALUE_DTYPES, Column, overlay_times
from tidemark.tsfiles.points.kernels import kernels
from tidemark.tsfiles.write import pages as writer_pages
from tidemark.tsfiles.write import statistics as writer_statistics
from tidemark.tsfiles.write.statistics import combine_statistics, decode_statistics, encode_statistics, page_statistics

RUNS = st.lists(st.sets(st.integers(-20, 20), min_size=1).map(sorted), min_size=1, max_size=4)
NUMBERS = {
    DataType.INT32: st.integers(-(2**31), 2**31 - 1),
    DataType.INT64: st.integers(-(2**63), 2**63 - 1),
    DataType.FLOAT: st.floats(width=32),
    DataType.DOUBLE: st.floats(),
    DataType.BOOLEAN: st.booleans(),
    DataType.TEXT: st.binary(max_size=3),
    DataType.STRING: st.binary(max_size=3),
    DataType.BLOB: st.binary(max_size=3),
}


@pytest.fixture(params=["compiled", "numpy"], scope="module", autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways must say the same."""
    if request.param == "compiled":
        if kernels() is None:
            pytest.skip("no C compiler")
        yield
        return
    with mock.patch.multiple(weaving, kernels=lambda: None), mock.patch.multiple(writer_pages, kernels=lambda: None):
        with mock.patch.multiple(writer_statistics, kernels=lambda: None):
            yield


@given(RUNS, st.sampled_from([DataType.BOOLEAN, DataType.FLOAT, DataType.INT64, DataType.TEXT]))
def test_the_later_run_has_the_time_that_both_have(runs: list[list[int]], kind: DataType) -> None:
    expected = {time: (number, time) for number, run in enumerate(runs) for time in run}
    woven = overlay_times([np.array(run, np.int64) for run in runs])
    assert woven.times.tolist() == sorted(expected)
    values = []
    for number, run in enumerate(runs):
        made = np.empty(len(run), VALUE_DTYPES[kind])
        made[:] = [b"%d %d" % (number, time) for time in run] if kind == DataType.TEXT else [10 * number + t for t in run]
        values.append(made)
    by_place = {(n, t): v for n, run in enumerate(runs) for t, v in zip(run, values[n].tolist(), strict=True)}
    assert woven.choose_values(values).tolist() == [by_place[expected[time]] for time in sorted(expected)]


@given(RUNS)
def test_rows_of_an_aligned_device_are_all_times_of_its_columns(runs: list[list[int]]) -> None:
    columns = {str(n): Column(DataType.INT64, np.array(r, np.int64), np.array(r, np.int64)) for n, r in enumerate(runs)}
    assert writer_pages.row_times(columns).tolist() == sorted({time for run in runs for time in run})


@given(st.sampled_from(sorted(NUMBERS)).flatmap(lambda kind: st.tuples(st.just(kind), _pages(kind))))
def test_statistics_of_pages_together_are_those_of_all_their_points(drawn: tuple[DataType, list[list[Any]]]) -> None:
    kind, pages = drawn
    everything = [value for page in pages for value in page]
    parts, at = [], 0
    for page in pages:
        parts.append(page_statistics(kind, np.arange(at, at + len(page)), _array(kind, page)))
        at += len(page)
    whole = combine_statistics(kind, parts)
    once = page_statistics(kind, np.arange(len(everything)), _array(kind, everything))
    assert (whole.count, whole.start, whole.end) == (once.count, once.start, once.end)
    assert _comparable(kind, whole.values) == _comparable(kind, once.values)
    assert decode_statistics(kind, encode_statistics(whole)) == whole
    numbers = [value for value in _array(kind, everything).tolist() if not math.isnan(value)] if _counts(kind) else []
    if numbers:
        smallest, largest, *_ = _numbers(kind, whole.values)
        assert (smallest, largest) == (min(numbers), max(numbers))


def _pages(kind: DataType) -> st.SearchStrategy[list[list[Any]]]:
    return st.lists(st.lists(NUMBERS[kind], max_size=20), min_size=1, max_size=4)


def _array(kind: DataType, values: list[Any]) -> np.ndarray[Any, Any]:
    made = np.empty(len(values), VALUE_DTYPES[kind])
    made[:] = values
    return made


def _counts(kind: DataType) -> bool:
    return kind in (DataType.INT32, DataType.INT64, DataType.FLOAT, DataType.DOUBLE)


def _numbers(kind: DataType, data: bytes) -> tuple[Any, ...]:
    letter = {DataType.INT32: "i", DataType.INT64: "q", DataType.FLOAT: "f", DataType.DOUBLE: "d"}[kind]
    return struct.unpack(f">4{letter}{'q' if letter == 'i' else 'd'}", data)


def _comparable(kind: DataType, data: bytes) -> Any:
    """All but the sum of floats, which depends on the order of adding; NaN equals NaN, and zeros have no sign."""
    if not _counts(kind):
        return data
    found = list(_numbers(kind, data))
    exact = found if kind == DataType.INT32 else found[:4]
    return [None if isinstance(value, float) and math.isnan(value) else value for value in exact]
