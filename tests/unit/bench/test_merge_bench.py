"""What `bench merge` compares is what it says: the digest of a merge is that of newest-wins, and a lost point changes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from bench import merge_data
from bench.merge_peers import newest_wins
from bench.merge_run import planned, units
from bench.merge_seen import seen
from tidemark.receiver.merge.task import run_merge_task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rows")
    merge_data.write(place, devices=16, old=400, new=100, every=2, parquet=True)
    return place


def expected(folder: Path) -> pa.Table:
    """The rows of all Parquet files, device by device, by the merge that the shuffling plan of Spark uses."""
    old, new = (pa.concat_tables([pq.read_table(p) for p in sorted(folder.glob(f"{n}-*.parquet"))]) for n in ("old", "new"))
    names = sorted(set(old["device"].to_pylist()))
    return pa.concat_tables(
        newest_wins(*(table.filter(pc.equal(table["device"], name)) for table in (old, new))) for name in names
    )


def test_ours_and_the_plan_of_numpy_leave_the_same_points(folder: Path, tmp_path: Path) -> None:
    tasks = planned(units(folder), folder, tmp_path / "ours")
    assert tasks and all(run_merge_task(task).refused is None for task in tasks)
    rows = expected(folder)
    (tmp_path / "theirs").mkdir()
    merged = {name for task in tasks for name in task.devices}
    rows = rows.filter(pc.is_in(rows["device"], pa.array(sorted(merged))))
    pq.write_table(rows, tmp_path / "theirs" / "merged.parquet")
    ours, theirs = seen(tmp_path / "ours"), seen(tmp_path / "theirs")
    assert ours == theirs and ours["rows"] == len(rows) > 16 * 400
    kept = np.ones(len(rows), np.bool_)
    kept[1234] = False
    pq.write_table(rows.filter(pa.array(kept)), tmp_path / "theirs" / "merged.parquet")
    assert seen(tmp_path / "theirs")["digest"] != ours["digest"]
