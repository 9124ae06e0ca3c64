"""What the tools' outputs mean, with a real `sh`, `tar` and `dd` of this machine at the other end of a pipe."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemark.errors import UnreachableError
from tidemark.stores.posix.read_stream import ToolStream, range_command
from tidemark.stores.posix.shell import BrokenOutput, FarShell
from tidemark.stores.protocol import Want

ALL = frozenset(["tar", "dd"])


class Pipe:
    """A shell of this machine where `ssh.Pipe` has one of the far end's."""

    host = "here"

    def __init__(self) -> None:
        self._process = subprocess.Popen(["sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def write(self, data: bytes) -> None:
        self._in.write(data)
        self._in.flush()

    def read_some(self, most: int) -> bytes:
        return os.read(self._out.fileno(), min(most, 1000))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._in.close()
        self._out.close()


def shell() -> FarShell:
    pipe: Any = Pipe()
    return FarShell(pipe)


def stream(folder: Path, wants: list[Want], tools: frozenset[str] = ALL) -> tuple[dict[int, bytes], set[int]]:
    """What came of each, and the numbers of those to be asked in another way."""
    came: dict[int, bytes] = {}
    again: set[int] = set()
    for want, data, other in ToolStream(shell, lambda path: f"{folder}/{path}", tools).read_wants(iter(wants)):
        if other:
            again.add(want.number)
        else:
            came[want.number] = came.get(want.number, b"") + bytes(data)
    return came, again


def wanted(folder: Path, files: dict[str, bytes], small: bool) -> list[Want]:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return [Want(number, name, 0, len(data), small) for number, (name, data) in enumerate(files.items())]


@pytest.mark.parametrize("tools", [ALL, frozenset()])
@pytest.mark.parametrize("small", [True, False])
def test_files_of_all_names_and_sizes_come_whole(tmp_path: Path, small: bool, tools: frozenset[str]) -> None:
    names = ["a b", "o'clock", "new\nline", "-rf", "x" * 250, f"{'d' * 90}/{'e' * 90}/f", "ä", "empty"]
    files = {name: os.urandom(511 * number) for number, name in enumerate(reversed(names))}
    came, again = stream(tmp_path, wanted(tmp_path, files, small), tools)
    assert again == (set() if small and tools else {0})  # no output says whether an empty file is there
    assert came == {number: data for number, data in enumerate(files.values()) if number not in again}


def test_a_range_that_brings_nothing_takes_nothing_of_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork that is refused: its mark may come together with what the next command brings."""

    def together(pipe: Pipe, most: int) -> bytes:
        time.sleep(0.05)
        return os.read(pipe._out.fileno(), most)

    monkeypatch.setattr(Pipe, "read_some", together)
    data = os.urandom(700_000)
    (tmp_path / "f").write_bytes(data)
    wants = [Want(0, "gone", 0, 600_000), Want(1, "f", 0, 700_000), Want(2, "gone", 0, 10), Want(3, "f", 1000, 2000)]
    assert stream(tmp_path, wants) == ({1: data, 3: data[1000:3000]}, {0, 2})


def test_ranges_of_large_files_are_exact(tmp_path: Path) -> None:
    data = os.urandom(1_000_003)
    (tmp_path / "f").write_bytes(data)
    spans = [(0, 1_000_003), (1 << 18, 700_000), (1 << 18, 1 << 18), (5, 999_998), (999_999, 4), (0, 1)]
    came, again = stream(tmp_path, [Want(n, "f", offset, length) for n, (offset, length) in enumerate(spans)])
    assert came == {n: data[o : o + length] for n, (o, length) in enumerate(spans)} and not again


@pytest.mark.parametrize("small", [True, False])
def test_what_is_gone_or_too_short_is_named_and_the_rest_comes(tmp_path: Path, small: bool) -> None:
    files = {f"{n}": os.urandom(3000) for n in range(9)}
    wants = wanted(tmp_path, files, small)
    (tmp_path / "2").unlink()
    os.truncate(tmp_path / "5", 1000)
    (tmp_path / "8").write_bytes(b"")
    came, again = stream(tmp_path, wants)
    assert again == {2, 5, 8}
    assert {n: data for n, data in came.items() if n not in again} == {n: files[f"{n}"] for n in range(9) if n not in again}


def test_a_file_that_grew_gives_its_first_bytes(tmp_path: Path) -> None:
    wants = wanted(tmp_path, {"a": b"a" * 600, "b": b"b"}, small=True)
    with (tmp_path / "a").open("ab") as file:
        file.write(b"more" * 1000)
    assert stream(tmp_path, wants) == ({0: b"a" * 600, 1: b"b"}, set())


def test_links_between_the_files_of_a_bundle_and_symlinks_are_asked_in_another_way(tmp_path: Path) -> None:
    wants = wanted(tmp_path, {"a": b"same", "b": b"", "c": b""}, small=True)
    for name in ("b", "c"):
        (tmp_path / name).unlink()
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").symlink_to("a")
    came, again = stream(tmp_path, [*wants[:1], Want(1, "b", 0, 4, True), Want(2, "c", 0, 4, True)])
    assert came == {0: b"same"} and again == {1, 2}


def test_wants_are_asked_ahead_and_not_all_at_once(tmp_path: Path) -> None:
    taken = []

    def wants() -> Iterator[Want]:
        for want in wanted(tmp_path, {f"{n}": bytes(1 << 20) for n in range(40)}, small=False):
            taken.append(want.number)
            yield want

    flow = ToolStream(shell, lambda path: f"{tmp_path}/{path}", ALL).read_wants(wants())
    next(flow)
    assert 2 <= len(taken) <= 12
    flow.close()  # type: ignore[attr-defined]


class Unread:
    """A pipe whose far end is not read: what is written piles up."""

    host = "here"

    def __init__(self) -> None:
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def read_some(self, most: int) -> bytes:
        raise BlockingIOError

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("name", ["{}", "n" * 180 + "{}", "d" * 4000 + "/{}"])
@pytest.mark.parametrize("tools", [ALL, frozenset()])
@pytest.mark.parametrize("size", [0, 5])
def test_however_small_the_files_are_little_is_asked_before_the_first_answer(
    name: str, tools: frozenset[str], size: int
) -> None:
    """A header is a hundred times such a file; the commands fill a line that nobody reads from the other side."""
    taken = []

    def wants() -> Iterator[Want]:
        for number in range(100_000):
            taken.append(number)
            yield Want(number, name.format(number), 0, size, True)

    pipe: Any = Unread()
    with pytest.raises(BlockingIOError):
        next(ToolStream(lambda: FarShell(pipe), lambda path: f"/{path}", tools).read_wants(wants()))
    assert 100 <= len(taken) <= 3000
    assert pipe.written <= 700_000, "a server takes 2 MB that no command has read"


def test_a_shell_that_ends_is_an_end_that_is_gone() -> None:
    far = shell()
    far.send_command("exit")
    with pytest.raises(UnreachableError):
        far.read_exactly(10)
    far.close()


def test_output_that_ends_early_is_noticed_though_nothing_follows() -> None:
    far = shell()
    far.send_command(range_command("/dev/null", 0, 100, dd=True))
    with pytest.raises(BrokenOutput):
        far.read_exactly(100)
    far.close()
