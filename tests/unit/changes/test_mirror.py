"""Logs that are kept beside a store: byte for byte those of the source, whatever a dump leaves out."""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.binlog_maker import DATA
from tests.change_worlds import HOUR, START, DyingDisk, gtids_at, make_transaction
from tests.crash.explorer import Effects, explore
from tidemark.changes.binlog.layout import EventType
from tidemark.changes.capture.run import Job, Place, capture, open_log_files
from tidemark.changes.capture.transactions import Rules
from tidemark.changes.connection.files import open_files
from tidemark.changes.connection.model import Dump, FilePosition, RawEvent
from tidemark.changes.mirror import Mirror
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.retain import Rules as Retention
from tidemark.changes.store.retain import retain
from tidemark.changes.store.write import Limits, Writer
from tidemark.errors import CorruptionError, PermanentError

LOGS = ("mysql-bin.000011", "mysql-bin.000012", "mysql-bin.000013")
SMALL = Limits(block_bytes=4_000, block_seconds=1e9, group_seconds=0)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Logs of a MariaDB."""
    folder = tmp_path_factory.mktemp("logs")
    places = [folder / name for name in LOGS]
    for place in places:
        place.write_bytes(lzma.decompress((DATA / "workload" / f"{place.name}.xz").read_bytes()))
    return places


class Server:
    """What has logs, and counts how often they were fetched. A dump from within a log changes its format description, and
    `leaves_out` says which events it does not send."""

    def __init__(self, logs: list[Path], leaves_out: Callable[[RawEvent], bool] = lambda _: False) -> None:
        self.logs, self.leaves_out, self.fetched = logs, leaves_out, 0

    def open_from(self, end: Place | None) -> tuple[Dump, bool]:
        dump, again = open_log_files(self.logs)(end)
        return _Changed(dump, self.leaves_out), again

    def fetch(self, _: tuple[str, int], start: FilePosition) -> Dump:
        self.fetched += 1
        return open_files(self.logs, start)


class _Changed:
    def __init__(self, dump: Dump, leaves_out: Callable[[RawEvent], bool]) -> None:
        self._dump, self._leaves_out, self.file = dump, leaves_out, ""

    def events(self) -> Iterator[RawEvent]:
        for number, raw in enumerate(self._dump.events()):
            if not number:  # the time at which the log was made is taken out
                yield raw._replace(data=raw.data[:69] + bytes(4) + raw.data[73:])
            elif not self._leaves_out(raw):
                yield raw

    def close(self) -> None:
        self._dump.close()


def mirrored(root: Path, change_id: int = 1) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "mirror" / str(change_id)).iterdir())}


def of_server(logs: list[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in logs}


def run(root: Path, server: Server, fence: int = 1, disk: Disk | None = None) -> None:
    disk = disk or Disk(root)
    rules = Rules(lambda *_: True, stops=False)
    capture(Job(disk, fence, rules, server.open_from, limits=SMALL, mirror=Mirror(disk, server.fetch)))


def test_each_byte_of_each_log(tmp_path: Path, logs: list[Path]) -> None:
    run(tmp_path / "s", Server(logs))
    assert mirrored(tmp_path / "s") == of_server(logs)


def test_a_capture_that_goes_on_inside_of_a_log_fetches_nothing(tmp_path: Path, logs: list[Path]) -> None:
    whole = logs[1].read_bytes()
    first = tmp_path / "server"
    first.mkdir()
    (first / LOGS[0]).write_bytes(logs[0].read_bytes())
    (first / LOGS[1]).write_bytes(whole[: _end_of_transaction(logs[1])])
    server = Server([first / name for name in LOGS[:2]])
    run(tmp_path / "s", server)
    assert mirrored(tmp_path / "s") == of_server(server.logs)
    (first / LOGS[1]).write_bytes(whole)
    server.fetched = 0
    run(tmp_path / "s", server, 2)
    assert mirrored(tmp_path / "s") == of_server(logs[:2])
    assert server.fetched == 0


def _end_of_transaction(log: Path) -> int:
    """A place behind a transaction in the middle of a log."""
    ends = [raw.end for raw in open_files([log]).events() if raw.header.type == EventType.XID]
    return ends[len(ends) // 2]


def test_a_store_that_had_no_mirror_before_has_its_log_from_the_first_byte(tmp_path: Path, logs: list[Path]) -> None:
    disk, server = Disk(tmp_path / "s"), Server(logs)
    capture(Job(disk, 1, Rules(lambda *_: True), open_log_files(logs[:2]), limits=SMALL))
    run(tmp_path / "s", server, 2)
    assert mirrored(tmp_path / "s") == of_server(logs[1:])


def test_what_a_dump_leaves_out_is_fetched(tmp_path: Path, logs: list[Path]) -> None:
    known = [raw for raw in open_files(logs[1:2]).events() if raw.header.type == EventType.MARIA_GTID][3]
    ended = list(open_files(logs[:1]).events())[-1]

    def leaves_out(raw: RawEvent) -> bool:
        return (raw.file == LOGS[1] and 4 < raw.position < known.position) or raw[:2] == ended[:2]

    server = Server(logs, leaves_out)
    run(tmp_path / "s", server)
    assert mirrored(tmp_path / "s") == of_server(logs)
    assert server.fetched == 3, "the first log's beginning, its end, and what lies between in the second one"


def test_bytes_that_the_server_keeps_to_itself_are_named(tmp_path: Path, logs: list[Path]) -> None:
    hidden = list(open_files(logs[:1]).events())[2]
    server = Server(logs, lambda raw: raw[:2] == hidden[:2])
    server.fetch = lambda _, start: _Changed(open_files(logs, start), server.leaves_out)  # type: ignore[method-assign]
    with pytest.raises(PermanentError, match=f"bytes {hidden.position} to {hidden.end} of {LOGS[0]}"):
        run(tmp_path / "s", server)


def test_logs_that_are_not_the_stores_change_nothing(tmp_path: Path, logs: list[Path]) -> None:
    run(tmp_path / "s", Server(logs))
    other = tmp_path / LOGS[2]
    data = bytearray(logs[2].read_bytes())
    last = [raw for raw in open_files(logs[2:]).events() if raw.header.type == EventType.MARIA_GTID][-1]
    data[last.position + 19] ^= 1  # the number of its last GTID
    other.write_bytes(data)
    with pytest.raises(PermanentError, match="is not"):
        run(tmp_path / "s", Server([other]), 2)
    assert mirrored(tmp_path / "s") == of_server(logs)


def test_a_log_whose_name_leaves_the_folder_is_refused(tmp_path: Path, logs: list[Path]) -> None:
    mirror = Mirror(Disk(tmp_path), Server(logs).fetch)
    raw = next(open_files(logs).events())._replace(file="../../x.000001")
    with pytest.raises(CorruptionError, match="names a log"):
        next(mirror.keep([raw], 1, is_proved=True))
    assert not list(tmp_path.iterdir())


class MirroredWorld:
    """A capture that dies at any effect: what the store has stands in the logs here already."""

    def __init__(self, root: Path, server: Server) -> None:
        self.root, self.server, self.fence = root, server, 0

    def live(self, effects: Effects) -> None:
        self.fence += 1
        run(self.root, self.server, self.fence, DyingDisk(self.root, effects))

    def lose_power(self) -> None:
        """A process dies; the machine does not."""

    def check(self) -> None:
        assert mirrored(self.root) == of_server(self.server.logs)

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def test_a_killed_capture(tmp_path: Path, logs: list[Path]) -> None:
    explored = explore(lambda: MirroredWorld(tmp_path / "s", Server(logs[:2])))
    assert explored.all_died
    for effect in ("after half of overwrite mirror/1/", "after overwrite mirror/1/"):
        assert any(name.startswith(effect) for name in explored.names), effect


def test_bytes_behind_the_end_of_a_log_that_a_power_loss_left_are_cut(tmp_path: Path, logs: list[Path]) -> None:
    server = Server(logs[:1])
    run(tmp_path / "s", server)
    with (tmp_path / "s" / "mirror" / "1" / LOGS[0]).open("ab") as torn:
        torn.write(bytes(100))
    server.logs = logs
    run(tmp_path / "s", server, 2)
    assert mirrored(tmp_path / "s") == of_server(logs)


class TestRetention:
    def make(self, root: Path) -> Disk:
        """A store of four hours, each of a log of its own, 6 bytes of each kept."""
        disk = Disk(root)
        with Writer(disk, 1) as writer:
            for number in range(1, 5):
                made = make_transaction(number, START + number * HOUR)
                writer.append(made._replace(info=made.info._replace(file=number)), gtids_at(number))
        for number in range(1, 6):
            disk.overwrite(f"mirror/1/bin.{number:06}", 0, b"binlog")
        return disk

    def test_logs_go_with_the_hours_that_have_their_transactions(self, tmp_path: Path) -> None:
        disk = self.make(tmp_path)
        retain(disk, Retention(hours=2), START / 1e6 + 5 * 3600)
        assert list(mirrored(tmp_path)) == ["bin.000002", "bin.000003", "bin.000004", "bin.000005"]
        retain(disk, Retention(hours=2), START / 1e6 + 6 * 3600)
        assert list(mirrored(tmp_path)) == ["bin.000003", "bin.000004", "bin.000005"]

    def test_their_bytes_count(self, tmp_path: Path) -> None:
        disk = self.make(tmp_path)
        disk.overwrite("mirror/1/bin.000001", 6, bytes(1 << 20))
        done = retain(disk, Retention(hours=100, most_bytes=1 << 19), START / 1e6 + 5 * 3600)
        assert done.retired == ("2026092115", "2026092116"), "until the store begins behind that log"
        assert list(mirrored(tmp_path)) == ["bin.000002", "bin.000003", "bin.000004", "bin.000005"]


class TestALogThatIsAnotherOne:
    """Under the name of one that is kept, and of which the store has no transaction."""

    def begun_later(self, log: Path, folder: Path) -> Path:
        folder.mkdir()
        data = bytearray(log.read_bytes())
        data[4] ^= 1  # the second in which it was begun
        (folder / log.name).write_bytes(data)
        return folder / log.name

    def keep(self, root: Path, logs: list[Path], *, is_begun: bool) -> None:
        mirror = Mirror(Disk(root), Server(logs).fetch)
        for _ in mirror.keep(Server(logs).open_from(None)[0].events(), 1, is_proved=True, is_begun=is_begun):
            pass
        mirror.sync()

    def test_it_is_begun_anew(self, tmp_path: Path, logs: list[Path]) -> None:
        for is_begun in (True, False):
            root, other = tmp_path / f"{is_begun}", self.begun_later(logs[0], tmp_path / f"other {is_begun}")
            self.keep(root, logs, is_begun=True)
            self.keep(root, [other], is_begun=is_begun)
            left = {} if not is_begun else of_server(logs[1:])
            assert mirrored(root) == of_server([other]) | left

    def test_one_of_the_same_second_too_where_its_bytes_come_again(self, tmp_path: Path, logs: list[Path]) -> None:
        other = tmp_path / logs[1].name
        whole, third = logs[1].read_bytes(), list(open_files(logs[1:2]).events())[3]
        other.write_bytes(whole[: third.position] + _other_timestamp(whole[third.position : third.end]))
        self.keep(tmp_path / "s", logs[1:2], is_begun=False)
        self.keep(tmp_path / "s", [other], is_begun=False)
        assert mirrored(tmp_path / "s") == of_server([other])


def _other_timestamp(event: bytes) -> bytes:
    return bytes([event[0] ^ 1]) + event[1:]
