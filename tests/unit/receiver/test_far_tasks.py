"""A task whose files are elsewhere: fetched, run, brought back, on any store."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.landing_maker import Sender
from tests.small_files import column_of, file_of, sealed, source
from tidemark.engines.spark import zip_package
from tidemark.errors import CorruptionError, RetryableError
from tidemark.formats.landing import LandedFile
from tidemark.receiver.load.check import Examined, ExamineTask
from tidemark.receiver.merge.task import MergeOutcome, MergeTask, TaskSource
from tidemark.receiver.remote_tasks import RemoteTask, run_remote_task
from tidemark.stores.protocol import StoreAddress
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.reader import TsFile

D1 = ("root.sg", "d1")
HERE = StoreAddress("file:///")


def landed(folder: Path, content: bytes) -> LandedFile:
    path = source(1)
    part = Sender._write(folder, path, content)
    return LandedFile(path, 1, 0, tsfile=part, resource=None, mods=None, sha256=part.sha256, verified="source")


def test_a_file_is_examined_where_it_is_fetched_to(tmp_path: Path) -> None:
    file = landed(tmp_path, sealed({"root.sg.d1": {"s": [(1, 10)]}})[""])
    found = run_remote_task(RemoteTask(HERE, ExamineTask(str(tmp_path), file, "root.sg")))
    assert isinstance(found, Examined) and found.facts is not None and found.facts.points == 1


@pytest.mark.parametrize("trouble", ["cut", "gone"])
def test_what_is_wrong_is_told_by_source_path(tmp_path: Path, trouble: str) -> None:
    file = landed(tmp_path, sealed({"root.sg.d1": {"s": [(1, 10)]}})[""])
    place = tmp_path / file.path
    place.write_bytes(place.read_bytes()[:-1]) if trouble == "cut" else place.unlink()
    found = run_remote_task(RemoteTask(HERE, ExamineTask(str(tmp_path), file, "root.sg")))
    assert isinstance(found, Examined) and found.differs and found.came == (trouble == "cut")
    assert file.path in found.trouble and "tidemark-far" not in found.trouble


def merge_task(root: Path) -> RemoteTask:
    sources = []
    for number, points in enumerate(({1: 1, 2: 2}, {2: 20, 3: 30})):
        (root / f"{number}.tsfile").write_bytes(file_of({D1: {"s": column_of(DataType.INT64, points)}})[""])
        sources.append(TaskSource(f"{number}.tsfile", ""))
    return RemoteTask(HERE, MergeTask(0, 0, str(root), "staging/b", "root.sg", 1000, tuple(sources), ("root.sg.d1",)))


def test_outputs_are_staged_where_the_sources_are(tmp_path: Path) -> None:
    outcome = run_remote_task(merge_task(tmp_path))
    assert isinstance(outcome, MergeOutcome)
    (staged,) = outcome.staged
    place = tmp_path / staged.location
    assert hashlib.sha256(place.read_bytes()).hexdigest() == staged.sha256
    assert [p.name for p in place.parent.iterdir()] == [place.name]
    with TsFile(place, "root.sg") as file:
        assert file.read_column("root.sg.d1", "s").values.tolist() == [1, 20, 30]


def test_a_file_that_a_task_is_to_prove_is_fetched_though_it_holds_none_of_its_devices(tmp_path: Path) -> None:
    """The tasks of a group prove its sources between them: without that no merge of several tasks would end far away."""
    far = merge_task(tmp_path)
    assert isinstance(far.task, MergeTask)
    other = tmp_path / "other.tsfile"
    other.write_bytes(b"of other devices")
    proof = (("other.tsfile", hashlib.sha256(other.read_bytes()).hexdigest(), 1 << 20),)
    outcome = run_remote_task(replace(far, task=replace(far.task, prove=proof)))
    assert isinstance(outcome, MergeOutcome) and len(outcome.staged) == 1
    other.write_bytes(b"rotten")
    with pytest.raises(CorruptionError, match=r"other\.tsfile is not what was loaded"):
        run_remote_task(replace(far, task=replace(far.task, prove=proof)))


def test_a_source_that_is_gone_is_tried_again_later(tmp_path: Path) -> None:
    far = merge_task(tmp_path)
    (tmp_path / "1.tsfile").unlink()
    with pytest.raises(RetryableError, match="is gone"):
        run_remote_task(far)
    assert not (tmp_path / "staging").exists()


def test_an_executor_logs_in_with_nothing_but_the_package_as_a_zip(tmp_path: Path) -> None:
    """The far end's program is made of modules that lie in the zip that executors get."""
    zip_package(tmp_path / "tidemark.zip")
    code = (
        "from tidemark.stores.python.bundle import encode_program; import tidemark;"
        " print(tidemark.__file__, *map(len, encode_program('/')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "tidemark.zip")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    where, *lengths = done.stdout.split()
    assert "tidemark.zip" in where and all(int(length) > 1000 for length in lengths)
