"""A running Airflow scales a cluster: a person is asked first, and a whole run may be cleared after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.services.running_airflow import Deployment, RunningAirflow, wait

pytestmark = [pytest.mark.full, pytest.mark.real("airflow")]
SCALE = "tidemark_cluster_scale"
NODES = """
[receivers.spread]
store = "spread"

[cluster]
receiver = "spread"
replicas = 2
quorum = 2
slots = 40

[nodes.n1]
store = "n1"
[nodes.n2]
store = "n2"
[nodes.n3]
store = "n3"
"""


@pytest.fixture
def spread(running_airflow: RunningAirflow) -> Iterator[Deployment]:
    """A receiver more, on three nodes; a folder for a fourth."""
    deployment = running_airflow.deployment
    for name in ("spread", "n1", "n2", "n3", "n4"):
        (deployment.root / name).mkdir(exist_ok=True)
    deployment.write(NODES)
    deployment.tidemark("cluster", "init")
    running_airflow.wait_for_dag(SCALE)
    yield deployment
    deployment.write()


def asked(airflow: RunningAirflow, run: str) -> dict[str, Any]:
    """What the person reads who is asked."""
    wait(lambda: airflow.states(SCALE, run).get("approval") == "awaiting_input", "the question", 120)
    return airflow.call("GET", f"/api/v2/dags/{SCALE}/dagRuns/{run}/taskInstances/approval/-1/hitlDetails")


def answer(airflow: RunningAirflow, run: str, word: str) -> None:
    """An answer that comes while the question is still being put makes Airflow try the task again and ask once more (seen):
    a person would answer again."""
    path = f"/api/v2/dags/{SCALE}/dagRuns/{run}/taskInstances/approval/-1/hitlDetails"

    def taken() -> bool:
        if (
            airflow.states(SCALE, run).get("approval") == "awaiting_input"
            and not airflow.call("GET", path)["response_received"]
        ):
            airflow.call("PATCH", path, {"chosen_options": [word], "params_input": {}})
        return airflow.states(SCALE, run).get("approval") == "success"

    wait(taken, f"the answer {word}", 120, 1.0)


def test_a_person_is_asked_before_a_node_joins(running_airflow: RunningAirflow, spread: Deployment) -> None:
    airflow = running_airflow
    url = f"file://{spread.root / 'n4'}"
    refused = airflow.trigger(SCALE, kind="add", node="n4", url=url, dry_run=False)
    question = asked(airflow, refused)
    assert "add n4" in question["subject"] and "slots move" in question["body"]
    answer(airflow, refused, "Reject")
    assert airflow.wait_for_run(SCALE, refused) == "success"
    assert airflow.states(SCALE, refused)["phase_one"] == "skipped"
    assert spread.tidemark("cluster", "show")["epoch"] == 1

    run = airflow.trigger(SCALE, kind="add", node="n4", url=url, dry_run=False)
    asked(airflow, run)
    answer(airflow, run, "Approve")
    assert airflow.wait_for_run(SCALE, run) == "success", airflow.states(SCALE, run)
    shown = spread.tidemark("cluster", "show")
    assert shown["epoch"] == 2 and [node["slots"] for node in shown["nodes"]] == [10] * 4
    assert spread.tidemark("cluster", "check")["problems"] == []

    airflow.call("POST", f"/api/v2/dags/{SCALE}/dagRuns/{run}/clear", {"dry_run": False})
    assert airflow.wait_for_run(SCALE, run) == "success", "cleared whole, nobody is asked about what is done"
    assert spread.tidemark("cluster", "show")["epoch"] == 2
