"""Parts begun by several at once: one has them, the others are told so and try again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tidemark.stores import durable
from tidemark.stores.block_journal import Identity
from tidemark.stores.disk import Disk
from tidemark.stores.part_file import begin_part, write_small


@pytest.fixture
def somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who makes a file anew as soon as it is removed."""
    remove = durable.remove_quietly

    def removed(place: bytes) -> None:
        remove(place)
        Path(os.fsdecode(place)).write_bytes(b"theirs")

    monkeypatch.setattr(durable, "remove_quietly", removed)


@pytest.mark.usefixtures("somebody_else")
def test_a_small_part_that_another_makes_now_is_theirs(tmp_path: Path) -> None:
    part = tmp_path / "f.part"
    part.write_bytes(b"of a run before")
    with pytest.raises(OSError, match="somebody else") as found:
        write_small(os.fsencode(part), memoryview(b"mine"))
    assert found.value.errno == errno.ESTALE and part.read_bytes() == b"theirs"


@pytest.mark.usefixtures("somebody_else")
def test_a_large_part_that_another_begins_now_is_theirs(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="somebody else") as found:
        begin_part(Disk(str(tmp_path)), "f", Identity(4, 1, 1), [])
    assert found.value.errno == errno.ESTALE and (tmp_path / "f.part").read_bytes() == b"theirs"
