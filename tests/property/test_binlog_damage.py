"""A log that was cut, changed or made to harm: an error of ours or the whole truth, little memory, no hang."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest

from tests.binlog_maker import (
    SIGNED,
    changes_of,
    charset,
    event,
    field,
    lenenc,
    log,
    read_log,
    recorded,
    rows_event,
    table_map,
    uint,
)
from tidemark.changes.binlog.layout import EventType as E
from tidemark.changes.binlog.tables import ColumnType as T
from tidemark.errors import CorruptionError, TidemarkError

CHECKED = "variants/plain.binlog", "variants/log_bin_compress.binlog", "real/json.binlog.000001"
UNCHECKED = "variants/checksum_none.binlog", "real/canal-mysql-bin.000001"
PACKED = "real/transaction_compression.000001"
FLIPS = pytest.mark.parametrize(
    "flips",
    [
        50,
        pytest.param(500, marks=pytest.mark.full),
        pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)


@pytest.fixture
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("name", [CHECKED[1], CHECKED[2], PACKED])
def test_cut_at_every_hundredth(name: str) -> None:
    made = recorded(name)
    whole = read_log(made)
    ends = {4, *(event.end for event in whole)}
    for part in range(100):
        size = len(made) * part // 100
        if size in ends:
            assert [event.end for event in read_log(made[:size])] == [event.end for event in whole if event.end <= size]
        else:
            with pytest.raises(CorruptionError):
                changes_of(made[:size], raw=True)


def flip(made: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(made))
    return made[:at] + bytes([made[at] ^ 1 << dice.randrange(8)]) + made[at + 1 :]


@FLIPS
def test_a_flipped_bit_is_found_where_there_are_checksums(flips: int) -> None:
    dice = random.Random(1)
    for name in CHECKED:
        made = recorded(name)
        for _ in range(flips // len(CHECKED)):
            damaged = flip(made, dice)
            if damaged[21:23] != made[21:23]:  # the flag that says the log is in use has no checksum
                continue
            with pytest.raises(TidemarkError):
                changes_of(damaged, raw=True)


@FLIPS
def test_a_flipped_bit_without_a_checksum_is_an_error_of_ours_or_another_value(flips: int) -> None:
    dice = random.Random(2)
    packed = _strip_checksums(recorded(PACKED))
    for made in (*map(recorded, UNCHECKED), packed):
        for _ in range(flips // 3):
            try:
                changes_of(flip(made, dice), raw=True)
            except TidemarkError:
                continue


def _strip_checksums(made: bytes) -> bytes:
    """The log as its server writes it without checksums."""
    out = bytearray(made[:4])
    for read in read_log(made):
        if read.inside > 1:
            continue
        whole = made[read.position : read.end]
        if read.header.type == E.FORMAT_DESCRIPTION:
            out += whole[:-5] + b"\0" + whole[-4:]
        else:
            out += whole[:9] + uint(len(whole) - 4, 4) + whole[13:-4]
    return bytes(out)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    "size", [0, 18, 2**30 + 1, 2**32 - 1, 2**30], ids=["none", "short", "over the limit", "4 GB", "not there"]
)
def test_an_event_of_a_size_that_cannot_be(size: int) -> None:
    with pytest.raises(CorruptionError):
        read_log(log(event(E.XID, bytes(8), size=size)))


def hostile_rows() -> Iterator[tuple[str, bytes]]:
    blob = table_map([T.BLOB], b"\x04", charset(63))
    yield "a column of 4 GB", blob + rows_event(b"\0\xff\xff\xff\xff", 1)
    yield "65,535 columns", event(E.TABLE_MAP, bytes(8) + b"\0\0\0\0" + lenenc(65_535) + bytes(65_535))
    yield "2^63 columns", event(E.TABLE_MAP, bytes(8) + b"\0\0\0\0\xfe" + uint(2**63, 8))
    yield "rows of other columns", table_map([T.TINY], b"", SIGNED) + rows_event(bytes(3), 2)
    yield "rows without columns", table_map([T.TINY], b"", SIGNED) + rows_event(b"\0\0", 1, present=0)
    yield "half a row", table_map([T.LONG], b"", SIGNED) + rows_event(b"\0\1\2", 1)
    yield "labels", table_map([T.STRING], b"\xf7\x01", field(6, b"\xfe" + uint(2**40, 8)))
    yield "names", table_map([T.TINY], b"", field(4, b"\xfe" + uint(2**63, 8)))
    yield "a key", table_map([T.TINY], b"", field(8, b"\x05"))
    yield "gtids", event(E.PREVIOUS_GTIDS, uint(2**60, 8))
    yield "intervals", event(E.PREVIOUS_GTIDS, uint(1, 8) + bytes(16) + uint(2**60, 8) + bytes(16))
    yield "a gtid list", event(E.MARIA_GTID_LIST, uint(2**28 - 1, 4))
    yield "extra data", table_map([T.TINY]) + event(E.WRITE_ROWS, uint(7, 6) + uint(1, 2) + uint(65_535, 2))
    yield "no extra data", table_map([T.TINY]) + event(E.WRITE_ROWS, uint(7, 6) + uint(1, 2) + uint(1, 2) + b"\1\1")
    bomb = uint(7, 6) + uint(1, 2) + b"\1\1" + b"\x84" + (2**30).to_bytes(4, "big") + zlib.compress(bytes(1 << 20))
    yield "a compressed event", table_map([T.TINY], b"", SIGNED) + event(E.MARIA_WRITE_ROWS_COMPRESSED_V1, bomb)
    column = b"\x84" + (2**31 - 1).to_bytes(4, "big") + zlib.compress(bytes(100))[2:]
    packed = table_map([T.BLOB_COMPRESSED], b"\x04", charset(63))
    yield "a compressed column", packed + rows_event(b"\0" + uint(len(column), 4) + column, 1)
    json = table_map([T.JSON], b"\x04")
    yield "deep JSON", json + rows_event(b"\0" + stored(deep(10_000)), 1)
    yield "JSON whose elements share bytes", json + rows_event(b"\0" + stored(shared()), 1)
    yield "JSON of many elements", json + rows_event(b"\0" + stored(b"\x03" + uint(2**31, 4) + uint(8, 4)), 1)


def stored(document: bytes) -> bytes:
    return uint(len(document), 4) + document


def deep(levels: int) -> bytes:
    """Arrays of one array each, in the large form."""
    made = b"\x03"
    for level in range(levels):
        left = (levels - level) * 13
        made += uint(1, 4) + uint(left, 4) + b"\x03" + uint(13, 4)
    return made + uint(0, 4) + uint(8, 4)


def shared() -> bytes:
    """Thirty arrays, each with two elements that are the next one: 2^30 in all."""
    made = b"\x03"
    for level in range(30):
        made += uint(2, 4) + uint((30 - level) * 18, 4) + (b"\x03" + uint(18, 4)) * 2
    return made + uint(0, 4) + uint(8, 4)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("made", [pytest.param(made, id=name) for name, made in hostile_rows()])
def test_what_is_made_to_harm_is_refused(made: bytes) -> None:
    with pytest.raises(CorruptionError):
        changes_of(log(made))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("announced", [100 << 30, 1 << 20, 19])
def test_a_transaction_that_unpacks_to_more_than_it_says(announced: int) -> None:
    """100 GB are refused by what is announced, the rest while it is unpacked."""
    import pyarrow as pa

    inner = event(E.XID, bytes(8)) + event(E.ROWS_QUERY, bytes(4 << 20)) * 2
    packed = pa.Codec("zstd").compress(inner, asbytes=True)
    size = b"\xfe" + uint(announced, 8)
    payload = b"\x02\x01\x00" + b"\x03" + lenenc(len(size)) + size + b"\x00" + packed
    with pytest.raises(CorruptionError):
        read_log(log(event(E.TRANSACTION_PAYLOAD, payload)))


def test_a_statement_on_very_many_wide_tables() -> None:
    wide = [table_map([T.TINY] * 4096, b"", SIGNED, field(4, b"\x01%c" % 97 * 4096), table_id=n) for n in range(150)]
    with pytest.raises(CorruptionError, match="a statement on more than"):
        read_log(log(*wide))
