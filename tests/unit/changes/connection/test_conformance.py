"""What every server's dump does: recorded logs of MySQL and MariaDB over the loopback, and a real one of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import dump_worlds
from tests.dump_worlds import World, closed, gtids_of, is_description, known_until, rebuild_logs, transaction_starts
from tidemark.changes.connection.dump import open_dump
from tidemark.changes.connection.facts import read_facts
from tidemark.changes.connection.files import open_files
from tidemark.changes.connection.login import open_server
from tidemark.changes.connection.model import FilePosition
from tidemark.errors import BinlogGapError, PermanentError, UnreachableError, UnsupportedError

REAL = [pytest.mark.full, pytest.mark.real("mariadb")]
WORLDS = [
    *("mysql", "mariadb"),
    *(pytest.param("real", marks=REAL), pytest.param("encrypted", marks=REAL)),
    pytest.param("real_mysql", marks=[pytest.mark.full, pytest.mark.real("mysql")]),
]


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if request.param == "mysql":
        made = dump_worlds.recorded_world(dump_worlds.MYSQL, "8.0.28")
    elif request.param == "mariadb":
        made = dump_worlds.recorded_world(dump_worlds.MARIA, "10.11.19-MariaDB-log")
    elif request.param == "real_mysql":
        made = dump_worlds.real_world("mysql")
    else:
        made = dump_worlds.real_world(options=_encryption(tmp_path_factory) if request.param == "encrypted" else None)
    with made as found:
        yield found


def _encryption(folders: pytest.TempPathFactory) -> dict[str, str]:
    keys = folders.mktemp("keys") / "keys"
    keys.write_text(f"1;{'a7' * 32}\n")
    keys.chmod(0o644)
    plugin = {"plugin_load_add": "file_key_management", "file_key_management_filename": str(keys)}
    return plugin | {"encrypt_binlog": "ON", "binlog_checksum": "NONE"}


def is_encrypted(world: World) -> bool:
    with open_server(world.settings) as server:
        return read_facts(server).is_encrypted


@pytest.mark.full_after(1)
def test_a_dump_is_the_logs_byte_by_byte(world: World) -> None:
    logs = world.read_logs()
    dump = open_dump(world.settings, FilePosition(next(iter(logs))))
    assert dump.file == ""
    if is_encrypted(world):
        assert gtids_of(dump)  # what is sent is plain, what lies on the disk is not
        return
    sent = rebuild_logs(list(dump.events()))
    assert list(sent) == list(logs)
    assert all(closed(sent[name]) == closed(log) for name, log in logs.items())
    assert dump.file == list(logs)[-1]


@pytest.mark.full_after(1)
def test_a_dump_begins_at_any_transaction(world: World) -> None:
    first = FilePosition(next(iter(world.read_logs())))
    every = list(open_dump(world.settings, first).events())
    starts = [FilePosition(event.file, event.position) for event in every if event.header.type in (33, 162)]
    for start in (starts[0], starts[len(starts) // 2], starts[-1]):
        events = list(open_dump(world.settings, start).events())
        assert is_description(events[0]) and events[0].file == start.file and events[0].position == 4
        begin = every.index(next(event for event in every if (event.file, event.position) == (start.file, start.position)))
        assert events[1:] == every[begin:]


@pytest.mark.full_after(1)
def test_a_dump_by_gtid_sends_what_is_not_known(world: World) -> None:
    gtids = gtids_of(open_dump(world.settings, FilePosition(next(iter(world.read_logs())))))
    assert len(gtids) > 4
    for known in (1, len(gtids) // 2, len(gtids) - 1, len(gtids)):
        assert gtids_of(open_dump(world.settings, known_until(gtids[:known]))) == gtids[known:]


@pytest.mark.full_after(1)
def test_files_give_what_their_server_gives(world: World, tmp_path: Path) -> None:
    logs = world.read_logs()
    for name, log in logs.items():
        (tmp_path / name).write_bytes(closed(log))
    paths = list(tmp_path.iterdir())
    if is_encrypted(world):
        with pytest.raises(UnsupportedError, match="encrypted"):
            gtids_of(open_files(paths))
        return
    starts = transaction_starts(logs)
    for start in (None, starts[len(starts) // 2]):
        sent = list(open_dump(world.settings, start or FilePosition(next(iter(logs)))).events())
        read = list(open_files(reversed(paths), start).events())
        for one, other in zip(sent, read, strict=True):
            assert (one.file, one.position, one.header.type) == (other.file, other.position, other.header.type)
            assert is_description(one) or one.data == other.data


@pytest.mark.full_after(1)
def test_the_facts_agree_with_the_dump(world: World) -> None:
    with open_server(world.settings) as server:
        facts = read_facts(server)
    logs = world.read_logs()
    assert facts.logs == tuple((name, len(log)) for name, log in logs.items())
    *_, last = open_dump(world.settings, FilePosition(facts.logs[-1][0])).events()
    assert facts.end == FilePosition(last.file, last.end)


def test_a_place_that_the_server_does_not_have_is_a_gap(world: World) -> None:
    name = next(iter(world.read_logs()))
    with pytest.raises(BinlogGapError, match="first log"):
        list(open_dump(world.settings, FilePosition("gone.000001")).events())
    with pytest.raises(PermanentError, match=r"impossible|position > file size"):
        list(open_dump(world.settings, FilePosition(name, 1_000_000)).events())


@pytest.mark.full_after(1)
def test_following_it_tells_that_it_lives_and_what_is_new_until_it_ends(world: World) -> None:
    """The last of the tests: it ends the server."""
    with open_server(world.settings) as server:
        end = read_facts(server).end
        assert end is not None
        dump = open_dump(server, end, follow=True)
    events = dump.events()
    description, heartbeat = next(events), next(events)
    assert is_description(description)
    assert heartbeat.data == b"" and heartbeat.file == end.file
    world.commit()
    new = next(event for event in events if event.data)
    assert (new.file, new.position) == (end.file, end.position)
    world.end()
    with pytest.raises(UnreachableError):
        list(events)
