"""The DAGs of the receivers: load and merge, verify, housekeep. A receiver is a map index, so a failed one stops no other.

Only this machine's `file://` receivers are loaded here (DESIGN §3). A Tidemark that sends to a remote receiver has the same
DAGs with nothing to do.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param, task_group

from tidemark.orchestration.dags.docs import HOUSEKEEP_DOC, LOAD_DOC, VERIFY_DOC
from tidemark.orchestration.dags.frame import make_dag, make_task
from tidemark.orchestration.schedules import catalog_alias, catalog_asset, load_schedule, make_timetable
from tidemark.orchestration.tasks import cluster, replicas
from tidemark.orchestration.tasks import receivers as tasks_receivers
from tidemark.settings.model import Settings


def local_receivers(settings: Settings) -> list[str]:
    """Return the names of the receivers that are folders of this machine."""
    return sorted(name for name, receiver in settings.receivers.items() if receiver.store.startswith("file://"))


def load_dag(settings: Settings) -> DAG:
    """Make `tidemark_load`: load, merge, announce, one map index a receiver; `load_iotdb` next to merge if one has an
    IoTDB."""
    receivers, airflow = local_receivers(settings), settings.airflow
    targets = any(settings.receivers[name].iotdb for name in receivers)
    schedule = load_schedule(receivers, airflow.load_schedule, airflow.timezone)
    news: dict[str, Any] = {"outlets": [catalog_alias(name) for name in receivers]}
    news["inlets"] = [catalog_asset(name) for name in receivers]  # the last event says how far the news have got
    with make_dag("tidemark_load", LOAD_DOC, schedule, airflow, tags={"load"}) as dag:

        def load_and_merge(receiver: str) -> None:
            loaded = _make_task("load")(receiver=receiver)
            # After a load that left something (red), its files are merged all the same; `done` joins the two results.
            merged = _make_task("merge", trigger_rule="all_done")(receiver=receiver)
            tasks = [loaded, merged]
            if targets:  # also after a load that left something, and again by itself while the server is down
                tasks.append(_make_task("load_iotdb", trigger_rule="all_done")(receiver=receiver))
            told = _make_task("announce", trigger_rule="all_done", **news)(receiver=receiver)
            [loaded, merged] >> told
            [*tasks, told] >> EmptyOperator(task_id="done")
            loaded >> tasks[1:]

        # The group is mapped so that a receiver's merge waits only for its own load.
        task_group(group_id="receiver", prefix_group_id=False)(load_and_merge).expand(receiver=receivers)
    return dag


def verify_dag(settings: Settings) -> DAG:
    """Make `tidemark_verify`: the scheduled proof. With a cluster also of each copy, and of each group's members."""
    deep = Param(False, type="boolean", title="Deep", description="Compare every point, not only digests. Reads all files.")
    site = Param("", type=["string", "null"], title="Only this site", description="A site of tidemark.toml. Empty: all.")
    live = Param(False, type="boolean", title="Live only", description="Deep: without files gone at their site and kept.")
    params = {"deep": deep, "live_only": live, "site": site}
    schedule = make_timetable(settings.airflow.verify_schedule, settings.airflow.timezone)
    with make_dag("tidemark_verify", VERIFY_DOC, schedule, settings.airflow, tags={"proof"}, params=params) as dag:
        _make_task("verify").expand(receiver=local_receivers(settings))
        if settings.cluster is not None:
            checked = make_task(cluster.check, task_id="cluster_check")(receiver=settings.cluster_receiver)
            # Both read every file at every node: one after the other, also if the first is red. `done` joins the results.
            compare = make_task(replicas.verify, task_id="replica_verify", trigger_rule="all_done")
            compared = compare(receiver=settings.cluster_receiver)
            checked >> compared
            [checked, compared] >> EmptyOperator(task_id="done")
    return dag


def housekeep_dag(settings: Settings) -> DAG:
    """Make `tidemark_housekeep`: the scheduled settling, reclaiming and trimming."""
    schedule = make_timetable(settings.airflow.housekeep_schedule, settings.airflow.timezone)
    with make_dag("tidemark_housekeep", HOUSEKEEP_DOC, schedule, settings.airflow, tags={"load"}) as dag:
        _make_task("housekeep").expand(receiver=local_receivers(settings))
    return dag


def _make_task(name: str, **options: Any) -> Any:
    shown = "{{ task.op_kwargs['receiver'] }}"
    return make_task(getattr(tasks_receivers, name), map_index_template=shown, **options)
