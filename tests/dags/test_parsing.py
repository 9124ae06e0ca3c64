"""What Airflow finds in `dags/`: which DAGs, their tasks in their vital order, their defaults, at which cost."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.dags.airflow_env import ROOT
from tests.dags.conftest import Centre
from tidemark.orchestration.retry_policy import RETRIES, TidemarkRetryPolicy
from tidemark.orchestration.settings import EDITION

STEPS = ["recover", "select_files", "sync_schema", "transfer_deletes", "transfer_files", "finish", "cleanup"]
CLUSTER = """
[cluster]
replicas = 2
quorum = 2
slots = 24

[nodes.n1]
store = "n1"
[nodes.n2]
store = "n2"
[nodes.n3]
store = "n3"
"""
RECEIVERS = {"tidemark_load", "tidemark_verify", "tidemark_housekeep"}
FIXED = RECEIVERS | {"tidemark_approve"}
SOURCES = """
[sources.orders]
url = "mysql://reader@db1"
store = "orders"
[sources.people]
url = "mysql://reader@db1"
store = "people"
schedule = ""
[sources.saved]
store = "saved"
"""
SECOND = """
[sites.plant2]
id = "b1f0c3de-2f64-4a0b-8d0b-6c2f9f0f7a02"
store = "plant2"

[links.north-2]
site = "plant2"
"""


@pytest.fixture
def forget_edition() -> None:
    Path(os.environ["AIRFLOW_HOME"], EDITION).unlink(missing_ok=True)


def test_a_dag_for_every_link_and_the_receivers_three(dagbag: Callable[[], Any], centre: Centre) -> None:
    centre.write(SECOND)
    bag = dagbag()
    assert bag.import_errors == {}
    assert set(bag.dags) == FIXED | {"tidemark_sync__plant1", "tidemark_sync__north-2"}


def test_included_sites_and_links_of_a_pattern_have_dags(
    dagbag: Callable[[], Any], centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    included, links = SECOND.partition("[links")[0].replace("plant2", "north-2"), '[links."north-*"]\nschedule = "@daily"\n'
    (centre.root / "north.toml").write_text(included)
    centre.write(links)
    centre.config.write_text('include = ["north*.toml"]\n' + centre.config.read_text())
    bag = dagbag()
    assert bag.import_errors == {}
    assert set(bag.dags) == FIXED | {"tidemark_sync__plant1", "tidemark_sync__north-2"}
    assert "site:north-2" in bag.dags["tidemark_sync__north-2"].tags
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "tidemark_sync__north-2")
    assert set(dagbag().dags) == FIXED | {"tidemark_sync__north-2"}, "a task makes no DAG of another link"


def test_no_link_is_no_error(dagbag: Callable[[], Any], centre: Centre) -> None:
    centre.config.write_text("")
    bag = dagbag()
    assert bag.import_errors == {}
    assert set(bag.dags) == RECEIVERS, "nor anything to approve"


def test_the_seven_steps_follow_each_other(dagbag: Callable[[], Any]) -> None:
    dag = dagbag().dags["tidemark_sync__plant1"]
    assert [task.task_id for task in dag.topological_sort()] == STEPS
    for before, after in itertools.pairwise(STEPS):
        assert after in dag.task_dict[before].downstream_task_ids, f"{after} must wait for {before}"
    transfer = dag.task_dict["transfer_files"]
    assert transfer.is_mapped
    assert transfer.partial_kwargs["max_active_tis_per_dagrun"] == 1, "one engine at a time owns the link's line"


def test_load_precedes_merge_for_each_receiver(dagbag: Callable[[], Any]) -> None:
    dag = dagbag().dags["tidemark_load"]
    assert [task.task_id for task in dag.topological_sort()] == ["load", "merge", "announce", "done"]
    assert dag.task_dict["load"].downstream_task_ids == {"merge", "announce", "done"}
    assert dag.task_dict["done"].upstream_task_ids == {"load", "merge", "announce"}, "a red load makes the run red"


def test_a_receiver_with_an_iotdb_is_loaded_into_it_beside_the_merge(dagbag: Callable[[], Any], centre: Centre) -> None:
    centre.write()
    centre.config.write_text(
        centre.config.read_text().replace('store = "centre"\n', 'store = "centre"\niotdb = "iotdb://root@127.0.0.1:6667"\n')
    )
    dag = dagbag().dags["tidemark_load"]
    assert dag.task_dict["load"].downstream_task_ids == {"merge", "announce", "load_iotdb", "done"}
    assert dag.task_dict["load_iotdb"].downstream_task_ids == {"done"}
    assert "load_iotdb" in dag.doc_md


@pytest.mark.parametrize("nodes", ["", CLUSTER, SOURCES], ids=["alone", "cluster", "sources"])
def test_what_every_dag_has(dagbag: Callable[[], Any], centre: Centre, nodes: str) -> None:
    centre.write(nodes)
    for dag_id, dag in dagbag().dags.items():
        assert dag.max_active_runs == 1, dag_id
        assert dag.catchup is False, dag_id
        assert "tidemark" in dag.tags, dag_id
        assert len(dag.tags) >= 2, dag_id
        assert dag.description.endswith("."), dag_id
        for words in ("red", "Clear any task", "./tidemark why", "docs/runbooks"):
            assert words in dag.doc_md.replace("**", ""), f"{dag_id} does not say {words}"
        for task in dag.tasks:
            options = task.partial_kwargs if task.is_mapped else vars(task)
            retries = 0 if task.task_id == "watch" else RETRIES  # its next round comes sooner
            assert (options.get("retries") or getattr(task, "retries", 0)) == retries, f"{dag_id}.{task.task_id}"
            policy = options.get("retry_policy") or getattr(task, "retry_policy", None)
            assert isinstance(policy, TidemarkRetryPolicy), f"{dag_id}.{task.task_id}"


def test_schedule_and_timezone_come_from_the_link(dagbag: Callable[[], Any], centre: Centre) -> None:
    assert dagbag().dags["tidemark_sync__plant1"].timetable.can_be_scheduled is False, "no schedule: by hand only"
    centre.write(schedule='"30 2 * * *"', timezone='"Europe/Berlin"')
    timetable = dagbag().dags["tidemark_sync__plant1"].timetable
    assert (timetable.expression, str(timetable.timezone)) == ("30 2 * * *", "Europe/Berlin")


def test_load_runs_by_the_asset_and_by_the_clock(dagbag: Callable[[], Any]) -> None:
    timetable = dagbag().dags["tidemark_load"].timetable
    assert [asset.uri for asset in timetable.asset_condition.objects] == ["tidemark://centre/landed"]
    assert timetable.timetable.expression == "*/10 * * * *"


def test_owner_pool_queue_and_clocks_come_from_the_settings(dagbag: Callable[[], Any], centre: Centre) -> None:
    airflow = """
[airflow]
load_schedule = ""
verify_schedule = "0 5 * * 1"
housekeep_schedule = ""
timezone = "Europe/Berlin"
at_creation = "paused"
owner = "data team"
pool = "sites"
queue = "edge"
default_args = {retries = 9, execution_timeout = 7200}
"""
    centre.write(CLUSTER + airflow, owner='"plant team"', queue='"plant"')
    dags = dagbag().dags
    approvals = [dags[dag_id].task_dict["approval"] for dag_id in ("tidemark_cluster_scale", "tidemark_approve")]
    for approval in approvals:
        assert (approval.execution_timeout, approval.response_timeout) == (None, None), "a person may take days"
    for dag_id, dag in dags.items():
        link = dag_id.startswith("tidemark_sync")
        assert dag.is_paused_upon_creation is True, dag_id
        for task in dag.tasks:
            if task in approvals:
                continue
            options = task.partial_kwargs if task.is_mapped else vars(task)
            expected = ("plant team", "sites", "plant") if link else ("data team", "sites", "edge")
            assert (options["owner"], options["pool"], options["queue"]) == expected, f"{dag_id}.{task.task_id}"
            retries = 0 if dag_id == "tidemark_replica_watch" else 9  # its next round comes sooner
            assert (options["retries"], options["execution_timeout"]) == (retries, timedelta(hours=2)), task.task_id
    verify = dags["tidemark_verify"].timetable
    assert (verify.expression, str(verify.timezone)) == ("0 5 * * 1", "Europe/Berlin")
    assert dags["tidemark_housekeep"].timetable.can_be_scheduled is False, "by hand only"
    loads = dags["tidemark_load"].timetable
    assert [asset.uri for asset in loads.asset_condition.objects] == ["tidemark://centre/landed"]
    assert not hasattr(loads, "timetable"), "no clock: by what landed alone"


def test_the_trigger_form_is_typed_and_explained(dagbag: Callable[[], Any]) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    params = dagbag().dags["tidemark_sync__plant1"].params
    assert params.dump() == {"dry_run": False, "only_paths": [], "send_all_again": False}
    for name in params:
        assert params.get_param(name).description, name
    for name, wrong in (("dry_run", "yes please"), ("only_paths", "data/**"), ("only_paths", [""]), ("send_all_again", 1)):
        with pytest.raises(ParamValidationError):
            params.get_param(name).resolve(wrong)
    assert params.get_param("only_paths").resolve(["data/sequence/**"]) == ["data/sequence/**"]


def test_drops_are_approved_by_a_person_between_two_tasks(dagbag: Callable[[], Any]) -> None:
    dag = dagbag().dags["tidemark_approve"]
    assert [task.task_id for task in dag.topological_sort()] == ["find", "approval", "approve"]
    assert dag.params.dump() == {"link": "plant1"} and dag.timetable.can_be_scheduled is False


def test_only_a_cluster_has_the_dag_that_scales_it(dagbag: Callable[[], Any], centre: Centre) -> None:
    assert "tidemark_cluster_scale" not in dagbag().dags
    assert set(dagbag().dags["tidemark_verify"].task_dict) == {"verify"}
    centre.write(CLUSTER)
    bag = dagbag()
    assert not bag.import_errors
    dag = bag.dags["tidemark_cluster_scale"]
    order = [task.task_id for task in dag.topological_sort()]
    assert order == ["plan", "approval", "phase_one", "migrate", "finish"]
    assert dag.task_dict["migrate"].is_mapped and dag.timetable.can_be_scheduled is False
    assert dag.task_dict["finish"].upstream_task_ids == {"migrate", "phase_one"}
    proof = bag.dags["tidemark_verify"]
    assert proof.task_dict["replica_verify"].upstream_task_ids == {"cluster_check"}
    assert proof.task_dict["done"].upstream_task_ids == {"cluster_check", "replica_verify"}, "either makes the run red"
    assert "replica_verify" in proof.doc_md
    params = dag.params
    assert params.dump()["dry_run"] is True and params.dump()["approval"] is True
    assert "n1, n2, n3" in params.get_param("node").description
    for text in ("plan", "approval", "phase_one", "migrate", "finish", "roll-back"):
        assert text in dag.doc_md


def test_only_a_cluster_has_the_dags_that_keep_its_groups_in_step(dagbag: Callable[[], Any], centre: Centre) -> None:
    assert not {"tidemark_replica_watch", "tidemark_replica_recover"} & set(dagbag().dags)
    centre.write(CLUSTER)
    bag = dagbag()
    assert not bag.import_errors
    watch, recover = bag.dags["tidemark_replica_watch"], bag.dags["tidemark_replica_recover"]
    assert [task.task_id for task in watch.topological_sort()] == ["watch"]
    assert [task.task_id for task in recover.topological_sort()] == ["find", "recover"]
    assert (watch.timetable.expression, recover.timetable.expression) == ("* * * * *", "*/5 * * * *")
    assert watch.max_active_runs == recover.max_active_runs == 1
    centre.write(CLUSTER.replace("[cluster]", "[cluster]\nreplace_hours = 48"))
    with_replace = dagbag().dags["tidemark_replica_recover"]
    assert {task.task_id for task in with_replace.tasks} == {"find", "recover", "replace"}
    mapped = recover.task_dict["recover"]
    assert mapped.is_mapped and mapped.partial_kwargs["max_active_tis_per_dag"] == 2


def test_a_source_with_a_server_has_a_dag(
    dagbag: Callable[[], Any], centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    centre.write(SOURCES)
    bag = dagbag()
    assert bag.import_errors == {}
    assert set(bag.dags) == FIXED | {"tidemark_sync__plant1", "tidemark_changes__orders", "tidemark_changes__people"}
    dag = bag.dags["tidemark_changes__orders"]
    assert [task.task_id for task in dag.topological_sort()] == ["check", "capture", "bootstrap", "retain", "verify", "done"]
    assert (dag.timetable.expression, str(dag.timetable.timezone)) == ("*/5 * * * *", "UTC")
    assert bag.dags["tidemark_changes__people"].timetable.can_be_scheduled is False
    assert dag.task_dict["capture"].outlets[0].name == "tidemark://orders/changes"
    for text in ("check", "capture", "retain", "verify", "done", "--follow"):
        assert text in dag.doc_md
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "tidemark_changes__people")
    assert "tidemark_changes__orders" not in dagbag().dags, "a task makes no DAG of another source"


def test_a_sink_has_a_dag_that_its_sources_changes_wake(dagbag: Callable[[], Any], centre: Centre) -> None:
    sink = '[sinks.{0}]\nsource = "orders"\nkind = "history"\ntarget = "{0}"\n'
    centre.write(SOURCES + sink.format("lake") + sink.format("nightly") + 'schedule = "0 3 * * *"\n')
    bag = dagbag()
    assert bag.import_errors == {}
    dag = bag.dags["tidemark_sink__lake"]
    assert [task.task_id for task in dag.tasks] == ["deliver"]
    assert [asset.uri for asset in dag.timetable.asset_condition.objects] == ["tidemark://orders/changes"]
    assert dag.max_active_runs == 1
    assert "changes of orders" in dag.doc_md
    assert bag.dags["tidemark_sink__nightly"].timetable.expression == "0 3 * * *"


def test_a_catalog_sink_begins_runs_of_its_link(dagbag: Callable[[], Any], centre: Centre) -> None:
    centre.write(SOURCES + '[sinks.series]\nsource = "orders"\nkind = "catalog"\ntarget = "centre"\n')
    bag = dagbag()
    assert bag.import_errors == {}
    dag = bag.dags["tidemark_sink__series"]
    assert [task.task_id for task in dag.topological_sort()] == ["deliver", "send_series"]
    assert dag.task_dict["send_series"].trigger_dag_id in bag.dags
    assert "send_" in dag.doc_md


@pytest.mark.usefixtures("forget_edition")
def test_broken_settings_are_an_import_error_with_the_line(dagbag: Callable[[], Any], centre: Centre) -> None:
    line = len(centre.config.read_text().splitlines()) + 1
    centre.config.write_text(centre.config.read_text() + "shedule = 1\n")
    bag = dagbag()
    assert len(bag.import_errors) == 10, "settings that never were sound give no DAG"
    assert all(f"tidemark.toml:{line}" in error for error in bag.import_errors.values())


@pytest.mark.usefixtures("forget_edition")
def test_a_broken_edit_hides_no_dag(dagbag: Callable[[], Any], centre: Centre) -> None:
    before = set(dagbag().dags)
    line = len(centre.config.read_text().splitlines()) + 1
    centre.config.write_text(centre.config.read_text() + "shedule = 1\n")
    bag = dagbag()
    assert set(bag.dags) == before
    assert [Path(path).name for path in bag.import_errors] == ["tidemark_settings.py"]
    assert f"tidemark.toml:{line}" in next(iter(bag.import_errors.values()))


def test_dag_files_are_wiring_only() -> None:
    for path in (ROOT / "dags").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 80, path.name
    assert (ROOT / "plugins" / ".airflowignore").read_text().split() == [
        "tidemark/",
        "pyspark_tsfile.py",
        "pyspark_tidemark.py",
        "pyspark_tidemark_changes.py",
    ]


def test_importing_them_opens_no_database_and_imports_nothing_heavy(centre: Centre, tmp_path: Path) -> None:
    program = (
        "import json, pathlib, runpy, sys\n"
        "import airflow.sdk\n"
        "before = set(sys.modules)\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).glob('*.py')): runpy.run_path(str(path))\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "plugins"), "AIRFLOW_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT / "dags")], env=environment, capture_output=True, text=True, check=True
    )
    imported = json.loads(done.stdout.splitlines()[-1])
    heavy = {"pyspark", "paramiko", "pandas", "numpy", "pyarrow", "tsfile", "sqlalchemy", "rich"}
    assert {name.split(".")[0] for name in imported} & heavy == set()
    rooms = ("app", "ledger", "operations", "receiver", "stores", "sync", "transfer")
    assert not [name for name in imported if name.startswith(tuple(f"tidemark.{room}" for room in rooms))]
    assert not (centre.root / "ledger.db").exists()


def test_the_plugin_brings_only_its_listener() -> None:
    from airflow import plugins_manager

    plugins, errors = plugins_manager._get_plugins()
    assert errors == {}
    ours = [plugin for plugin in plugins if plugin.name == "tidemark"]
    heard = [listener.__name__ for plugin in ours for listener in plugin.listeners]
    assert heard == ["tidemark.orchestration.deployment.warm_start"]
    assert "sync_tasks" not in sys.modules, "plugins/.airflowignore keeps Airflow from importing every module as its own"
