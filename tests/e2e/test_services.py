"""The real parts that other tests lean on are what they claim to be."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import psycopg
import pytest

from tests.services.postgres import Postgres
from tests.services.sshd import FarEnd, Sshd


def ssh(server: Sshd, command: str) -> subprocess.CompletedProcess[str]:
    line = ["ssh", *server.ssh_options(), f"{server.user}@{server.host}", command]
    return subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)


def sftp(server: Sshd, batch: str) -> subprocess.CompletedProcess[str]:
    options = [option if option != "-p" else "-P" for option in server.ssh_options()]
    line = ["sftp", *options, "-b", "-", f"{server.user}@{server.host}"]
    return subprocess.run(line, input=batch, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.real("sshd")
def test_shell_end_runs_python(sshd: Sshd) -> None:
    assert ssh(sshd, "python3 -c 'print(6*7)'").stdout == "42\n"


@pytest.mark.full
@pytest.mark.real("sshd")
def test_posix_end_has_tools_but_no_python(sshd_posix: Sshd) -> None:
    (sshd_posix.files / "a").write_bytes(b"abc")
    assert ssh(sshd_posix, f"sha256sum {sshd_posix.files}/a").stdout.startswith("ba7816bf")
    assert ssh(sshd_posix, "python3 -V || python -V || perl -v").returncode == 127
    assert sftp(sshd_posix, f"ls {sshd_posix.files}").returncode == 0


@pytest.mark.full
@pytest.mark.real("sshd")
def test_sftp_only_end_runs_no_command(sshd_sftp_only: Sshd) -> None:
    assert "42" not in ssh(sshd_sftp_only, "echo 42").stdout
    (sshd_sftp_only.files / "b").write_bytes(b"b")
    assert f"{sshd_sftp_only.files}/b" in sftp(sshd_sftp_only, f"ls {sshd_sftp_only.files}").stdout


@pytest.mark.real("sshd")
def test_chroot_end_sees_its_own_root(sshd_chroot: Sshd) -> None:
    folder = sshd_chroot.new_folder()
    (folder / "c").write_bytes(b"c")
    remote = sshd_chroot.url(folder).split(str(sshd_chroot.port), 1)[1]
    assert remote == f"/files/{folder.name}"
    assert f"{remote}/c" in sftp(sshd_chroot, f"ls {remote}").stdout


@pytest.mark.full
@pytest.mark.real("sshd")
def test_a_server_can_go_away_and_come_back(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd(FarEnd.SHELL)
    server.stop()
    assert ssh(server, "true").returncode == 255
    server.restart()
    assert ssh(server, "true").returncode == 0


@pytest.mark.full
@pytest.mark.real("postgresql")
def test_each_test_gets_a_database_of_its_own(postgres: Postgres, postgres_url: str) -> None:
    other = postgres.new_database()
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
        connection.execute("CREATE TABLE t (a int)")
    with psycopg.connect(other.replace("+psycopg", "")) as connection:
        row = connection.execute("SELECT count(*) FROM pg_tables WHERE tablename = 't'").fetchone()
    postgres.drop_database(other)
    assert row == (0,)
