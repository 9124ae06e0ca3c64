"""The password of a connection goes to a server of its own kind alone: a store refuses MySQL's, a source refuses SSH's."""

from __future__ import annotations

import json

import pytest

from tidemark import connections
from tidemark.changes.sources.source import login_of as source_login
from tidemark.errors import UsageError
from tidemark.receiver.iotdb.load import server_of
from tidemark.settings.model import ReceiverSettings, SourceSettings
from tidemark.stores.open_sftp import login_of as store_login
from tidemark.stores.protocol import StoreAddress

PASSWORD = "geheim"
STORE = StoreAddress("sftp://edge@127.0.0.1/data", connection="plant", host_key="SHA256:abc")
IOTDB = ReceiverSettings("centre", store="centre", iotdb="iotdb://127.0.0.1:6667", iotdb_connection="plant")
SOURCE = SourceSettings("orders", "changes", url="mysql://reader@127.0.0.1:3306", connection="plant")


@pytest.fixture(params=["sftp", "ssh", "generic", "mysql", "http"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The type of a connection with a login and a password."""
    monkeypatch.setattr(connections, "_has_airflow", lambda: False)
    told = {"conn_type": request.param, "login": "me", "password": PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_PLANT", json.dumps(told))
    return str(request.param)


def test_a_store_and_an_iotdb_take_no_connection_of_a_database(kind: str) -> None:
    if kind in ("sftp", "ssh", "generic"):
        held = store_login(STORE)[0].connection
        assert held is not None and held.now.password == PASSWORD
        assert server_of(IOTDB).password == PASSWORD
        return
    says = f"'plant' is of type '{kind}'; a login needs one of sftp, ssh, generic"
    for ask in (lambda: store_login(STORE), lambda: server_of(IOTDB)):
        with pytest.raises(UsageError, match=says) as refused:
            ask()
        assert PASSWORD not in repr(refused.value)


def test_a_source_takes_no_connection_of_a_store(kind: str) -> None:
    if kind in ("mysql", "generic"):
        assert (source_login(SOURCE).user, source_login(SOURCE).password) == ("me", PASSWORD)
        return
    with pytest.raises(UsageError, match=f"'plant' is of type '{kind}'; a login needs one of mysql, generic") as refused:
        source_login(SOURCE)
    assert PASSWORD not in repr(refused.value)
