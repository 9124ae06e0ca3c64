"""`changes doctor` at servers: a real MariaDB is mended by the SQL that is told; recorded ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import Said, run_here
from tests.services import mariadb
from tests.services.binlog_source import BinlogSource, Refusal
from tests.services.processes import free_port, soon
from tidemark.app import open_app
from tidemark.changes.binlog.gtid_sets import MysqlGtidSet
from tidemark.changes.sources import source as sources
from tidemark.errors import PermissionDeniedError
from tidemark.settings.load import load_settings


def write_settings(folder: Path, port: int, more: str = "") -> Path:
    (folder / "password").write_text(mariadb.PASSWORD)
    config = folder / "tidemark.toml"
    config.write_text(
        f'[sources.orders]\nstore = "store"\nurl = "mysql://{mariadb.USER}@127.0.0.1:{port}"\n'
        f'password_file = "password"\ntls = "off"\ntables = ["shop.*"]\nstart = "earliest"\n{more}\n'
    )
    return config


def purge(server: mariadb.MariaDb) -> None:
    """Purge all logs but the newest. A server keeps a log while a dump of it, or its own recovery, may need it."""
    statement = f"PURGE BINARY LOGS TO '{server.logs[-1].name}'"
    assert soon(lambda: not server.run(statement) and len(server.logs) == 1)


def bad(said: Said) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in said.json["checks"] if not check["ok"]}


def test_a_server_that_is_away_or_refuses_is_one_finding(tmp_path: Path, source: BinlogSource) -> None:
    away = free_port()
    said = run_here(write_settings(tmp_path, away), "changes", "doctor", "orders")
    assert said.code == 5
    assert str(away) in bad(said)["server"]["detail"]
    source.login_answer = Refusal(1045, "Access denied").packet
    said = run_here(write_settings(tmp_path, source.address[1]), "changes", "doctor", "orders")
    assert said.code == 6
    assert "REPLICATION SLAVE" in bad(said)["server"]["hint"]
    assert mariadb.PASSWORD not in str(said)


def test_a_source_of_files_has_no_server(tmp_path: Path) -> None:
    config = tmp_path / "tidemark.toml"
    config.write_text('[sources.orders]\nstore = "store"\n')
    said = run_here(config, "changes", "doctor", "orders")
    assert said.code == 0
    assert said.json["headroom_hours"] is None
    run_here(config, "changes", "doctor", "others").refused(3, "others", "orders")
    assert not (tmp_path / "store").exists() and not (tmp_path / "var").exists(), "it makes nothing"


@pytest.mark.full
def test_a_mysql_that_purged_what_follows_the_store(tmp_path: Path, source: BinlogSource) -> None:
    uuid = "97c7af02-0f4a-11ed-9a9b-0242ac110002"
    source.variables |= {"gtid_mode": "ON", "binlog_expire_logs_seconds": "3600"}
    config = write_settings(tmp_path, source.address[1])
    assert run_here(config, "changes", "capture", "orders", "--until", "seq:3").code == 0
    said = run_here(config, "changes", "doctor", "orders")
    assert "position" not in bad(said)
    del source.logs["binlog.000007"]
    source.variables["gtid_purged"] = f"{uuid}:1-5"
    said = run_here(config, "changes", "doctor", "orders")
    assert "binlog.000008" in bad(said)["position"]["detail"]
    whole = run_here(config, "doctor")
    assert "what follows" in bad(whole)["source orders: position"]["detail"]


@pytest.mark.full
def test_a_purge_before_it_was_captured_is_a_gap(tmp_path: Path, source: BinlogSource) -> None:
    uuid = "97c7af02-0f4a-11ed-9a9b-0242ac110002"
    before = "97c7af02-4c50-11ec-acd8-681842034964:1-2"  # of the server from which this one was restored
    source.variables |= {"gtid_mode": "ON", "gtid_executed": f"{before},{uuid}:1-9"}
    source.answers["SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab FROM information_schema.TABLES"] = [
        {"db": "shop", "tab": "orders"},
        {"db": "mail", "tab": "box"},
    ]
    config = write_settings(tmp_path, source.address[1])
    assert run_here(config, "changes", "capture", "orders", "--until", "seq:3").code == 0
    [shown] = run_here(config, "changes", "show", "orders").json["sources"]
    assert (shown["state"], shown["gaps"], shown["tables"]) == ("idle", [], [{"name": "shop.orders", "state": "captured"}])
    assert shown["lag_seconds"] > 0
    del source.logs["binlog.000007"]
    source.purged = MysqlGtidSet.parse(f"{uuid}:1-5")
    source.variables["gtid_purged"] = str(source.purged)
    for _ in range(2):
        run_here(config, "changes", "capture", "orders").refused(31, "gap 1 of source orders", "binlog.000008")
    [shown] = run_here(config, "changes", "show", "orders").json["sources"]
    [gap] = shown["gaps"]
    assert {key: gap[key] for key in ("id", "from", "to", "to_gtids", "tables", "state")} == {
        "id": "1",
        "from": shown["position"],
        "to": "binlog.000008:4",
        "to_gtids": f"{uuid}:1-5",
        "tables": ["shop.orders"],
        "state": "open",
    }
    said = run_here(config, "changes", "verify", "orders")
    assert (said.code, said.json["gaps"], said.json["differences"]) == (31, [gap], [])
    source.__exit__()
    [shown] = run_here(config, "changes", "show", "orders").json["sources"]
    assert shown["gaps"] == [gap] and shown["away"], "a server that is away hides no gap"
    (tmp_path / "store" / "gaps.json").write_text("{")
    run_here(config, "changes", "show", "orders").refused(7, "gaps.json")


@pytest.mark.full
def test_a_capture_that_follows_cleans_its_store(
    tmp_path: Path, source: BinlogSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_settings(tmp_path, source.address[1], "retain_hours = 1")
    assert run_here(config, "changes", "capture", "orders").code == 0
    hours = {path.name for path in (tmp_path / "store" / "data").iterdir()}
    assert len(hours) > 1
    monkeypatch.setattr(sources, "RETAIN_SECONDS", 0.05)
    app = open_app(load_settings(config, {}))
    with ThreadPoolExecutor(1) as pool:
        followed = pool.submit(sources.capture_source, sources.find_source(app, "orders"), sources.Request(follow=True))
        try:
            assert soon(lambda: {path.name for path in (tmp_path / "store" / "data").iterdir()} == {max(hours)})
        finally:
            source.login_answer = Refusal(1045, "Access denied").packet
            source.cut()
        with pytest.raises(PermissionDeniedError):
            followed.result(timeout=60)
    app.ledger.close()


@pytest.mark.full
@pytest.mark.real("mariadb")
def test_what_is_told_mends_a_real_server(tmp_path: Path) -> None:
    server = mariadb.start({"binlog_format": "MIXED", "binlog_row_metadata": "MINIMAL", "binlog_row_image": "MINIMAL"})
    try:
        server.run(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
            "CREATE TABLE shop.odd (a INT NOT NULL, b INT, UNIQUE (b))",
            "CREATE TABLE shop.lines (id INT PRIMARY KEY, o INT,"
            " CONSTRAINT of FOREIGN KEY (o) REFERENCES shop.orders (id) ON DELETE CASCADE)",
            "CREATE TABLE mysql.ours (a INT)",
            "CREATE USER 'poor'@'127.0.0.1'",
        )
        config = write_settings(tmp_path, server.port)
        said = run_here(config, "changes", "doctor", "orders")
        found = bad(said)
        assert set(found) == {"binlog_format", "binlog_row_image", "binlog_row_metadata", "foreign keys"}, found
        [tables] = [check["detail"] for check in said.json["checks"] if check["name"] == "tables"]
        assert "3 tables" in tables and "shop.odd" in tables and "shop.lines" not in tables
        server.run("ALTER TABLE shop.odd ENGINE = Aria")
        said = run_here(config, "changes", "doctor", "orders")
        [locks] = [check["detail"] for check in said.json["checks"] if check["name"] == "locks"]
        assert "keeps writers out" in locks and "shop.odd" in locks and "shop.orders" not in locks
        server.run("ALTER TABLE shop.odd ENGINE = InnoDB")
        for check in found.values():
            sql = check["hint"].partition(";")[0].partition(", and add")[0]
            server.run(sql)
        server.run("SET GLOBAL binlog_expire_logs_seconds = 7200", "FLUSH BINARY LOGS")
        said = run_here(config, "changes", "doctor", "orders")
        assert said.code == 0, said
        assert said.json["headroom_hours"] == pytest.approx(2.0, abs=0.1)

        poor = config.read_text().replace(mariadb.USER, "poor").replace('password_file = "password"\n', "")
        config.write_text(poor)
        said = run_here(config, "changes", "doctor", "orders")
        assert set(bad(said)) == {"rights"}
        server.run(*bad(said)["rights"]["hint"].replace("the databases", "shop.*").split("; "))
        said = run_here(config, "changes", "doctor", "orders")
        assert said.code == 0, said
        assert run_here(config, "changes", "capture", "orders").code == 0

        server.run("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        purge(server)
        assert run_here(config, "changes", "doctor", "orders").code == 0, "by GTID nothing is lost"
        server.run("INSERT INTO shop.orders VALUES (1)", "FLUSH BINARY LOGS")
        server.run("INSERT INTO shop.orders VALUES (2)", "FLUSH BINARY LOGS")
        purge(server)
        said = run_here(config, "changes", "doctor", "orders")
        assert said.code == 31
        assert server.logs[-1].name in bad(said)["position"]["detail"]

        for _ in range(2):  # met again, it is the same gap
            said = run_here(config, "changes", "capture", "orders")
            said.refused(31, "gap 1 of source orders", server.logs[-1].name)
        [shown] = run_here(config, "changes", "show", "orders").json["sources"]
        assert shown["state"] == "gap"
        [gap] = shown["gaps"]
        assert gap["to"] == f"{server.logs[-1].name}:4"
        assert gap["from"] == shown["position"]
        assert gap["tables"] == ["shop.lines", "shop.odd", "shop.orders"]
    finally:
        server.close()
