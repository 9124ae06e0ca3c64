"""`doctor` against real servers of every kind: what it says of each far end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services.sshd import FarEnd, Sshd
from tidemark.errors import PermissionDeniedError
from tidemark.operations.doctor.doctor import DoctorReport, doctor
from tidemark.stores.open import open_store
from tidemark.stores.protocol import StoreAddress

SITE = '[sites.plant1]\nid = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"\ndata = ["data/sequence"]\n'


def examine(folder: Path, server: Sshd, **change: str) -> DoctorReport:
    store = server.new_folder()
    (store / "data" / "sequence" / "root.a").mkdir(parents=True)
    (store / "data" / "sequence" / "root.a" / "1-1-0-0.tsfile").write_bytes(b"TsFile")
    keys = {"store": server.url(store), "host_key": server.host_key, "key": str(server.key)} | change
    told = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
    centre = told.replace(f'"{keys["store"]}"', f'"{server.url(server.new_folder())}"')
    (folder / "tidemark.toml").write_text(f"{SITE}{told}[receivers.centre]\n{centre}")
    return doctor(str(folder / "tidemark.toml"), {})


@pytest.mark.full_after(1)
@pytest.mark.real("sshd")
@pytest.mark.parametrize(
    ("fixture", "says"),
    [
        ("sshd", "python3 and a shell"),
        ("sshd_posix", "no python3"),
        ("sshd_sftp_only", "SFTP only"),
        ("sshd_chroot", "SFTP only"),
    ],
)
def test_each_far_end_is_known_and_tried(request: pytest.FixtureRequest, tmp_path: Path, fixture: str, says: str) -> None:
    report = examine(tmp_path, request.getfixturevalue(fixture))
    assert report.exit_code == 0, [check for check in report.checks if not check.ok]
    checks = {check.name: check.detail for check in report.checks}
    assert says in checks["site plant1"]
    assert checks["site plant1: hard links for data/sequence"] == "data/.tidemark is on the same disk"
    assert "written, looked at and removed" in checks["receiver centre: write"]
    assert checks["receiver centre: clock"] == "agrees with ours"


@pytest.mark.full_after(1)
@pytest.mark.real("sshd")
@pytest.mark.parametrize(("mode", "told"), [(0o600, False), (0o644, True)])
def test_a_key_that_others_may_read_is_told_though_it_logs_in(sshd: Sshd, tmp_path: Path, mode: int, told: bool) -> None:
    key = tmp_path / "key"
    key.write_bytes(sshd.key.read_bytes())
    key.chmod(mode)
    report = examine(tmp_path, sshd, key=str(key))
    checks = {check.name: check.detail for check in report.checks}
    assert report.exit_code == 0 and ("chmod 600" in checks.get("site plant1: key", "")) is told


@pytest.mark.full_after(1)
@pytest.mark.real("sshd")
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_key_that_others_may_write_is_not_used(sshd: Sshd, tmp_path: Path, mode: int) -> None:
    key = tmp_path / "key"
    key.write_bytes(sshd.key.read_bytes())
    key.chmod(mode)
    report = examine(tmp_path, sshd, key=str(key))
    assert report.exit_code == 6
    bad = [check for check in report.checks if not check.ok]
    assert {check.name for check in bad} == {"site plant1", "receiver centre"}
    assert all("may be written by others" in check.detail and f"chmod 600 {key}" in check.hint for check in bad)
    with pytest.raises(PermissionDeniedError, match="may be written by others"):
        open_store(StoreAddress(sshd.url(), sshd.host_key, str(key)))


@pytest.mark.full
@pytest.mark.real("sshd")
def test_a_forced_tier_is_shown_beside_what_a_probe_finds(sshd: Sshd, sshd_posix: Sshd, tmp_path: Path) -> None:
    report = examine(tmp_path, sshd, tier="sftp")
    checks = {check.name: check for check in report.checks}
    assert report.exit_code == 0 and "SFTP only" in checks["site plant1"].detail
    assert 'tier = "sftp" is forced' in checks["site plant1: tier"].detail
    assert "the probe finds python3" in checks["site plant1: tier"].detail

    report = examine(tmp_path, sshd_posix, tier="python")
    checks = {check.name: check for check in report.checks}
    assert report.exit_code == 6
    assert "no python3" in checks["site plant1"].detail and 'tier = "auto"' in checks["site plant1"].hint
    assert not checks["site plant1: tier"].ok and "the probe finds posix" in checks["site plant1: tier"].detail


@pytest.mark.real("sshd")
def test_another_host_key_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    report = examine(tmp_path, sshd, host_key="SHA256:" + "A" * 43)
    assert report.exit_code == 6
    site = next(check for check in report.checks if check.name == "site plant1")
    assert sshd.host_key in site.detail + site.hint


@pytest.mark.real("sshd")
def test_a_key_that_may_not_log_in_is_told(sshd: Sshd, start_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    stranger = start_sshd(FarEnd.SHELL)
    report = examine(tmp_path, sshd, key=str(stranger.key))
    assert report.exit_code == 6


@pytest.mark.full
@pytest.mark.real("sshd")
def test_a_server_that_is_gone_is_retryable(start_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    server = start_sshd(FarEnd.SHELL)
    server.stop()
    report = examine(tmp_path, server)
    assert report.exit_code == 5
