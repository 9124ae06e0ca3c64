"""The answer to a reading of a table becomes rows of the store: each value exact, text that its charset lacks as bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tidemark.changes.bootstrap.rows import make_rows
from tidemark.changes.bootstrap.tables import ReadColumn, ReadTable
from tidemark.changes.connection.results import Values
from tidemark.changes.store.model import Column, Kind, Op, Shape
from tidemark.errors import CorruptionError

UTF8MB4, ASCII, SJIS = 45, 11, 13  # numbers of collations
Answer = Sequence[Sequence[bytes | None]]


def values_of(rows: Answer) -> Values:
    """An answer column by column, as the kernel leaves it."""
    cells = [[row[number] for row in rows] for number in range(len(rows[0]))]
    starts, lengths, data = [], [], b""
    for column in cells:
        starts.append([])
        lengths.append([])
        for value in column:
            starts[-1].append(len(data))
            lengths[-1].append(-1 if value is None else len(value))
            data += value or b""
    return Values(data, np.array(starts, np.int64), np.array(lengths, np.int64))


def read(kind: Kind, charset: int | None, *values: bytes | None) -> list[tuple[Kind, object]]:
    """What becomes of the values of one column, with the kind of its rows."""
    column = Column("c", kind, "a type")
    table = ReadTable(Shape("d", "t", (column,)), (ReadColumn(column, "c", charset),))
    found = []
    for rows in make_rows(table, values_of([[value] for value in values])):
        batch = rows.batch
        assert batch.column(0).to_pylist() == [Op.READ] * batch.num_rows, "it is a row that was read"
        assert batch.column(3).null_count == batch.num_rows, "there is no image before"
        found += [(rows.shape.columns[0].kind, value) for value in batch.column(4).to_pylist()]
    return found


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        (Kind.INT64, b"-9223372036854775808", -(2**63)),
        (Kind.UINT64, b"18446744073709551615", 2**64 - 1),
        (Kind.FLOAT64, b"-0.1", -0.1),
        (Kind.BYTES, b"\xff\x00", b"\xff\x00"),
        (Kind.TEXT, b"12.50", "12.50"),
    ],
    ids=["integer", "unsigned", "double", "bytes", "ascii"],
)
def test_each_kind_is_exact_beside_a_null(kind: Kind, given: bytes, kept: object) -> None:
    assert read(kind, None, given, None, given) == [(kind, kept), (kind, None), (kind, kept)]


def test_text_is_decoded_by_its_charset() -> None:
    assert read(Kind.TEXT, UTF8MB4, "日本".encode(), None) == [(Kind.TEXT, "日本"), (Kind.TEXT, None)]
    assert read(Kind.TEXT, SJIS, "日本".encode("shift_jis"), None) == [(Kind.TEXT, "日本"), (Kind.TEXT, None)]


@pytest.mark.parametrize("charset", [UTF8MB4, SJIS])
def test_rows_whose_text_its_charset_lacks_keep_the_bytes_and_their_place(charset: int) -> None:
    odd = b"\xff\xfe\xfd"
    assert read(Kind.TEXT, charset, b"a", odd, None, b"b") == [
        (Kind.TEXT, "a"),
        (Kind.BYTES, odd),
        (Kind.TEXT, None),
        (Kind.TEXT, "b"),
    ]


@pytest.mark.parametrize(
    ("kind", "odd", "kept"),
    [(Kind.INT64, b"-7", -7), (Kind.UINT64, b"7", 7), (Kind.FLOAT64, b"0.5", 0.5), (Kind.BYTES, b"\xff", b"\xff")],
    ids=["integer", "unsigned", "double", "bytes"],
)
def test_the_other_columns_of_such_rows_are_as_ever(kind: Kind, odd: bytes, kept: object) -> None:
    columns = (Column("c", kind, "a type"), Column("t", Kind.TEXT, "text"))
    table = ReadTable(Shape("d", "t", columns), (ReadColumn(columns[0], "c"), ReadColumn(columns[1], "t", UTF8MB4)))
    [rows] = make_rows(table, values_of([[odd, b"\xff"], [None, b"\xff"]]))
    assert rows.batch.column(5).to_pylist() == [kept, None]


@pytest.mark.parametrize("given", [b"x", b"\xff", b"99999999999999999999"])
def test_what_is_no_number_is_refused_by_name(given: bytes) -> None:
    with pytest.raises(CorruptionError, match=r"d\.t\.c: the server gives what is no"):
        read(Kind.INT64, None, given)
