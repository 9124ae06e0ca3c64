"""Files made to explode: what needs more than a task may use ends with its child, by name, and costs nobody else.

The files are sound as far as anyone can tell, and small; only a limit of CPU time, wall time or memory ends them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.centre import Centre
from tests.exploding_files import DEVICE, SERIES, many_chunks, many_pages, many_points
from tests.small_files import sealed, source
from tidemark.engines.choose import PoolEngine
from tidemark.engines.task import Limits
from tidemark.errors import TaskLimitError
from tidemark.operations.decisions import quarantine_release
from tidemark.tsfiles.reader import TsFile

GOOD_ROWS = [("root.sg.d1", "s", 1, "INT64", "10"), ("root.sg.d1", "s", 2, "INT64", "20")]
LIMITS = {
    "CPU time": (Limits(cpu_seconds=1), "used up its CPU time, the 1 s"),
    "wall time": (Limits(wall_seconds=3), "not done after 3 s"),
    "memory": (Limits(memory_bytes=640 << 20), "more memory than a task may use, 0."),
}
EACH_LIMIT = pytest.mark.parametrize(
    "limit", ["memory", *(pytest.param(one, marks=pytest.mark.full) for one in LIMITS if one != "memory")]
)


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path, engine="auto")


def test_the_files_are_sound_where_they_are_small(tmp_path: Path) -> None:
    """They explode by their size alone, not because a reader refuses them."""
    for content, points in ((many_points(3, 1000), 3000), (many_pages(5), 5)):
        (tmp_path / "small.tsfile").write_bytes(content)
        with TsFile(tmp_path / "small.tsfile") as file:
            column = file.read_column(DEVICE, SERIES)
        assert column.times.tolist() == list(range(points)) and set(column.values.tolist()) == {1}


@pytest.mark.full
@EACH_LIMIT
def test_a_load_ends_a_check_that_explodes(centre: Centre, limit: str) -> None:
    limits, word = LIMITS[limit]
    limits = replace(limits, memory_bytes=112 << 20) if limit == "memory" else limits  # a check needs less than a merge
    centre.engine = PoolEngine(limits=limits)
    centre.sender().land(
        {
            source(1): {"": many_chunks(300_000 if limit == "memory" else 1_200_000)},
            source(2): sealed({"root.sg.d1": {"s": [(1, 10), (2, 20)]}}),
        }
    )
    begun = time.monotonic()
    result = centre.load()
    assert time.monotonic() - begun < 60
    assert (result.loaded, result.quarantined, result.exit_code) == (1, 1, TaskLimitError.kind)
    [trouble] = result.troubles
    assert trouble.path == source(1) and word in trouble.reason and "quarantine release" in trouble.reason
    assert centre.sql("SELECT error_kind, state FROM quarantine") == [(TaskLimitError.kind, "held")]
    assert centre.rows() == GOOD_ROWS


def test_a_release_checks_it_again(centre: Centre) -> None:
    """Nothing was wrong with the file: with more to use it is loaded as it came."""
    centre.engine = PoolEngine(limits=Limits(wall_seconds=0))
    centre.sender().land({source(1): sealed({"root.sg.d1": {"s": [(1, 10), (2, 20)]}})})
    assert centre.load().exit_code == TaskLimitError.kind
    with pytest.raises(TaskLimitError, match="not done after 0 s"):
        quarantine_release(centre.app, centre.receiver, "1", centre.engine)
    assert quarantine_release(centre.app, centre.receiver, "1").facts["outcome"] == "loaded"
    assert centre.rows() == GOOD_ROWS


@pytest.mark.full
@EACH_LIMIT
def test_a_merge_ends_a_task_that_explodes(centre: Centre, limit: str) -> None:
    """Its files stay apart with why, other groups are merged, nothing is left of what it had written."""
    limits, word = LIMITS[limit]
    limits = replace(limits, memory_bytes=280 << 20) if limit == "memory" else limits  # it decodes a window at a time
    exploding = many_points(40, 1_000_000) if limit == "memory" else many_pages(800_000)
    centre.sender().land(
        {
            source(1): {"": exploding},
            source(2): sealed({DEVICE: {SERIES: [(5, 5)]}}),
            source(3): sealed({"root.sg.d1": {"s": [(1, 10), (2, 2)]}}),
            source(4): sealed({"root.sg.d1": {"s": [(2, 20)]}}),
        }
    )
    assert centre.load().troubles == ()
    result = centre.merge(engine=PoolEngine(limits=limits))
    assert (result.groups, result.exit_code, result.failed) == (1, 0, ())  # nobody lacks a point: they are read as they came
    assert [word in reason for _, reason in result.kept] == [True]
    assert centre.sql("SELECT path FROM catalog_file WHERE visible = 1 AND role = 'source' ORDER BY path") == [
        (source(1),),
        (source(2),),
    ]
    assert centre.files("staging") == []
    # Not tried again and again: a later generation of one of them will.
    again = centre.merge()
    assert (again.groups, again.failed, len(again.kept)) == (0, (), 1)


@pytest.mark.full
def test_more_points_than_bytes_can_hold_are_quarantined(centre: Centre) -> None:
    """So a read, which has no limit but the machine's, never meets them."""
    centre.sender().land(
        {source(1): {"": many_points(4, 1 << 24)}, source(2): sealed({"root.sg.d1": {"s": [(1, 10), (2, 20)]}})}
    )
    result = centre.load()
    assert (result.loaded, result.quarantined) == (1, 1)
    assert "points in a chunk of" in result.troubles[0].reason
    assert centre.rows() == GOOD_ROWS
