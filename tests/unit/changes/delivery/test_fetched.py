"""Blocks of a reader that are small on the line and large in memory: how much of them a member has at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.delivery_worlds import LIMITS, make_transaction
from tests.reader_worlds import RunningReader, gtids_of, join
from tests.services.processes import soon
from tidemark.changes.delivery.http import frames
from tidemark.changes.delivery.http.client import fetched
from tidemark.changes.delivery.http.frames import decode_stretch
from tidemark.changes.store.block import encode_header, measure_body
from tidemark.changes.store.model import Column, Kind, Op, Row, Rows, Shape, Transaction
from tidemark.changes.store.read import Reader
from tidemark.errors import CorruptionError

NOTES = Shape("shop", "notes", (Column("id", Kind.INT64, "bigint", key=True), Column("text", Kind.TEXT, "longtext")))
LARGE = 1 << 20


def make_large(number: int) -> Transaction:
    """A transaction of 1 MiB of text that is next to nothing once it is compressed."""
    rows = Rows.of(NOTES, [Row(Op.INSERT, None, (number, "x" * LARGE))])
    return make_transaction(number, 0)._replace(records=(rows,))


def test_a_block_is_measured_before_it_is_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = RunningReader(tmp_path, limits=replace(LIMITS, block_bytes=20 * LARGE))
    reader.append(range(1, 31), make_large)
    reader.close()
    stretch = next(Reader(reader.disk).read_stretches(1))
    data = encode_header(stretch.header) + stretch.rest
    decoded = sum(piece.transaction.records[0].whole.nbytes for piece in stretch.pieces[:1])  # type: ignore[union-attr]
    assert len(data) < LARGE / 10 < 10 * LARGE < decoded
    assert decoded <= measure_body(stretch.header, stretch.rest, 1 << 30) <= decoded + 10_000
    assert decode_stretch(data).header == stretch.header
    monkeypatch.setattr(frames, "MOST_DECODED", 10 * LARGE)
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptionError, match="more than 10485760 bytes once it is decompressed"):
        decode_stretch(data)
    assert pa.total_allocated_bytes() - before < LARGE


def test_a_member_has_no_more_ahead_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks come in one reply: they are decompressed as there is room for them."""
    sizes: list[int] = []
    add = fetched.FetchedStretches._add

    def note(self: fetched.FetchedStretches, stretch: object) -> None:
        add(self, stretch)  # type: ignore[arg-type]
        sizes.append(self._size)

    monkeypatch.setattr(fetched.FetchedStretches, "_add", note)
    monkeypatch.setattr(fetched, "MOST_AHEAD", 4 * LARGE)
    reader = RunningReader(tmp_path, limits=replace(LIMITS, block_bytes=LARGE))
    reader.append(range(1, 31), make_large)
    reader.start()
    with join([reader], shards=1) as stream:
        first = stream.next_batch()
        assert first is not None
        assert soon(lambda: len(sizes) >= 4)
        rows = gtids_of(first) + [row for batch in stream for row in gtids_of(batch)]
    reader.close()
    assert len(rows) == len(set(rows)) == 30
    assert 3 * LARGE < max(sizes) < 6 * LARGE
