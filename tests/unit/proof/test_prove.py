"""status and coverage through the real flows, on files of a real server."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest

from tidemark.errors import NotFoundError, TidemarkError, UsageError
from tidemark.formats.layout import MANIFEST
from tidemark.proof.overview import status
from tidemark.proof.prove import coverage
from tidemark.settings.model import LinkSettings, ReceiverSettings
from tidemark.sync.run import Options, run_sync

Deploy = Callable[..., "Deployment"]  # type: ignore[name-defined] # noqa: F821


def _one(deployment):
    (link,) = status(deployment.app).as_json()["links"]
    return link


def test_a_link_goes_from_new_to_idle(deploy: Deploy) -> None:
    d = deploy()
    assert (_one(d)["state"], _one(d)["backlog_known"]) == ("new", False)
    d.sync()
    link = _one(d)
    assert (link["state"], link["backlog_known"], link["backlog_files"], link["lag_seconds"]) == ("idle", True, 0, 0.0)
    assert link["last_run_state"] == "finished"


def test_what_waits_at_a_site_that_no_run_could_list_is_not_known(deploy: Deploy) -> None:
    d = deploy()
    away = d.site.rename(d.site.with_name("away"))
    with pytest.raises(TidemarkError):
        d.sync()
    link = _one(d)
    assert (link["state"], link["backlog_known"]) == ("failed", False)
    away.rename(d.site)
    d.sync()
    d.site.rename(away)
    link = _one(d)
    assert (link["state"], link["backlog_known"], link["backlog_files"]) == ("idle", True, 0), "by the last listing"


def test_a_link_whose_receiver_did_not_load_is_landed(deploy: Deploy) -> None:
    d = deploy()
    d.sync(no_load=True)
    assert _one(d)["state"] == "landed"
    d.load()
    assert _one(d)["state"] == "idle", "the ledger knows, whoever loaded"
    d.sync(no_load=True)  # reads the answer
    assert _one(d)["state"] == "idle"


def test_status_needs_no_site(deploy: Deploy) -> None:
    d = deploy()
    d.sync()
    shutil.rmtree(d.site)
    assert _one(d)["state"] == "idle"


def test_everything_loaded_is_complete(deploy: Deploy) -> None:
    d = deploy(None)
    d.sync()
    found = coverage(d.app, d.receiver).as_json()
    assert found["complete"] is True
    assert found["share"] == 1.0
    assert found["cells"] > 100
    assert found["red"] == []


def test_a_landing_that_is_not_loaded_is_red(deploy: Deploy) -> None:
    d = deploy()
    d.sync(no_load=True)
    found = coverage(d.app, d.receiver).as_json()
    assert found["share"] == 0.0
    assert found["red_cells"] == found["cells"] > 0
    assert all("is not loaded yet" in cell["why"] for cell in found["red"])
    d.load()
    assert coverage(d.app, d.receiver).is_complete


def test_a_missing_landing_is_a_gap_with_its_number(deploy: Deploy) -> None:
    d = deploy()
    d.sync()
    victim = d.files()[0]
    shutil.copy2(victim, victim.with_name(victim.name.replace("-", "9-", 1)))
    copied = victim.with_name(victim.name.replace("-", "9-", 1) + ".resource")
    shutil.copy2(victim.with_name(victim.name + ".resource"), copied)
    d.sync(no_load=True)
    (lost,) = [p.parent for p in d.centre.glob(f"landing/*/*/{MANIFEST}") if not p.with_name("receipt.json").exists()]
    shutil.move(lost, d.centre / "elsewhere")
    victim.unlink()
    d.sync()
    found = coverage(d.app, d.receiver).as_json()
    gaps = [cell for cell in found["red"] if cell["device"] == "*"]
    assert len(gaps) == 1
    assert "landing 2" in gaps[0]["why"]
    assert not found["complete"]
    assert _one(d)["state"] == "gap"
    shutil.move(d.centre / "elsewhere", lost)
    d.load()
    assert coverage(d.app, d.receiver).is_complete


def test_a_data_file_that_is_gone_or_changed_is_red(deploy: Deploy) -> None:
    d = deploy()
    d.sync()
    assert coverage(d.app, d.receiver).is_complete
    first, second, *_ = sorted(d.centre.glob("data/**/*.tsfile"))
    kept = first.read_bytes()
    first.unlink()
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    whys = {cell["why"] for cell in coverage(d.app, d.receiver).as_json()["red"]}
    assert any("is missing" in why for why in whys)
    assert any("was recorded" in why for why in whys)
    first.write_bytes(kept)
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    assert coverage(d.app, d.receiver).is_complete


def test_files_seen_and_not_sent_are_red_with_the_links_reason(deploy: Deploy) -> None:
    d = deploy()
    first = d.path(d.files()[0])
    run_sync(d.app, "plant1", Options(only_paths=(first,)))
    found = coverage(d.app, d.receiver).as_json()
    assert 0.0 < found["share"] < 1.0
    assert not any(first in cell["why"] for cell in found["red"])
    link = _one(d)
    assert link["backlog_files"] == len(d.files()) - 1
    assert link["lag_seconds"] > 0
    assert link["oldest_unsent_path"]


def test_files_that_the_patterns_leave_out_are_not_expected(deploy: Deploy) -> None:
    d = deploy()
    d.app.settings = replace(d.app.settings, links={"plant1": replace(d.app.link_settings("plant1"), exclude=("**",))})
    d.sync()
    report = coverage(d.app, d.receiver)
    assert report.is_complete
    assert report.cells == 0
    assert "left out" in report.as_json()["notes"][0]
    assert _one(d)["backlog_files"] == 0


def test_days_and_sites_can_be_chosen(deploy: Deploy) -> None:
    d = deploy(None)
    d.sync()
    whole = coverage(d.app, d.receiver)
    first = min(s.first for site in whole.sites for s in site.stretches)
    one = coverage(d.app, d.receiver, "plant1", until=str((first + 1) * 86_400_000))
    assert 0 < one.cells < whole.cells
    with pytest.raises(NotFoundError, match="'nowhere'"):
        coverage(d.app, d.receiver, "nowhere")
    with pytest.raises(UsageError, match="neither an integer nor"):
        coverage(d.app, d.receiver, since="soon")


def test_a_remote_receiver_cannot_be_covered_from_here(deploy: Deploy) -> None:
    d = deploy()
    remote = ReceiverSettings("far", "sftp://u@h:22/srv")
    with pytest.raises(UsageError, match="far is remote"):
        coverage(d.app, remote)


def test_a_link_of_the_settings_that_never_ran_is_shown(deploy: Deploy) -> None:
    d = deploy()
    links = {**d.app.settings.links, "second": LinkSettings("second", "plant1", "centre")}
    d.app.settings = replace(d.app.settings, links=links)
    assert [link["name"] for link in status(d.app).as_json()["links"]] == ["plant1", "second"]
