"""Whose files count. Pure.

Each writer has a fence, and the fence is in the name of every file that it writes. The record of the newest holder tells of
all holders before it: which buckets are theirs, and where the last of these ends. So a bucket that a replaced holder begins
has no owner, and bytes that it appends lie behind the end. Nothing else decides: no lock, no time.

A holder begins with a **claim**, before it reads what there is. It becomes the holder by its record. In between, readers
leave out the last bucket and the tail, where the former holder's last effect may lie. The former holder looks for a claim
before each effect and after each sync. So what it told as durable was there when the new holder read.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemark.changes.store.layout import BucketFile, BucketId
from tidemark.errors import CorruptionError, LeaseLostError, UnsupportedError

FORMAT = 1
_NAME = re.compile(r"(\d+)\.(claim|json)")


@dataclass(frozen=True)
class Span:
    """The buckets of one holder, `begin` to `end`. The end counts up to `length` bytes. An open span has no end."""

    fence: int
    begin: BucketId
    end: BucketId | None = None
    length: int = 0

    def owns(self, file: BucketFile) -> bool:
        return file.fence == self.fence and self.begin <= file.id and (self.end is None or file.id <= self.end)

    def limit_of(self, bucket: BucketId) -> int | None:
        """The bytes of a bucket that count; None: all."""
        return self.length if bucket == self.end else None


@dataclass(frozen=True)
class Holders:
    """The record of the newest holder: spans in their order, the last one open. `seq`: the store's last transaction when it
    was written; `first`: whether anything was there before."""

    spans: tuple[Span, ...]
    seq: int = 0

    @property
    def open(self) -> Span:
        return self.spans[-1]

    def encode(self) -> bytes:
        spans = [[s.fence, list(s.begin), s.end and list(s.end), s.length] for s in self.spans]
        body = json.dumps({"format": FORMAT, "seq": self.seq, "spans": spans})
        return f"{body}\n{zlib.crc32(body.encode()):08x}\n".encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Holders:
        body, _, check = data.partition(b"\n")
        if check != b"%08x\n" % zlib.crc32(body):
            raise CorruptionError(
                f"{path} is damaged",
                hint="bring it back from a copy; without it nothing says which buckets count",
                subject=path,
            )
        record = json.loads(body)
        if record["format"] > FORMAT:
            raise UnsupportedError(f"{path} is of a newer format, {record['format']}", hint="upgrade Tidemark", subject=path)
        spans = [Span(f, BucketId(*begin), end and BucketId(*end), length) for f, begin, end, length in record["spans"]]
        return cls(tuple(spans), record["seq"])


@dataclass(frozen=True)
class Fences:
    """What the names in `holders/` tell: the newest holder (0: none) and the newest claim."""

    holder: int
    claim: int

    @classmethod
    def of(cls, names: Iterable[str]) -> Fences:
        found = [match for name in names if (match := _NAME.fullmatch(name))]
        holders = [int(match[1]) for match in found if match[2] == "json"]
        return cls(max(holders, default=0), max((int(match[1]) for match in found), default=0))

    @property
    def taking_over(self) -> bool:
        return self.claim > self.holder

    def check_held(self, fence: int) -> None:
        """Raise LeaseLostError where somebody else claimed the store."""
        if self.claim > fence:
            raise LeaseLostError(f"the change store was taken over: our fence is {fence}, {self.claim} claims it")


def claim_path(fence: int) -> str:
    return f"holders/{fence}.claim"


def record_path(fence: int) -> str:
    return f"holders/{fence}.json"


def find_outdated(names: Iterable[str], fence: int) -> list[str]:
    """Paths of claims and records that the record of `fence` stands for."""
    found = [match for name in names if (match := _NAME.fullmatch(name))]
    return [f"holders/{match[0]}" for match in found if int(match[1]) < fence or match[0] == f"{fence}.claim"]


def close_spans(holders: Holders | None, last: BucketFile | None, length: int, oldest: BucketId | None) -> tuple[Span, ...]:
    """The spans before a new holder: the open one ends in its last bucket, at `length`.

    Spans without a bucket go, and those before `oldest`: retention took them.
    """
    if holders is None:
        return ()
    spans: Sequence[Span] = holders.spans[:-1]
    if last is not None and last.fence == holders.open.fence:
        spans = [*spans, Span(last.fence, holders.open.begin, last.id, length)]
    return tuple(span for span in spans if oldest is not None and span.end is not None and span.end >= oldest)
