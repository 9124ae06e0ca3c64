"""Airflow's home: secrets once and private, one environment for all parts, the user's own values kept."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from tidemark.orchestration.deployment.home import (
    ADMIN,
    TUNED,
    Ports,
    home_of,
    make_environment,
    prepare_home,
)
from tidemark.settings.model import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(path=tmp_path / "tidemark.toml")


def test_secrets_and_password_are_made_once_and_are_private(settings: Settings) -> None:
    home = home_of(settings)
    assert prepare_home(home) is True
    before = home.secrets.read_bytes(), home.passwords.read_bytes()
    assert prepare_home(home) is False
    assert (home.secrets.read_bytes(), home.passwords.read_bytes()) == before
    for path, mode in ((home.folder, 0o700), (home.secrets, 0o600), (home.passwords, 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    ((user, password),) = json.loads(home.passwords.read_text()).items()
    assert user == ADMIN and len(password) >= 16


def test_the_fernet_key_is_one_airflow_accepts(settings: Settings) -> None:
    from cryptography.fernet import Fernet

    prepare_home(home_of(settings))
    Fernet(make_environment(settings, Ports(8080, 8081), {})["AIRFLOW__CORE__FERNET_KEY"].encode())


def test_a_half_written_secret_is_never_read(settings: Settings) -> None:
    home = home_of(settings)
    home.folder.mkdir(parents=True)
    home.secrets.with_suffix(".new").write_text('{"AIRFLOW__CORE__FER')
    prepare_home(home)
    assert set(json.loads(home.secrets.read_text())) == {
        "AIRFLOW__API_AUTH__JWT_SECRET",
        "AIRFLOW__API__SECRET_KEY",
        "AIRFLOW__CORE__FERNET_KEY",
    }


def test_all_parts_find_each_other_on_loopback_only(settings: Settings) -> None:
    prepare_home(home_of(settings))
    values = make_environment(settings, Ports(9123, 9124), {})
    assert values["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert values["AIRFLOW__API__PORT"] == "9123"
    assert values["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:9124/execution/"
    assert values["TIDEMARK_CONFIG"] == str(settings.path)
    assert Path(values["AIRFLOW__CORE__DAGS_FOLDER"], "tidemark_sync.py").exists()
    assert values.items() >= TUNED.items()


def test_what_the_user_sets_wins_but_cannot_tear_the_parts_apart(settings: Settings) -> None:
    prepare_home(home_of(settings))
    url = "postgresql+psycopg://airflow@db/airflow"
    mine = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
        "AIRFLOW__CORE__PARALLELISM": "32",
        "AIRFLOW_HOME": "/elsewhere",
        "AIRFLOW__API__PORT": "1",
        "PATH": "/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TIDEMARK__LEDGER__URL": "sqlite:///x.db",
    }
    values = make_environment(settings, Ports(9123, 9124), mine)
    assert values["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == values["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] == url
    assert values["AIRFLOW__CORE__PARALLELISM"] == "32"
    assert values["TIDEMARK__LEDGER__URL"] == "sqlite:///x.db"
    assert values["AIRFLOW_HOME"] == str(home_of(settings).folder)
    assert values["AIRFLOW__API__PORT"] == "9123"
    assert values["PATH"].endswith(":/bin")
    assert "PYTHONDONTWRITEBYTECODE" not in values


def test_airflow_knows_every_key_we_set(settings: Settings) -> None:
    from airflow.configuration import conf

    prepare_home(home_of(settings))
    for key in make_environment(settings, Ports(8080, 8081), {}):
        match = re.fullmatch(r"AIRFLOW__([A-Z_]+?)__([A-Z_0-9]+)", key)
        if match:
            assert match[2].lower() in conf.configuration_description[match[1].lower()]["options"], key
