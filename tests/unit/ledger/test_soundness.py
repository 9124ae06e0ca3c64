"""Flipped bits in an SQLite ledger end a command as damage (7), never as a fault of ours (1)."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tidemark.ledger.database import Ledger
from tidemark.ledger.soundness import damage_of

VERBS = (
    ("status",),
    ("coverage",),
    ("why", "plant1"),
    ("read", "--tall", "--out", "out.csv"),
    ("load",),
    ("owners", "list"),
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    monkeypatch.chdir(tmp_path)
    world = Commanded(tmp_path, monkeypatch)
    for number in (1, 2):
        world.seal(number)
    assert world.sync().code == 0
    with closing(sqlite3.connect(place(world))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return world


def place(world: Commanded) -> Path:
    return world.folder / "var" / "ledger.db"


def put(world: Commanded, data: bytes) -> None:
    for beside in place(world).parent.glob("ledger.db-*"):
        beside.unlink()
    place(world).write_bytes(data)


def change(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new)

    return changed


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (change(b"seconds_left DOUBLE", b"seconds_lefu DOUBLE"), ("status",)),
        (change(b"CREATE TABLE owner (", b"CREATE TABLE owner \xce"), ("status",)),
        (change(b'{"format":1,"landing"', b'{"format":1,"l\xc3nding"'), ("status",)),
        (change(b'{"format":1,"landing"', b'{"format":1,"landing#'), ("status",)),
        (change(b"root.sg.d1", b"root.sg.\xff1"), ("owners", "list")),
    ],
    ids=["a column's name", "the schema is no UTF-8", "a text is no UTF-8", "JSON that does not parse", "a device"],
)
def test_it_is_told_as_damage(world: Commanded, damage: Callable[[bytes], bytes], words: tuple[str, ...]) -> None:
    put(world, damage(place(world).read_bytes()))
    said = world.run(*words)
    said.refused(7, "the ledger is damaged", "ledger.db")
    assert "./tidemark ledger rebuild" in said.json["hint"]


@pytest.mark.full
def test_any_bits_at_all(world: Commanded) -> None:
    sound = place(world).read_bytes()
    chance = random.Random(14)
    for turn in range(25):
        data = bytearray(sound)
        for _ in range(1 if turn % 2 else 30):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        for words in VERBS:
            put(world, bytes(data))
            said = world.run(*words)
            assert said.code != 1, (turn, words, said)


def test_a_sound_one_has_none_while_it_is_in_use(world: Commanded) -> None:
    ledger = Ledger(f"sqlite:///{place(world)}")
    with ledger.write():
        assert damage_of(ledger) is None
    assert damage_of(Ledger(f"sqlite:///{world.folder / 'none.db'}")) is None
    ledger.close()
