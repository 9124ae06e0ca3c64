"""The DAGs of changes: of a source (check, capture, bootstrap, retain, and once a day verify), and of a sink (deliver).

Made from the settings without a database. `capture` brings everything up to now, and `bootstrap` the rows that tables had
before. While `./tidemark changes capture --follow` is at work, all of it is skipped: that one does all of it by itself.
A sink is woken by the asset of its source's changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, get_parsing_context

from tidemark.errors import UsageError
from tidemark.orchestration.dags.docs import sink_doc, source_doc
from tidemark.orchestration.dags.frame import make_options, make_task
from tidemark.orchestration.schedules import changes_alias, changes_asset, sink_schedule, source_schedule
from tidemark.orchestration.tasks import changes
from tidemark.orchestration.tasks.perform import LINK_DAG
from tidemark.settings.model import AirflowSettings, Settings, SinkSettings, SourceSettings, list_links_of_sink
from tidemark.visible_log import VisibleLog

log = VisibleLog(__name__)
SOURCE_DAG = "tidemark_changes__"
SINK_DAG = "tidemark_sink__"
_Named = TypeVar("_Named")


def source_dags(settings: Settings) -> dict[str, DAG]:
    """Return a DAG for each source that has a server, by its id. One whose schedule Airflow rejects is left out."""
    served = {name: source for name, source in settings.sources.items() if source.url}
    return _make_dags("source", SOURCE_DAG, served, lambda source: source_dag(source, settings.airflow))


def sink_dags(settings: Settings) -> dict[str, DAG]:
    """Return a DAG for each sink, by its id. One whose schedule Airflow rejects is left out."""
    return _make_dags("sink", SINK_DAG, settings.sinks, lambda sink: sink_dag(sink, settings))


def _make_dags(what: str, prefix: str, named: Mapping[str, _Named], make: Callable[[_Named], DAG]) -> dict[str, DAG]:
    wanted = get_parsing_context().dag_id
    dags = {}
    for name, one in sorted(named.items()):
        if wanted not in (None, prefix + name):
            continue
        try:
            dag = make(one)
        except UsageError as broken:
            log.error("no DAG for %s %s: %s", what, name, broken.message)
        else:
            dags[dag.dag_id] = dag
    return dags


def source_dag(source: SourceSettings, airflow: AirflowSettings) -> DAG:
    """Make `tidemark_changes__<source>`. Raises UsageError if its schedule is invalid."""
    dag = DAG(
        dag_id=SOURCE_DAG + source.name,
        dag_display_name=f"changes {source.name}",
        description=f"Brings the changes of source {source.name} into its store, whole transactions, each once.",
        doc_md=source_doc(source),
        schedule=source_schedule(source),
        tags={"tidemark", "changes", f"source:{source.name}"},
        **make_options(airflow),
    )
    with dag:
        _add_steps(source.name)
    return dag


def sink_dag(sink: SinkSettings, settings: Settings) -> DAG:
    """Make `tidemark_sink__<sink>`. Of a catalog sink it begins a run of each link that sends its files, also where
    some of its tables are stopped. Raises UsageError if its schedule is invalid."""
    dag = DAG(
        dag_id=SINK_DAG + sink.name,
        dag_display_name=f"sink {sink.name}",
        description=f"Brings the tables of sink {sink.name} to the changes of source {sink.source}.",
        doc_md=sink_doc(sink),
        schedule=sink_schedule(sink),
        tags={"tidemark", "changes", f"source:{sink.source}", f"sink:{sink.name}"},
        **make_options(settings.airflow),
    )
    with dag:
        delivered = make_task(changes.deliver)(sink=sink.name)
        for link in list_links_of_sink(settings, sink):
            delivered >> _make_sending(link)
    return dag


def _make_sending(link: str) -> Any:
    from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator  # brings SQLAlchemy

    return TriggerDagRunOperator(task_id=f"send_{link}", trigger_dag_id=LINK_DAG + link, trigger_rule="none_skipped")


def _add_steps(source: str) -> None:
    news: dict[str, Any] = {"outlets": [changes_alias(source)], "inlets": [changes_asset(source)]}
    checked = make_task(changes.check)(source=source)
    # Also after a red check: what is captured cannot be lost, and a capture itself refuses what cannot be trusted.
    captured = make_task(changes.capture, trigger_rule="none_skipped", **news)(source=source)
    bootstrapped = make_task(changes.bootstrap, **news)(source=source)
    # A table that cannot be read keeps no disk full.
    retained = make_task(changes.retain, trigger_rule="none_skipped")(source=source)
    verified = make_task(changes.verify)(source=source)
    # What is red makes the run red although the rest went on; a verify that is not due yet is skipped.
    done = EmptyOperator(task_id="done", trigger_rule="none_failed")
    checked >> captured >> bootstrapped >> retained >> verified >> done
    [checked, captured, bootstrapped, retained] >> done
