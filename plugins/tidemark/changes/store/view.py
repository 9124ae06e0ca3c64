"""What is durable and whole in a store at one moment.

A view is made of names, the newest holder's record, the end of the last bucket and the tail; all other blocks are read when
they are asked for. Files are only appended to, so a view stays true until retention takes its oldest hours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tidemark.changes.store.block import HEADER_BYTES, MAGIC, Header, decode_gtids, decode_header, is_sound, is_sound_head
from tidemark.changes.store.disk import Disk, OpenFile
from tidemark.changes.store.holders import Fences, Holders, record_path
from tidemark.changes.store.index import Index
from tidemark.changes.store.layout import (
    EMPTY,
    BucketFile,
    BucketId,
    DataPosition,
    State,
    TailFile,
    parse_bucket,
    parse_hour,
    parse_tail,
)
from tidemark.errors import CorruptionError, RetryableError

LOOKS = 50
"""How often a view is begun anew because files moved meanwhile. A writer moves them once a block."""
_WINDOW = 1 << 20
TAIL = BucketId(0, 0)  # groups of a tail say their offset alone
AFTER_LOSS = "bring the file back from a copy, or move the store away and let the next capture begin a new one"


@dataclass(frozen=True)
class Bucket:
    """A bucket that counts. `length`: its bytes that count; None: all that it has."""

    file: BucketFile
    length: int | None = None


@dataclass(frozen=True)
class Group:
    """A group of the tail."""

    path: str
    header: Header
    rest: bytes  # head and body


@dataclass(frozen=True)
class View:
    """What readers see. `end` is the state after the last transaction, `gtids` the GTID set there. `is_claimed`: somebody
    takes the store over, or died of it: the former holder's end is left out."""

    holders: Holders | None = None
    buckets: Sequence[Bucket] = ()
    tail: Sequence[Group] = ()
    end: State = EMPTY
    gtids: str = ""
    is_claimed: bool = False


def read_view(disk: Disk, fence: int = 0) -> View:
    """Look at the store. With the `fence` of one's own claim: as the next holder finds it.

    Raises CorruptionError where a file that counts is damaged or lost, RetryableError where files keep moving.
    """
    missing = None
    for _ in range(LOOKS):
        try:
            return _look_once(disk, fence)
        except FileNotFoundError:
            missing = None
        except _Moved as moved:  # the writer closed a block between two readings, or bytes are lost
            if missing == moved.message:
                raise CorruptionError(moved.message, hint=AFTER_LOSS, subject=moved.subject) from moved
            missing = moved.message
        time.sleep(0.001)
    raise RetryableError(f"files of the change store {disk.root} kept moving", hint="run again")


def read_next_view(disk: Disk) -> View:
    """The view as the next holder finds it, also where one died of taking over: for who holds the lease of the writer, or
    only shows how far the store is. Errors as of `read_view`."""
    return read_view(disk, Fences.of(disk.list_names("holders")).claim)


def walk_blocks(file: OpenFile, bucket: BucketId, start: int, end: int) -> Iterator[tuple[int, Header]]:
    """(offset, header) of each block from `start` on, up to `end` or the first that is not whole by its header."""
    while header := decode_header(file.read(start, min(HEADER_BYTES, end - start))):
        if header.position != DataPosition(bucket, start).pack() or start + header.size > end:
            return
        yield start, header
        start += header.size


def check_torn(file: OpenFile, start: int, end: int) -> None:
    """Raise CorruptionError where a block follows `start`, at which none is whole. Each block is made durable before the
    next one is written, so what a crash tears is the last one."""
    for window in range(start + 1, end, _WINDOW):
        data = file.read(window, min(_WINDOW + HEADER_BYTES, end - window))
        found = data.find(MAGIC)
        while found >= 0:
            header = decode_header(data[found : found + HEADER_BYTES])
            if header and DataPosition.unpack(header.position).offset == window + found:
                raise corruption_error(file.path, start)
            found = data.find(MAGIC, found + 1)


def corruption_error(path: str, offset: int) -> CorruptionError:
    return CorruptionError(f"{path} is damaged at byte {offset}", hint=AFTER_LOSS, subject=path)


def missing_error(last: int, former: str, before: int, path: str) -> CorruptionError:
    """Transactions between `last`, at the end of `former`, and what `path` begins behind."""
    what = f"transactions {last + 1} to {before} are missing between {former or 'the start'} and {path}"
    return CorruptionError(what, hint=AFTER_LOSS, subject=path)


def read_rest(file: OpenFile, offset: int, header: Header) -> bytes:
    """Head and body of a block. Raises CorruptionError where they are not as written."""
    rest = file.read(offset + HEADER_BYTES, header.head_bytes + header.body_bytes)
    if not is_sound(header, rest):
        raise corruption_error(file.path, offset)
    return rest


def read_gtids(file: OpenFile, offset: int, header: Header) -> tuple[str, str]:
    """The GTID sets before and after a block; its body is not read."""
    head = file.read(offset + HEADER_BYTES, header.head_bytes)
    if not is_sound_head(header, head):
        raise corruption_error(file.path, offset)
    return decode_gtids(head)


def read_first(disk: Disk, file: BucketFile) -> tuple[Header, str]:
    """The first header of a bucket, and the GTID set before it."""
    with disk.open_file(file.path) as opened:
        header = decode_header(opened.read(0, HEADER_BYTES))
        if header is None:
            raise corruption_error(file.path, 0)
        return header, read_gtids(opened, 0, header)[0]


class _Moved(CorruptionError):
    """Blocks and tail do not meet: they moved, or some are lost."""


def _look_once(disk: Disk, fence: int) -> View:
    newest = Fences.of(disk.list_names("holders"))
    holders = _read_holders(disk, newest)
    if holders is None:
        return View()
    view = _find_end(disk, View(holders, _list_buckets(disk, holders)))
    in_open = bool(view.buckets) and view.buckets[-1].file.fence == holders.open.fence
    blocks = view
    view = _add_tail(disk, view)
    if view.end.seq < holders.seq:
        path = record_path(holders.open.fence)
        raise _Moved(f"{path} tells of {holders.seq} transactions, {view.end.seq} are there", subject=path)
    now = Fences.of(disk.list_names("holders"))
    if now.holder != holders.open.fence:
        raise FileNotFoundError("a new holder took over meanwhile")
    if now.taking_over and now.claim != fence:
        # CRASH WINDOW: who claimed the store may be dead; its former end is not read until the next holder is there.
        left = _find_end(disk, replace(view, buckets=view.buckets[:-1], tail=())) if in_open else replace(blocks, tail=())
        return replace(left, is_claimed=True)
    return view


def _read_holders(disk: Disk, newest: Fences) -> Holders | None:
    if newest.holder:
        path = record_path(newest.holder)
        return Holders.decode(disk.read(path), path)
    if any(parse_hour(name) is not None for name in disk.list_names("data")):
        raise CorruptionError("holders/ has no record, data/ has buckets", hint=AFTER_LOSS, subject="holders")
    return None


def _list_buckets(disk: Disk, holders: Holders) -> Sequence[Bucket]:
    """The buckets that count, in their order. Raises CorruptionError where numbers or spans say that one is lost."""
    spans = {span.fence: span for span in holders.spans}
    found = []
    for folder in disk.list_names("data"):
        hour = parse_hour(folder)
        for name in disk.list_names(f"data/{folder}") if hour is not None else ():
            file = parse_bucket(hour or 0, name)
            span = spans.get(file.fence) if file else None
            if file and span and span.owns(file):
                found.append(Bucket(file, span.limit_of(file.id)))
    found.sort(key=lambda bucket: bucket.file)
    here = {bucket.file for bucket in found}
    ends = [BucketFile(span.end, span.fence) for span in holders.spans if span.end is not None]
    lost = [file.path for file in ends if found and file.id >= found[0].file.id and file not in here]
    for before, bucket in zip([None, *found], found, strict=False):
        number = before.file.id.number + 1 if before and before.file.id.hour == bucket.file.id.hour else 0
        if bucket.file.id.number != number:
            lost.append(f"{bucket.file.id.folder}/{number:05}-*.data")
    if lost:
        raise CorruptionError(f"{', '.join(lost)} is missing", hint=AFTER_LOSS, subject=lost[0])
    return found


def _find_end(disk: Disk, view: View) -> View:
    """The view with the end of its last bucket. A bucket whose first block is not whole does not count yet."""
    buckets = list(view.buckets)
    while buckets:
        bucket = buckets.pop()
        found = _find_last(disk, bucket, torn=view.holders is not None and bucket.file.fence == view.holders.open.fence)
        if found is not None:
            length, end, gtids = found
            return replace(view, buckets=[*buckets, Bucket(bucket.file, length)], end=end, gtids=gtids)
    return replace(view, buckets=(), end=EMPTY, gtids="")


def _find_last(disk: Disk, bucket: Bucket, *, torn: bool) -> tuple[int, State, str] | None:
    """(offset, state, GTID set) after the last whole transaction of a bucket, or None. `torn`: its last block may be."""
    path, file = bucket.file.path, bucket.file
    with disk.open_file(path) as opened:
        size = opened.size if bucket.length is None else bucket.length
        if opened.size < size:
            raise corruption_error(path, opened.size)
        for start in {_last_indexed(disk, file, size): None, 0: None}:
            blocks = list(walk_blocks(opened, file.id, start, size))
            end = blocks[-1][0] + blocks[-1][1].size if blocks else start
            if blocks and not is_sound(blocks[-1][1], _read_rest(opened, *blocks[-1])):
                end = blocks.pop()[0]
            if end < size:
                if not torn:
                    raise corruption_error(path, end)
                check_torn(opened, end, size)
            while blocks and not blocks[-1][1].ends:  # parts of a transaction that its writer did not end
                blocks.pop()
            if blocks:
                offset, header = blocks[-1]
                return offset + header.size, header.after, read_gtids(opened, offset, header)[1]
    if not torn:
        raise corruption_error(path, 0)
    return None


def _read_rest(file: OpenFile, offset: int, header: Header) -> bytes:
    return file.read(offset + HEADER_BYTES, header.head_bytes + header.body_bytes)


def _last_indexed(disk: Disk, file: BucketFile, size: int) -> int:
    """Where the last block lies that the bucket's L2 tells of, below `size`; 0 without one."""
    index = Index(disk.map_file(file.index_path))
    for number in reversed(range(len(index))):
        entry = index[number]
        if entry is None:
            return 0
        if entry.position.offset < size:
            return entry.position.offset
    return 0


def _add_tail(disk: Disk, view: View) -> View:
    """The view with the groups of the tail that no block has yet."""
    assert view.holders is not None
    fence = view.holders.open.fence
    tails = sorted(tail for name in disk.list_names("tail") if (tail := parse_tail(name)) and tail.fence == fence)
    former = view.buckets[-1].file.path if view.buckets else ""
    if not tails:
        raise _Moved(f"tail/ has no file of fence {fence} behind {former}", subject="tail")
    if tails[0].first > view.end.seq + 1:
        raise _Moved(missing_error(view.end.seq, former, tails[0].first - 1, tails[0].path).message, subject=former)
    groups = [group for tail in tails for group in _read_groups(disk, tail, is_last=tail == tails[-1])]
    end, found = view.end, []
    for group in groups:
        if group.header.after.seq <= view.end.seq:  # a block has it: its writer died, or has yet to remove the tail
            continue
        if group.header.before != end:
            raise _Moved(missing_error(end.seq, former, group.header.before.seq, group.path).message, subject=group.path)
        end = group.header.after
        found.append(group)
    gtids = decode_gtids(found[-1].rest[: found[-1].header.head_bytes])[1] if found else view.gtids
    return replace(view, tail=found, end=end, gtids=gtids)


def _read_groups(disk: Disk, tail: TailFile, *, is_last: bool) -> list[Group]:
    with disk.open_file(tail.path) as file:
        found, end = [], 0
        for offset, header in walk_blocks(file, TAIL, 0, file.size):
            rest = _read_rest(file, offset, header)
            if not is_sound(header, rest):
                break
            found.append(Group(tail.path, header, rest))
            end = offset + header.size
        if end < file.size:
            if not is_last:
                raise corruption_error(tail.path, end)
            check_torn(file, end, file.size)
        return found
