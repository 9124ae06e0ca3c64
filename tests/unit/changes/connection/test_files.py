"""Binary log files without their server: which are one history, and what of one that is no sound log is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.binlog_maker import recorded
from tests.dump_worlds import MARIA
from tidemark.changes.connection.files import open_files
from tidemark.changes.connection.model import FilePosition, RawEvent
from tidemark.errors import CorruptionError, TidemarkError, UsageError


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    for name, file in MARIA.items():
        (tmp_path / name).write_bytes(recorded(file))
    return sorted(tmp_path.iterdir())


def read_files_of(paths: list[Path]) -> list[str]:
    """The logs in which events were, in the order of the events."""
    return list(dict.fromkeys(event.file for event in open_files(paths).events()))


def test_they_come_in_the_order_of_their_numbers(logs: list[Path]) -> None:
    renamed = []
    for number, path in enumerate(logs, 999_998):
        renamed.append(path.rename(path.with_name(f"binlog.{number:06}")))
    assert read_files_of(sorted(renamed)) == [path.name for path in renamed]
    assert sorted(renamed) != renamed


def test_what_is_not_one_whole_history_is_refused(logs: list[Path], tmp_path: Path) -> None:
    for given in ([], [logs[0], logs[2]], [*logs, logs[1]], [*logs, tmp_path / "other-bin.000011"]):
        with pytest.raises(UsageError):
            open_files(given)


@pytest.mark.parametrize("start", [FilePosition("mysql-bin.000099"), FilePosition("mysql-bin.000006", 1 << 40)])
def test_a_start_that_is_not_there_is_refused(logs: list[Path], start: FilePosition) -> None:
    with pytest.raises(UsageError, match=r"mysql-bin\.0000"):
        open_files(logs, start)


def test_what_is_no_file_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "b.000001")
    (tmp_path / "b.000002").mkdir()
    for path in (tmp_path / "b.000001", tmp_path / "b.000002", tmp_path / "b.000003"):
        with pytest.raises(UsageError, match=r"b\.00000"):
            open_files([path])


def test_a_log_cut_anywhere_gives_whole_events_and_its_name(logs: list[Path]) -> None:
    path = logs[0]
    log, whole = path.read_bytes(), list(open_files([path]).events())
    for cut in range(0, len(log), len(log) // 40):
        path.write_bytes(log[:cut])
        events: list[RawEvent] = []
        error: TidemarkError | None = None
        try:
            for event in open_files([path]).events():
                events.append(event)
        except CorruptionError as caught:
            error = caught
        assert events == whole[: len(events)]
        read = events[-1].end if events else 4
        assert (error is None) == (read == cut)
        assert error is None or str(path) in error.message
