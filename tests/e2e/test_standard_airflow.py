"""The wheel's DAGs in a standard Airflow, as a shop that has one uses them: a Connection as login, a site that fails, a
notifier, an approval under Required Actions, and a DAG of the user's that the catalog's news start. Seen in a browser, too.

Airflow is installed by the plain resolver. Its constraints files are on a server that these tests do not ask.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.services.browser import open_browser
from tests.services.installed_wheel import ROOT, Installed, build_wheel
from tests.services.postgres import Postgres
from tests.services.processes import PartMissing
from tests.services.running_airflow import DATA, wait
from tests.services.sshd import Sshd
from tests.services.standard_airflow import PACKAGE, StandardAirflow

pytestmark = [pytest.mark.full, pytest.mark.real("uv"), pytest.mark.real("sshd"), pytest.mark.timeout(900)]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHIP, AWAY = "tidemark_sync__ship", "tidemark_sync__away"
SETTINGS = """
[airflow]
load_schedule = ""
verify_schedule = ""
housekeep_schedule = ""
notify = [{{call = "pager.page"}}]
default_args = {{retries = 0}}

[receivers.centre]
store = "centre"

[sites.ship]
id = "5d0f6a1e-7c5b-4f0e-9a57-2f6f3a1c7e01"
store = "sftp://127.0.0.1:{port}{folder}"
connection = "ship"
data = ["data/sequence", "data/unsequence"]
schema = "system/schema"
prefix = "root.ship"

[sites.away]
id = "b1f0c3de-2f64-4a0b-8d0b-6c2f9f0f7a02"
store = "sftp://127.0.0.1:{port}{folder}"
connection = "away"
data = ["data/sequence", "data/unsequence"]
prefix = "root.away"

[links.ship]
site = "ship"
schedule = ""
deletes = "apply"
delete_limit_files = 3

[links.away]
site = "away"
schedule = ""
"""
PAGER = """
import os
from pathlib import Path

def page(context):
    with Path(os.environ["PAGED"]).open("a") as told:
        told.write(context["tidemark"]["message"] + "\\n")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edge") / "site"
    for part in ("data", "system"):
        shutil.copytree(DATA / part, folder / part)
    return folder


@pytest.fixture(scope="module")
def airflow(
    tmp_path_factory: pytest.TempPathFactory, sshd: Sshd, site: Path, postgres: Postgres
) -> Iterator[StandardAirflow]:
    place = tmp_path_factory.mktemp("standard")
    try:
        wheel = build_wheel(place / "wheel")
    except PartMissing as missing:
        pytest.skip(str(missing))
    installed = Installed(wheel, place, f"{wheel}[airflow]", PACKAGE)
    home, settings = place / "airflow", place / "settings"
    for folder in (home / "dags", home / "plugins", settings):
        folder.mkdir(parents=True)
    (home / "plugins" / "pager.py").write_text(PAGER)
    (home / "dags" / "report.py").write_text(
        next(b for b in BLOCK.findall((ROOT / "docs/airflow.md").read_text()) if "daily" in b)
    )
    config = settings / "tidemark.toml"
    config.write_text(SETTINGS.format(port=sshd.port, folder=site))
    with StandardAirflow(installed, home, config, postgres.new_database(), PAGED=str(place / "paged")) as running:
        for connection, key in (("ship", sshd.key.read_text()), ("away", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA")):
            extra = {"private_key": key, "host_key": sshd.host_key}
            body = {"connection_id": connection, "conn_type": "sftp", "host": "127.0.0.1", "login": sshd.user}
            body |= {"extra": json.dumps(extra)}
            running.call("POST", "/api/v2/connections", body)
        for dag in (SHIP, AWAY, "tidemark_load", "tidemark_approve", "daily_report"):
            running.wait_for_dag(dag)
        yield running


def paged(airflow: StandardAirflow) -> list[str]:
    told = Path(airflow.environment["PAGED"])
    return told.read_text().splitlines() if told.exists() else []


def test_a_sync_by_a_connection_ends_in_a_dag_of_the_user_s(airflow: StandardAirflow, site: Path) -> None:
    run = airflow.trigger(SHIP)
    assert airflow.wait_for_run(SHIP, run) == "success", airflow.states(SHIP, run)
    wait(lambda: [r["state"] for r in airflow.runs("daily_report")] == ["success"], "the user's own DAG", 240)
    [report] = airflow.runs("daily_report")
    assert report["run_type"] == "asset_triggered"
    assert "root.ship.plant1" in airflow.log("daily_report", report["dag_run_id"], "report")
    shown = airflow.tidemark("status")["links"]
    assert {link["name"]: link["state"] for link in shown} == {"away": "new", "ship": "idle"}
    sealed = sorted(str(path.relative_to(site)) for path in (site / "data").rglob("*.tsfile"))
    assert airflow.tidemark("verify", "--site", "ship")["checked"] >= len(sealed)
    assert paged(airflow) == []


def test_a_login_that_fails_is_one_sentence_and_somebody_is_told(airflow: StandardAirflow) -> None:
    run = airflow.trigger(AWAY)
    assert airflow.wait_for_run(AWAY, run) == "failed"
    said = [line["event"] for line in json.loads(airflow.log(AWAY, run, "recover"))["content"]]
    last = [line for line in said if not line.startswith("::")][-1]
    assert "connection 'away'" in last and "Next: " in last and "./tidemark" not in last, said
    [message] = paged(airflow)
    assert message.startswith(f"{AWAY}.recover failed: ") and last in message
    assert "AAAA" not in "".join(said) + message
    assert airflow.tidemark("status", expect=(23,))["links"][0]["state"] == "failed"


def test_files_that_vanish_wait_for_a_person_on_the_page(airflow: StandardAirflow, site: Path, page: Page) -> None:
    gone = sorted((site / "data/sequence/root.plant1").rglob("*.tsfile"))
    assert len(gone) > 3
    shutil.rmtree(site / "data/sequence/root.plant1")
    red = airflow.trigger(SHIP)
    assert airflow.wait_for_run(SHIP, red) == "failed"
    assert "drops wait for approval" in paged(airflow)[-1]
    run = airflow.trigger("tidemark_approve", link="ship")
    wait(lambda: airflow.states("tidemark_approve", run).get("approval") == "awaiting_input", "the question", 120)
    page.goto(f"{airflow.ui}/required_actions")
    page.get_by_text("ship: shall these files be dropped?").first.click()
    expect(page.get_by_text(f"{len(gone)} files are gone at the site").first).to_be_visible()
    take_picture(airflow, page, "approval")
    page.get_by_role("button", name="Approve").click()

    def approved() -> bool:
        """Asked again, for the answer came too early, a person says so again."""
        if airflow.states("tidemark_approve", run).get("approval") == "awaiting_input":
            page.reload()
            page.get_by_role("button", name="Approve").click()
            page.wait_for_timeout(2000)
        return airflow.states("tidemark_approve", run).get("approval") == "success"

    wait(approved, "the approval", 120, 2.0)
    assert airflow.wait_for_run("tidemark_approve", run) == "success", airflow.states("tidemark_approve", run)
    done = airflow.trigger(SHIP)
    assert airflow.wait_for_run(SHIP, done) == "success", airflow.states(SHIP, done)


def test_what_a_person_sees(airflow: StandardAirflow, page: Page) -> None:
    page.goto(f"{airflow.ui}/dags")
    for name in ("sync ship", "sync away", "tidemark approve", "daily_report"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    take_picture(airflow, page, "dags")
    [red] = [run["dag_run_id"] for run in airflow.runs(AWAY) if run["state"] == "failed"][:1]
    page.goto(f"{airflow.ui}/dags/{AWAY}/runs/{red}/tasks/recover")
    expect(page.get_by_text(re.compile(r"PermanentError: .*connection 'away'.*Next: ")).first).to_be_visible()
    take_picture(airflow, page, "red-task")
    page.goto(f"{airflow.ui}/assets")
    expect(page.get_by_text("catalog of centre").first).to_be_visible()
    take_picture(airflow, page, "assets")
    page.goto(f"{airflow.ui}/dags/{SHIP}")
    expect(page.get_by_text(re.compile("^transfer_files")).first).to_be_visible()
    take_picture(airflow, page, "link")


def take_picture(airflow: StandardAirflow, page: Page, name: str) -> None:
    """Keep what the page shows, in Airflow's home, for whoever looks."""
    page.wait_for_timeout(1500)
    page.screenshot(path=airflow.home / f"{name}.png")


@pytest.fixture(scope="module")
def page(airflow: StandardAirflow) -> Iterator[Page]:
    with open_browser(airflow) as opened:
        yield opened
