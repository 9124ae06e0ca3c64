"""What a run has done and how long it will take is seen from another process while it works."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.expected import SITES
from tests.services.deployed import Deployed


def progress(deployed: Deployed) -> dict[str, Any] | None:
    (link,) = deployed.run("status")["links"]
    found: dict[str, Any] | None = link["progress"]
    assert found is None or link["state"] == "running"
    return found


@pytest.mark.full
def test_status_shows_files_bytes_rate_and_time_left_of_the_run_at_work(tmp_path: Path) -> None:
    site = SITES["2.0.1-beta"]
    for folder in (*site.data, site.schema):
        shutil.copytree(site.root / folder, tmp_path / "site" / folder)
    deployed = Deployed(tmp_path / "centre", site, tmp_path / "site", tmp_path / "receiver", link='bandwidth = "45 KB/s"')
    deployed.write()
    running = deployed.start("sync", "plant1", "--no-load")
    seen: list[dict[str, Any]] = []
    while running.poll() is None:
        found = progress(deployed)
        seen += [found] if found else []
    assert running.returncode == 0
    sending = [s for s in seen if s["phase"] == "transfer_files" and s["bytes_per_second"]]
    assert sending, seen
    last = sending[-1]
    assert 0 < last["bytes"] <= last["bytes_total"]
    assert last["files"] <= last["files_total"]
    assert last["seconds_left"] >= 0
    assert progress(deployed) is None, "nobody works any more"
