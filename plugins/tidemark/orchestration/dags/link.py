"""The DAG of a link: the seed's seven steps in a row, made from the settings without a database (DESIGN §6)."""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import DAG, Param, get_parsing_context

from tidemark.errors import UsageError
from tidemark.orchestration.dags.docs import link_doc, spell_doc
from tidemark.orchestration.dags.frame import make_options, make_task
from tidemark.orchestration.dags.notices import find_call
from tidemark.orchestration.schedules import landed_alias, link_schedule, source_schedule
from tidemark.orchestration.tasks import sync
from tidemark.orchestration.tasks.perform import LINK_DAG
from tidemark.settings.model import AirflowSettings, LinkSettings, Settings

log = logging.getLogger(__name__)


def link_dags(settings: Settings) -> dict[str, DAG]:
    """Return a DAG for each link, by its id. A link whose schedule Airflow rejects is left out; `check_dags` names it.

    A task reads this file for its own DAG alone, and gets no other: those of 200 links take more than a second to make.
    """
    wanted = get_parsing_context().dag_id
    dags = {}
    for name in sorted(settings.links):
        if wanted not in (None, LINK_DAG + name):
            continue
        try:
            dag = link_dag(settings.links[name], settings.airflow)
        except UsageError as broken:
            log.error("no DAG for link %s: %s", name, broken.message)
        else:
            dags[dag.dag_id] = dag
    return dags


def check_dags(settings: Settings) -> None:
    """Raise UsageError for the first link or source without a DAG, or the first of `notify` that is not installed."""
    for name in sorted(settings.links):
        link_schedule(settings.links[name])
    for source in settings.sources.values():
        source_schedule(source)
    for path in (dict(table)["call"] for table in settings.airflow.notify):
        try:
            find_call(path)
        except ImportError as missing:
            hint = "install its package for Airflow, or mend the name"
            raise UsageError(f"airflow.notify: {path}: {missing}", hint=hint) from missing


def link_dag(link: LinkSettings, airflow: AirflowSettings) -> DAG:
    """Make `tidemark_sync__<link>`. Raises UsageError if its schedule or timezone is invalid."""
    dag = DAG(
        dag_id=LINK_DAG + link.name,
        dag_display_name=f"sync {link.name}",
        description=f"Ships the sealed files of site {link.site} to receiver {link.receiver}, verified and once.",
        doc_md=spell_doc(link_doc(link)),
        schedule=link_schedule(link),
        tags={"tidemark", "sync", f"site:{link.site}", f"receiver:{link.receiver}"},
        params=make_form(),
        **make_options(airflow, link),
    )
    with dag:
        _add_steps(link)
    return dag


def make_form() -> dict[str, Param]:
    """Make the fields of the trigger form; page, REST and command line all refuse wrong types."""
    return {
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Only show what would be sent: the plan stands in the log of select_files, nothing changes.",
        ),
        "only_paths": Param(
            [],
            type=["array", "null"],
            items={"type": "string", "minLength": 1},
            title="Only these paths",
            description="Globs of source paths, one a line, such as data/sequence/root.plant1/**. Empty: all of them.",
        ),
        "send_all_again": Param(
            False,
            type="boolean",
            title="Send all again",
            description="Also send files that were acknowledged before. The catalog takes each once; only the line pays.",
        ),
    }


def _add_steps(link: LinkSettings) -> None:
    def make_step(name: str, **options: Any) -> Any:
        return make_task(getattr(sync, name), **options)

    news = [landed_alias(link.receiver)]
    run = make_step("recover", outlets=news)(link=link.name, receiver=link.receiver)
    batches = make_step("select_files")(link=link.name, run=run)
    schema = make_step("sync_schema")(run=run)
    deletes = make_step("transfer_deletes")(run=run)
    # One after another: the engine inside one task owns the link's connections and its bandwidth.
    transfer = make_step("transfer_files", max_active_tis_per_dagrun=1, map_index_template="{{ batch['label'] }}")
    files = transfer.partial(run=run).expand(batch=batches)
    # A run without files skips transfer_files; its schema and drops must still land.
    finish = make_step("finish", outlets=news, trigger_rule="none_failed")
    finished = finish(run=run, receiver=link.receiver)
    cleaned = make_step("cleanup")(run=run)
    batches >> schema >> deletes >> files >> finished >> cleaned
