"""The DAGs of a cluster's groups: `tidemark_replica_watch` and `tidemark_replica_recover`. Source: docs/decisions/0024."""

from __future__ import annotations

from airflow.sdk import DAG

from tidemark.orchestration.dags.docs import RECOVER_DOC, WATCH_DOC, spell_doc
from tidemark.orchestration.dags.frame import make_options, make_task
from tidemark.orchestration.schedules import make_timetable
from tidemark.orchestration.tasks import replicas
from tidemark.settings.model import Settings

WATCH, RECOVER = "tidemark_replica_watch", "tidemark_replica_recover"
AT_ONCE = 2  # nodes that are recovered at a time: each is read from others, which also serve


def watch_dags(settings: Settings) -> dict[str, DAG]:
    """Return `tidemark_replica_watch` by its id, if the settings have a cluster."""
    if settings.cluster is None:
        return {}
    dag = _make_dag(settings, WATCH, WATCH_DOC, settings.airflow.watch_schedule)
    with dag:
        make_task(replicas.watch, retries=0)(receiver=_receiver_of(settings))  # the next round comes sooner than a retry
    return {WATCH: dag}


def recover_dags(settings: Settings) -> dict[str, DAG]:
    """Return `tidemark_replica_recover` by its id, if the settings have a cluster."""
    if settings.cluster is None:
        return {}
    receiver = _receiver_of(settings)
    dag = _make_dag(settings, RECOVER, RECOVER_DOC, settings.airflow.recover_schedule)
    with dag:
        recover = make_task(replicas.recover, max_active_tis_per_dag=AT_ONCE, map_index_template="{{ node }}")
        recover.partial(receiver=receiver).expand(node=make_task(replicas.find)(receiver=receiver))
    return {RECOVER: dag}


def _receiver_of(settings: Settings) -> str:
    assert settings.cluster is not None
    return settings.cluster.receiver or next(iter(settings.receivers))


def _make_dag(settings: Settings, dag_id: str, doc: str, cron: str) -> DAG:
    return DAG(
        dag_id=dag_id,
        dag_display_name=dag_id.replace("_", " "),
        description=doc.split("\n\n")[1].split(". ", maxsplit=1)[0].replace("\n", " ") + ".",
        doc_md=spell_doc(doc),
        schedule=make_timetable(cron, settings.airflow.timezone),
        tags={"tidemark", "cluster", f"receiver:{_receiver_of(settings)}"},
        **make_options(settings.airflow),
    )
