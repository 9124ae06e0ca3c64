"""Many transactions of one log in columns: rows, then the same mark each. For a writer an object of each would be dear."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tidemark.changes.store.model import BinlogInfo, Mark, Rows, Shape, Transaction

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Run:
    """Transactions one behind the other, an entry each in all but `change_id`, `file`, `mark` and what follows.

    Transaction t has the records of rows `borders[t]` to `borders[t + 1]`, then `mark`. Record r is `counts[r]` rows of the
    table `wholes[shapes[r]]`, from `starts[r]` on. The records of one table lie behind each other in it.
    """

    change_id: int
    file: int
    server_ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    uuids: NDArray[np.uint8]
    transaction_ids: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    gtids: Sequence[str]
    gtid_offsets: NDArray[np.int64]
    mark: Mark
    borders: NDArray[np.int64]
    shapes: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    wholes: Sequence[tuple[Shape, Any]]
    gtids_after: Callable[[int], object] = field(compare=False)
    """The source's GTID set with a transaction, by its number: anything whose text is that set."""
    first: int = 0
    """The number of the first transaction, for `gtids_after`."""

    def __len__(self) -> int:
        return len(self.offsets)

    def cut(self, begin: int, end: int) -> Run:
        """Those from `begin` to before `end`."""
        from_record, to_record = int(self.borders[begin]), int(self.borders[end])
        return replace(
            self,
            server_ids=self.server_ids[begin:end],
            offsets=self.offsets[begin:end],
            uuids=self.uuids[begin:end],
            transaction_ids=self.transaction_ids[begin:end],
            timestamps=self.timestamps[begin:end],
            gtids=self.gtids[begin:end],
            gtid_offsets=self.gtid_offsets[begin:end],
            borders=self.borders[begin : end + 1] - from_record,
            shapes=self.shapes[from_record:to_record],
            starts=self.starts[from_record:to_record],
            counts=self.counts[from_record:to_record],
            first=self.first + begin,
        )

    def head(self, index: int) -> Transaction:
        """A transaction without its records."""
        info = BinlogInfo(
            change_id=self.change_id,
            server_id=int(self.server_ids[index]),
            file=self.file,
            offset=int(self.offsets[index]),
            uuid=self.uuids[index].tobytes(),
            transaction_id=int(self.transaction_ids[index]),
            timestamp=int(self.timestamps[index]),
        )
        return Transaction(info, self.gtids[index], int(self.gtid_offsets[index]))

    def set_after(self, index: int) -> object:
        return self.gtids_after(self.first + index)

    def transactions(self) -> Iterator[Transaction]:
        """They, one by one."""
        shapes, starts, counts = self.shapes.tolist(), self.starts.tolist(), self.counts.tolist()
        borders = self.borders.tolist()
        records = []
        for which, start, count in zip(shapes, starts, counts, strict=True):
            shape, whole = self.wholes[which]
            records.append(Rows(shape, whole, start, count))
        for index in range(len(self)):
            yield self.head(index)._replace(records=(*records[borders[index] : borders[index + 1]], self.mark))

    def stretches(self) -> list[Rows]:
        """The rows of each table, which lie behind each other; a number in `shapes` is one in these."""
        import numpy as np

        found = []
        for number, (shape, whole) in enumerate(self.wholes):
            own = np.flatnonzero(self.shapes == number)
            start = int(self.starts[own[0]]) if len(own) else 0
            found.append(Rows(shape, whole, start, int(self.counts[own].sum())))
        return found

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    def count_bytes(self, beside: int) -> NDArray[np.int64]:
        """The bytes that each takes in memory, roughly: of a batch, its share by rows; `beside` it, and each record."""
        import numpy as np

        of_row = np.array([whole.nbytes / max(1, whole.num_rows) for _, whole in self.wholes] or [0.0])
        sizes = np.zeros(len(self.counts) + 1, np.int64)
        np.cumsum((of_row[self.shapes] * self.counts).astype(np.int64) + beside, out=sizes[1:])
        found: NDArray[np.int64] = np.diff(sizes[self.borders]) + (2 * beside + len(self.mark.text))
        return found
