"""Migrations: in order, once, forward only, safe when two processes start at once."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from tidemark.errors import PermanentError, SchemaTooNewError
from tidemark.ledger.database import Ledger
from tidemark.ledger.migrations import FOLDER, column_comments, known_migrations, migrate_ledger, schema_version

VERSIONS = [m.version for m in known_migrations()]


def _tables(ledger: Ledger) -> dict[str, list[str]]:
    inspector = sa.inspect(ledger.engine)
    return {t: sorted(c["name"] for c in inspector.get_columns(t)) for t in sorted(inspector.get_table_names())}


def _copy(tmp_path: Path, upto: int | None = None) -> Path:
    folder = tmp_path / "sql"
    folder.mkdir(exist_ok=True)
    for migration in known_migrations()[:upto]:
        shutil.copy(FOLDER / migration.name, folder)
    return folder


@pytest.mark.full_after(1)
def test_an_empty_database_gets_every_migration_once(empty_ledger: Ledger) -> None:
    assert schema_version(empty_ledger) == 0
    assert list(migrate_ledger(empty_ledger)) == VERSIONS
    assert list(migrate_ledger(empty_ledger)) == []
    assert schema_version(empty_ledger) == VERSIONS[-1]


@pytest.mark.full_after(2)
@pytest.mark.parametrize("start", VERSIONS[:-1])
def test_every_earlier_schema_is_brought_forward(empty_ledger: Ledger, tmp_path: Path, start: int) -> None:
    migrate_ledger(empty_ledger, _copy(tmp_path, start))
    assert schema_version(empty_ledger) == start
    assert list(migrate_ledger(empty_ledger)) == VERSIONS[start:]
    fresh = Ledger(f"sqlite:///{tmp_path / 'fresh.db'}")
    migrate_ledger(fresh)
    assert _tables(empty_ledger) == _tables(fresh)
    fresh.close()


def test_a_newer_database_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(SchemaTooNewError, match="this Tidemark knows 1") as refused:
        migrate_ledger(ledger, _copy(tmp_path, 1))
    assert "upgrade" in refused.value.hint


def test_a_migration_that_changed_after_it_was_applied_is_named(ledger: Ledger, tmp_path: Path) -> None:
    folder = _copy(tmp_path)
    changed = folder / known_migrations()[0].name
    changed.write_text(changed.read_text() + "-- touched\n")
    with pytest.raises(PermanentError, match=changed.name):
        migrate_ledger(ledger, folder)


def test_missing_numbers_are_refused(empty_ledger: Ledger, tmp_path: Path) -> None:
    folder = _copy(tmp_path)
    (folder / known_migrations()[0].name).unlink()
    with pytest.raises(PermanentError, match="not numbered"):
        migrate_ledger(empty_ledger, folder)
    assert schema_version(empty_ledger) == 0


@pytest.mark.full_after(1)
def test_a_migration_that_fails_leaves_nothing_of_itself_nor_of_those_before_it(
    empty_ledger: Ledger, tmp_path: Path
) -> None:
    folder = _copy(tmp_path)
    number = len(VERSIONS) + 1
    bad = folder / f"{number:04d}_broken.sql"
    bad.write_text("CREATE TABLE half (\n    a TEXT -- x\n);\nCREATE TABLE lease (a TEXT);\n")
    with pytest.raises(Exception, match="lease"):
        migrate_ledger(empty_ledger, folder)
    assert schema_version(empty_ledger) == 0
    assert not {"half", "lease"} & set(_tables(empty_ledger))
    bad.write_text("CREATE TABLE whole (\n    a TEXT -- x\n);\n")
    assert list(migrate_ledger(empty_ledger, folder)) == [*VERSIONS, number]


def test_two_that_start_at_once_migrate_once(empty_ledger: Ledger) -> None:
    applied: list[int] = []
    failed: list[Exception] = []
    start = threading.Barrier(4)

    def one() -> None:
        mine = Ledger(empty_ledger.url)
        start.wait()
        try:
            applied.extend(migrate_ledger(mine))
        except Exception as error:
            failed.append(error)
        finally:
            mine.close()

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(applied) == VERSIONS


@pytest.mark.parametrize("migration", known_migrations(), ids=lambda m: m.name)
def test_every_column_has_a_comment(migration) -> None:
    bare = [f"{table}.{column}" for table, column, comment in column_comments(migration.sql) if len(comment) < 5]
    assert bare == []


@pytest.mark.full_after(1)
def test_the_comments_cover_the_columns_that_the_database_has(ledger: Ledger) -> None:
    commented: dict[str, list[str]] = {}
    for migration in known_migrations():
        for table, column, _ in column_comments(migration.sql):
            commented.setdefault(table, []).append(column)
    tables = _tables(ledger)
    del tables["tidemark_schema"]
    tables.pop("sqlite_sequence", None)
    assert {t: sorted(c) for t, c in commented.items()} == tables
    if not ledger.is_sqlite:
        shown = {c["name"]: c["comment"] for c in sa.inspect(ledger.engine).get_columns("lease")}
        assert shown["fence"] == "rises by one with every taking"
