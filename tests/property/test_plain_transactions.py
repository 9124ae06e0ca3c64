"""Transactions that are read many at a time are those that are read event by event, and stop where these stop.

So is what a store has of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.binlog_maker import SIGNED, event, field, log, recorded, rows_event, table_map, uint
from tidemark.changes.binlog.batches import kernels, scan_events, split_block
from tidemark.changes.binlog.layout import MAGIC, read_header
from tidemark.changes.binlog.layout import EventType as E
from tidemark.changes.binlog.reader import EventDecoder
from tidemark.changes.binlog.rows import Rows
from tidemark.changes.binlog.tables import ColumnType as T
from tidemark.changes.capture.plain import Run
from tidemark.changes.capture.run import Job, capture_into, open_writer
from tidemark.changes.capture.transactions import CutOff, Group, Rules, Transactions
from tidemark.changes.connection.model import Block, RawEvent
from tidemark.changes.delivery.points import parse_point
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.layout import State
from tidemark.changes.store.model import Rows as StoredRows
from tidemark.changes.store.read import Reader, Target
from tidemark.changes.store.write import Limits, Writer
from tidemark.errors import TidemarkError

EPOCH_US = 1_700_000_000_000_000
RULES = Rules(lambda _, table: table != "wide", stops=False)
LOGS = [
    *(f"workload/mysql-bin.{number:06d}" for number in (1, 3, 6, 10, 11, 12)),
    *("variants/plain.binlog", "variants/row_image_minimal.binlog", "variants/log_bin_compress.binlog"),
    *("variants/three_domains.binlog", "variants/checksum_none.binlog", "variants/unclean_end.binlog"),
    *("real/mysql-enum-string-set.000001", "real/binlog-invisible-columns.000001", "real/json.binlog.000001"),
    *("real/transaction_compression.000001", "real/mysql-bin.checksum-crc32"),
]


def split(data: bytes, name: str = "mysql-bin.000001") -> list[RawEvent]:
    """The events of a log, to the first whose header cannot be."""
    found, at = [], len(MAGIC)
    while len(data) - at >= 19:
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        if not 19 <= size <= len(data) - at:
            break
        found.append(RawEvent(name, at, read_header(data, at), data[at : at + size]))
        at += size
    return found


def in_blocks(raws: list[RawEvent], dice: random.Random) -> Iterator[RawEvent | Block]:
    """The events, some of them together, cut anywhere."""
    at = 0
    while at < len(raws):
        count = dice.choice((0, 1, 5, 40, 1000)) if at else 0
        some = [raw for raw in raws[at : at + count] if raw.file == raws[at].file]
        if count and some:
            data = b"".join(raw.data for raw in some)
            begins, ends = split_block(data)
            if len(begins) == len(some):
                yield Block(some[0].file, some[0].position, data + dice.randbytes(dice.randrange(3)), begins, ends)
                at += len(some)
                continue
        yield raws[at]
        at += 1


def give(found: Iterable[RawEvent | Block]) -> Iterator[RawEvent | Block]:
    yield from found
    raise ConnectionError("the line broke")


def seen(found: Iterable[RawEvent | Block], *, ahead: bool, runs: bool = False, waits: bool = True) -> list[Any]:
    """Everything that is known of each transaction, and how it ended."""
    told: list[Any] = []

    def tell(group: Group) -> None:
        told.append([group.head, str(group.gtids), group.is_xa])
        try:
            told.append([as_values(item) for item in group.items])
        except CutOff as cut:
            told.append(cut.message)

    try:
        transactions = Transactions(give(found), RULES, ahead=ahead, waits=waits)
        transactions.gives_runs = runs
        for group in transactions.read():
            if isinstance(group, Run):
                for one in transactions.read_each(group):
                    tell(one)
                assert str(group.gtids_after(group.stretch.count - 1) or "") == str(one.gtids)
                assert group.offsets.tolist()[-1] == one.head.gtid_offset
            else:
                tell(group)
    except (TidemarkError, ConnectionError) as error:
        told.append(f"{type(error).__name__} {error}")
    return told


def stored(
    found: list[RawEvent | Block], folder: Path, limits: Limits, until: Target | None = None, *, follow: bool = False
) -> list[Any]:
    """What a store has of the events before `until`, and how the capture ended."""
    disk = Disk(folder)
    told: list[Any] = []
    job = Job(disk, 1, RULES, lambda _: (Dumped(found), False), until, follow=follow, limits=limits)
    with open_writer(job) as writer:
        try:
            capture_into(job, writer)
        except TidemarkError as error:
            told.append(f"{type(error).__name__} {error}")
    told += [disk_state(disk)]
    for piece in Reader(disk).read():
        whole = piece.transaction
        records = [
            (record.shape, list(record.rows())) if isinstance(record, StoredRows) else record for record in whole.records
        ]
        told.append(repr((piece.seq, whole._replace(records=()), records)))
    return told


def disk_state(disk: Disk) -> tuple[State, str]:
    view = Reader(disk).view
    return view.end, view.gtids


class Dumped:
    """A dump of these events."""

    file = ""

    def __init__(self, found: list[RawEvent | Block]) -> None:
        self._found = found

    def events(self) -> Iterator[RawEvent]:
        raise AssertionError("blocks are asked for")

    def blocks(self) -> Iterator[RawEvent | Block]:
        return iter(self._found)

    def close(self) -> None: ...


def as_values(item: Any) -> Any:
    if not isinstance(item, Rows):
        return item
    table = item.table
    return (table.database, table.name, table.columns, table.key, item.operation, item.before, item.after, item.data,
            item.is_partial, item.ends_statement)  # fmt: skip


def assert_alike(raws: list[RawEvent], dice: random.Random) -> list[Any]:
    """However the events come together, they tell the same. Returns it."""
    plain = seen(raws, ahead=False)
    assert seen(raws, ahead=True) == plain
    assert seen(in_blocks(raws, dice), ahead=True) == plain
    assert seen(in_blocks(raws, dice), ahead=True, runs=True) == plain
    assert seen(in_blocks(raws, dice), ahead=True, runs=True, waits=False) == plain
    return plain


@pytest.mark.parametrize("name", LOGS)
def test_recorded_logs(name: str) -> None:
    assert "the line broke" in assert_alike(split(recorded(name)), random.Random(name))[-1]


def test_logs_one_behind_the_other() -> None:
    dice = random.Random(4)
    raws = [raw for name in LOGS[:6] for raw in split(recorded(name), Path(name).name)]
    for _ in range(10):
        assert len({raw.file for raw in raws}) == 6 and assert_alike(raws, dice)


@pytest.mark.parametrize("flips", [60, pytest.param(1500, marks=pytest.mark.full)])
def test_damaged_logs(flips: int) -> None:
    dice = random.Random(7)
    logs = [recorded(name) for name in LOGS]
    logs = [data for data in logs if len(data) < 30_000] + [make_log(50, dice), make_log(30, dice)]
    for _ in range(flips):
        data = bytearray(dice.choice(logs))
        for _ in range(dice.choice((1, 1, 5))):
            data[dice.randrange(len(MAGIC), len(data))] ^= 1 << dice.randrange(8)
        assert_alike(split(bytes(data)), dice)


@pytest.mark.parametrize("name", [*LOGS, "made", "damaged"])
def test_a_store_has_the_same_of_runs_as_of_transactions_one_by_one(name: str, tmp_path: Path) -> None:
    dice = random.Random(name)
    data = bytearray(make_log(300, dice) if name in ("made", "damaged") else recorded(name))
    if name == "damaged":
        data[len(data) * 3 // 4] ^= 1
    raws = split(bytes(data))
    with mock.patch.object(EventDecoder, "scan_plain", return_value=None):
        plain = stored([*raws], tmp_path / "plain", Limits(group_seconds=1e9))
    for number, limits in enumerate((Limits(), Limits(block_bytes=5000), Limits(group_seconds=0))):
        assert stored([*in_blocks(raws, dice)], tmp_path / str(number), limits) == plain
        assert stored([*in_blocks(raws, dice)], tmp_path / f"followed-{number}", limits, follow=True) == plain
    if name == "made" and kernels() is not None:
        with mock.patch.object(Writer, "append_run", autospec=True, side_effect=Writer.append_run) as appended:
            assert len(stored([*in_blocks(raws, dice)], tmp_path / "counted", Limits())) == 301
            once = sum(len(call.args[1]) for call in appended.call_args_list)
            assert len(stored([*in_blocks(raws, dice)], tmp_path / "counted-too", Limits(), follow=True)) == 301
        assert once > 100 and sum(len(call.args[1]) for call in appended.call_args_list) - once > 50


def test_who_follows_has_all_that_came_before_more_is_waited_for() -> None:
    dice = random.Random(8)
    raws = split(make_log(400, dice))
    ends = [number + 1 for number, raw in enumerate(raws) if raw.data[4] == E.XID]
    told: list[Group] = []

    def give_and_ask() -> Iterator[RawEvent | Block]:
        given = 0
        for found in in_blocks(raws, dice):
            assert len(told) == sum(end <= given for end in ends)
            yield found
            given += len(found.begins) if isinstance(found, Block) else 1

    transactions = Transactions(give_and_ask(), RULES, ahead=True, waits=False)
    transactions.gives_runs = True
    runs = 0
    for found in transactions.read():
        runs += isinstance(found, Run)
        for group in transactions.read_each(found) if isinstance(found, Run) else [found]:
            assert [*group.items]
            told.append(group)
    assert len(told) == 400 and (runs or kernels() is None)


def test_a_capture_ends_before_its_border_within_a_run(tmp_path: Path) -> None:
    dice = random.Random(5)
    raws = split(make_log(200, dice))
    begins = [raw.position for raw in raws if raw.data[4] == E.GTID]
    borders = [f"{raws[0].file}:{dice.choice(begins) + dice.choice((-1, 0, 1))}" for _ in range(12)]
    borders += [f"{raws[0].file}:{begins[-1] + 1}", f"{raws[0].file}:4", "seq:77"]
    borders += ["2023-11-16T12:00:00", "00000000-0000-0000-0000-000000000007:90"]
    for number, border in enumerate(borders):
        until = parse_point(border)
        with mock.patch.object(EventDecoder, "scan_plain", return_value=None):
            plain = stored([*raws], tmp_path / f"plain-{number}", Limits(group_seconds=1e9), until)
        assert stored([*in_blocks(raws, dice)], tmp_path / str(number), Limits(), until) == plain, border
        assert number in (11, 12, 13) or 2 < len(plain) < 200, (border, len(plain))


def make_log(count: int, dice: random.Random) -> bytes:
    """Transactions of MySQL without checksums: what is damaged in them is found by what it says alone."""
    table = table_map([T.LONG], b"", SIGNED, field(4, b"\x01a"))
    made = []
    for number in range(1, count + 1):
        time = EPOCH_US + (number * 20 - dice.randrange(50)) * 60_000_000
        times = dice.choice((b"", b"\2" + bytes(16) + uint(time, 7)))
        made.append(event(E.GTID, b"\1" + bytes(15) + b"\7" + uint(number, 8) + times))
        made.append(event(E.QUERY, bytes(8) + b"\0" + bytes(4) + b"\0BEGIN"))
        for _ in range(dice.randrange(3)):
            kind = dice.choice((E.WRITE_ROWS, E.UPDATE_ROWS, E.DELETE_ROWS))
            made += [table, rows_event((b"\0" + uint(number, 4)) * (2 if kind == E.UPDATE_ROWS else 1), 1, kind=kind)]
        made.append(event(E.XID, uint(number, 8)))
    return log(*made)


@pytest.mark.skipif(kernels() is None, reason="no C compiler")
def test_nearly_all_transactions_of_one_row_are_plain() -> None:
    data = make_log(50, random.Random(1))[len(MAGIC) :]
    begins, ends = split_block(data)
    found = scan_events(data, begins[1:], ends[1:], 0, 1 << 20)
    assert found is not None
    assert len(found.transactions) == 50 and found.transactions[-1, 1] == len(begins) - 1
    small = scan_events(data, begins[1:], ends[1:], 0, 10)
    assert small is not None and len(small.transactions) < 50, "a transaction of more bytes of rows is not plain"


@pytest.mark.skipif(kernels() is None, reason="no C compiler")
def test_any_bytes_are_no_transaction_or_one() -> None:
    dice = random.Random(9)
    kinds = (162, 33, 2, 19, 23, 30, 24, 16, 160, dice.randrange(256))
    for _ in range(300):
        data = b""
        for _ in range(dice.randrange(1, 12)):
            body = dice.randbytes(dice.randrange(50))
            size = 19 + len(body) if dice.random() < 0.97 else dice.randrange(1 << 32)
            data += bytes([*dice.randbytes(4), dice.choice(kinds), 1, 0, 0, 0]) + uint(size, 4) + dice.randbytes(6) + body
        data = data[: dice.choice((len(data), dice.randrange(len(data))))]
        begins, ends = split_block(data)
        assert begins.tolist()[1:] == ends.tolist()[:-1] and all(end <= len(data) for end in ends.tolist())
        found = scan_events(data, begins, ends, dice.choice((0, 4)), 1000)
        assert found is not None
        assert all(0 <= start <= stop <= len(data) for _, start, stop, _ in found.rows.tolist())
        assert all(first < behind <= len(begins) for first, behind, *_ in found.transactions.tolist())
        assert all(0 <= start <= stop <= len(data) for start, stop in found.tables.tolist())


@pytest.mark.skipif(kernels() is None, reason="no C compiler")
def test_packets_are_split_up_to_one_that_is_not_the_next_event_of_the_log() -> None:
    events = split(make_log(100, random.Random(2)))[1:]
    start = 1000
    packets, at = [], start
    for number, raw in enumerate(events):
        at += len(raw.data)
        data = raw.data[:13] + uint(at, 4) + raw.data[17:]
        packets.append(uint(len(data) + 1, 3) + bytes([(250 + number) & 255]) + b"\0" + data)
    sent = b"".join(packets)
    begins, ends = split_block(sent, packets_from=250, at=start)
    assert [sent[begin:end] for begin, end in zip(begins, ends, strict=True)] == [packet[5:] for packet in packets]
    dice = random.Random(3)
    for _ in range(200):
        number = dice.randrange(len(packets))
        place = dice.choice((0, 1, 2, 3, 4, 5 + 9, 5 + 13, 5 + 16))  # sizes, numbers, kind, where the log goes on
        odd = bytearray(packets[number])
        odd[place] ^= 1 << dice.randrange(8)
        changed = b"".join([*packets[:number], bytes(odd), *packets[number + 1 :]])
        assert len(split_block(changed, packets_from=250, at=start)[0]) == number
        cut = changed[: sum(map(len, packets[:number])) + dice.randrange(len(odd))]
        assert len(split_block(cut, packets_from=250, at=start)[0]) == number
    for kind in (4, 15, 27, 41, 164):
        odd = bytearray(packets[7])
        odd[5 + 4] = kind
        assert len(split_block(b"".join([*packets[:7], bytes(odd)]), packets_from=250, at=start)[0]) == 7
