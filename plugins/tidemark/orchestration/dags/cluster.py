"""The DAG `tidemark_cluster_scale`: change a receiver's nodes by its trigger form. Source: docs/decisions/0015."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowSkipException

from tidemark.orchestration.dags.docs import SCALE_DOC, spell_doc
from tidemark.orchestration.dags.frame import ASKING, make_options, make_task
from tidemark.orchestration.tasks import cluster
from tidemark.settings.model import Settings

DAG_ID = "tidemark_cluster_scale"


class Approval(ApprovalOperator):  # type: ignore[misc]
    """A person's approval before anything moves. A dry run ends here; with "Ask first" off nobody is asked."""

    def execute(self, context: Any) -> Any:
        params = context["params"]
        if params["dry_run"]:
            raise AirflowSkipException("a dry run ends with its plan: see the log of plan")
        begun = (context["ti"].xcom_pull(task_ids="plan") or {}).get("state")
        if begun or not params["approval"]:
            self.log.info("nobody is asked: %s", f"it is {begun} already" if begun else '"Ask first" is off')
            return None
        return super().execute(context)


def scale_dags(settings: Settings) -> dict[str, DAG]:
    """Return the DAG by its id, if the settings have a cluster."""
    if settings.cluster is None:
        return {}
    receiver = settings.cluster_receiver
    dag = DAG(
        dag_id=DAG_ID,
        dag_display_name=f"scale {receiver}",
        description=f"Adds a node to the cluster of {receiver}, removes one, or evens out what they hold.",
        doc_md=spell_doc(SCALE_DOC),
        schedule=None,
        tags={"tidemark", "cluster", f"receiver:{receiver}"},
        params=make_form(sorted(settings.nodes)),
        **make_options(settings.airflow),
    )
    with dag:
        _add_steps(receiver)
    return {DAG_ID: dag}


def make_form(known: list[str]) -> dict[str, Param]:
    """Make the fields of the trigger form. `known`: nodes of the settings, for the help."""
    names = f" The settings have: {', '.join(known)}." if known else ""
    text = ["string", "null"]
    return {
        "kind": Param("rebalance", enum=["add", "remove", "rebalance"], title="Change", description="What is to happen."),
        "node": Param("", type=text, title="Node", description=f"Who joins or leaves; empty to rebalance.{names}"),
        "url": Param(
            "",
            type=text,
            title="Its folder",
            description="Of a node that joins and is not in the settings: sftp://user@host:port/folder, or file:///folder.",
        ),
        "host_key": Param("", type=text, title="Host key", description="SHA256:… of that node's server."),
        "key": Param("", type=text, title="Key file", description="Private key file of the login, as the workers see it."),
        "dry_run": Param(
            True, type="boolean", title="Dry run", description="Only the plan, in the log of plan; nothing changes."
        ),
        "approval": Param(
            True,
            type="boolean",
            title="Ask first",
            description="Wait for a person's word (Required Actions) before it begins.",
        ),
    }


def _add_steps(receiver: str) -> None:
    def make_step(name: str, **options: Any) -> Any:
        return make_task(getattr(cluster, name), **options)

    planned = make_step("plan")(receiver=receiver)
    approval = Approval(
        task_id="approval",
        subject="{{ params.kind }} {{ params.node or '' }}: shall it begin?",
        body="{{ ti.xcom_pull(task_ids='plan')['said'] }}",
        **ASKING,
    )
    batches = make_step("phase_one")(receiver=receiver)
    # One after another: a task uses all the connections and the bandwidth that [cluster] allows.
    move = make_step("migrate", max_active_tis_per_dagrun=1, map_index_template="{{ batch['label'] }}")
    moved = move.partial(receiver=receiver).expand(batch=batches)
    # With nothing to move `migrate` is skipped, and the change must still end; a rejected one skips both.
    finished = make_step("finish", trigger_rule="none_failed_min_one_success")(receiver=receiver)
    planned >> approval >> batches >> moved >> finished
    batches >> finished
