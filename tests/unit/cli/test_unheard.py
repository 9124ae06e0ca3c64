"""A stdout that takes nothing: no traceback, the code says so, and what was done stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidemark

WORDS = [
    ["status"],
    ["sync", "plant1", "--json"],
    ["--help"],
    *(
        pytest.param(words, marks=pytest.mark.full)
        for words in (
            ["status", "--json"],
            ["sync", "plant1"],
            ["why", "nothing", "--json"],
            ["sync", "--help"],
            ["ledger", "upgrade"],
        )
    ),
]


def command(deployment: Path, words: list[str], redirected: str) -> subprocess.CompletedProcess[bytes]:
    """As a shell runs it."""
    line = f'exec "$@" {redirected}'
    python = [sys.executable, "-P", "-m", "tidemark.cli", *words]
    env = {**os.environ, "PYTHONPATH": str(Path(tidemark.__file__).parents[1])}
    return subprocess.run(["sh", "-c", line, "sh", *python], cwd=deployment, env=env, capture_output=True, check=False)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("words", WORDS, ids=" ".join)
@pytest.mark.parametrize(("redirected", "why"), [(">/dev/full", b"No space left"), (">&-", b"Bad file descriptor")])
def test_a_stdout_that_is_full_or_closed_is_told(deployment: Path, words: list[str], redirected: str, why: bytes) -> None:
    done = command(deployment, words, redirected)
    assert done.returncode == 6, done
    assert why in done.stderr and b"stdout" in done.stderr, done.stderr
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr
    assert not (deployment / "var/errors").exists()
    if words[0] == "sync" and "--help" not in words:
        again = command(deployment, ["sync", "plant1"], "")
        assert again.returncode == 0 and b"nothing" in again.stdout, "what was done stands"


@pytest.mark.full_after(1)
@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_reader_that_has_gone_is_no_trouble(deployment: Path, words: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    os.set_inheritable(writes, True)
    python = [sys.executable, "-P", "-m", "tidemark.cli", *words]
    env = {**os.environ, "PYTHONPATH": str(Path(tidemark.__file__).parents[1])}
    try:
        done = subprocess.run(python, cwd=deployment, env=env, stdout=writes, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writes)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr


@pytest.mark.full_after(1)
@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full", "2>&- <&-"])
def test_a_stderr_that_takes_nothing_changes_nothing(deployment: Path, redirected: str) -> None:
    done = command(deployment, ["sync", "plant1", "--json"], redirected)
    assert done.returncode == 0 and done.stdout.startswith(b"{") and done.stdout.count(b"\n") == 1
    assert command(deployment, ["why", "nothing"], redirected).returncode == 3
