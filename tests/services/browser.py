"""A headless browser that is logged in to an Airflow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.services.running_airflow import RunningAirflow

PATIENCE = 60_000  # milliseconds that a page is waited for


@contextmanager
def open_browser(airflow: RunningAirflow) -> Iterator[Page]:
    """Yield a page. Skips the test where chromium is not installed."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("chromium is not installed")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page(locale="en-US", viewport={"width": 1400, "height": 1000})
        opened.set_default_timeout(PATIENCE)
        opened.goto(airflow.ui)
        opened.locator("input[name=username]").fill(airflow.user)
        opened.locator("input[name=password]").fill(airflow.password)
        opened.locator("button[type=submit]").click()
        opened.wait_for_url(lambda url: "login" not in url)
        yield opened
        browser.close()
