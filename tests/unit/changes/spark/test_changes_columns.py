"""The columns of a frame of one table, and what options and schemas may say."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from tests.delivery_worlds import ORDERS, expected_changes
from tests.spark_frames import frame_of, inserts, make_source, put, read_frame, shape
from tidemark.changes.store.model import ABSENT, Column, Ddl, Kind, Op, Row, Rows
from tidemark.errors import NotFoundError, PermanentError, UsageError


def test_a_table_that_was_altered_has_all_its_columns(tmp_path: Path) -> None:
    first = shape(Column("Id", Kind.INT64, "int"), Column("gone", Kind.TEXT, "text"), Column("n", Kind.INT64, "int"))
    second = shape(
        Column("id", Kind.INT64, "bigint"), Column("n", Kind.FLOAT64, "double"), Column("new", Kind.BYTES, "blob")
    )
    put(tmp_path, inserts(first, (1, "a", 5)), Ddl("shop", "alter table t …"), inserts(second, (2, 0.1, b"\xff")))
    rows = read_frame(store=tmp_path, tables="shop.t")
    assert [row["after"] for row in rows] == [
        {"id": 1, "n": "5", "new": None, "gone": "a"},
        {"id": 2, "n": "0.1", "new": b"\xff", "gone": None},
    ]


def test_text_that_its_charset_does_not_have_makes_the_column_bytes(tmp_path: Path) -> None:
    table = shape(Column("note", Kind.TEXT, "text"))
    put(tmp_path, inserts(table, ("ä",)), inserts(shape(Column("note", Kind.BYTES, "text")), (b"\xff",)))
    assert [row["after"]["note"] for row in read_frame(store=tmp_path, tables="shop.t")] == ["ä".encode(), b"\xff"]


@pytest.mark.parametrize(
    ("type_", "value", "typed"),
    [
        ("int unsigned not null", 2**32 - 1, 2**32 - 1),
        ("bit(63)", 2**63 - 1, 2**63 - 1),
        ("bigint unsigned", 2**64 - 1, Decimal(2**64 - 1)),
        ("bit(64)", 2**64 - 1, Decimal(2**64 - 1)),
    ],
)
def test_numbers_without_a_sign(tmp_path: Path, type_: str, value: int, typed: object) -> None:
    put(tmp_path, inserts(shape(Column("n", Kind.UINT64, type_)), (value,), (None,)))
    assert [row["after"]["n"] for row in read_frame(store=tmp_path, tables="shop.t")] == [typed, None]


def test_columns_that_were_not_logged_are_named(tmp_path: Path) -> None:
    rows = [Row(Op.UPDATE, (1, ABSENT), (ABSENT, 2)), Row(Op.UPDATE, (3, 4), (3, None)), Row(Op.DELETE, (5, ABSENT), None)]
    put(tmp_path, Rows.of(ORDERS, rows))
    found = read_frame(store=tmp_path, tables="shop.orders")
    assert [row["before_absent"] for row in found] == [["n"], None, ["n"]]
    assert [row["after_absent"] for row in found] == [["id"], None, None]
    assert [row["after"] for row in found] == [{"id": None, "n": 2}, {"id": 3, "n": None}, None]
    assert [row["after"] for row in read_frame(store=tmp_path)] == ['{"n":2}', '{"id":3,"n":null}', None]


def test_a_schema_of_ones_own_chooses_columns_and_their_types(config: Path) -> None:
    wanted = frame_of(after=pa.struct([("N", pa.string())]), seq=pa.int64())
    rows = read_frame(wanted, path=config, tables="shop.orders", to="seq:3")
    assert rows == [{"after": {"N": str(seq * 1000 + row)}, "seq": seq} for seq, row in sorted(expected_changes(1, 2))]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("seq", pa.int32(), "'seq' is int64, not int32"),
        ("sequence", pa.int64(), "no column 'sequence'; there are seq, file"),
        ("after", pa.struct([("m", pa.int64())]), "the table has no column 'm'; there are id, n"),
        ("after", pa.struct([("n", pa.int32())]), "after.n is int32; allowed are int64"),
        ("after", pa.string(), "'after' is a struct, not string"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(config: Path, name: str, kind: pa.DataType, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_frame(frame_of(**{name: kind}), path=config, tables="shop.orders")


def test_a_value_that_a_chosen_type_does_not_hold_is_named(tmp_path: Path) -> None:
    put(tmp_path, inserts(shape(Column("n", Kind.UINT64, "bigint unsigned")), (2**63,)))
    with pytest.raises(PermanentError, match=r"shop\.t\.n does not fit into int64"):
        read_frame(frame_of(after=pa.struct([("n", pa.int64())])), store=tmp_path, tables="shop.t")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "shop.orders"}, "no option 'table'; there are"),
        ({"tables": "shop.*", "layout": "typed"}, r"layout=typed is for one table, not for shop\.\*"),
        ({"tables": "shop.orders", "controls": "true"}, "controls=true does not go with the columns of one table"),
        ({"shards": 9, "controls": "true"}, "controls=true does not go with more than 8 shards"),
        ({"shards": 5000}, "5000 shards"),
        ({"source": "nope"}, "no source named 'nope'"),
        ({"from_": "yesterday"}, "'yesterday' is no point"),
        ({"store": "/srv/x"}, "both a store and settings"),
        ({"rowsPerPartition": "0"}, "a whole number from 1 on"),
    ],
)
def test_wrong_options_are_named(config: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises((UsageError, NotFoundError), match=words):
        make_source(path=config, **options).schema()


def test_a_store_that_is_not_there_and_a_table_without_rows(config: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no store"):
        make_source(store=config.parent / "nowhere").schema()
    with pytest.raises(NotFoundError, match=r"no rows of shop\.none yet.*hint: \.schema"):
        make_source(path=config, tables="shop.none").schema()
    with pytest.raises(UsageError, match="a task needs the settings"):
        make_source(store=config.parent / "store", task="t").schema()
    with pytest.raises(UsageError, match="only reads"):
        make_source(path=config).writer(StructType(), False)
