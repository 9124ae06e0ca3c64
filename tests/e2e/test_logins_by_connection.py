"""Logins by an Airflow connection over a real sshd: what it may hold, what is wrong with it, and that nothing shows it."""

from __future__ import annotations

import json
import subprocess
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import Commanded, Said
from tests.services.sshd import FarEnd, Sshd, make_key
from tidemark import connections
from tidemark.errors import HostKeyError, NotFoundError, PermanentError, PermissionDeniedError, RetryableError, UsageError
from tidemark.operations.doctor.doctor import doctor
from tidemark.orchestration import connections as asked
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]
PASSPHRASE, PASSWORD = "correct-horse-battery", "pass word%/#word"


@pytest.fixture(autouse=True)
def _without_airflow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "airflow" not in {mark.args[0] for mark in request.node.iter_markers("real")}:
        monkeypatch.setattr(connections, "_has_airflow", lambda: False)


def tell(monkeypatch: pytest.MonkeyPatch, connection: str = "plant", **fields: Any) -> None:
    """Set the connection as JSON in the environment. What is no field of Airflow's is an extra."""
    own = {key: fields.pop(key) for key in ("conn_type", "login", "password", "host", "port") if key in fields}
    told = {"conn_type": "sftp", **own, "extra": fields}
    monkeypatch.setenv(f"AIRFLOW_CONN_{connection.upper()}", json.dumps(told))


def locked_key(server: Sshd, folder: Path, *form: str) -> str:
    """A new key with a passphrase that the server accepts; its text."""
    place = folder / f"locked{len(list(folder.iterdir()))}"
    made = ["ssh-keygen", "-q", *(form or ("-t", "ed25519")), "-N", PASSPHRASE, "-f", str(place)]
    subprocess.run(made, check=True)
    with (server.folder / "authorized_keys").open("a") as accepted:
        accepted.write(place.with_name(f"{place.name}.pub").read_text())
    text = place.read_text()
    place.unlink()
    return text


def reach(server: Sshd, **change: Any) -> Store:
    return open_store(StoreAddress(server.url(), **{"connection": "plant", "host_key": server.host_key, **change}))


@pytest.mark.full
def test_a_sync_by_a_connection_leaves_no_secret_anywhere(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = locked_key(sshd, tmp_path)
    tell(monkeypatch, private_key=text, private_key_passphrase=PASSPHRASE, host_key=sshd.host_key, password=PASSWORD)
    begun: list[Any] = []
    start = subprocess.Popen.__init__
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda self, *a, **k: (begun.append((a, k)), start(self, *a, **k))[1])
    store = f"sftp://{sshd.user}@127.0.0.1:{sshd.port}{tmp_path / 'site'}"
    edge = Commanded(tmp_path, monkeypatch, store=store, site_keys={"connection": "plant"})
    edge.seal(1)
    outputs: list[Said] = [edge.sync(), edge.run("doctor"), edge.run("status"), edge.run("why", "plant1")]
    edge.assert_in_step()
    assert [said.code for said in outputs] == [0, 0, 0, 0], outputs
    tell(monkeypatch, private_key=text, private_key_passphrase="another-one", host_key=sshd.host_key, password=PASSWORD)
    outputs.append(edge.sync())
    outputs[-1].refused(6, "'plant'")
    shown = [repr(begun), *(said.out + said.err for said in outputs), sshd.log()]
    shown += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    for secret in (PASSPHRASE, PASSWORD, "another-one", *text.split()[5:-5]):
        assert not [where[:80] for where in shown if secret in where], secret


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    "form",
    [("-t", "ed25519"), ("-t", "ecdsa", "-m", "PEM"), ("-t", "rsa", "-b", "2048", "-m", "PKCS8")],
    ids=lambda f: f[-1],
)
def test_keys_of_every_form_log_in(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    tell(monkeypatch, private_key=locked_key(sshd, tmp_path, *form), private_key_passphrase=PASSPHRASE)
    reach(sshd).close()


@pytest.mark.parametrize("kind", ["sftp", "ssh", "generic"])
def test_a_key_file_in_the_form_of_a_uri(sshd: Sshd, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """User, port and pinned key come from the connection where the settings say none."""
    public = (sshd.folder / "host_key.pub").read_text().split()
    query = f"key_file={sshd.key}&host_key={public[0]}%20{public[1].replace('+', '%2B')}"
    monkeypatch.setenv("AIRFLOW_CONN_PLANT", f"{kind}://{sshd.user}:p%23%2F%40@ignored:{sshd.port}/?{query}")
    with closing(open_store(StoreAddress(f"sftp://127.0.0.1{sshd.files}", connection="plant"))) as store:
        assert store.url == sshd.url()


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"conn_type": "http"}, UsageError, "'plant' is of type 'http'; a login needs one of sftp, ssh, generic"),
        ({"conn_type": "mysql", "password": PASSWORD}, UsageError, "'plant' is of type 'mysql'; a login needs one of sftp"),
        ({}, UsageError, "'plant' has no key and no password"),
        ({"no_host_key_check": "true"}, UsageError, "'plant' has no_host_key_check, which Tidemark refuses"),
        ({"private_key": "no key"}, PermanentError, "private_key of Airflow connection 'plant' is no private key"),
        ({"key_file": "/nowhere/key"}, UsageError, "/nowhere/key"),
        ({"password": PASSWORD}, PermissionDeniedError, "'plant'; tried: its password .that server takes only publickey"),
        ({"host_key": "garbage!", "password": PASSWORD}, UsageError, "'plant' has a host_key that is neither"),
        ({"port": "x"}, UsageError, "'plant' has a port that is no number"),
    ],
)
def test_what_is_wrong_with_a_connection_is_named(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], error: type[Exception], says: str
) -> None:
    tell(monkeypatch, **fields)
    with pytest.raises(error, match=says) as caught:
        reach(sshd)
    assert caught.value.hint and PASSWORD not in repr(caught.value)  # type: ignore[attr-defined]


@pytest.mark.parametrize("written", [f"sftp://user:{PASSWORD}@host", '{"password": "' + PASSWORD])
def test_what_airflow_could_not_read_is_told_without_its_text(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PLANT", written)
    with pytest.raises(UsageError, match="'plant' is no") as caught:
        connections.read_connection("plant")
    told = "".join(traceback.format_exception(caught.value)) + caught.value.hint
    assert not [part for part in ("pass word", "word%", "#word") if part in told]


def test_a_missing_connection_and_a_missing_pin_are_named(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match="'plant'") as missing:
        reach(sshd)
    assert "AIRFLOW_CONN_PLANT" in missing.value.hint and "./tidemark doctor" in missing.value.hint
    tell(monkeypatch, key_file=str(sshd.key))
    with pytest.raises(HostKeyError, match="no host_key"):
        reach(sshd, host_key="")
    tell(monkeypatch, key_file=str(sshd.key), host_key="SHA256:" + "A" * 43)
    with pytest.raises(UsageError, match="'plant' pins SHA256:AAAA"):
        reach(sshd)


def test_a_wrong_key_and_a_wrong_password_are_refused(
    start_sshd: Callable[..., Sshd], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_sshd(FarEnd.SHELL, {"PasswordAuthentication": "yes", "PermitRootLogin": "yes"})
    tell(monkeypatch, private_key=make_key(tmp_path / "stranger").read_text(), password=PASSWORD)
    with pytest.raises(PermissionDeniedError, match=r"'plant'; tried: its private_key, its password$") as caught:
        reach(server)
    assert "authorized_keys" in caught.value.hint


def test_a_key_that_is_changed_in_mid_run_is_read_anew_and_one_that_vanishes_is_named(
    start_sshd: Callable[..., Sshd], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_sshd()
    tell(monkeypatch, private_key=server.key.read_text())
    with closing(reach(server)) as store:
        accepted = server.folder / "authorized_keys"
        accepted.write_text(make_key(tmp_path / "new").with_name("new.pub").read_text())
        tell(monkeypatch, private_key=(tmp_path / "new").read_text())
        server.drop_connections()
        assert store.list_folder("") == []
        accepted.write_text("")
        monkeypatch.delenv("AIRFLOW_CONN_PLANT")
        server.drop_connections()
        with pytest.raises(NotFoundError, match="'plant'"):
            store.list_folder("")


def test_doctor_logs_in_by_the_connection(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = '[sites.plant1]\nid = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"\ndata = ["data"]\nconnection = "plant"\n'
    (store := sshd.new_folder()).joinpath("data").mkdir()
    (tmp_path / "tidemark.toml").write_text(f'{site}store = "{sshd.url(store)}"\n[receivers.c]\nstore = "c"\n')
    tell(monkeypatch, key_file=str(sshd.key), host_key=sshd.host_key)
    assert doctor(str(tmp_path / "tidemark.toml"), {}).exit_code == 0
    tell(monkeypatch, key_file=str(make_key(tmp_path / "stranger")), host_key=sshd.host_key)
    report = doctor(str(tmp_path / "tidemark.toml"), {})
    assert report.exit_code == 6
    assert [check.name for check in report.checks if not check.ok] == ["site plant1"]


def test_a_server_is_known_by_a_file_of_known_hosts(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(monkeypatch, key_file=str(sshd.key))
    reach(sshd, host_key="", known_hosts=str(sshd.folder / "known_hosts")).close()
    (tmp_path / "none").write_text("")
    with pytest.raises(HostKeyError, match=f"{tmp_path}/none has no key of .*:{sshd.port}"):
        reach(sshd, host_key="", known_hosts=str(tmp_path / "none"))


def test_a_backend_that_hangs_in_a_task_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_has_airflow", lambda: True)
    monkeypatch.setattr(asked, "_is_in_task", lambda: True)
    monkeypatch.setattr(asked, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(asked, "_find", lambda _: time.sleep(30))
    with pytest.raises(RetryableError, match="'plant'") as caught:
        connections.read_connection("plant")
    assert "secrets backend" in caught.value.hint


@pytest.mark.full
@pytest.mark.real("airflow")
def test_the_command_asks_an_installed_airflow(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One child process answers all questions, by Airflow's own order: a secrets backend before the environment."""
    (tmp_path / "vault.py").write_text(
        "import json, time\nfrom airflow.secrets import BaseSecretsBackend\n"
        "class Vault(BaseSecretsBackend):\n"
        "    def get_conn_value(self, conn_id, team_name=None):\n"
        "        print('noise')\n"
        "        if conn_id == 'slow': time.sleep(600)\n"
        f"        extra = {{'key_file': '{sshd.key}'}}\n"
        "        return json.dumps({'conn_type': 'ssh', 'extra': extra}) if conn_id == 'plant' else None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", "vault.Vault")
    monkeypatch.setattr(asked, "_child", None)
    tell(monkeypatch, conn_type="http")
    tell(monkeypatch, "other", conn_type="ssh", login="ours")
    reach(sshd).close()
    child = asked._child
    assert connections.read_connection("other").login == "ours" and asked._child is child
    with pytest.raises(NotFoundError, match="'nobody'"):
        connections.read_connection("nobody")
    monkeypatch.setattr(asked, "PATIENCE_SECONDS", 0.5)
    with pytest.raises(RetryableError, match="'slow'"):
        connections.read_connection("slow")
    assert child is not None and child.poll() is not None, "a child that hangs is ended"
