"""docs/formats/ledger.md names every table and column of the schema, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import sqlalchemy as sa

from tidemark.ledger.database import Ledger

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "ledger.md"


def told() -> dict[str, list[str]]:
    tables: dict[str, list[str]] = {}
    table = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"### `(\w+)`", line):
            table = match[1]
            tables[table] = []
        elif table and (match := re.match(r"\| `(\w+)` \|", line)):
            tables[table].append(match[1])
    return tables


def test_the_page_and_the_schema_agree(ledger: Ledger) -> None:
    with ledger.read() as connection:
        looked = sa.inspect(connection)
        there = {name: [column["name"] for column in looked.get_columns(name)] for name in looked.get_table_names()}
    there.pop("sqlite_sequence", None)
    assert told() == there
