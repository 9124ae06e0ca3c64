"""Prove that a store is whole: every checksum, every seam between blocks, every index entry."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.changes.store.block import Header, decode_transactions
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.index import L1_PATH, Index
from tidemark.changes.store.layout import EMPTY
from tidemark.changes.store.read import open_whole
from tidemark.changes.store.view import Bucket, missing_error
from tidemark.errors import CorruptionError


@dataclass(frozen=True)
class Verified:
    """What was found. `problems`: bytes that are lost, by the file's name. `indexes`: files of indexes that are not as they
    can be derived; readers go without them."""

    transactions: int
    rows: int
    blocks: int
    problems: tuple[str, ...]
    indexes: tuple[str, ...]


def verify_store(disk: Disk) -> Verified:
    """Read everything that counts. Raises CorruptionError where not even a view is to be had."""
    reader = open_whole(disk)
    headers: list[Header] = []
    problems, indexes = [], []
    last, former = EMPTY, ""
    for bucket in reader.view.buckets:
        blocks: dict[int, Header] = {}
        try:
            for offset, header, body in reader.read_blocks(bucket):
                if former and header.before != last:
                    problems.append(missing_error(last.seq, former, header.before.seq, bucket.file.path).message)
                decode_transactions(header, body)
                blocks[offset], last, former = header, header.after, bucket.file.path
            indexes += _check_indexes(disk, bucket, blocks)
        except CorruptionError as damaged:
            problems.append(damaged.message)
        headers += blocks.values()
    for group in reader.view.tail:
        decode_transactions(group.header, group.rest[group.header.head_bytes :])
        headers.append(group.header)
    transactions = sum(header.transactions for header in headers if header.ends)
    rows = sum(header.rows for header in headers)
    return Verified(transactions, rows, len(headers), tuple(problems), tuple(indexes))


def _check_indexes(disk: Disk, bucket: Bucket, blocks: dict[int, Header]) -> list[str]:
    """The indexes that say of a bucket what its blocks do not."""
    wrong = []
    index = Index(disk.map_file(bucket.file.index_path))
    entries = [index[number] for number in range(len(index))]
    length = max(blocks, default=0)
    told = [(e.position.offset, e.before) for e in entries if e is not None and e.position.offset <= length]
    if None in entries or any(offset not in blocks or blocks[offset].before != before for offset, before in told):
        wrong.append(bucket.file.index_path)
    entry = Index(disk.map_file(L1_PATH)).find_bucket(bucket.file)
    if entry is not None and 0 in blocks and entry.before != blocks[0].before:
        wrong.append(L1_PATH)
    return wrong
