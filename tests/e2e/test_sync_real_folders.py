"""The main promise, by the command itself: a link over the data folder of a real IoTDB server, and `read --tall` gives
what the server answered, every point, tree and table model, TsFile V3 and V4."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.expected import SITES, RealSite
from tests.landing_maker import tsfiles_below
from tests.services.deployed import Deployed
from tests.services.filling_site import FillingSite
from tests.services.sshd import Sshd

FOLDERS = pytest.mark.parametrize("site", SITES.values(), ids=list(SITES))


def proved(deployed: Deployed, root: Path) -> None:
    """Sync, and hold all that can be asked about it against the server's answers."""
    site = deployed.site
    files = len(tsfiles_below(root, site.data))
    planned = deployed.run("plan", "plant1")
    run = deployed.run("sync", "plant1")
    assert (planned["files"], planned["state"]) == (files, "ready")
    assert (run["state"], run["files"], run["loaded"], run["pending"]) == ("loaded", files, files, 0)
    assert run["bytes"] == planned["bytes"] and run["schema"] > 0
    rows = site.rows()
    assert deployed.read("points.csv") == rows
    assert deployed.read("points.parquet", "--site", "plant1") == rows
    coverage = deployed.run("coverage")
    assert coverage["complete"] is True and coverage["red"] == [] and coverage["cells"] > 0
    proof = deployed.run("verify", "--deep")
    assert proof["differences"] == [] and proof["checked"] > files
    merged = deployed.run("merge")
    assert merged["groups"] > 0
    assert deployed.read("points.parquet") == rows
    assert deployed.run("sync", "plant1", "--fail-if-nothing", expect=(9,))["state"] == "nothing"
    (link,) = deployed.run("status")["links"]
    assert (link["backlog_files"], link["backlog_bytes"], link["oldest_unsent"]) == (0, 0, None)


@pytest.mark.full_after(1)
@FOLDERS
def test_a_folder_here(site: RealSite, tmp_path: Path) -> None:
    root = tmp_path / "site"
    FillingSite.whole(site, root)
    proved(Deployed(tmp_path / "deployed", site, root, tmp_path / "centre", here=True).write(), root)


@pytest.mark.full
@FOLDERS
def test_a_folder_behind_ssh(site: RealSite, tmp_path: Path, sshd: Sshd) -> None:
    root = sshd.new_folder("site")
    FillingSite.whole(site, root)
    proved(Deployed(tmp_path / "deployed", site, root, tmp_path / "centre", site_through=sshd).write(), root)


@pytest.mark.full
@pytest.mark.parametrize(
    ("tier", "folder"),
    [
        ("sshd_posix", "0.12.0"),
        ("sshd_sftp_only", "2.0.1-beta"),
        pytest.param("sshd_chroot", "0.12.0", marks=pytest.mark.soak),
    ],
)
def test_a_folder_behind_less_than_a_shell(tier: str, folder: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server, site = request.getfixturevalue(tier), SITES[folder]
    root = server.new_folder("site")
    FillingSite.whole(site, root)
    proved(Deployed(tmp_path / "deployed", site, root, tmp_path / "centre", site_through=server, here=True).write(), root)


@pytest.mark.full
def test_a_ledger_in_postgresql(tmp_path: Path, postgres_url: str) -> None:
    site, root = SITES["2.0.1-beta"], tmp_path / "site"
    FillingSite.whole(site, root)
    proved(Deployed(tmp_path / "deployed", site, root, tmp_path / "centre", ledger=postgres_url, here=True).write(), root)


@pytest.mark.full
def test_a_site_that_may_only_be_read(tmp_path: Path) -> None:
    """No snapshot: read in place."""
    site, root = SITES["0.12.0"], tmp_path / "site"
    FillingSite.whole(site, root)
    deployed = Deployed(tmp_path / "deployed", site, root, tmp_path / "centre", more='snapshot = ""', here=True)
    proved(deployed.write(), root)
    assert not list(root.rglob(".tidemark"))
