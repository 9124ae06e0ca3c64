"""Hours, buckets, positions and names of a change store, and the state after a transaction. Pure."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from tidemark.changes.store.model import BinlogInfo, Transaction
from tidemark.errors import PermanentError

EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
"""Hour 0 of a position. 18 bits reach to 2049."""
HOURS, BUCKETS, OFFSETS = 1 << 18, 1 << 14, 1 << 32
_HOUR_MICROSECONDS = 3_600_000_000
_EPOCH_HOUR = int(EPOCH.timestamp()) // 3600
_NAME = re.compile(r"(\d{5})-(\d+)\.data")
_TAIL = re.compile(r"(\d+)-(\d+)\.tail")
_STATE = struct.Struct("<QHIIQ16sQQqqQ")
STATE_BYTES = _STATE.size
START = BinlogInfo()


class BucketId(NamedTuple):
    """A bucket: hours since 2020-01-01 UTC, and its number in the hour. Ordered as written."""

    hour: int
    number: int

    @property
    def folder(self) -> str:
        return f"data/{hour_name(self.hour)}"


class DataPosition(NamedTuple):
    """Where a block begins: 18 bits of hour, 14 of bucket, 32 of offset."""

    bucket: BucketId
    offset: int

    def pack(self) -> int:
        return (self.bucket.hour * BUCKETS + self.bucket.number) * OFFSETS + self.offset

    @classmethod
    def unpack(cls, number: int) -> DataPosition:
        above, offset = divmod(number, OFFSETS)
        return cls(BucketId(*divmod(above, BUCKETS)), offset)


class BucketFile(NamedTuple):
    """A bucket as one holder wrote it."""

    id: BucketId
    fence: int

    @property
    def path(self) -> str:
        return f"{self.id.folder}/{self.id.number:05}-{self.fence}.data"

    @property
    def index_path(self) -> str:
        return self.path.removesuffix("data") + "l2"


class TailFile(NamedTuple):
    """A tail: groups of transactions from `first` on that its holder had not closed into a block. Ordered as written."""

    fence: int
    first: int

    @property
    def path(self) -> str:
        return f"tail/{self.fence}-{self.first:020}.tail"


def mirror_path(change_id: int, log: str) -> str:
    """Where the bytes of a log of the source are, if they are kept."""
    return f"mirror/{change_id}/{log}"


@dataclass(frozen=True)
class State:
    """What is known after a transaction. Everything but `info` only grows, and so does `info.order`.

    `seq` counts the store's transactions. `newest` is the highest commit time so far, since single ones go back.
    """

    seq: int = 0
    info: BinlogInfo = START
    newest: int = 0
    gtid_offset: int = 0

    def after(self, transaction: Transaction) -> State:
        """The state after one more transaction. Raises PermanentError where the source went back."""
        info = transaction.info
        if info.order < self.info.order or transaction.gtid_offset < self.gtid_offset:
            raise PermanentError(
                f"the store stands at {self.info.order}, GTID offset {self.gtid_offset}; the transaction"
                f" {transaction.gtid or info.order}, {transaction.gtid_offset}, is before it",
                hint="a source that began anew gets a new change id",
            )
        return State(self.seq + 1, info, max(self.newest, info.timestamp), transaction.gtid_offset)

    def pack(self) -> bytes:
        i = self.info
        ids = (i.change_id, i.server_id, i.file, i.offset, i.uuid, i.transaction_id, i.event_index, i.timestamp)
        try:
            return _STATE.pack(self.seq, *ids, self.newest, self.gtid_offset)
        except struct.error as wrong:
            raise PermanentError(f"a transaction's identity does not fit the store: {i}: {wrong}") from wrong

    @classmethod
    def unpack(cls, data: bytes) -> State:
        seq, *ids, newest, gtid_offset = _STATE.unpack(data)
        return cls(seq, BinlogInfo(*ids), newest, gtid_offset)


EMPTY = State()
"""The state before the first transaction."""


def hour_of(microseconds: int) -> int:
    """The hour of a time; earlier than 2020 is hour 0. Raises PermanentError from 2049 on."""
    hour = max(0, microseconds // _HOUR_MICROSECONDS - _EPOCH_HOUR)
    if hour >= HOURS:
        raise PermanentError("the commit time lies beyond 2049", hint="set the clock of the source")
    return hour


def end_of_hour(microseconds: int) -> int:
    """The first microsecond of the hour behind that of a time."""
    return (hour_of(microseconds) + _EPOCH_HOUR + 1) * _HOUR_MICROSECONDS


def hour_name(hour: int) -> str:
    """`yyyymmddhh` in UTC, so that no hour repeats or is missing."""
    return (EPOCH + timedelta(hours=hour)).strftime("%Y%m%d%H")


def parse_hour(name: str) -> int | None:
    """The hour of a folder's name, None for any other name."""
    if not re.fullmatch(r"\d{10}", name):
        return None
    try:
        date = datetime(int(name[:4]), int(name[4:6]), int(name[6:8]), int(name[8:]), tzinfo=UTC)
        hour = (date - EPOCH) // timedelta(hours=1)
    except ValueError:
        return None
    return hour if 0 <= hour < HOURS else None


def parse_bucket(hour: int, name: str) -> BucketFile | None:
    """The bucket of a file's name, None for any other name."""
    found = _NAME.fullmatch(name)
    return BucketFile(BucketId(hour, int(found[1])), int(found[2])) if found else None


def parse_tail(name: str) -> TailFile | None:
    """The tail of a file's name, None for any other name."""
    found = _TAIL.fullmatch(name)
    return TailFile(int(found[1]), int(found[2])) if found else None


def next_bucket(last: BucketId | None, hour: int) -> BucketId:
    """The bucket to begin behind `last` for a transaction of `hour`: of the later hour, for readers only walk forward."""
    if last is None or hour > last.hour:
        return BucketId(hour, 0)
    return BucketId(last.hour, last.number + 1) if last.number + 1 < BUCKETS else BucketId(last.hour + 1, 0)
