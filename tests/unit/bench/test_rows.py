"""A round of a benchmark: who takes part, who leaves it, and what the book says about it."""

import shlex
import sys
from pathlib import Path

import pytest

from bench import peers, rows
from bench.measure import Contender
from bench.peers import Way
from bench.rows import Book
from tests.services.sshd import FarEnd, Sshd


@pytest.fixture
def way(tmp_path: Path) -> Way:
    """From one folder to another, with a file in it; the contenders of these tests need no server."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.tsfile").write_bytes(b"points")
    server = Sshd(FarEnd.SHELL, tmp_path, tmp_path, 1, None, user="edge")  # type: ignore[arg-type]
    return Way(server, source, tmp_path / "target", 0)


def copying(way: Way, name: str, *after: str) -> Contender:
    script = f"cp -r {way.source}/. {way.target}" + "".join(f" && {word}" for word in after)
    return Contender(name, ["sh", "-c", script])


def test_everyone_runs_once_a_round_into_an_empty_target(way: Way) -> None:
    empty = f'test -z "$(ls {way.target})"'
    ours, peer = (
        Contender(name, ["sh", "-c", f"{empty} && cp -r {way.source}/. {way.target}"]) for name in ("ours", "peer")
    )
    book = Book("transfer")
    rows.alternate("set", [ours], [peer], way, 2, book)
    assert [len(one.samples) for one in (ours, peer)] == [2, 2]
    assert set(book.ours) == {"set ours"} and set(book.peers) == {"set peer"} and not book.absent


def test_a_peer_that_fails_or_brings_something_else_leaves_and_is_named(way: Way) -> None:
    failing = Contender("failing", ["sh", "-c", "echo no route to host >&2; exit 3"])
    wrong = copying(way, "wrong", f"echo more >> {way.target}/a.tsfile")
    good = copying(way, "good")
    book = Book("transfer")
    taking_part = [failing, wrong, good]
    rows.alternate("set", [copying(way, "ours")], taking_part, way, 2, book)
    assert taking_part == [good]
    assert "no route to host" in book.absent["set failing"]
    assert "differ" in book.absent["set wrong"]


def test_ours_failing_ends_the_benchmark(way: Way) -> None:
    with pytest.raises(RuntimeError, match="ours ended with 3"):
        rows.alternate("set", [Contender("ours", ["sh", "-c", "exit 3"])], [copying(way, "peer")], way, 1, Book("transfer"))


@pytest.mark.full
def test_a_slow_peer_stops_after_two_rounds_and_ours_never_does(way: Way) -> None:
    quick, slow = copying(way, "quick"), copying(way, "slow", "sleep 0.3")
    ours = copying(way, "ours")
    rows.alternate("set", [ours], [quick, slow], way, 3, Book("transfer"))
    assert [len(one.samples) for one in (ours, quick, slow)] == [3, 3, 2]


def test_what_the_machine_lacks_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install rclone" in peers.absent()["rclone"]
    assert set(peers.absent()) == {"rsync", "tar", "scp", "sftp", "rclone", "lftp"}


def test_a_pull_and_a_push_name_their_ends(way: Way) -> None:
    pull = peers.rsync(way, fast=True).command
    push = peers.rsync(Way(way.server, way.source, way.target, 0, push=True), fast=True).command
    assert pull[-2:] == [f"edge@127.0.0.1:{way.source}/", f"{way.target}/"]
    assert push[-2:] == [f"{way.source}/", f"edge@127.0.0.1:{way.target}/"]


def test_the_paper_tells_exact_command_lines(way: Way, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    ours = Contender("ours", [sys.executable, "-c", "print('a b')"])
    book = Book("transfer")
    ours.run(tmp_path)
    book.note("set", [ours], [])
    paper = book.paper()
    assert shlex.split(paper["ours"]["set ours"]["command"]) == ours.command
    assert (tmp_path / "var" / "bench" / "transfer.json").exists()
