"""One server for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.served_changes import COUNT, LIMITS, Served, append, make, make_large, serving
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.write import Writer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    writer = Writer(Disk(folder / "store"), 1, LIMITS)
    append(writer, *map(make, range(1, COUNT)), make_large(COUNT, 400), *map(make, range(COUNT + 1, COUNT + 4)))
    with serving(folder, '[sources.orders]\nstore = "store"\n', writer) as found:
        yield found
