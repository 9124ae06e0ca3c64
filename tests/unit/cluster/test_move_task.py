"""A move task by itself: what it proves, what it refuses, what it tells; and how items become tasks."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.cluster.migration.send_task import (
    AT_ONCE,
    SMALLEST,
    TASK_BYTES,
    TASK_FILES,
    End,
    MoveTask,
    run_move,
    split_into_waves,
)
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.engines.choose import PoolEngine
from tidemark.errors import CorruptionError, DiskAwayError, SourceVanishedError
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import StoreAddress
from tidemark.transfer.engine import SendItem, SendOptions


def node(folder: Path, name: str, cluster: str = "first") -> End:
    (folder / name).mkdir()
    NodeFolder(LocalStore(str(folder / name)), name).claim_folder(cluster)
    return End(StoreAddress(f"file://{folder / name}"), name)


def item(folder: Path, at: str, content: bytes, digest: str = "") -> SendItem:
    place = folder / at
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return SendItem(at, at, len(content), digest or hashlib.sha256(content).hexdigest())


@pytest.fixture
def task(tmp_path: Path) -> MoveTask:
    source, target = node(tmp_path, "n1"), node(tmp_path, "n2")
    items = tuple(item(tmp_path / "n1", f"data/db/0/{n}.tsfile", b"%d" % n * 1000) for n in range(3))
    return MoveTask("first", source, target, items)


def test_what_is_sent_is_at_the_target_and_named_with_its_digest(task: MoveTask, tmp_path: Path) -> None:
    made = run_move(task)
    assert made.failed == ()
    assert {(one.item, one.sha256) for one in made.sent} == {(one, one.sha256) for one in task.items}
    for one in task.items:
        assert hashlib.sha256((tmp_path / "n2" / one.target_path).read_bytes()).hexdigest() == one.sha256


def test_what_lies_there_already_is_proved_and_not_sent_again(task: MoveTask, tmp_path: Path) -> None:
    run_move(task)
    before = [(tmp_path / "n2" / one.target_path).stat().st_ino for one in task.items]
    made = run_move(task)
    assert sum(one.wire_bytes for one in made.sent) == 0 and len(made.sent) == 3
    assert [(tmp_path / "n2" / one.target_path).stat().st_ino for one in task.items] == before


@pytest.mark.full
def test_each_file_fails_by_itself_with_its_own_kind(task: MoveTask, tmp_path: Path) -> None:
    (tmp_path / "n1" / task.items[0].source_path).unlink()
    (tmp_path / "n1" / task.items[1].source_path).write_bytes(b"x" * 1000)
    made = run_move(task)
    assert [one.item for one in made.sent] == [task.items[2]]
    kinds = {one.item: type(one.error) for one in made.failed}
    assert kinds[task.items[0]] is SourceVanishedError and issubclass(kinds[task.items[1]], CorruptionError)
    assert not (tmp_path / "n2" / task.items[1].target_path).exists()


@pytest.mark.parametrize("wrong", ["source", "target"])
def test_a_folder_that_is_not_the_nodes_is_left_alone(task: MoveTask, tmp_path: Path, wrong: str) -> None:
    """A disk that is not mounted at an executor's time of work, though it was when the flow looked."""
    (tmp_path / {"source": "n1", "target": "n2"}[wrong] / ".tidemark/node.json").unlink()
    with pytest.raises(DiskAwayError, match="is not the folder of node"):
        run_move(task)
    assert not (tmp_path / "n2" / "data").exists()


def test_a_child_runs_it_and_its_answer_keeps_kinds(task: MoveTask, tmp_path: Path) -> None:
    (tmp_path / "n1" / task.items[0].source_path).unlink()
    (outcome,) = PoolEngine(1).run("slot_migrate", [task])
    assert outcome.error is None and len(outcome.value.sent) == 2
    assert isinstance(outcome.value.failed[0].error, SourceVanishedError)


def test_a_task_names_key_files_and_carries_no_key(tmp_path: Path) -> None:
    key = tmp_path / "id"
    key.write_text("SECRET")
    end = End(StoreAddress("sftp://u@h/x", "SHA256:x", str(key)), "n1")
    packed = pickle.dumps(MoveTask("first", end, end, ()))
    assert str(key).encode() in packed and b"SECRET" not in packed


@given(st.lists(st.integers(0, 3 * TASK_BYTES), max_size=40), st.integers(1, 6))
def test_every_item_is_in_one_task_and_no_task_is_too_large(sizes: list[int], at_once: int) -> None:
    items = [SendItem(str(n), str(n), size) for n, size in enumerate(sizes)]
    found = list(split_into_waves(items, at_once))
    portions = [portion for wave in found for portion in wave]
    assert [one for portion in portions for one in portion] == items and all(portions)
    assert all(0 < len(wave) <= at_once for wave in found)
    for portion in portions:
        assert len(portion) <= TASK_FILES
        assert len(portion) == 1 or sum(one.size for one in portion) <= max(TASK_BYTES, SMALLEST)


def test_little_is_one_task() -> None:
    tiny = [SendItem(str(n), str(n), 10) for n in range(TASK_FILES + 1)]
    assert [[len(portion) for portion in wave] for wave in split_into_waves(tiny)] == [[TASK_FILES, 1]]
    assert [len(wave) for wave in split_into_waves([SendItem(str(n), str(n), 10) for n in range(50)])] == [1]
    assert [len(wave) for wave in split_into_waves([SendItem(str(n), str(n), SMALLEST) for n in range(AT_ONCE)])] == [
        AT_ONCE
    ]


def test_a_wave_shares_bandwidth_and_connections() -> None:
    mine = SendOptions(bandwidth=100.0, connections=16).divide(4)
    assert (mine.bandwidth, mine.connections) == (25.0, 4)
    assert SendOptions().divide(3).bandwidth == 0.0 and SendOptions(connections=2).divide(4).connections == 1
