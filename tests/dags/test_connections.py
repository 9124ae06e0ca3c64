"""A DAG run of a link whose site is reached by an Airflow connection, which Airflow's database holds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dags.conftest import Centre
from tests.services.sshd import Sshd
from tidemark.orchestration import connections as asked

pytestmark = [pytest.mark.usefixtures("airflow_database"), pytest.mark.real("sshd")]
PASSPHRASE = "correct-horse-battery"


@pytest.fixture
def connection(sshd: Sshd) -> Iterator[Callable[..., None]]:
    """Put `plant_ssh` into Airflow's database, with these extras."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    def put(**extra: Any) -> None:
        with create_session() as session:
            session.query(Connection).filter_by(conn_id="plant_ssh").delete()
            told = {"host_key": sshd.host_key, **extra}
            session.add(Connection("plant_ssh", "ssh", login=sshd.user, password=PASSPHRASE, extra=json.dumps(told)))

    yield put
    with create_session() as session:
        session.query(Connection).filter_by(conn_id="plant_ssh").delete()


@pytest.mark.full
def test_a_run_logs_in_by_a_connection_of_airflow_and_tells_nobody_how(
    centre: Centre,
    sshd: Sshd,
    connection: Callable[..., None],
    dagbag: Callable[[], Any],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = sshd.new_folder("site")
    shutil.copytree(centre.site, site, dirs_exist_ok=True)
    url = f"sftp://127.0.0.1:{sshd.port}{site}"
    written = centre.config.read_text().replace('store = "plant1"', f'store = "{url}"\nconnection = "plant_ssh"')
    centre.config.write_text(written)
    text = sshd.key.read_text()
    connection(private_key=text)
    monkeypatch.setattr(asked, "_child", None)
    ended = dagbag().dags["tidemark_sync__plant1"].test()
    assert str(ended.state) == "success"
    assert asked._child is None, "a task asks by its own way"
    assert centre.landed() == centre.sealed()
    shown = "".join(capfd.readouterr()) + sshd.log()
    for place in (centre.receiver, site, Path(centre.root / "ledger.db")):
        for path in [place] if place.is_file() else place.rglob("*"):
            shown += path.read_bytes().decode("latin-1") if path.is_file() else ""
    for instance in ended.get_task_instances():
        shown += repr(instance.xcom_pull(task_ids=instance.task_id, map_indexes=instance.map_index))
    for secret in (PASSPHRASE, *text.split()[5:-5]):
        assert secret not in shown
