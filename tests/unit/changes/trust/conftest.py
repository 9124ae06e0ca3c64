"""A server with recorded logs, set as it should be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.binlog_maker import recorded
from tests.dump_worlds import MYSQL
from tests.services.binlog_source import BinlogSource


@pytest.fixture
def source() -> Iterator[BinlogSource]:
    with BinlogSource({name: recorded(file) for name, file in MYSQL.items()}) as made:
        made.variables |= {"binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
        yield made
