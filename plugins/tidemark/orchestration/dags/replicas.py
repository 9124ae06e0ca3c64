"""The DAGs of a cluster's groups: `tidemark_replica_watch` and `tidemark_replica_recover`. Source: docs/decisions/0024."""

from __future__ import annotations

from airflow.sdk import DAG

from tidemark.cluster.replicas.core.recovery_plan import MOST_AT_ONCE
from tidemark.orchestration.dags.docs import RECOVER_DOC, WATCH_DOC
from tidemark.orchestration.dags.frame import make_dag, make_task
from tidemark.orchestration.schedules import make_timetable
from tidemark.orchestration.tasks import replicas
from tidemark.settings.model import Settings

WATCH, RECOVER = "tidemark_replica_watch", "tidemark_replica_recover"


def watch_dags(settings: Settings) -> dict[str, DAG]:
    """Return `tidemark_replica_watch` by its id, if the settings have a cluster."""
    if settings.cluster is None:
        return {}
    dag = _make_dag(settings, WATCH, WATCH_DOC, settings.airflow.watch_schedule)
    with dag:
        make_task(replicas.watch, retries=0)(receiver=settings.cluster_receiver)  # the next round comes sooner than a retry
    return {WATCH: dag}


def recover_dags(settings: Settings) -> dict[str, DAG]:
    """Return `tidemark_replica_recover` by its id, if the settings have a cluster."""
    if settings.cluster is None:
        return {}
    receiver = settings.cluster_receiver
    dag = _make_dag(settings, RECOVER, RECOVER_DOC, settings.airflow.recover_schedule)
    with dag:
        recover = make_task(replicas.recover, max_active_tis_per_dag=MOST_AT_ONCE, map_index_template="{{ node }}")
        recover.partial(receiver=receiver).expand(node=make_task(replicas.find)(receiver=receiver))
        if settings.cluster.replace_hours:
            make_task(replicas.replace, retries=0)(receiver=receiver)
    return {RECOVER: dag}


def _make_dag(settings: Settings, dag_id: str, doc: str, cron: str) -> DAG:
    schedule = make_timetable(cron, settings.airflow.timezone)
    return make_dag(dag_id, doc, schedule, settings.airflow, tags={"cluster", f"receiver:{settings.cluster_receiver}"})
