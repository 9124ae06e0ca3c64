"""A backup is a ledger of its own, of one moment, and goes back into an empty database of either kind."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from tidemark.errors import PermanentError
from tidemark.ledger import journal as events
from tidemark.ledger.backup import back_up, copy_rows
from tidemark.ledger.database import Ledger
from tidemark.ledger.migrations import migrate_ledger, schema_version


def _fill(ledger: Ledger, events_: int = 12_000) -> None:
    with ledger.write() as connection:
        connection.execute(sa.text("INSERT INTO site VALUES ('id', 'plänt ''1''', 'ms', 604800000, 1.5, '')"))
        events.record_many(connection, "file.loaded", [{"path": f"p{n}", "size": n} for n in range(events_)])


def _rows(ledger: Ledger) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    with ledger.read() as connection:
        sites = [tuple(r) for r in connection.execute(sa.text("SELECT * FROM site"))]
        found = [tuple(r) for r in connection.execute(sa.text("SELECT * FROM event ORDER BY event_id"))]
    return sites, found


@pytest.mark.full_after(1)
def test_a_backup_is_a_ledger_with_the_same_rows(ledger: Ledger, tmp_path: Path) -> None:
    _fill(ledger)
    target = tmp_path / "new" / "backup.db"
    assert back_up(ledger, target) == target.stat().st_size
    assert sorted(p.name for p in target.parent.iterdir()) == ["backup.db"]
    copy = Ledger(f"sqlite:///{target}")
    assert schema_version(copy) == schema_version(ledger)
    assert _rows(copy) == _rows(ledger)
    copy.close()


@pytest.mark.full_after(1)
def test_a_backup_replaces_an_older_one_of_its_name_and_a_torn_one(ledger: Ledger, tmp_path: Path) -> None:
    target = tmp_path / "backup.db"
    target.write_bytes(b"older")
    target.with_name("backup.db.part").write_bytes(b"torn")
    back_up(ledger, target)
    with sqlite3.connect(target) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert not target.with_name("backup.db.part").exists()


@pytest.mark.full_after(1)
def test_what_is_not_committed_is_not_in_it(ledger: Ledger, tmp_path: Path) -> None:
    _fill(ledger, 1)
    with ledger.engine.connect() as writing:
        writing.execute(sa.text("INSERT INTO run_alias VALUES ('open', 'r')"))
        if not ledger.is_sqlite:  # SQLite has one writer, and its backup waits for none
            back_up(ledger, tmp_path / "backup.db")
        writing.rollback()
    back_up(ledger, tmp_path / "backup.db")
    copy = Ledger(f"sqlite:///{tmp_path / 'backup.db'}")
    with copy.read() as connection:
        assert connection.execute(sa.text("SELECT COUNT(*) FROM run_alias")).scalar_one() == 0
    copy.close()


@pytest.mark.full_after(1)
def test_it_goes_back_into_an_empty_database_and_keys_grow_on(ledger: Ledger, tmp_path: Path) -> None:
    source = Ledger(f"sqlite:///{tmp_path / 'source.db'}")
    migrate_ledger(source)
    _fill(source, 10)
    assert copy_rows(source, ledger) == 11
    assert _rows(ledger) == _rows(source)
    with ledger.write() as connection:
        events.record_event(connection, "file.loaded", path="after")
    assert _rows(ledger)[1][-1][0] == 11
    with pytest.raises(PermanentError, match="not empty"):
        copy_rows(source, ledger)
    source.close()
