"""What changes under a DAG run that is at work: the settings, and the version of the ledger."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from airflow.sdk.definitions.retry_policy import RetryAction

from tests.commanded import run_here
from tests.dags.conftest import Centre
from tests.dags.test_runs import Dag
from tidemark.errors import NotFoundError, PermanentError, SchemaTooNewError
from tidemark.ledger.database import Ledger
from tidemark.ledger.migrations import FOLDER, known_migrations, migrate_ledger
from tidemark.orchestration.retry_policy import TidemarkRetryPolicy
from tidemark.orchestration.tasks import sync as sync_tasks


def end(dag: Dag, run: str) -> None:
    dag.transfer(run)
    dag.finish(run)
    sync_tasks.cleanup(run)


def break_settings(centre: Centre) -> None:
    centre.config.write_text('[links.plant1\nsite = "pl')


def move_the_site(centre: Centre) -> None:
    centre.site.rename(centre.root / "moved")
    centre.config.write_text(centre.config.read_text().replace('store = "plant1"', 'store = "moved"'))


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    "change",
    [
        lambda centre: centre.write(connections="2", retries="0", schedule='"0 1 * * *"'),
        lambda centre: centre.write('[links.other]\nsite = "plant1"\nreceiver = "centre"\n'),
        break_settings,
        move_the_site,
    ],
    ids=["other values", "a second link of the site", "broken", "another folder of the site"],
)
def test_a_run_goes_on_by_the_settings_of_now(centre: Centre, change: Callable[[Centre], None]) -> None:
    dag = Dag()
    run, sealed = dag.recover(), centre.sealed()
    change(centre)
    end(dag, run)
    assert centre.landed() == sealed


@pytest.mark.full
def test_a_link_that_is_taken_out_in_mid_run_is_named_and_goes_on_when_it_is_back(centre: Centre) -> None:
    dag, text = Dag(), centre.config.read_text()
    run = dag.recover()
    centre.config.write_text(text.replace("[links.plant1]", "[links.plant2]"))
    with pytest.raises(NotFoundError, match="'plant1'") as gone:
        dag.transfer(run)
    assert gone.value.hint
    centre.config.write_text(text)
    end(dag, run)
    assert centre.landed() == centre.sealed()


@pytest.mark.full
def test_a_link_that_gets_another_receiver_in_mid_run_sends_nothing_there(centre: Centre) -> None:
    dag, text = Dag(), centre.config.read_text()
    run = dag.recover()
    centre.config.write_text(f'{text}receiver = "other"\n[receivers.other]\nstore = "other"\n')
    with pytest.raises(PermanentError, match="plant1"):
        end(dag, run)
    assert not (centre.root / "other").exists()
    centre.config.write_text(text)
    end(dag, run)
    assert centre.landed() == centre.sealed()


def test_an_older_tidemark_refuses_a_newer_ledger_by_name_and_leaves_it(centre: Centre, tmp_path: Path) -> None:
    dag = Dag()
    begun = dag.recover()
    newer = tmp_path / "sql"
    shutil.copytree(FOLDER, newer)
    known = len(known_migrations())
    (newer / f"{known + 1:04}_of_tomorrow.sql").write_text("CREATE TABLE tomorrow (at TEXT)  -- when\n;")
    ledger = Ledger("sqlite:///ledger.db", centre.root)
    migrate_ledger(ledger, newer)
    ledger.close()
    says = f"the ledger has schema {known + 1}, this Tidemark knows {known}"
    with pytest.raises(SchemaTooNewError, match=says) as refused:
        dag.transfer(begun)
    assert TidemarkRetryPolicy().evaluate(refused.value, 1, 5).action is RetryAction.FAIL
    for words in (("sync", "plant1"), ("status",), ("load",), ("ledger", "upgrade")):
        said = run_here(centre.config, *words)
        said.refused(SchemaTooNewError.kind, says)
        assert "upgrade Tidemark" in said.json["hint"]
    assert centre.landed() == []
