"""The operator and the sensor for DAGs that other people write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.dags.conftest import Centre
from tests.dags.test_runs import Dag
from tidemark.errors import GuardError, NotFoundError, UsageError
from tidemark.orchestration.operators import TidemarkSensor, TidemarkSyncOperator
from tidemark.orchestration.tasks import receivers as receiver_tasks

pytestmark = pytest.mark.usefixtures("airflow_database")


def poke(since: str = "2026-01-01T00:00:00Z", link: str = "plant1") -> bool:
    return bool(TidemarkSensor(task_id="wait", link=link, since=since).poke({}))


def sync(**asked: Any) -> dict[str, Any]:
    counts: dict[str, Any] = TidemarkSyncOperator(task_id="sync", link="plant1", **asked).execute({})
    return counts


@pytest.mark.full
def test_a_dag_of_ones_own_syncs_and_waits(centre: Centre) -> None:
    assert not poke(), "nothing ran yet"
    counts = sync(only_paths=["data/unsequence/**"])
    assert counts["files"] == counts["loaded"] > 0
    assert not poke(), "a run of some paths is not all that was sealed"
    rest = sync()
    assert (rest["state"], rest["loaded"] + counts["loaded"]) == ("loaded", len(centre.sealed()))
    assert poke()
    later = datetime.now(UTC) + timedelta(hours=1)
    assert not poke(later.isoformat()), "that run began too early"
    with pytest.raises(UsageError, match="'soon' is no ISO 8601 time"):
        poke("soon")
    with pytest.raises(NotFoundError, match="plant9"):
        poke(link="plant9")


@pytest.mark.full
def test_the_sensor_waits_for_the_load(centre: Centre) -> None:
    Dag("manual__1").whole()
    assert not poke(), "landed is not loaded"
    receiver_tasks.load("centre")
    assert poke()


@pytest.mark.full
def test_drops_that_wait_make_the_operator_red(centre: Centre) -> None:
    sync()
    (centre.site / "data").rename(centre.root / "unmounted")
    with pytest.raises(GuardError) as red:
        sync()
    assert "./tidemark approve " in red.value.hint
