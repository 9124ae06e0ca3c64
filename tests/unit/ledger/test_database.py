"""The ledger's door: transactions, and the driver's troubles in our words."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tidemark.errors import CorruptionError, DiskFullError, PermanentError, RetryableError
from tidemark.ledger.backup import back_up
from tidemark.ledger.database import Ledger, database_time
from tidemark.ledger.migrations import migrate_ledger
from tidemark.ledger.sql import in_chunks

NORMAL, FULL = 1, 2  # https://sqlite.org/pragma.html#pragma_synchronous


def _aliases(ledger: Ledger) -> list[str]:
    with ledger.read() as connection:
        return list(connection.execute(sa.text("SELECT external FROM run_alias ORDER BY external")).scalars())


def test_a_block_that_raises_leaves_nothing(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError), ledger.write() as connection:
        connection.execute(sa.text("INSERT INTO run_alias VALUES ('a', 'r')"))
        raise ZeroDivisionError
    assert _aliases(ledger) == []
    with ledger.write() as connection:
        connection.execute(sa.text("INSERT INTO run_alias VALUES ('b', 'r')"))
    assert _aliases(ledger) == ["b"]


def test_only_what_is_nothing_without_this_machine_does_not_wait_for_its_disk(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")

    def level() -> int:
        with closing(ledger.engine.raw_connection()) as raw:  # as the next transaction finds it
            cursor = raw.cursor()
            cursor.execute("PRAGMA synchronous")
            return int(cursor.fetchone()[0])

    assert level() == FULL
    with ledger.write(lasting=False) as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == NORMAL
    assert level() == FULL
    with pytest.raises(ZeroDivisionError), ledger.write(lasting=False):
        raise ZeroDivisionError
    assert level() == FULL
    ledger.close()


def test_the_database_has_a_clock(ledger: Ledger) -> None:
    with ledger.read() as connection:
        assert database_time(connection) == pytest.approx(database_time(connection), abs=5.0)
        assert database_time(connection) > 1_700_000_000


def test_a_mistake_in_our_sql_is_not_called_a_trouble_of_the_database(ledger: Ledger) -> None:
    with pytest.raises(DBAPIError), ledger.read() as connection:
        connection.execute(sa.text("SELECT * FROM no_such_table"))


def test_a_relative_path_is_taken_below_the_settings_folder(tmp_path: Path) -> None:
    ledger = Ledger("sqlite:///var/ledger.db", tmp_path)
    migrate_ledger(ledger)
    assert (tmp_path / "var" / "ledger.db").exists()
    ledger.close()


def test_a_database_that_is_no_database_is_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(os.urandom(8192))
    with pytest.raises(CorruptionError, match=r"ledger\.db") as damaged:
        migrate_ledger(Ledger(f"sqlite:///{tmp_path / 'ledger.db'}"))
    assert "ledger rebuild" in damaged.value.hint


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo])
def test_where_no_database_can_be_somebody_is_needed(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / "ledger.db")
    with pytest.raises(PermanentError, match=r"ledger\.db is no regular file") as refused:
        migrate_ledger(Ledger(f"sqlite:///{tmp_path / 'ledger.db'}"))
    assert "ledger rebuild" in refused.value.hint


def test_a_database_that_is_full_says_so(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    migrate_ledger(ledger)
    with pytest.raises(DiskFullError), ledger.write() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # SQLite keeps it at the pages there are
        for number in range(100):
            connection.execute(sa.text("INSERT INTO run_alias VALUES (:n, :text)"), {"n": number, "text": "x" * 4096})
    assert _aliases(ledger) == []


def test_a_database_that_another_holds_locked_is_retryable(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    migrate_ledger(ledger)
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with ledger.read() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 50")
    with pytest.raises(RetryableError, match="locked"), ledger.write() as connection:
        database_time(connection)
    other.close()
    ledger.close()


@pytest.mark.full
@pytest.mark.real("postgresql")
def test_a_server_that_is_away_or_goes_away_is_retryable(postgres_url: str) -> None:
    nobody = sa.make_url(postgres_url).set(host="127.0.0.1", port=1, query={}, password="secret")
    with pytest.raises(RetryableError) as away:
        migrate_ledger(Ledger(nobody.render_as_string(hide_password=False)))
    assert "secret" not in away.value.message
    ledger = Ledger(postgres_url)
    migrate_ledger(ledger)
    with pytest.raises(RetryableError), ledger.write() as connection:
        connection.execute(sa.text("INSERT INTO run_alias VALUES ('a', 'r')"))
        with Ledger(postgres_url).write() as killer:
            mine = connection.connection.driver_connection
            assert mine is not None
            killer.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": mine.info.backend_pid})
        connection.execute(sa.text("INSERT INTO run_alias VALUES ('b', 'r')"))
    assert _aliases(ledger) == []  # and the next transaction has a new connection
    ledger.close()


def modes(folder: Path) -> dict[str, int]:
    return {place.name: stat.S_IMODE(place.stat().st_mode) for place in folder.iterdir() if place.name.startswith("ledger")}


def test_its_owner_alone_reads_a_ledger_and_what_lies_beside_it(tmp_path: Path) -> None:
    """Paths, devices, reasons: whoever may read them learns what the sites have."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    migrate_ledger(ledger)
    with ledger.write() as connection:
        connection.execute(sa.text("SELECT 1"))
        assert modes(tmp_path) == dict.fromkeys(("ledger.db", "ledger.db-wal", "ledger.db-shm"), 384)
    back_up(ledger, tmp_path / "ledger-copy.db")
    assert set(modes(tmp_path).values()) == {0o600}
    ledger.close()


def test_a_ledger_that_others_could_read_is_closed_to_them_when_it_is_opened(tmp_path: Path) -> None:
    made = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    migrate_ledger(made)
    for place in tmp_path.iterdir():
        place.chmod(0o644)
    again = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    with again.read():
        assert set(modes(tmp_path).values()) == {0o600}
    for ledger in (again, made):
        ledger.close()


def test_others_cannot_put_another_ledger_in_its_place(tmp_path: Path) -> None:
    """Whatever the umask: who may write into the folder may rename what lies in it."""
    before = os.umask(0)
    try:
        ledger = Ledger(f"sqlite:///{tmp_path}/new/var/ledger.db")
        migrate_ledger(ledger)
        back_up(ledger, tmp_path / "new" / "var" / "backup" / "one.db")
    finally:
        os.umask(before)
    ledger.close()
    for folder in ("new", "new/var", "new/var/backup"):
        assert not (tmp_path / folder).stat().st_mode & 0o022, folder


@pytest.mark.full_after(1)
def test_a_query_for_more_values_than_a_statement_takes_is_asked_in_parts(ledger: Ledger) -> None:
    with ledger.read() as connection:
        sql = "SELECT :same AS same, v.n FROM (SELECT 7 AS n UNION SELECT 40000) v WHERE v.n IN :many"
        found = list(in_chunks(connection, sql, [*range(40_001), 7], same=1))
        assert [tuple(row) for row in found] == [(1, 7), (1, 40_000)], "a value is asked for once"
        assert list(in_chunks(connection, sql, [], same=1)) == []
