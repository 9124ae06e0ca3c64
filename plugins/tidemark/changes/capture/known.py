"""Is a transaction of a log the one that a store has? A log tells in seconds when it was made, and a restored server gives
its GTIDs again: then only the rows tell.

The first rows of each table are compared, and only tables that both have: which tables a source takes may have changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from tidemark.changes.binlog.charsets import describe_alike
from tidemark.changes.capture.batches import convert_stream
from tidemark.changes.capture.transactions import CutOff, Rules, Transactions
from tidemark.changes.connection.model import Dump
from tidemark.changes.store.model import BinlogInfo, Ddl, Op, Record, Rows
from tidemark.changes.store.read import Reader, at_position
from tidemark.errors import NotFoundError

MOST_ROWS, MOST_BYTES = 1000, 1 << 20
"""What is read of a transaction, roughly."""


@dataclass
class Beginning:
    """The first rows of a transaction by table, in their order, and its definitions under "". `is_whole`: there are no more.
    `gtid`: where a store has it."""

    rows: dict[str, list[str]] = field(default_factory=dict)
    is_whole: bool = True
    gtid: str = ""

    def may_be(self, other: Beginning) -> bool:
        """Whether both can be of one transaction."""
        if self.gtid != other.gtid and "" not in (self.gtid, other.gtid):
            return False
        are_whole = self.is_whole and other.is_whole
        for table in self.rows.keys() & other.rows.keys():
            ours, theirs = self.rows[table], other.rows[table]
            least = min(len(ours), len(theirs))
            if ours[:least] != theirs[:least] or (are_whole and len(ours) != len(theirs)):
                return False
        return True


def read_beginning(records: Iterable[Record]) -> Beginning:
    """What a transaction begins with. Raises what its records raise."""
    found, rows, size = Beginning(), 0, 0
    for record in records:
        if rows >= MOST_ROWS or size >= MOST_BYTES:
            found.is_whole = False
            break
        if isinstance(record, Ddl):
            found.rows.setdefault("", []).append(describe_alike(record.sql))
        elif isinstance(record, Rows):
            table = found.rows.setdefault(f"{record.shape.database}.{record.shape.table}", [])
            size += record.batch.nbytes
            for row in record.rows():
                table.append(describe_alike((int(row.op), row.before, row.after)))
                rows += 1
    return found


def read_stored(reader: Reader, info: BinlogInfo) -> Beginning | None:
    """The transaction of a store that is from this place of a log; None where it has none, or rows of a bootstrap alone."""
    try:
        found = reader.find(at_position(info.order))
    except NotFoundError:  # retention took it
        return None
    if found is None:
        return None
    piece = next(reader.read(found.seq))  # of one that is larger than a block this is more than is compared
    whole = piece.transaction
    if whole.info.order != info.order or any(map(_is_read, whole.records)):
        return None
    beginning = read_beginning(whole.records)
    return replace(beginning, is_whole=beginning.is_whole and piece.ends, gtid=whole.gtid)


def _is_read(record: Record) -> bool:
    return isinstance(record, Rows) and record.count > 0 and record.batch.column("op")[0].as_py() == Op.READ


def read_logged(dump: Dump, rules: Rules, gtid: str, most: int | None = None) -> Beginning | None:
    """A transaction of logs by its GTID; None where it is not there, or not among the first `most`. At MariaDB it may be one
    with the number of the GTID, by another server. The dump is closed."""
    try:
        for group in islice(Transactions(dump.events(), rules), most):
            if _number_of(group.head.gtid) == _number_of(gtid):
                return replace(read_beginning(convert_stream(group.items)), gtid=group.head.gtid)
    except CutOff:
        pass
    finally:
        dump.close()
    return None


def _number_of(gtid: str) -> tuple[str, ...]:
    """What a GTID says without the server that gave it, as a position of MariaDB counts them; all of one of MySQL."""
    parts = gtid.split("-")
    return (parts[0], parts[2]) if len(parts) == 3 else (gtid,)
