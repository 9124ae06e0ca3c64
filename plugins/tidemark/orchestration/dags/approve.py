"""The DAG `tidemark_approve`: drops that a guard holds, approved by a person on Airflow's page of Required Actions."""

from __future__ import annotations

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param

from tidemark.orchestration.dags.docs import APPROVE_DOC, spell_doc
from tidemark.orchestration.dags.frame import ASKING, make_options, make_task
from tidemark.orchestration.tasks import approval as tasks_approval
from tidemark.settings.model import Settings

DAG_ID = "tidemark_approve"


def approve_dags(settings: Settings) -> dict[str, DAG]:
    """Return the DAG by its id, if the settings have a link."""
    links = sorted(settings.links)
    if not links:
        return {}
    with DAG(
        dag_id=DAG_ID,
        dag_display_name="tidemark approve",
        description="Shows the drops that wait at a link, with numbers and paths, and approves them when a person says so.",
        doc_md=spell_doc(APPROVE_DOC),
        schedule=None,
        tags={"tidemark", "sync"},
        params={"link": Param(links[0], enum=links, title="Link", description="Whose drops wait: its cleanup is red.")},
        **make_options(settings.airflow),
    ) as dag:
        find = make_task(tasks_approval.find)()
        approval = ApprovalOperator(
            task_id="approval",
            subject="{{ params.link }}: shall these files be dropped?",
            body="{{ ti.xcom_pull(task_ids='find')['said'] }}",
            **ASKING,
        )
        approved = make_task(tasks_approval.approve)(find)
        find >> approval >> approved
    return {DAG_ID: dag}
