"""Which server is asked, how it is logged in at, what of a server's answers is believed, and what never gets out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.binlog_maker import recorded
from tests.dump_worlds import MYSQL, settings_for
from tests.services.binlog_source import BinlogSource, Refusal, Row
from tests.services.processes import free_port
from tidemark.changes.connection import login
from tidemark.changes.connection.dump import choose_server_id, open_dump
from tidemark.changes.connection.facts import Replica, read_facts
from tidemark.changes.connection.login import open_server
from tidemark.changes.connection.model import FilePosition, SourceSettings
from tidemark.errors import (
    CorruptionError,
    PermanentError,
    PermissionDeniedError,
    UnreachableError,
    UsageError,
)

PASSWORD = "nobody-sees-this"
GTID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.fixture
def source() -> Iterator[BinlogSource]:
    with BinlogSource({name: recorded(file) for name, file in MYSQL.items()}) as made:
        yield made


def cluster(stack: ExitStack, *variables: dict[str, str], replicas: tuple[int, ...] = ()) -> list[BinlogSource]:
    made = [stack.enter_context(BinlogSource({}, version="8.0.36", variables=each)) for each in variables]
    for number in replicas:
        made[number].answers["SHOW REPLICA STATUS"] = [{"Source_Host": "db1"}]
    return made


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("variables", "replicas", "chosen"),
    [
        ([{}, {"log_replica_updates": "ON"}, {"log_replica_updates": "ON"}], (1, 2), 1),
        ([{}, {"log_replica_updates": "OFF"}], (1,), 0),
        ([{"log_bin": "OFF"}, {}], (), 1),
        ([{"log_bin": "OFF"}, {"log_bin": "OFF"}], (), 0),
        ([{}, {}], (), 0),
    ],
)
def test_a_replica_that_logs_what_it_replicates_comes_first(
    variables: list[dict[str, str]], replicas: tuple[int, ...], chosen: int
) -> None:
    with ExitStack() as stack:
        sources = cluster(stack, *variables, replicas=replicas)
        addresses = tuple(source.address for source in sources)
        with open_server(settings_for(addresses[0], addresses=addresses)) as server:
            assert addresses.index(server.address) == chosen


def test_who_may_not_ask_for_replication_believes_read_only() -> None:
    with ExitStack() as stack:
        sources = cluster(stack, {}, {"read_only": "ON", "log_replica_updates": "ON"})
        for each in sources:
            each.answers["SHOW REPLICA STATUS"] = Refusal(1227, "Access denied; you need SUPER")
        addresses = tuple(each.address for each in sources)
        with open_server(settings_for(addresses[0], addresses=addresses)) as server:
            assert server.address == addresses[1]


def test_one_that_is_away_or_refuses_is_passed_over_and_all_are_named_if_none_answers(source: BinlogSource) -> None:
    away = ("127.0.0.1", free_port())
    with BinlogSource({}) as refusing:
        refusing.login_answer = Refusal(1045, "Access denied for user 'tide'").packet
        every = (away, refusing.address, source.address)
        with open_server(settings_for(away, addresses=every)) as server:
            assert server.address == source.address
        with pytest.raises(UnreachableError) as caught:
            open_server(settings_for(away, addresses=every[:2]))
        assert str(away[1]) in caught.value.message and "Access denied" in caught.value.message
        with pytest.raises(PermissionDeniedError, match="Access denied"):
            open_server(settings_for(refusing.address))


def test_without_tls_nothing_is_sent_but_where_tls_is_off(source: BinlogSource, tmp_path: Path) -> None:
    for tls in ("required", "verify"):
        with pytest.raises(PermissionDeniedError, match="no TLS"):
            open_server(settings_for(source.address, tls=tls, password=PASSWORD))
    assert source.received == []


@pytest.mark.parametrize("method", [b"mysql_clear_password", b"dialog"])
def test_no_server_is_told_the_password_in_the_clear(source: BinlogSource, method: bytes) -> None:
    source.login_answer = b"\xfe" + method + b"\0" + bytes(20)
    with pytest.raises(PermissionDeniedError, match="in the clear"):
        open_server(settings_for(source.address, password=PASSWORD))
    assert PASSWORD.encode() not in b"".join(source.received)


def test_the_password_comes_from_a_file_and_is_in_no_text(source: BinlogSource, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    settings = settings_for(source.address, password_file=str(file))
    with open_server(settings) as server:
        assert PASSWORD not in repr(vars(server)) + repr(vars(server._connection))
    assert PASSWORD not in repr(settings_for(source.address, password=PASSWORD))
    with pytest.raises(UsageError, match="no-file"):
        open_server(settings_for(source.address, password_file=str(tmp_path / "no-file")))


def test_a_server_that_asks_for_a_file_of_ours_gets_none(source: BinlogSource, tmp_path: Path) -> None:
    source.answers["SHOW GRANTS"] = b"\xfb" + b"/etc/passwd"
    with open_server(settings_for(source.address)) as server, pytest.raises(CorruptionError):
        server.ask("SHOW GRANTS")
    assert not [packet for packet in source.received if b"root:" in packet]


@pytest.mark.full_after(1)
@pytest.mark.parametrize("answer", [b"", b"\x05", b"\xfe\0\0\2\0", b"\0", b"\x01\xff\xff", b"\xfc\x01"])
def test_an_answer_that_is_none_is_an_error_of_ours(
    source: BinlogSource, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "ANSWER_SECONDS", 0.5)
    source.answers["SHOW GRANTS"] = answer
    with open_server(settings_for(source.address)) as server, pytest.raises((UnreachableError, CorruptionError)):
        server.ask("SHOW GRANTS")


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("name", "value"),
    [("server_id", "many"), ("gtid_executed", "a:b:c"), ("gtid_purged", "?"), ("expire_logs_days", "x"), ("server_id", "")],
)
def test_facts_that_cannot_be_are_refused(source: BinlogSource, name: str, value: str) -> None:
    source.variables[name] = value
    with open_server(settings_for(source.address)) as server, pytest.raises(CorruptionError):
        read_facts(server)


def test_facts_of_mysql(source: BinlogSource) -> None:
    source.variables |= {
        "server_id": "4000000000",
        "server_uuid": GTID,
        "gtid_mode": "ON",
        "gtid_executed": f"{GTID}:1-5:7",
        "gtid_purged": f"{GTID}:1-2",
        "binlog_transaction_compression": "ON",
        "log_replica_updates": "ON",
        "binlog_expire_logs_seconds": "3600",
        "binlog_expire_logs_auto_purge": "ON",
    }
    rows: list[Row] = [{"Server_Id": 7, "Host": "db7", "Port": 3306, "Source_Id": 1, "Replica_UUID": GTID}]
    source.answers["SHOW REPLICAS"] = rows
    source.answers["SHOW GRANTS"] = [{"Grants": "GRANT SELECT ON *.* TO `x`@`%` IDENTIFIED BY PASSWORD '*DEADBEEF'"}]
    source.answers["SHOW BINARY LOGS"] = Refusal(1227, "Access denied")
    with open_server(settings_for(source.address)) as server:
        facts = read_facts(server)
    assert (facts.server_id, facts.server_uuid, str(facts.gtids)) == (4_000_000_000, GTID, f"{GTID}:1-5:7")
    assert (str(facts.purged), facts.has_gtids, facts.is_maria) == (f"{GTID}:1-2", True, False)
    assert (facts.is_compressed, facts.log_replica_updates, facts.is_encrypted) == (True, True, False)
    assert facts.expire_seconds == 3600
    assert facts.replicas == (Replica(7, "db7", GTID),)
    assert facts.grants == ("GRANT SELECT ON *.* TO `x`@`%`",)
    assert facts.logs == () and facts.end is not None


def test_a_server_id_that_another_has_is_not_taken(source: BinlogSource) -> None:
    source.answers["SHOW REPLICAS"] = [{"Server_Id": 7, "Host": "db7"}, {"Server_Id": 8, "Host": "tidemark-orders"}]
    name = FilePosition(next(iter(source.logs)))
    for taken in (1, 7):
        with pytest.raises(PermanentError, match=f"server_id {taken} is taken"):
            open_dump(settings_for(source.address, server_id=taken), name)
    list(open_dump(settings_for(source.address, server_id=8, name="orders"), name).events())  # our own of before
    with pytest.raises(PermanentError):
        open_dump(settings_for(source.address, server_id=8, name="other"), name)


def test_a_server_id_of_our_own_is_one_that_nobody_has() -> None:
    first = choose_server_id(0, "us", 1, (), random.Random(5))
    others = (Replica(first, "us", ""),)
    second = choose_server_id(0, "us", 1, others, random.Random(5))
    assert first != second
    assert min(first, second) >= 1 << 31


def test_the_settings_of_a_source_need_an_address() -> None:
    with pytest.raises(UsageError, match="no address"):
        open_server(SourceSettings((), "tide", tls="off"))
