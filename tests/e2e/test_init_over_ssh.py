"""`init --site sftp://…` at real servers: what it writes works, and no host key is taken from the server itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.commanded import run_here
from tests.services.sshd import Sshd

REAL = Path(__file__).resolve().parents[1] / "data" / "iotdb" / "0.12.0"


def home_at(server: Sshd) -> str:
    home = server.new_folder()
    shutil.copytree(REAL, home, dirs_exist_ok=True)
    return server.url(home)


@pytest.mark.full_after(1)
@pytest.mark.real("sshd")
@pytest.mark.parametrize("fixture", ["sshd", "sshd_posix", "sshd_sftp_only", "sshd_chroot"])
def test_what_is_written_works_at_every_far_end(request: pytest.FixtureRequest, tmp_path: Path, fixture: str) -> None:
    server: Sshd = request.getfixturevalue(fixture)
    words = ["--site", f"edge={home_at(server)}", "--host-key", server.host_key, "--key", str(server.key)]
    said = run_here(tmp_path / "none", "init", str(tmp_path), *words)
    assert said.code == 0, said
    assert said.json["sites"][0]["data"] == ["data/data/sequence", "data/data/unsequence"]
    assert said.json["sites"][0]["version"] == "0.12.0"
    doctor = run_here(tmp_path / "tidemark.toml", "doctor")
    assert doctor.code == 0, doctor
    planned = run_here(tmp_path / "tidemark.toml", "plan", "edge")
    assert (planned.code, planned.json["state"]) == (0, "ready")


@pytest.mark.real("sshd")
def test_a_host_key_is_given_or_known_before(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    url = home_at(sshd)
    words = ["init", str(tmp_path), "--site", f"edge={url}", "--key", str(sshd.key)]
    unknown = run_here(tmp_path / "none", *words)
    unknown.refused(6, "no host_key for", sshd.host_key)
    assert "--host-key SHA256:" in unknown.json["hint"]
    assert not (tmp_path / "tidemark.toml").exists()
    other = run_here(tmp_path / "none", *words, "--host-key", "SHA256:" + "a" * 43)
    other.refused(6, "is another one")
    public = (sshd.folder / "host_key.pub").read_text().split()[:2]
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {' '.join(public)}\n")
    assert run_here(tmp_path / "none", *words).code == 0
    assert f'host_key = "{sshd.host_key}"' in (tmp_path / "tidemark.toml").read_text()
