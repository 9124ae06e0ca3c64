"""What a change store keeps: values, hours and buckets, groups and blocks, large transactions, old hours."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.change_worlds import (
    HOUR,
    ORDERS,
    PEOPLE,
    SMALL,
    START,
    gtids_at,
    has_gtid,
    make_transaction,
    read_all,
    without_records,
)
from tidemark.changes.store import read
from tidemark.changes.store.disk import Disk, OpenFile
from tidemark.changes.store.layout import BucketId, DataPosition, State, hour_name, next_bucket, parse_hour
from tidemark.changes.store.model import ABSENT, BinlogInfo, Op, Row, Rows, Shape, Transaction
from tidemark.changes.store.read import Reader
from tidemark.changes.store.retain import Hour, Rules, choose_retired, retain
from tidemark.changes.store.verify import verify_store
from tidemark.changes.store.write import Limits, Writer
from tidemark.errors import NotFoundError, PermanentError


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "store")


def fill(writer: Writer, transactions: list[Transaction]) -> list[Transaction]:
    for number, transaction in enumerate(transactions, writer.state.seq + 1):
        writer.append(transaction, gtids_at(number))
    return transactions


def bucket_names(disk: Disk) -> list[str]:
    return sorted(path.relative_to(disk.root / "data").as_posix() for path in disk.root.glob("data/*/*.data"))


class TestValues:
    def test_every_value_comes_back_bit_for_bit(self, disk: Disk) -> None:
        edges = [
            (2**64 - 1, -(2**63), -0.0, "", b""),
            (0, 2**63 - 1, 5e-324, "\0 \u200b 🌊 '\"\n", bytes(range(256))),
            (1, None, math.inf, None, None),
            (ABSENT, ABSENT, 1.7976931348623157e308, ABSENT, ABSENT),
        ]
        rows = [Row(Op.UPDATE, values, tuple(reversed_absent(values))) for values in edges]
        with Writer(disk, 1) as writer:
            fill(writer, [make_transaction(1, records=[Rows.of(ORDERS, rows)])])
        (transaction,) = read_all(disk)
        (found,) = transaction.records
        assert isinstance(found, Rows)
        assert found.shape == ORDERS
        assert [repr(row) for row in found.rows()] == [repr(row) for row in rows]

    def test_a_table_made_again_with_other_columns_has_another_shape(self, disk: Disk) -> None:
        narrow = replace(ORDERS, columns=ORDERS.columns[:1])
        records = [
            Rows.of(ORDERS, [Row(Op.DELETE, (1, 2, 3.0, "", b""), None)]),
            Rows.of(narrow, [Row(Op.INSERT, None, (7,))]),
        ]
        source = [make_transaction(1, records=[*records, *records]), make_transaction(2, records=[])]
        with Writer(disk, 1) as writer:
            fill(writer, source)
        assert read_all(disk) == source

    @pytest.mark.full_after(1)
    @pytest.mark.parametrize("width", [1, 8, 9, 4096])
    def test_any_number_of_columns(self, width: int) -> None:
        shape = Shape("d", "t", tuple(replace(ORDERS.columns[1], name=f"c{number}") for number in range(width)))
        row = Row(Op.UPDATE, (*[None] * (width - 1), ABSENT), (ABSENT, *[5] * (width - 1)))
        assert list(Rows.of(shape, [row]).rows()) == [row]


def reversed_absent(values: tuple) -> list:  # type: ignore[type-arg]
    return [ABSENT if value is None else value for value in values]


class TestLayout:
    def test_a_position_has_18_14_and_32_bits(self) -> None:
        last = DataPosition(BucketId((1 << 18) - 1, (1 << 14) - 1), (1 << 32) - 1)
        assert last.pack() == (1 << 64) - 1
        assert DataPosition.unpack(last.pack()) == last
        assert DataPosition(BucketId(1, 0), 0).pack() == 1 << 46

    def test_hours_are_of_utc_and_count_from_2020(self) -> None:
        assert (hour_name(0), hour_name(24 * 366)) == ("2020010100", "2021010100")
        assert [parse_hour(name) for name in ("2020010100", "2020023000", "2019123123", "20200101", "x")] == [0, *[None] * 4]

    def test_an_hour_without_a_number_left_goes_on_in_the_next(self) -> None:
        assert next_bucket(BucketId(5, (1 << 14) - 1), 3) == BucketId(6, 0)

    def test_a_long_transaction_of_the_hour_before_stays_in_the_open_hour(self, disk: Disk) -> None:
        times = [START, START + HOUR, START - HOUR, START + HOUR]
        with Writer(disk, 1) as writer:
            source = fill(writer, [make_transaction(number, time) for number, time in enumerate(times, 1)])
        assert bucket_names(disk) == ["2026092114/00000-1.data", "2026092115/00000-1.data"]
        assert read_all(disk) == source

    def test_a_bucket_begins_before_the_limit_is_passed(self, disk: Disk) -> None:
        with Writer(disk, 1, SMALL) as writer:
            source = fill(writer, [make_transaction(number, START) for number in range(1, 60)])
        sizes = [path.stat().st_size for path in disk.root.glob("data/*/*.data")]
        assert len(sizes) > 2
        assert max(sizes) <= SMALL.bucket_bytes
        assert read_all(disk) == source

    def test_a_commit_beyond_what_a_position_can_say_is_refused_and_hurts_nothing(self, disk: Disk) -> None:
        with Writer(disk, 1) as writer:
            with pytest.raises(PermanentError, match="2049"):
                writer.append(make_transaction(1, 2**62), "u:1")
            source = fill(writer, [make_transaction(1)])
        assert read_all(disk) == source


class TestDurability:
    def test_readers_see_a_group_when_it_is_synced(self, disk: Disk) -> None:
        writer = Writer(disk, 1, SMALL)
        source = fill(writer, [make_transaction(1), make_transaction(2)])
        assert read_all(disk) == []
        assert writer.sync() == Reader(disk).view.end
        assert read_all(disk) == source
        assert Reader(disk).view.gtids == gtids_at(2)

    def test_a_quiet_block_closes_by_clock(self, disk: Disk) -> None:
        now = [0.0]
        writer = Writer(disk, 1, replace(SMALL, block_seconds=60), clock=lambda: now[0])
        fill(writer, [make_transaction(1)])
        writer.sync()
        assert bucket_names(disk) == []
        now[0] = 60.0
        writer.sync()
        assert bucket_names(disk) == ["2026092114/00000-1.data"]

    def test_groups_are_synced_by_clock_while_transactions_come(self, disk: Disk) -> None:
        now = [0.0]
        writer = Writer(disk, 1, replace(SMALL, group_seconds=0.5), clock=lambda: now[0])
        fill(writer, [make_transaction(1)])
        now[0] = 0.5
        fill(writer, [make_transaction(2)])
        assert len(read_all(disk)) == 2

    def test_a_source_that_goes_back_is_refused_and_hurts_nothing(self, disk: Disk) -> None:
        with Writer(disk, 1) as writer:
            source = fill(writer, [make_transaction(1), make_transaction(2)])
            with pytest.raises(PermanentError, match="is before it"):
                writer.append(make_transaction(1), gtids_at(1))
            other = make_transaction(1)._replace(info=BinlogInfo(change_id=2, timestamp=START), gtid_offset=3)
            writer.append(other, "v:1")
        assert read_all(disk) == [*source, other]

    def test_a_writer_that_failed_writes_no_more(self, disk: Disk) -> None:
        writer = Writer(disk, 1, SMALL)
        fill(writer, [make_transaction(1)])
        (disk.root / "tail").rename(disk.root / "away")
        (disk.root / "tail").write_bytes(b"")
        with pytest.raises((PermanentError, OSError)):
            writer.sync()
        (disk.root / "tail").unlink()
        (disk.root / "away").rename(disk.root / "tail")
        with pytest.raises(PermanentError, match="ended"):
            writer.sync()
        assert Writer(disk, 2).state == State()


class TestLargeTransactions:
    def test_nobody_sees_a_part_before_the_last_one(self, disk: Disk) -> None:
        parts = [make_transaction(number).records for number in range(1, 30)]
        seen = []

        def watched():  # type: ignore[no-untyped-def]
            for records in parts:
                yield from records
                seen.append((len(list(disk.root.glob("data/*/*.data"))), len(read_all(disk))))

        whole = make_transaction(2, START, [record for records in parts for record in records])
        with Writer(disk, 1, SMALL) as writer:
            source = fill(writer, [make_transaction(1, START)])
            writer.append_large(without_records(whole), watched(), gtids_at(2))
            source += [whole, *fill(writer, [make_transaction(3, START)])]
        assert max(seen) == (2, 1)  # parts are in the second bucket, one transaction is seen
        assert read_all(disk) == source
        pieces = [piece for piece in Reader(disk).read() if piece.seq == 2]
        assert len(pieces) > 2
        assert [piece.ends for piece in pieces] == [*[False] * (len(pieces) - 1), True]

    def test_one_that_fails_in_a_new_bucket_leaves_that_bucket_readable(self, disk: Disk) -> None:
        def failing():  # type: ignore[no-untyped-def]
            for number in range(1, 30):
                yield from make_transaction(number).records
            raise KeyError("the source is gone")

        with Writer(disk, 1, SMALL) as writer:
            source = fill(writer, [make_transaction(1, START)])
            with pytest.raises(KeyError):
                writer.append_large(without_records(make_transaction(2, START + HOUR)), failing(), gtids_at(2))
            source += fill(writer, [make_transaction(2, START + 2 * HOUR), make_transaction(3, START + 3 * HOUR)])
        assert read_all(disk) == source
        for number in (1, 2, 3):
            found = Reader(disk).find(read.at_seq(number))
            assert found is not None
            assert found.seq == number

    def test_it_is_found_by_its_first_part(self, disk: Disk) -> None:
        records = [record for number in range(1, 30) for record in make_transaction(number).records]
        with Writer(disk, 1, SMALL) as writer:
            writer.append_large(without_records(make_transaction(1)), records, gtids_at(1))
            fill(writer, [make_transaction(2)])
        found = Reader(disk).find(read.at_seq(1))
        assert found is not None
        assert found.position is not None
        assert (found.seq, found.position.offset) == (1, 0)


def behind(number: int) -> read.Target:
    """The first transaction that somebody lacks who has all up to this one."""
    return read.at_first_outside(
        lambda gtids: has_gtid(gtids, f"u:{number + 1}"), lambda gtid: has_gtid(gtids_at(number), gtid)
    )


class TestFinding:
    def test_a_place_is_found_by_two_bodies_and_without_arrow(self, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
        """One proves the store's end, one has the place; Arrow takes longer to be imported than all of that."""
        with Writer(disk, 1, SMALL) as writer:
            fill(writer, [make_transaction(number) for number in range(1, 200)])
        lengths: list[int] = []
        read_bytes = OpenFile.read

        def watch(file: OpenFile, offset: int, length: int) -> bytes:
            lengths.append(length)
            return read_bytes(file, offset, length)

        monkeypatch.setattr(OpenFile, "read", watch)
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        targets = {read.at_seq(70): 1, read.at_gtid_offset(70): 2, read.at_gtid("u:70", has_gtid): 2}
        for target, bodies in targets.items():
            lengths.clear()
            found = Reader(disk).find(target)
            assert found is not None
            assert found.seq == 70
            assert len([length for length in lengths if length > 600]) == bodies

    def test_a_time_that_goes_back_inside_a_block_is_found_in_the_order_of_the_store(self, disk: Disk) -> None:
        times = [START + offset for offset in (5, 3, 9, 1, 9, 12)]
        with Writer(disk, 1) as writer:
            fill(writer, [make_transaction(number, time) for number, time in enumerate(times, 1)])
        found = [Reader(disk).find(read.at_time(START + offset)) for offset in (1, 5, 6, 9, 10, 13)]
        assert [place and place.seq for place in found] == [1, 1, 3, 3, 6, None]

    def test_a_gtid_that_a_set_has_and_no_transaction(self, disk: Disk) -> None:
        """Those of a gap, and of numbers that a MariaDB jumped over."""
        with Writer(disk, 1, SMALL) as writer:
            every = [make_transaction(number) for number in range(1, 200)]
            fill(writer, [one._replace(gtid="") if 60 <= number <= 100 else one for number, one in enumerate(every, 1)])
        assert len(Reader(disk).view.buckets) > 5, "some end within the gap"
        for number in range(60, 101):
            with pytest.raises(NotFoundError, match=f"no transaction u:{number}$"):
                Reader(disk).find(read.at_gtid(f"u:{number}", has_gtid))
            found = Reader(disk).find(behind(number))
            assert found is not None
            assert found.seq == 101
        assert Reader(disk).find(read.at_gtid("u:200", has_gtid)) is None


class TestRetention:
    def test_old_hours_go_and_needed_ones_stay(self) -> None:
        hours = [Hour(number, 100, number * 10) for number in range(10, 16)]
        assert choose_retired(hours, 40, Rules()) == [10, 11, 12, 13, 14]
        assert choose_retired(hours, 36, Rules()) == [10, 11]
        assert choose_retired(hours, 40, Rules(needed=121)) == [10, 11, 12]
        assert choose_retired(hours, 40, Rules(needed=1, most_bytes=350)) == [10, 11, 12]
        assert choose_retired(hours, 0, Rules(most_bytes=1)) == [10, 11, 12, 13, 14]
        assert choose_retired([], 40, Rules()) == []

    def test_hours_leave_sight_then_the_disk_and_what_is_left_is_whole(self, disk: Disk) -> None:
        with Writer(disk, 1, SMALL) as writer:
            source = fill(writer, [make_transaction(number, START + number * HOUR) for number in range(1, 6)])
        reader, following = Reader(disk), Reader(disk).read_whole()
        assert next(following) == (1, source[0])
        now = (START + 30 * HOUR) // 1_000_000
        done = retain(disk, Rules(hours=26, grace_seconds=60), now)
        assert (len(done.retired), done.removed) == (3, ())
        with pytest.raises(NotFoundError, match="retention took it"):
            list(following)
        assert [seq for seq, _ in Reader(disk).read_whole()] == [4, 5]
        for target in (read.at_seq(3), read.at_time(START + 2 * HOUR)):
            with pytest.raises(NotFoundError, match="begins after"):
                Reader(disk).find(target)
        assert reader.view.end.seq == 5
        assert len(retain(disk, Rules(hours=26, grace_seconds=60), now + 60).removed) == 3
        assert list((disk.root / "expired").iterdir()) == []
        with Writer(disk, 2, SMALL) as writer:
            fill(writer, [make_transaction(6, START + 6 * HOUR)])
        assert [seq for seq, _ in Reader(disk).read_whole()] == [4, 5, 6]

    def test_temp_files_that_a_killed_writer_left_go_after_an_hour(self, disk: Disk) -> None:
        with Writer(disk, 1, SMALL) as writer:
            fill(writer, [make_transaction(1, START)])
        names = ("index.l1", "source.json", "holders/1.claim", "parked/x.block", "asked/1.json")
        left = [disk.root / f"{name}.12ab34cd.tmp" for name in names]
        others = [disk.root / "mine.tmp", disk.root / "holders" / "1.json"]
        for place in (*left, others[0]):
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(b"{")
        retain(disk, Rules(), time.time())
        assert all(place.exists() for place in (*left, *others)), "somebody may be writing them"
        retain(disk, Rules(), time.time() + 7200)
        assert [place for place in left if place.exists()] == []
        assert all(place.exists() for place in others)

    def test_old_buckets_are_compressed_and_all_stays_where_it_is(self, disk: Disk) -> None:
        with Writer(disk, 1, Limits(bucket_bytes=1 << 19, block_bytes=1 << 17)) as writer:
            for number in range(1, 40):
                texts = (f"customer {n * n % 977:06} has paid {n * 37 % 1009}.{n % 100:02}" for n in range(number, 1000))
                rows = [Row(Op.READ, None, (text,)) for text in texts]
                fill(writer, [make_transaction(number, START + number // 13 * HOUR, [Rows.of(PEOPLE, rows)])])
        before, found = read_all(disk), [Reader(disk).find(read.at_seq(seq)) for seq in range(1, 40)]
        sizes = {path: (path.stat().st_size, path.stat().st_blocks) for path in disk.root.rglob("*.data")}
        following = Reader(disk).read_whole()
        next(following)
        left = disk.root / Reader(disk).view.buckets[0].file.path
        left.with_name(f"{left.name}.12ab34cd.tmp").write_bytes(b"of a round that was killed")
        now = (START + 5 * HOUR) // 1_000_000
        assert retain(disk, Rules(hours=99), now).compressed == ()
        asked = iter([False, True])
        ended = retain(disk, Rules(hours=99, compress_hours=2), now, lambda: next(asked))
        assert len(ended.compressed) == 1, "it ends between two buckets"
        rest = retain(disk, Rules(hours=99, compress_hours=2), now)
        done = replace(rest, compressed=ended.compressed + rest.compressed)
        buckets = [bucket.file.path for bucket in Reader(disk).view.buckets]
        assert list(done.compressed) == buckets[: len(done.compressed)]
        assert 0 < len(done.compressed) < len(sizes), "the hours that are younger stay as they are"
        assert not list(disk.root.rglob("*.tmp"))
        for path, (size, blocks) in sizes.items():
            assert path.stat().st_size == size
            if str(path.relative_to(disk.root)) in done.compressed:
                assert path.stat().st_blocks <= blocks
        assert read_all(disk) == before
        assert [Reader(disk).find(read.at_seq(seq)) for seq in range(1, 40)] == found
        assert [seq for seq, _ in following] == list(range(2, 40)), "who reads meanwhile reads on"
        assert (verify_store(disk).problems, verify_store(disk).indexes) == ((), ())
        assert retain(disk, Rules(hours=99, compress_hours=2), now).compressed == ()
        with Writer(disk, 2, SMALL) as writer:
            fill(writer, [make_transaction(40, START + 6 * HOUR)])
        assert read_all(disk)[:39] == before
        damaged = disk.root / done.compressed[0]
        data = bytearray(damaged.read_bytes())
        data[len(data) - 5] ^= 1  # in a hole, too
        damaged.write_bytes(data)
        assert verify_store(disk).problems


def test_an_old_limit_of_the_clock_is_no_reason_to_close_an_empty_block(disk: Disk) -> None:
    writer = Writer(disk, 1, Limits(block_seconds=0))
    writer.sync()
    writer.close()
    assert bucket_names(disk) == []
    assert read_all(disk) == []
