"""What is compared before the first byte, and how soon it ends for who is to stop."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tidemark.stores.local import LocalStore
from tidemark.transfer.existing import by_weight, same_at
from tidemark.transfer.items import SendItem

MB = 1 << 20


def claim(content: bytes, offset: int, length: int) -> tuple[int, int, str]:
    return offset, length, hashlib.sha256(content[offset : offset + length]).hexdigest()


def test_a_source_has_what_was_kept_or_has_not(tmp_path: Path) -> None:
    content = bytes(range(256)) * 100
    (tmp_path / "x").write_bytes(content)
    source = LocalStore(str(tmp_path))
    claims = [claim(content, 0, 5000), claim(content, 9000, 1000)]
    assert same_at(source, "x", claims)
    assert not same_at(source, "x", [*claims, claim(content[1:], 100, 100)])
    assert not same_at(source, "x", [*claims, (25_000, 1000, "")])  # it is shorter now
    assert not same_at(source, "gone", claims)
    assert same_at(source, "gone", [])


def test_who_is_to_stop_waits_for_no_more_than_a_piece(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # hours to digest
    looks = iter([False, True])
    assert not same_at(LocalStore(str(tmp_path)), "large", [(0, 1 << 40, "")], lambda: next(looks))


def test_files_are_looked_at_in_groups_that_take_a_moment() -> None:
    sizes = [600 * MB, 0, 100 * MB, 100 * MB, 100 * MB, 10]
    items = [SendItem(str(n), str(n), size) for n, size in enumerate(sizes)]
    groups = [[item.size for item in group] for group in by_weight(items)]
    assert groups == [[600 * MB], [0, 100 * MB, 100 * MB], [100 * MB, 10]]
    assert list(by_weight([])) == []
