"""Logins, rights, TLS and accidents of a dump, at a real MariaDB. What all servers do is in unit/changes/connection."""

from __future__ import annotations

import datetime
import ipaddress
import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bootstrap_worlds import write_settings
from tests.commanded import run_here
from tests.dump_worlds import is_description, settings_for
from tests.services import mariadb
from tests.services.mariadb import MariaDb
from tests.services.processes import PartMissing, soon
from tidemark import connections
from tidemark.changes.binlog.gtid_sets import MariaGtidPosition
from tidemark.changes.connection.dump import open_dump
from tidemark.changes.connection.facts import read_facts
from tidemark.changes.connection.login import open_server
from tidemark.changes.connection.model import FilePosition, SourceSettings
from tidemark.errors import BinlogGapError, PermanentError, PermissionDeniedError, UnreachableError

pytestmark = [pytest.mark.full, pytest.mark.real("mariadb")]
LEAST = "REPLICATION SLAVE, BINLOG MONITOR, SELECT"


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that stands for itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    made = made.serial_number(7).not_valid_before(now - datetime.timedelta(days=1))
    made = made.not_valid_after(now + datetime.timedelta(days=9))
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = made.add_extension(address, critical=False).sign(key, hashes.SHA256())
    certificate, private = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption_algorithm=plain)
    )
    return certificate, private


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "server")


@pytest.fixture(scope="module")
def server(certificate: tuple[Path, Path]) -> Iterator[MariaDb]:
    options = {"ssl_cert": str(certificate[0]), "ssl_key": str(certificate[1]), "plugin_load_add": "auth_ed25519"}
    try:
        made = mariadb.start(options)
    except PartMissing as missing:
        pytest.skip(str(missing))
    made.run("CREATE DATABASE d", "CREATE TABLE d.t (a INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1)")
    yield made
    made.close()


def login(server: MariaDb, user: str = mariadb.USER, password: str = mariadb.PASSWORD, tls: str = "off") -> SourceSettings:
    return settings_for(("127.0.0.1", server.port), user=user, password=password, tls=tls)


def add_user(server: MariaDb, name: str, how: str = "BY 'secret'", rights: str = LEAST, more: str = "") -> SourceSettings:
    server.run(f"CREATE OR REPLACE USER '{name}'@'127.0.0.1' IDENTIFIED {how} {more}")
    server.run(f"GRANT {rights} ON *.* TO '{name}'@'127.0.0.1'")
    return login(server, name, "secret")


def first_log(server: MariaDb) -> FilePosition:
    return FilePosition(server.logs[0].name)


def is_encrypted(settings: SourceSettings) -> bool:
    with open_server(settings) as opened:
        return bool(opened.ask("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0]["Value"])


def test_tls_as_the_settings_say(server: MariaDb, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    assert not is_encrypted(login(server, tls="off"))
    required = login(server, tls="required")
    verified = replace(login(server, tls="verify"), ca=str(certificate[0]))
    assert is_encrypted(required) and is_encrypted(verified)
    plain = list(open_dump(login(server), first_log(server)).events())
    assert list(open_dump(verified, first_log(server)).events()) == plain
    other, _ = make_certificate(tmp_path, "other")
    for ca in (str(other), ""):
        with pytest.raises(PermissionDeniedError, match="not believed"):
            open_server(replace(verified, ca=ca))


def test_the_least_rights_are_enough(server: MariaDb) -> None:
    settings = add_user(server, "least")
    with open_server(settings) as opened:
        facts = read_facts(opened)
    assert facts.logs and facts.end is not None
    assert "REPLICATION SLAVE" in facts.grants[0]
    assert not [grant for grant in facts.grants if "PASSWORD" in grant]
    assert list(open_dump(settings, first_log(server)).events())


def test_what_is_not_allowed_is_named(server: MariaDb) -> None:
    with pytest.raises(PermissionDeniedError, match="Access denied"):
        open_server(login(server, password="wrong"))
    with pytest.raises(PermissionDeniedError) as caught:
        list(open_dump(add_user(server, "reader", rights="SELECT"), first_log(server)).events())
    assert "REPLICATION SLAVE" in caught.value.hint
    with pytest.raises(PermissionDeniedError):
        open_server(add_user(server, "secure", more="REQUIRE SSL"))
    assert is_encrypted(replace(login(server, "secure", "secret"), tls="required"))


def test_a_login_by_ed25519(server: MariaDb) -> None:
    settings = add_user(server, "ed", how="VIA ed25519 USING PASSWORD('secret')")
    assert list(open_dump(settings, first_log(server)).events())


def test_rotation_and_purge_under_a_reader(server: MariaDb) -> None:
    server.run("FLUSH BINARY LOGS")
    with open_server(login(server)) as opened:
        before = read_facts(opened)
        assert before.end is not None
    dump = open_dump(login(server), before.end, follow=True)
    events = dump.events()
    assert is_description(next(events))
    server.run("INSERT INTO d.t VALUES (100)", "FLUSH BINARY LOGS", "INSERT INTO d.t VALUES (101)")
    seen = [next(event for event in events if event.header.type == 16) for _ in range(2)]
    assert [event.file for event in seen] == [before.logs[-1][0], server.logs[-1].name]
    assert dump.file == server.logs[-1].name
    dump.close()
    purge = f"PURGE BINARY LOGS TO '{server.logs[-1].name}'"  # the server keeps a log for as long as it may need it itself
    assert soon(lambda: not server.run(purge) and len(server.logs) == 1)
    with pytest.raises(BinlogGapError, match="first log"):
        list(open_dump(login(server), before.end).events())
    assert isinstance(before.gtids, MariaGtidPosition)
    old = MariaGtidPosition({0: (1, before.gtids.last[0][1] - 1)})
    with pytest.raises(BinlogGapError, match="purged"):
        list(open_dump(login(server), old).events())


def test_gtids_that_the_server_never_had_are_refused(server: MariaDb) -> None:
    for text in ("0-1-999999", "0-77-2"):
        with pytest.raises(PermanentError, match="not in the master's binlog"):
            list(open_dump(login(server), MariaGtidPosition.parse(text)).events())


def test_a_server_id_in_use_is_refused_and_ours_is_taken_again(server: MariaDb) -> None:
    settings = replace(login(server), server_id=4242, name="orders")
    first = open_dump(settings, first_log(server), follow=True).events()
    assert is_description(next(first))
    with open_server(login(server)) as opened:
        there = [(one.server_id, one.host) for one in read_facts(opened).replicas or ()]
    assert (4242, "tidemark-orders") in there  # a dump of an earlier test may be there until the server notices its end
    with pytest.raises(PermanentError, match="4242 is taken"):
        open_dump(replace(settings, name="another"), first_log(server))
    second = open_dump(settings, first_log(server), follow=True).events()
    assert is_description(next(second))
    with pytest.raises(UnreachableError):  # the server ends the elder
        list(first)


def test_a_dump_that_is_killed_ends_and_goes_on_where_it_was(server: MariaDb) -> None:
    dump = open_dump(login(server), first_log_now(server), follow=True)
    events = dump.events()
    last = next(event for event in events if event.header.type == 16)
    for thread, *_, command in [(row[0], row[4]) for row in server.run("SHOW PROCESSLIST")]:
        if command == "Binlog Dump":
            server.run(f"KILL {thread}")
    with pytest.raises(UnreachableError):
        list(events)
    again = list(open_dump(login(server), FilePosition(last.file, last.end)).events())
    assert [event.position for event in again[1:2]] in ([last.end], [])


def first_log_now(server: MariaDb) -> FilePosition:
    with open_server(login(server)) as opened:
        return FilePosition(read_facts(opened).logs[0][0])


def test_a_server_that_stalls_is_given_up_after_three_heartbeats(server: MariaDb) -> None:
    events = open_dump(login(server), first_log_now(server), follow=True).events()
    next(event for event in events if not event.data)
    server.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(UnreachableError, match=r"silent for 0\.6 s"):
            list(events)
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_a_server_that_dies_is_told_and_goes_on_after_its_restart(server: MariaDb) -> None:
    """The last of the tests: logs begin anew."""
    events = open_dump(login(server), first_log_now(server), follow=True).events()
    last = next(event for event in events if event.header.type == 16)
    server.kill()
    with pytest.raises(UnreachableError):
        list(events)
    with pytest.raises(UnreachableError, match="not reached"):
        open_server(login(server))
    server.restart()
    server.run("INSERT INTO d.t VALUES (200)")
    again = open_dump(login(server), FilePosition(last.file, last.end))
    assert [event.file for event in again.events() if event.header.type == 16][-1] == server.logs[-1].name


def test_a_source_logs_in_by_an_airflow_connection(tmp_path: Path, server: MariaDb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_has_airflow", lambda: False)
    config = write_settings(tmp_path, server)
    nobody = f"mariadb://nobody@127.0.0.1:{server.port}"
    text = config.read_text(encoding="utf-8").replace(f"mariadb://{mariadb.USER}@127.0.0.1:{server.port}", nobody)
    config.write_text(text.replace('password_file = "password"', 'connection = "shop"'), encoding="utf-8")
    run_here(config, "changes", "capture", "orders").refused(3, "no Airflow connection 'shop'")
    told = {"conn_type": "mysql", "login": mariadb.USER, "password": mariadb.PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(told))
    said = run_here(config, "changes", "capture", "orders")
    assert said.code == 0, said
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({**told, "password": "wrong"}))
    said = run_here(config, "changes", "capture", "orders")
    assert said.code != 0 and "wrong" not in said.out + said.err
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({**told, "password": ""}))
    run_here(config, "changes", "capture", "orders").refused(2, "has no password")
    config.write_text(f'{config.read_text(encoding="utf-8")}password_file = "password"\n', encoding="utf-8")
    run_here(config, "changes", "capture", "orders").refused(2, "exclude each other")
