"""Shards: vectors of both hashes, every row in one shard in its order, keys that change, what all shards get."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.change_worlds import ORDERS, PEOPLE
from tidemark.changes.delivery.shards import Divider, Sharding, ShardPiece, shard_rows
from tidemark.changes.store.model import (
    ABSENT,
    BinlogInfo,
    Column,
    Ddl,
    Kind,
    Mark,
    Op,
    Record,
    Row,
    Rows,
    Shape,
    Transaction,
    Value,
)
from tidemark.changes.store.read import Piece
from tidemark.errors import PermanentError, UsageError

VECTORS = json.loads((Path(__file__).parents[3] / "data" / "shard_vectors.json").read_text())
KEYLESS = Shape("shop", "log", (Column("at", Kind.TEXT), Column("what", Kind.BYTES)))
COMMIT = Mark("commit", "xid")


def shape_of(kinds: Sequence[Kind]) -> Shape:
    return Shape("d", "t", tuple(Column(f"c{number}", kind, key=True) for number, kind in enumerate(kinds)))


def shard_of(key: Sequence[tuple[Kind, Value]], sharding: Sharding) -> int:
    rows = Rows.of(shape_of([kind for kind, _ in key]), [Row(Op.INSERT, None, tuple(value for _, value in key))])
    return int(shard_rows(sharding, rows)[0])


def read_value(kind: str, text: str | None) -> tuple[Kind, Value]:
    read: dict[str, Any] = {"int64": int, "uint64": int, "float64": float, "text": str, "bytes": bytes.fromhex}
    return Kind(kind), None if text is None else read[kind](text)


@pytest.mark.parametrize(
    "vector", VECTORS["ptubes"]["vectors"], ids=lambda vector: f"{vector['type']} {vector['key_text']!r}"
)
def test_vectors_of_the_original(vector: dict[str, Any]) -> None:
    kind, value = read_value("text" if vector["type"] == "string" else "int64", vector["key_text"])
    for shards, shard in vector["shard"].items():
        assert shard_of([(kind, value)], Sharding(int(shards), "ptubes")) == shard
    assert shard_of([(kind, value)], Sharding(4096, "ptubes")) == vector["logical"] % 4096


@pytest.mark.parametrize("vector", VECTORS["mixed"], ids=lambda vector: str(vector["key"]))
def test_vectors_of_mixed(vector: dict[str, Any]) -> None:
    key = [read_value(kind, text) for kind, text in vector["key"]]
    for shards, shard in vector["shard"].items():
        assert shard_of(key, Sharding(int(shards))) == shard == int(vector["hash"], 16) % int(shards)


@pytest.mark.parametrize(
    ("key", "same"),
    [
        ([(Kind.INT64, 1), (Kind.TEXT, None)], "1null"),
        ([(Kind.UINT64, 2**64 - 1), (Kind.TEXT, "x")], "18446744073709551615x"),
        ([(Kind.FLOAT64, 0.1)], "0.1"),
        ([(Kind.BYTES, "中文".encode())], "中文"),
        ([(Kind.BYTES, b"\xff\x80")], "ÿ\x80"),
        ([(Kind.INT64, 1), (Kind.BYTES, b"\xff")], "1ÿ"),
    ],
)
def test_the_original_has_no_hash_for_these_and_ours_is_that_of_their_text(key: list[tuple[Kind, Value]], same: str) -> None:
    sharding = Sharding(4096, "ptubes")
    assert shard_of(key, sharding) == shard_of([(Kind.TEXT, same)], sharding)


@pytest.mark.parametrize("shards", [2, 7, 8, 11, 151])
@pytest.mark.parametrize("stride", [1, 2, 7, 8, 31, 151, 32767, 1 << 33])
def test_mixed_is_even_for_any_stride_of_ids(shards: int, stride: int) -> None:
    count = 20_000
    shape = shape_of([Kind.INT64])
    none = pa.nulls(count, pa.binary())
    arrays = [pa.array(np.full(count, Op.INSERT, np.uint8)), none, none, pa.nulls(count, pa.int64())]
    ids = pa.array(5 + np.arange(count) * stride)
    found = Counter(shard_rows(Sharding(shards), Rows(shape, pa.record_batch([*arrays, ids], shape.arrow_schema()))))
    expected = count / shards
    chi_square = sum((found[shard] - expected) ** 2 / expected for shard in range(shards))
    assert chi_square < shards + 6 * (2 * shards) ** 0.5 + 10  # a fair die is above it once in millions


def piece(seq: int, *records: Record, ends: bool = True) -> Piece:
    return Piece(seq, Transaction(BinlogInfo(transaction_id=seq), f"u:{seq}", seq, records), ends)


def people(*rows: tuple[Op, str | None, str | None]) -> Rows:
    images = [
        Row(op, None if before is None else (before,), None if after is None else (after,)) for op, before, after in rows
    ]
    return Rows.of(PEOPLE, images)


Told = list[tuple[int, int, Row, int | None]]  # seq, i, row, moved


def rows_in(pieces: Sequence[ShardPiece]) -> Told:
    told: Told = []
    for one in pieces:
        for record in one.transaction.records:
            if isinstance(record, Rows):
                extra = zip(record.batch.column("i").to_pylist(), record.batch.column("moved").to_pylist(), strict=True)
                told += [(one.seq, i, row, moved) for row, (i, moved) in zip(record.rows(), extra, strict=True)]
    return told


@lru_cache
def shards_of_names(sharding: Sharding) -> dict[str, int]:
    names = [f"n{number}" for number in range(60)]
    shards = shard_rows(sharding, people(*((Op.INSERT, None, name) for name in names)))
    return dict(zip(names, shards.tolist(), strict=True))


def names_of(shard: int, sharding: Sharding, count: int) -> list[str]:
    return [name for name, its in shards_of_names(sharding).items() if its == shard][:count]


def test_all_that_is_no_row_is_in_every_shard_with_the_number_of_rows() -> None:
    sharding = Sharding(3)
    rows = people(*((Op.INSERT, None, f"n{number}") for number in range(10)))
    pieces = [piece(1, Ddl("häuser", "create"), rows, COMMIT), piece(2, Mark("heartbeat")), piece(3, Mark("gap", "1"))]
    found = Divider(sharding).divide(pieces)
    assert sum(len(rows_in(each)) for each in found.values()) == 10
    for shard in range(3):
        first, second, third = found[shard]
        assert [record for record in first.transaction.records if not isinstance(record, Rows)] == [
            Ddl("häuser", "create"),
            COMMIT,
        ]
        assert (first.rows, second.rows, third.rows) == (10, 0, 0)
        assert second.transaction == pieces[1].transaction and third.transaction == pieces[2].transaction


def test_a_changed_key_is_a_delete_in_the_old_shard_and_an_insert_in_the_new() -> None:
    sharding = Sharding(4)
    (old, stays), (new,) = names_of(0, sharding, 2), names_of(3, sharding, 1)
    rows = people((Op.UPDATE, old, stays), (Op.UPDATE, old, new), (Op.DELETE, stays, None), (Op.INSERT, None, old))
    found = Divider(sharding).divide([piece(7, rows, COMMIT)])
    assert rows_in(found[0]) == [
        (7, 0, Row(Op.UPDATE, (old,), (stays,)), None),
        (7, 1, Row(Op.DELETE, (old,), None), 3),
        (7, 2, Row(Op.DELETE, (stays,), None), None),
        (7, 3, Row(Op.INSERT, None, (old,)), None),
    ]
    assert rows_in(found[3]) == [(7, 1, Row(Op.INSERT, None, (new,)), 0)]
    assert {each[0].rows for each in found.values()} == {5}


def test_a_changed_key_may_be_an_update_in_the_new_shard() -> None:
    sharding = Sharding(4, key_change="after")
    (old,), (new,) = names_of(0, sharding, 1), names_of(3, sharding, 1)
    found = Divider(sharding).divide([piece(7, people((Op.UPDATE, old, new)), COMMIT)])
    assert rows_in(found[3]) == [(7, 0, Row(Op.UPDATE, (old,), (new,)), None)] and not rows_in(found[0])
    assert found[0][0].rows == 1


@pytest.mark.parametrize("shards", [1, 4])
def test_a_changed_key_may_be_refused_also_within_a_shard(shards: int) -> None:
    sharding = Sharding(shards, key_change="refuse")
    same = names_of(0, Sharding(4), 2)
    pieces = [piece(5, people((Op.UPDATE, same[0], same[0])), COMMIT), piece(6, people((Op.UPDATE, *same)), COMMIT)]
    Divider(sharding).divide(pieces[:1])
    with pytest.raises(PermanentError, match="transaction seq:6 changes the key of a row of häuser"):
        Divider(sharding).divide(pieces)


def test_columns_of_the_task_come_before_the_primary_key_and_a_table_without_one_has_its_whole_row() -> None:
    row = (1, -5, 0.5, "note", b"\0")
    rows = Rows.of(ORDERS, [Row(Op.INSERT, None, row)])
    by_note = Sharding(4096, columns={"shop.orders": ("note", "paid")})
    assert shard_rows(by_note, rows)[0] == shard_of([(Kind.TEXT, "note"), (Kind.INT64, -5)], Sharding(4096))
    assert shard_rows(Sharding(4096), rows)[0] == shard_of([(Kind.UINT64, 1)], Sharding(4096))
    whole = Rows.of(KEYLESS, [Row(Op.DELETE, ("noon", None), None)])
    assert shard_rows(Sharding(4096), whole)[0] == shard_of([(Kind.TEXT, "noon"), (Kind.BYTES, None)], Sharding(4096))
    with pytest.raises(PermanentError, match="has no column customer"):
        shard_rows(Sharding(2, columns={"shop.orders": ("customer",)}), rows)


def test_a_column_that_an_image_lacks_is_as_in_the_other() -> None:
    """Images of `binlog_row_image = MINIMAL`: the key stands before, what changed stands after."""
    key, rest = 2**64 - 7, (ABSENT, ABSENT, ABSENT, ABSENT)
    rows = Rows.of(
        ORDERS,
        [
            Row(Op.UPDATE, (key, *rest), (ABSENT, 4, ABSENT, ABSENT, ABSENT)),
            Row(Op.UPDATE, (key, *rest), (9, *rest)),
            Row(Op.DELETE, (key, *rest), None),
        ],
    )
    told = [shard_of([(Kind.UINT64, number)], Sharding(4096)) for number in (key, 9, key)]
    assert shard_rows(Sharding(4096), rows).tolist() == told


REST = (ABSENT, ABSENT, ABSENT)


@pytest.mark.parametrize(
    "row",
    [
        Row(Op.UPDATE, (1, ABSENT, *REST), (ABSENT, ABSENT, 0.5, ABSENT, ABSENT)),
        Row(Op.UPDATE, (1, ABSENT, *REST), (ABSENT, 2, *REST)),
        Row(Op.DELETE, (1, ABSENT, *REST), None),
        Row(Op.INSERT, None, (1, ABSENT, *REST)),
    ],
)
@pytest.mark.parametrize("key_change", ["split", "refuse"])
def test_a_shard_column_that_the_images_lack_is_refused(row: Row, key_change: str) -> None:
    sharding = Sharding(4, key_change=key_change, columns={"shop.orders": ("paid",)})
    whole = Row(Op.DELETE, (1, 2, 0.5, "", b""), None)
    pieces = [Piece(1, Transaction(BinlogInfo(), records=(Rows.of(ORDERS, [whole, row]), COMMIT)))]
    with pytest.raises(PermanentError, match=r"a row of shop\.orders has no value of paid") as refused:
        Divider(sharding).divide(pieces)
    assert "binlog_row_image = FULL" in refused.value.hint


def test_the_insert_of_a_row_that_moves_has_its_whole_key() -> None:
    shape = Shape("d", "t", (Column("a", Kind.INT64, key=True), Column("b", Kind.TEXT, key=True), Column("c", Kind.TEXT)))
    rows = [Row(Op.UPDATE, (number, "x", ABSENT), (ABSENT, f"y{number}", ABSENT)) for number in range(40)]
    piece = Piece(1, Transaction(BinlogInfo(), records=(Rows.of(shape, rows), COMMIT)))
    found = Divider(Sharding(4)).divide([piece])
    given = [
        row for pieces in found.values() for r in pieces[0].transaction.records if isinstance(r, Rows) for row in r.rows()
    ]
    inserts = [row for row in given if row.op is Op.INSERT]
    assert len(inserts) > 10 and len(given) == 40 + len(inserts)
    for row in inserts:
        assert row.after is not None and row.after[1:] == (f"y{row.after[0]}", ABSENT)
    for shard, pieces in found.items():
        for record in pieces[0].transaction.records:
            if isinstance(record, Rows):
                assert set(shard_rows(Sharding(4), record)) == {shard}


@pytest.mark.parametrize("wrong", [{"shards": 0}, {"shards": 4097}, {"hash": "md5"}, {"key_change": "lose"}])
def test_what_is_no_sharding_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Sharding(**wrong)


ANY = {
    Kind.INT64: st.integers(-(2**63), 2**63 - 1),
    Kind.UINT64: st.integers(0, 2**64 - 1),
    Kind.FLOAT64: st.floats() | st.just(-0.0),
    Kind.TEXT: st.text(max_size=3),
    Kind.BYTES: st.binary(max_size=3),
}


@pytest.mark.full
@given(st.data(), st.lists(st.sampled_from(Kind), min_size=1, max_size=3), st.sampled_from(["mixed", "ptubes"]))
def test_a_row_has_its_shard_wherever_it_lies_in_a_batch(data: st.DataObject, kinds: list[Kind], hash_: str) -> None:
    """Amid nulls, in a slice, read from a stream: what stands in the place of a null changes nothing."""
    rows = data.draw(st.lists(st.tuples(*(st.none() | ANY[kind] for kind in kinds)), max_size=12))
    shape, sharding = shape_of(kinds), Sharding(4096, hash_)
    alone = [shard_of(list(zip(kinds, row, strict=True)), sharding) for row in rows]
    whole = Rows.of(shape, [Row(Op.INSERT, None, row) for row in rows]).whole
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, whole.schema) as stream:
        stream.write_batch(whole)
    read = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
    for batch in (whole, read):
        start = data.draw(st.integers(0, len(rows)))
        assert shard_rows(sharding, Rows(shape, batch)).tolist() == alone
        assert shard_rows(sharding, Rows(shape, batch, start, len(rows) - start)).tolist() == alone[start:]


NAMES = st.sampled_from([f"n{number}" for number in range(12)])
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just(Op.INSERT), st.none(), NAMES),
        st.tuples(st.just(Op.UPDATE), NAMES, NAMES),
        st.tuples(st.just(Op.DELETE), NAMES, st.none()),
        st.tuples(st.just(Op.READ), st.none(), NAMES),
    ),
    max_size=6,
)
OTHER = Rows.of(KEYLESS, [Row(Op.INSERT, None, ("noon", b"x"))])


@st.composite
def streams(draw: st.DrawFn) -> list[Piece]:
    """Transactions whose rows lie in one Arrow batch, as those of a block do; large ones are in several pieces."""
    plans = draw(st.lists(st.tuples(CHANGES, CHANGES, st.booleans()), max_size=6))
    whole = people(*(change for first, second, _ in plans for change in (*first, *second)))
    pieces: list[Piece] = []
    at = 0
    for seq, (first, second, is_large) in enumerate(plans, 4):
        stretches = []
        for changes in (first, second):
            stretches.append(Rows(PEOPLE, whole.whole, at, len(changes)))
            at += len(changes)
        if is_large:
            pieces += [piece(seq, stretches[0], OTHER, ends=False), piece(seq, stretches[1], COMMIT)]
        else:
            pieces.append(piece(seq, stretches[0], OTHER, stretches[1], COMMIT))
    return pieces


@pytest.mark.full
@given(
    streams(),
    st.integers(1, 5),
    st.sampled_from(["mixed", "ptubes"]),
    st.sampled_from(["split", "after"]),
    st.sets(st.integers(0, 4)),
)
def test_each_row_is_in_one_shard_in_the_order_of_the_store(
    pieces: list[Piece], shards: int, hash_: str, key_change: str, chosen: set[int]
) -> None:
    sharding = Sharding(shards, hash_, key_change)
    expected: dict[int, Told] = defaultdict(list)
    number, given_rows = 0, 0
    counts: list[tuple[int, int]] = []
    shards_of = shards_of_names(sharding)
    for one in pieces:
        for record in one.transaction.records:
            for row in record.rows() if isinstance(record, Rows) else ():
                if record.shape == PEOPLE:  # type: ignore[union-attr]
                    new, old = (None if image is None else str(image[0]) for image in (row.after, row.before))
                    shard = shards_of[new or old or ""]
                    before = shard if old is None else shards_of[old]
                    if row.op is Op.UPDATE and before != shard and key_change == "split":
                        expected[before].append((one.seq, number, Row(Op.DELETE, row.before, None), shard))
                        expected[shard].append((one.seq, number, Row(Op.INSERT, None, row.after), before))
                        given_rows += 1
                    else:
                        expected[shard].append((one.seq, number, row, None))
                    given_rows += 1
                number += 1
        counts.append((given_rows, number))
        if one.ends:
            number = given_rows = 0
    wants = lambda _database, table: table == PEOPLE.table  # noqa: E731
    found = Divider(sharding, wants).divide(pieces)
    assert {shard: rows_in(each) for shard, each in found.items()} == {shard: expected[shard] for shard in range(shards)}
    for each in found.values():
        assert [(one.seq, one.ends, one.rows, one.behind) for one in each] == [
            (one.seq, one.ends, *count) for one, count in zip(pieces, counts, strict=True)
        ]
    divider = Divider(sharding, wants)
    one_by_one = [divider.divide([each]) for each in pieces]
    wanted = sorted(chosen & set(range(shards)))
    some = Divider(sharding, wants).divide(pieces, wanted)
    assert list(some) == wanted
    for shard in wanted:
        assert some[shard] == found[shard] == [each[shard][0] for each in one_by_one]
