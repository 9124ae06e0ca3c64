"""A running Airflow: its pages in a headless browser, trigger, asset, kill -9, clear and rerun, a change of a cluster.

Whatever happens, every file is at the receiver once. All share one Airflow: to start one costs 20 s of both cores.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.services.browser import PATIENCE, open_browser
from tests.services.running_airflow import Deployment, RunningAirflow, wait
from tests.services.sshd import Sshd

pytestmark = [pytest.mark.full, pytest.mark.real("airflow")]
STEPS = ("recover", "select_files", "sync_schema", "transfer_deletes", "transfer_files", "finish", "cleanup")
PLANT1, PLANT2 = "tidemark_sync__plant1", "tidemark_sync__plant2"
SCALE = "tidemark_cluster_scale"
WATCH, RECOVER = "tidemark_replica_watch", "tidemark_replica_recover"
APPROVE = "tidemark_approve"
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


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAirflow]:
    """Airflow over two sites with real files. Each test leaves every link in step."""
    made = Deployment(tmp_path_factory.mktemp("deployment"))
    made.make()
    with RunningAirflow(made) as running:
        for dag in (PLANT1, PLANT2, "tidemark_load", "tidemark_verify", "tidemark_housekeep"):
            running.wait_for_dag(dag)
        yield running


@pytest.fixture
def deployment(airflow: RunningAirflow) -> Iterator[Deployment]:
    yield airflow.deployment
    airflow.deployment.lines.clear()
    airflow.deployment.stores.clear()
    airflow.deployment.write()


def sync(airflow: RunningAirflow, dag: str, **conf: object) -> str:
    run = airflow.trigger(dag, **conf)
    assert airflow.wait_for_run(dag, run) == "success", airflow.states(dag, run)
    return run


def link_of(deployment: Deployment, link: str, code: int = 0) -> dict[str, Any]:
    """The link in `status`, which ends with `code`."""
    links: dict[str, dict[str, Any]] = {one["name"]: one for one in deployment.tidemark("status", expect=(code,))["links"]}
    return links[link]


def all_loaded(deployment: Deployment, site: str) -> bool:
    landings = deployment.receiver(site).glob("landing/*/*")
    return all((landing / "receipt.json").exists() for landing in landings if (landing / "manifest.json").exists())


def test_a_triggered_sync_lands_every_file_and_its_news_start_a_load(
    airflow: RunningAirflow, deployment: Deployment
) -> None:
    before = {run["dag_run_id"] for run in airflow.runs("tidemark_load")}
    run = sync(airflow, PLANT1)
    assert airflow.states(PLANT1, run) == dict.fromkeys(STEPS, "success")
    assert deployment.landed("plant1") == deployment.sealed("plant1")

    def by_the_asset() -> list[str]:
        new = [r for r in airflow.runs("tidemark_load") if r["dag_run_id"] not in before]
        return [str(r["state"]) for r in new if r["run_type"] == "asset_triggered"]

    wait(lambda: "success" in by_the_asset(), "the load that the asset starts", 120)
    assert all_loaded(deployment, "plant1")
    assert deployment.tidemark("verify", "--receiver", "centre_plant1")["differences"] == []
    events = airflow.call("GET", "/api/v2/assets/events?source_dag_id=tidemark_load")["asset_events"]
    (told,) = [event["extra"] for event in events if event["uri"] == "tidemark://centre_plant1/catalog"]
    assert told["files"] == len(deployment.sealed("plant1")) and told["databases"] and told["from"] < told["to"]


def test_a_run_without_news_starts_no_load(airflow: RunningAirflow, deployment: Deployment) -> None:
    sync(airflow, PLANT1)
    wait(lambda: all(r["state"] in ("success", "failed") for r in airflow.runs("tidemark_load")), "quiet")
    before = len([r for r in airflow.runs("tidemark_load") if r["run_type"] == "asset_triggered"])
    run = sync(airflow, PLANT1)
    assert airflow.states(PLANT1, run)["transfer_files"] == "skipped"
    sync(airflow, PLANT1)  # the scheduler has looked at the first run's end by now
    assert len([r for r in airflow.runs("tidemark_load") if r["run_type"] == "asset_triggered"]) == before
    assert deployment.landed("plant1") == deployment.sealed("plant1")


def test_a_task_killed_in_the_middle_is_continued(airflow: RunningAirflow, deployment: Deployment) -> None:
    deployment.lines["plant2"] = 'bandwidth = "40 KB/s"'
    deployment.write()
    run = airflow.trigger(PLANT2)

    def running_pid() -> int:
        transfers = [ti for ti in airflow.instances(PLANT2, run) if ti["task_id"] == "transfer_files"]
        return next((int(ti["pid"]) for ti in transfers if ti["state"] == "running" and ti["pid"]), 0)

    wait(lambda: running_pid() > 1, "the transfer")
    time.sleep(2)  # of the nine that the bandwidth makes it take
    victim = running_pid()
    assert victim > 1, "else we would kill ourselves"
    assert link_of(deployment, "plant2")["state"] == "running"
    os.kill(victim, signal.SIGKILL)
    wait(lambda: link_of(deployment, "plant2")["state"] != "running", "the end of the worker", 10)
    gone = link_of(deployment, "plant2")
    assert gone["state"] == "interrupted" and "transfer_files, try 1 of 6: its process is gone" in gone["reason"]
    assert deployment.landed("plant2") == [], "no landing is whole yet"
    deployment.lines.clear()
    deployment.write()
    assert airflow.wait_for_run(PLANT2, run) == "success"
    tries = {ti["task_id"]: ti["try_number"] for ti in airflow.instances(PLANT2, run)}
    assert tries["transfer_files"] == 2
    assert tries["recover"] == 1
    assert deployment.landed("plant2") == deployment.sealed("plant2")


@pytest.mark.real("sshd")
def test_clear_failed_only_continues_once_the_cause_is_mended(
    airflow: RunningAirflow, deployment: Deployment, sshd: Sshd
) -> None:
    deployment.seal_another("plant2")
    reached = f'store = "{sshd.url(deployment.site("plant2"))}"\nkey = "{sshd.key}"\n'
    deployment.stores["plant2"] = f'{reached}host_key = "SHA256:{"A" * 43}"'
    deployment.write()
    run = airflow.trigger(PLANT2)
    assert airflow.wait_for_run(PLANT2, run) == "failed"
    assert airflow.states(PLANT2, run)["recover"] == "failed", "another host key is nothing that trying again could heal"
    said = [line["event"] for line in json.loads(airflow.log(PLANT2, run, "recover"))["content"]]
    last = [line for line in said if not line.startswith("::")][-1]
    assert sshd.host_key in last and "Next: " in last, said
    store = f"/api/v2/dags/{PLANT2}/dagRuns/{run}/taskInstances/recover/state-store"
    assert airflow.call("GET", f"{store}/error")["value"] == last, "the task's page shows the same sentence"
    failed = link_of(deployment, "plant2", code=23)
    assert failed["state"] == "failed" and "recover, try 1 of 6" in failed["reason"] and sshd.host_key in failed["reason"]
    deployment.stores["plant2"] = f'{reached}host_key = "{sshd.host_key}"'
    deployment.write()
    airflow.clear(PLANT2, run, only_failed=True)
    assert airflow.wait_for_run(PLANT2, run) == "success"
    assert "error" not in json.dumps(airflow.call("GET", store)), "nor does it go on showing it"
    assert deployment.landed("plant2") == deployment.sealed("plant2")
    assert link_of(deployment, "plant2")["state"] in ("landed", "idle")


def test_status_says_that_a_task_waits_for_its_next_try(airflow: RunningAirflow, deployment: Deployment) -> None:
    deployment.stores["plant2"] = f'store = "sftp://nobody@127.0.0.1:1/data"\nhost_key = "SHA256:{"A" * 43}"'
    deployment.write()
    run = airflow.trigger(PLANT2)
    wait(lambda: link_of(deployment, "plant2")["state"] == "retrying", "the first try's end", 60)
    between = link_of(deployment, "plant2")
    assert (between["try"], between["tries"]) == (1, 6) and between["next_try"] and "127.0.0.1" in between["reason"]
    assert deployment.tidemark("why", "plant2")["state"] == "retrying"
    deployment.stores.clear()
    deployment.write()
    assert airflow.wait_for_run(PLANT2, run) == "success"
    assert link_of(deployment, "plant2")["state"] in ("landed", "idle")


def test_a_finished_run_may_be_cleared_whole_or_in_any_task(airflow: RunningAirflow, deployment: Deployment) -> None:
    deployment.seal_another("plant1")
    run = sync(airflow, PLANT1)
    before = deployment.landed("plant1")
    assert before == deployment.sealed("plant1")
    airflow.call("POST", f"/api/v2/dags/{PLANT1}/dagRuns/{run}/clear", {"dry_run": False})
    assert airflow.wait_for_run(PLANT1, run) == "success"
    assert deployment.landed("plant1") == before
    for step in STEPS:
        airflow.clear(PLANT1, run, task_ids=[step])
        assert airflow.wait_for_run(PLANT1, run) == "success", step
        assert deployment.landed("plant1") == before, step
    assert all(ti["try_number"] >= 2 for ti in airflow.instances(PLANT1, run))


def test_a_dry_run_shows_its_plan_and_changes_nothing(airflow: RunningAirflow, deployment: Deployment) -> None:
    name = deployment.seal_another("plant1")
    before = deployment.landed("plant1")
    run = sync(airflow, PLANT1, dry_run=True)
    assert name in airflow.log(PLANT1, run, "select_files")
    plan = airflow.call("GET", f"/api/v2/dags/{PLANT1}/dagRuns/{run}/taskInstances/select_files/xcomEntries/plan")
    assert '"files": 1' in str(plan["value"]) or plan["value"]["files"] == 1
    assert deployment.landed("plant1") == before
    sync(airflow, PLANT1)
    assert deployment.landed("plant1") == deployment.sealed("plant1")


def test_wrong_words_in_the_form_are_refused(airflow: RunningAirflow) -> None:
    import urllib.error

    with pytest.raises(urllib.error.HTTPError) as refused:
        airflow.trigger(PLANT1, only_paths="data/**")
    assert refused.value.code == 400


def test_spark_loads_and_merges(airflow: RunningAirflow, deployment: Deployment) -> None:
    deployment.seal_another("plant1")
    deployment.engine = "spark"
    deployment.write()
    states: list[str] = []

    def ended() -> bool:
        """Of all runs at one moment: another one may begin in the next."""
        states[:] = [run["state"] for run in airflow.runs("tidemark_load")]
        return set(states) <= {"success", "failed"}

    try:
        sync(airflow, PLANT1)
        wait(lambda: all_loaded(deployment, "plant1"), "the load", 180)
        wait(ended, "the merge", 180)
    finally:
        deployment.engine = "pool"
        deployment.write()
    assert states[-1] == "success"
    assert deployment.tidemark("verify", "--deep", "--receiver", "centre_plant1")["differences"] == []


@pytest.fixture(scope="module")
def page(airflow: RunningAirflow) -> Iterator[Page]:
    """A browser that is logged in."""
    with open_browser(airflow) as opened:
        yield opened


def test_the_list_shows_a_dag_a_link_and_the_receivers_three(page: Page, airflow: RunningAirflow) -> None:
    page.goto(f"{airflow.ui}/dags")
    for name in ("sync plant1", "sync plant2", "tidemark load", "tidemark verify", "tidemark housekeep"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible(timeout=PATIENCE)


def test_the_page_of_a_link_says_what_to_do_when_a_task_is_red(page: Page, airflow: RunningAirflow) -> None:
    page.goto(f"{airflow.ui}/dags/{PLANT1}")
    for step in ("recover", "select_files", "sync_schema", "transfer_deletes", "transfer_files", "finish", "cleanup"):
        expect(page.get_by_text(re.compile(rf"^{step}")).first).to_be_visible(timeout=PATIENCE)
    page.get_by_test_id("markdown-button").click()
    for words in ("when it is red", "./tidemark doctor", "Clear any task"):
        expect(page.get_by_text(words).first).to_be_visible(timeout=PATIENCE)
    page.keyboard.press("Escape")


def test_the_trigger_form_has_typed_fields_and_starts_a_dry_run(page: Page, airflow: RunningAirflow) -> None:
    before = {run["dag_run_id"] for run in airflow.runs(PLANT1)}
    page.goto(f"{airflow.ui}/dags/{PLANT1}")
    page.get_by_test_id("trigger-dag-button").click()
    for title in ("Dry run", "Only these paths", "Send all again"):
        expect(page.get_by_text(title).first).to_be_visible(timeout=PATIENCE)
    expect(page.get_by_text("Globs of source paths").first).to_be_visible()
    dialog = page.get_by_role("dialog")
    dialog.locator("label:has(input[name=element_dry_run])").click()
    dialog.locator("textarea[name=element_only_paths]").fill("data/sequence/**")
    page.get_by_test_id("trigger-dag-submit").click()
    wait(lambda: {run["dag_run_id"] for run in airflow.runs(PLANT1)} > before, "the run that the form started")
    started = next(run for run in airflow.runs(PLANT1) if run["dag_run_id"] not in before)
    assert started["conf"] == {"dry_run": True, "only_paths": ["data/sequence/**"], "send_all_again": False}
    assert airflow.wait_for_run(PLANT1, started["dag_run_id"]) == "success"
    assert airflow.states(PLANT1, started["dag_run_id"])["finish"] == "skipped"


def test_a_person_reads_what_waits_and_says_no(airflow: RunningAirflow, deployment: Deployment) -> None:
    sync(airflow, PLANT2)
    folder, away = deployment.site("plant2") / "data", deployment.site("plant2") / "unmounted"
    count = len(deployment.sealed("plant2"))
    folder.rename(away)
    try:
        red = airflow.trigger(PLANT2)
        assert airflow.wait_for_run(PLANT2, red) == "failed"
        run = airflow.trigger(APPROVE, link="plant2")
        question = asked(airflow, run, APPROVE)
        assert question["subject"] == "plant2: shall these files be dropped?"
        assert f"{count} files are gone at the site" in question["body"] and "not mounted" in question["body"]
        answer(airflow, run, "Reject", APPROVE)
        assert airflow.wait_for_run(APPROVE, run) == "success"
        assert airflow.states(APPROVE, run) == {"find": "success", "approval": "success", "approve": "skipped"}
        assert link_of(deployment, "plant2")["state"] == "guard"
    finally:
        away.rename(folder)
    sync(airflow, PLANT2)
    assert link_of(deployment, "plant2")["state"] in ("landed", "idle")


@pytest.fixture
def spread(airflow: RunningAirflow) -> Iterator[Deployment]:
    """A receiver more, on three nodes; a folder for a fourth."""
    deployment = airflow.deployment
    for name in ("spread", "n1", "n2", "n3", "n4"):
        (deployment.root / name).mkdir(exist_ok=True)
    deployment.write(NODES)
    deployment.tidemark("cluster", "init")
    airflow.wait_for_dag(SCALE)
    yield deployment
    deployment.write()


def asked(airflow: RunningAirflow, run: str, dag: str = SCALE) -> dict[str, Any]:
    """What the person reads who is asked."""
    wait(lambda: airflow.states(dag, run).get("approval") == "awaiting_input", "the question", 120)
    return airflow.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/approval/-1/hitlDetails")


def answer(airflow: RunningAirflow, run: str, word: str, dag: str = SCALE) -> None:
    """An answer that comes while the question is still being put makes Airflow try the task again and ask once more (seen):
    a person would answer again."""
    path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/approval/-1/hitlDetails"

    def taken() -> bool:
        if (
            airflow.states(dag, run).get("approval") == "awaiting_input"
            and not airflow.call("GET", path)["response_received"]
        ):
            airflow.call("PATCH", path, {"chosen_options": [word], "params_input": {}})
        return airflow.states(dag, run).get("approval") == "success"

    wait(taken, f"the answer {word}", 120, 1.0)


def test_a_person_is_asked_before_a_node_joins(airflow: RunningAirflow, spread: Deployment) -> None:
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


def test_a_node_that_stays_away_leaves_and_another_one_joins(airflow: RunningAirflow, spread: Deployment) -> None:
    """Rounds of the watch miss it, the other DAG replaces it: by runs that a person triggers, besides those of the clock."""
    more = NODES.replace("quorum = 2", "quorum = 1\nreplace_hours = 1") + '[nodes.n5]\nstore = "n5"\n'
    spread.write(more + '[airflow]\nwatch_schedule = ""\nrecover_schedule = ""\n')
    for dag in (WATCH, RECOVER):
        airflow.wait_for_dag(dag)
    wait(lambda: "replace" in airflow.tasks(RECOVER), "the settings in the DAG")
    (spread.root / "n5").mkdir()
    shutil.move(spread.root / "n1", spread.root / "lost")
    for _ in range(3):
        sync(airflow, WATCH)

    def nodes() -> dict[str, str]:
        return {node["name"]: node["state"] for node in spread.tidemark("cluster", "show")["nodes"]}

    for _ in range(3):  # a round of the clock that is still on its way may note the time of before
        with closing(sqlite3.connect(spread.root / "var/ledger.db")) as rows, rows:
            rows.execute("UPDATE node_watch SET since = since - 7200 WHERE misses > 0")
        sync(airflow, RECOVER)
        if "n1" not in nodes():
            break
    assert nodes().keys() >= {"n2", "n3"} and "n1" not in nodes() and "n5" not in nodes()
    sync(airflow, WATCH)
    sync(airflow, RECOVER)
    assert nodes()["n5"] == "serving"
    assert spread.tidemark("cluster", "check")["problems"] == []
    sync(airflow, RECOVER)
    assert spread.tidemark("replica", "replace")["did"] == "", "nothing more is to be done"


def test_a_broken_edit_shows_its_line_and_stops_nobody(airflow: RunningAirflow, deployment: Deployment) -> None:
    line = len(deployment.config.read_text().splitlines()) + 1
    deployment.write(more="shedule = 1\n")

    def errors() -> list[str]:
        return [str(e["stack_trace"]) for e in airflow.call("GET", "/api/v2/importErrors")["import_errors"]]

    wait(lambda: len(errors()) > 0, "the import error")
    assert len(errors()) == 1
    assert f"tidemark.toml:{line}" in errors()[0]
    deployment.seal_another("plant2")
    sync(airflow, PLANT2)
    assert deployment.landed("plant2") == deployment.sealed("plant2")
    deployment.write()
    wait(lambda: errors() == [], "the mended settings")
