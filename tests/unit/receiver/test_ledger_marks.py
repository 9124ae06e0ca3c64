"""A ledger that is lost, emptied, older than its receiver or another one's: every verb says so, and a rebuild mends it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tidemark.app import compare_marks
from tidemark.errors import PermanentError
from tidemark.ledger.receiver.rebuild import Mark
from tidemark.tsfiles.names import MARK_FILE

VERBS = (
    ("status",),
    ("coverage",),
    ("verify",),
    ("why", "plant1"),
    ("read", "--tall", "--out", "out.csv"),
    ("plan", "plant1"),
    ("sync", "plant1"),
    ("load",),
    ("merge",),
    ("owners", "list"),
    ("quarantine", "list"),
    ("approve", "20260101T000000-1a2b", "--yes"),
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    monkeypatch.chdir(tmp_path)
    world = Commanded(tmp_path, monkeypatch)
    world.seal(1)
    assert world.sync().code == 0
    return world


def ledger_of(world: Commanded) -> Path:
    return world.folder / "var" / "ledger.db"


def remove(world: Commanded) -> None:
    for path in (world.folder / "var").glob("ledger.db*"):
        path.unlink()


def cut_to_nothing(world: Commanded) -> None:
    remove(world)
    ledger_of(world).touch()


def delete_every_row(world: Commanded) -> None:
    with closing(sqlite3.connect(ledger_of(world))) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        for (table,) in tables.fetchall():
            if table != "tidemark_schema":
                connection.execute(f"DELETE FROM {table}")
        connection.commit()


def restore_a_backup(world: Commanded) -> None:
    """Of before the newest load."""
    backup = world.run("ledger", "backup").json["path"]
    world.seal(2)
    assert world.sync().code == 0
    remove(world)
    shutil.copy(backup, ledger_of(world))


def restore_one_without_mark(world: Commanded) -> None:
    with closing(sqlite3.connect(ledger_of(world))) as connection:
        connection.execute("DELETE FROM ledger_mark")
        connection.commit()


def take_another_receivers(world: Commanded) -> None:
    paper = json.loads((world.root / MARK_FILE).read_text())
    paper["mark"] = "11111111-2222-4333-8444-555555555555"
    (world.root / MARK_FILE).write_text(json.dumps(paper))


LOST = {
    "removed": (remove, "it knows nothing of what lies at receiver centre"),
    "0 bytes": (cut_to_nothing, "it knows nothing of what lies at receiver centre"),
    "no rows": (delete_every_row, "it knows nothing of what lies at receiver centre"),
    "older": (restore_a_backup, "the ledger is older than receiver centre"),
    "of before there were marks": (restore_one_without_mark, "the ledger is older than receiver centre"),
    "another's": (take_another_receivers, "the ledger is not the one of receiver centre"),
}


@pytest.mark.full_after(1)
@pytest.mark.parametrize("how", LOST)
def test_every_verb_notices_and_a_rebuild_mends(world: Commanded, how: str) -> None:
    lose, says = LOST[how]
    lose(world)
    for words in VERBS:
        said = world.run(*words)
        said.refused(6, says)
        assert "ledger rebuild --replace" in said.json["hint"], words
    assert not (world.folder / "out.csv").exists()
    checks = world.run("doctor").json["checks"]
    (ledger,) = [check for check in checks if check["name"] == "ledger"]
    assert not ledger["ok"]
    assert says in ledger["detail"]
    assert world.run("ledger", "backup").code == 0
    assert world.run("ledger", "upgrade").code == 0
    assert world.run("ledger", "rebuild", "--replace", "--yes").code == 0
    world.assert_in_step()


@pytest.mark.real("airflow")
def test_every_task_of_airflow_notices_too(world: Commanded, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemark.orchestration.tasks.perform import perform_step

    monkeypatch.setenv("TIDEMARK_CONFIG", str(world.folder / "tidemark.toml"))
    assert perform_step(lambda app: app.receiver_settings().name) == "centre"
    remove(world)
    with pytest.raises(PermanentError, match="it knows nothing of what lies at receiver centre"):
        perform_step(lambda app: app.receiver_settings().name)


def test_without_a_mark_the_folder_itself_speaks(world: Commanded) -> None:
    """A receiver of a Tidemark that wrote no marks."""
    (world.root / MARK_FILE).unlink()
    remove(world)
    world.run("read", "--tall", "--out", "out.csv").refused(6, "it knows nothing of what lies at receiver centre")


def test_a_receiver_without_a_mark_gets_one_at_its_next_load(world: Commanded) -> None:
    restore_one_without_mark(world)
    (world.root / MARK_FILE).unlink()
    assert world.run("status").code == 0
    assert world.run("load").code == 0
    assert json.loads((world.root / MARK_FILE).read_text())["changes"] >= 1
    world.assert_in_step()


def test_a_mark_that_a_crash_left_behind_is_no_trouble_and_is_written_again(world: Commanded) -> None:
    before = (world.root / MARK_FILE).read_bytes()
    world.seal(2)
    assert world.sync().code == 0
    after = (world.root / MARK_FILE).read_bytes()
    assert json.loads(after)["changes"] > json.loads(before)["changes"]
    (world.root / MARK_FILE).write_bytes(before)
    assert world.run("status").code == 0
    assert world.run("load").code == 0
    assert (world.root / MARK_FILE).read_bytes() == after


@pytest.mark.full_after(1)
@pytest.mark.parametrize("damage", [b"", b"{", b"[" * 4000, b'{"mark": 7, "changes": 1}', b"\xff\xfe", None])
def test_a_mark_that_cannot_be_read(world: Commanded, damage: bytes | None) -> None:
    place = world.root / MARK_FILE
    place.unlink()
    if damage is None:
        place.symlink_to("/dev/zero")
        world.run("status").refused(7, MARK_FILE)
        place.unlink()
        place.mkdir()
    else:
        place.write_bytes(damage)
    world.run("status").refused(7, MARK_FILE)
    if damage is not None:
        assert world.run("ledger", "rebuild", "--replace", "--yes").code == 0
        world.assert_in_step()


def test_merges_and_decisions_count(world: Commanded) -> None:
    def changes() -> int:
        return int(json.loads((world.root / MARK_FILE).read_text())["changes"])

    def raised(act: Callable[[], object]) -> bool:
        before = changes()
        act()
        return changes() > before

    world.seal(2, device="root.sg.d1")
    assert raised(world.sync)
    assert raised(lambda: world.run("merge"))
    other = "2b4e28ba-2fa1-41d2-883f-0016d3cca427"
    text = (world.folder / "tidemark.toml").read_text()
    (world.folder / "tidemark.toml").write_text(text + f'[sites.plant2]\nid = "{other}"\nstore = "site"\n')
    said = world.run("owners", "transfer", "root.sg.d1", "--to", "plant2", "--yes")
    assert said.code == 0, said
    assert raised(lambda: world.run("owners", "transfer", "root.sg.d1", "--to", "plant1", "--yes"))


def test_a_fresh_deployment_has_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Commanded(tmp_path, monkeypatch)
    assert world.run("status").code == 0
    assert world.run("load").code == 0
    assert world.run("coverage").code == 0
    remove(world)
    assert world.run("status").code == 0


ONE = Mark("a", 5)


@pytest.mark.parametrize(
    ("ours", "told", "known", "used", "says"),
    [
        (ONE, ONE, True, True, ""),
        (ONE, Mark("a", 4), True, True, ""),
        (ONE, None, True, True, ""),
        (None, None, True, True, ""),
        (None, None, False, False, ""),
        (ONE, Mark("a", 6), True, True, "older"),
        (None, ONE, True, True, "older"),
        (ONE, Mark("b", 1), True, True, "not the one"),
        (None, ONE, False, True, "knows nothing"),
        (None, None, False, True, "knows nothing"),
    ],
)
def test_the_rule(ours: Mark | None, told: Mark | None, known: bool, used: bool, says: str) -> None:
    trouble = compare_marks(ours, told, known=known, used=used)
    assert says in trouble
    assert bool(trouble) is bool(says)
