"""Files of lines that several processes append to; events as those of Debezium."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sink_worlds import SinkWorld, inserted, updated
from tidemark.changes.delivery.lines import AppendedFile
from tidemark.stores.agent import durable

WRITER = """
import sys
from pathlib import Path
from tidemark.changes.delivery.lines import AppendedFile
for number in range(int(sys.argv[2])):
    file = AppendedFile(Path(sys.argv[1]))  # each opening looks for a torn line
    file.write(iter([{"who": sys.argv[3], "n": number, "text": "x" * int(sys.argv[4])}]))
    file.make_durable()
    file.close()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "dead.jsonl"


def lines_of(place: Path) -> Iterator[object]:
    return (json.loads(line) for line in place.read_text().splitlines())


def test_processes_that_share_a_file_lose_no_line_of_each_other(place: Path) -> None:
    count, size = 40, 300_000  # a line is more than one write of a pipe's or a page's size
    words = [[sys.executable, "-c", WRITER, str(place), str(count), who, str(size)] for who in ("one", "two")]
    writers = [subprocess.Popen(word, env={"PYTHONPATH": ":".join(sys.path)}) for word in words]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    found = [(line["who"], line["n"]) for line in lines_of(place) if isinstance(line, dict)]
    assert sorted(found) == [(who, number) for who in ("one", "two") for number in range(count)]


def test_a_line_that_another_process_tore_is_cut_before_the_next_one(place: Path) -> None:
    file = AppendedFile(place)
    file.write(iter([{"n": 1}]))
    with place.open("ab") as other:
        other.write(b'{"n": 2, "text": "' + b"x" * 200_000)  # and it died
    file.write(iter([{"n": 3}]))
    file.close()
    assert list(lines_of(place)) == [{"n": 1}, {"n": 3}]


def test_a_folder_that_cannot_be_synced_leaves_no_file_open(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_folder: bytes) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(durable, "sync_folder", fail)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="the disk is gone"):
        AppendedFile(place)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("shards", ["1", "3"])
def test_an_update_that_changes_the_key_is_a_delete_and_an_insert_to_debezium(tmp_path: Path, shards: str) -> None:
    """Two rows that change places in one transaction: who keeps rows by their key ends with the same."""
    world = SinkWorld(tmp_path, "history")
    a, b = ("a", "1.00"), ("b", "2.00")
    world.append([inserted(1, *a), inserted(2, *b)])
    world.append([updated((1, *a), (9, *a)), updated((2, *b), (1, *b)), updated((9, *a), (2, *a))])
    world.append([updated((2, *a), (2, "c", "3.00"))])
    words = ("--out", str(tmp_path / "out"), "--shards", shards, "--format", "debezium")
    said = world.run("consume", "t", "--source", "orders", *words)
    assert said.code == 0, said
    kept, ops = [], ""
    for file in sorted((tmp_path / "out").iterdir()):
        rows: dict[int, str] = {}
        for event in map(json.loads, file.read_text().splitlines()):
            ops += event["op"]
            if event["op"] == "d":
                assert event["after"] is None
                del rows[event["before"]["id"]]
            else:
                assert (event["before"] is None) == (event["op"] == "c")
                rows[event["after"]["id"]] = event["after"]["name"]
        kept += rows.items()
    assert sorted(kept) == [(1, "b"), (2, "c")]
    assert sorted(ops) == sorted("ccdcdcdcu")
