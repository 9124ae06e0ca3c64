"""Airflow's own pages in a headless browser: what a user of Tidemark sees and presses."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.services.running_airflow import RunningAirflow, wait

pytestmark = [pytest.mark.full, pytest.mark.real("airflow"), pytest.mark.real("chromium")]
DAG = "tidemark_sync__plant1"
PATIENCE = 60_000  # milliseconds


@pytest.fixture(scope="module")
def page(running_airflow: RunningAirflow) -> Iterator[Page]:
    """A browser that is logged in."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("chromium is not installed")
    running_airflow.wait_for_dag(DAG)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page(locale="en-US", viewport={"width": 1400, "height": 1000})
        opened.set_default_timeout(PATIENCE)
        opened.goto(running_airflow.ui)
        opened.locator("input[name=username]").fill(running_airflow.user)
        opened.locator("input[name=password]").fill(running_airflow.password)
        opened.locator("button[type=submit]").click()
        opened.wait_for_url(lambda url: "login" not in url)
        yield opened
        browser.close()


def test_the_list_shows_a_dag_a_link_and_the_receivers_three(page: Page, running_airflow: RunningAirflow) -> None:
    page.goto(f"{running_airflow.ui}/dags")
    for name in ("sync plant1", "sync plant2", "tidemark_load", "tidemark_verify", "tidemark_housekeep"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible(timeout=PATIENCE)


def test_the_page_of_a_link_says_what_to_do_when_a_task_is_red(page: Page, running_airflow: RunningAirflow) -> None:
    page.goto(f"{running_airflow.ui}/dags/{DAG}")
    for step in ("recover", "select_files", "sync_schema", "transfer_deletes", "transfer_files", "finish", "cleanup"):
        expect(page.get_by_text(re.compile(rf"^{step}")).first).to_be_visible(timeout=PATIENCE)
    page.get_by_test_id("markdown-button").click()
    for words in ("when it is red", "./tidemark doctor", "Clear any task"):
        expect(page.get_by_text(words).first).to_be_visible(timeout=PATIENCE)
    page.keyboard.press("Escape")


def test_the_trigger_form_has_typed_fields_and_starts_a_dry_run(page: Page, running_airflow: RunningAirflow) -> None:
    before = {run["dag_run_id"] for run in running_airflow.runs(DAG)}
    page.goto(f"{running_airflow.ui}/dags/{DAG}")
    page.get_by_test_id("trigger-dag-button").click()
    for title in ("Dry run", "Only these paths", "Send all again"):
        expect(page.get_by_text(title).first).to_be_visible(timeout=PATIENCE)
    expect(page.get_by_text("Globs of source paths").first).to_be_visible()
    dialog = page.get_by_role("dialog")
    dialog.locator("label:has(input[name=element_dry_run])").click()
    dialog.locator("textarea[name=element_only_paths]").fill("data/sequence/**")
    page.get_by_test_id("trigger-dag-submit").click()
    wait(lambda: {run["dag_run_id"] for run in running_airflow.runs(DAG)} > before, "the run that the form started")
    started = next(run for run in running_airflow.runs(DAG) if run["dag_run_id"] not in before)
    assert started["conf"] == {"dry_run": True, "only_paths": ["data/sequence/**"], "send_all_again": False}
    assert running_airflow.wait_for_run(DAG, started["dag_run_id"]) == "success"
    assert running_airflow.states(DAG, started["dag_run_id"])["finish"] == "skipped"
