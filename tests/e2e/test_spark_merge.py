"""The same merge by Spark as by child processes: equal bytes, equal points, and one bad task costs only itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.centre import Centre
from tests.expected import SITES
from tests.landing_maker import companions, tsfiles_below
from tidemark.engines.choose import PoolEngine
from tidemark.engines.java import java_home
from tidemark.engines.spark import SparkEngine
from tidemark.errors import RetryableError, UsageError
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import merges as merge_rows
from tidemark.receiver.merge.merge import merge
from tidemark.receiver.merge.plan import Unit, plan_merge, tasks_of
from tidemark.receiver.merge.task import MergeTask
from tidemark.receiver.session import local_root
from tidemark.settings.model import Settings, SparkSettings
from tidemark.tsfiles.devices import put_below

pytestmark = [pytest.mark.full, pytest.mark.real("spark")]
SITE = SITES["2.0.1-beta"]


@pytest.fixture(scope="module")
def java() -> Path:
    try:
        return java_home()
    except UsageError as missing:
        pytest.skip(missing.message)


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    """The real folder of a 2.0 node, loaded."""
    made = Centre(tmp_path)
    made.sender(data=SITE.data).land({path: companions(SITE.root, path) for path in tsfiles_below(SITE.root, SITE.data)})
    assert made.load().troubles == ()
    return made


def merge_tasks(centre: Centre, staging: str) -> list[MergeTask]:
    with centre.app.ledger.read() as connection:
        files = merge_rows.mergeable_files(connection, "centre")
        devices = catalog_rows.devices_of_files(connection, [file.file_id for file in files])
    plan = plan_merge(Unit(file, devices[file.file_id]) for file in files)
    root = str(local_root(centre.app, centre.receiver))
    numbered = enumerate(plan.groups)
    return [task for n, group in numbered for task in tasks_of(group, n, root, staging, 604_800_000)]


def staged(centre: Centre, folder: str) -> Mapping[str, bytes]:
    """By group, task and partition; what follows in the names is of the try."""
    return {p.name.rpartition("-")[0]: p.read_bytes() for p in (centre.root / folder).iterdir()}


def test_spark_and_the_pool_make_the_same_bytes(centre: Centre, java: Path) -> None:
    by_pool = list(PoolEngine(2).run("merge", merge_tasks(centre, "staging/pool")))
    by_spark = list(SparkEngine("local[2]", java).run("merge", merge_tasks(centre, "staging/spark")))
    assert [o.error for o in (*by_pool, *by_spark) if o.error] == []
    assert sorted(o.index for o in by_spark) == sorted(o.index for o in by_pool)
    assert len(by_pool) > 4
    assert staged(centre, "staging/spark") == staged(centre, "staging/pool")


def test_a_merge_by_spark_gives_what_the_server_answered(centre: Centre) -> None:
    centre.app.settings = with_spark(centre.app.settings, "local[2]")
    result = merge(centre.app, centre.receiver)
    assert result.exit_code == 0 and result.groups > 4
    assert centre.rows() == SITE.rows()


def test_a_merge_by_spark_names_devices_as_the_catalog_does(tmp_path: Path) -> None:
    """Of both models, with their deletions: the rows of a site without a prefix, below it."""
    sent, merged = (Centre(tmp_path / name) for name in ("plain", "below"))
    for one, prefix in ((sent, ""), (merged, "root.ship7")):
        files = {path: companions(SITE.root, path) for path in tsfiles_below(SITE.root, SITE.data)}
        one.sender(data=SITE.data).land(files, prefix=prefix)
        assert one.load().troubles == ()
    merged.app.settings = with_spark(merged.app.settings, "local[2]")
    assert merge(merged.app, merged.receiver).groups > 4
    assert sorted(merged.rows()) == sorted((put_below("root.ship7", row[0]), *row[1:]) for row in sent.rows())


def test_a_source_that_rotted_costs_one_group(centre: Centre) -> None:
    centre.app.settings = with_spark(centre.app.settings, "local[2]")
    (location,) = centre.sql("SELECT location FROM catalog_file WHERE model = 'tree' ORDER BY file_id LIMIT 1")[0]
    data = bytearray((centre.root / location).read_bytes())
    data[100:400] = bytes(300)
    (centre.root / location).unlink()
    (centre.root / location).write_bytes(data)
    result = merge(centre.app, centre.receiver)
    assert result.groups > 3 and len(result.failed) == 1 and Path(location).name in result.failed[0][1]


def test_spark_that_cannot_start_is_named_with_the_end_of_its_log(centre: Centre, java: Path) -> None:
    engine = SparkEngine("nowhere://1", java)
    with pytest.raises(RetryableError, match=r"(?s)nowhere://1 ended with 1.*[Mm]aster"):
        list(engine.run("merge", merge_tasks(centre, "staging/none")))


def with_spark(settings: Settings, master: str) -> Settings:
    return dataclasses.replace(settings, spark=SparkSettings(master=master, engine="spark"))
