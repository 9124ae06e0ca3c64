"""Change stores for tests: transactions of a made-up source, and a disk on which a process dies and the power goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.crash.explorer import Effects
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import (
    ABSENT,
    BinlogInfo,
    Column,
    Ddl,
    Kind,
    Mark,
    Op,
    Record,
    Row,
    Rows,
    SchemaChange,
    Shape,
    Transaction,
)
from tidemark.changes.store.read import Reader
from tidemark.changes.store.write import Limits

ORDERS = Shape(
    "shop",
    "orders",
    (
        Column("id", Kind.UINT64, "bigint unsigned", key=True),
        Column("paid", Kind.INT64, "bigint"),
        Column("rate", Kind.FLOAT64, "double"),
        Column("note", Kind.TEXT, "varchar(20)"),
        Column("photo", Kind.BYTES, "blob"),
    ),
)
PEOPLE = Shape("häuser", "人", (Column("name", Kind.TEXT, "text", key=True),))
SMALL = Limits(bucket_bytes=5_500, block_bytes=3_000, index_bytes=1_000, block_seconds=1e9, group_seconds=1e9)
START = 1_790_000_000_000_000  # 2026-09-21, in microseconds
HOUR = 3_600_000_000


def make_transaction(number: int, time: int | None = None, records: Iterable[Record] | None = None) -> Transaction:
    """The transaction that the source committed as its `number`-th: the same whoever asks."""
    when = START + number * 60_000_000 if time is None else time
    info = BinlogInfo(1, 4_000_000_000, 7, 1000 * number, bytes(15) + b"\1", number, 0, when)
    return Transaction(info, f"u:{number}", number, tuple(make_records(number) if records is None else records))


def make_records(number: int) -> Sequence[Record]:
    new = (2**64 - 1 - number, -number, 0.1 * number, f"n{number}", bytes([number % 256, 255]))
    old = (2**64 - 1 - number, None, ABSENT, "", b"")
    rows = [Row(Op.INSERT, None, new), Row(Op.UPDATE, old, new), Row(Op.DELETE, old, None)]
    if number % 5 == 0:
        return [Ddl("shop", "alter table orders"), SchemaChange(ORDERS), Rows.of(PEOPLE, [Row(Op.READ, None, ("ä",))])]
    return [] if number % 7 == 0 else [Rows.of(ORDERS, rows[: number % 3 + 1]), Mark("heartbeat", str(number))]


def gtids_at(number: int) -> str:
    """The source's GTID set after its `number`-th transaction."""
    return f"u:1-{number}" if number else ""


def has_gtid(gtids: str, gtid: str) -> bool:
    return bool(gtids) and int(gtid.removeprefix("u:")) <= int(gtids.removeprefix("u:1-"))


def read_all(disk: Disk) -> list[Transaction]:
    """Everything that readers see, in order; asserts that it is numbered from 1 without a gap."""
    found = list(Reader(disk).read_whole())
    assert [seq for seq, _ in found] == list(range(1, len(found) + 1))
    return [transaction for _, transaction in found]


@dataclass
class Power:
    """What a power loss may take from a folder: bytes that were not synced, and removals."""

    safe: dict[str, int] = field(default_factory=dict)  # by path: the bytes that are safe; -1: not even the name
    removed: dict[str, bytes] = field(default_factory=dict)

    def lose(self, root: Path, choice: Random) -> None:
        for path, safe in self.safe.items():
            place = root / path
            data = place.read_bytes()
            if safe < 0 and choice.random() < 0.5:
                place.unlink()
                continue
            kept = choice.randint(max(safe, 0), len(data))
            place.write_bytes(data[:kept] + choice.choice([b"", bytes(len(data) - kept)]))
        for path, data in self.removed.items():
            if choice.random() < 0.5 and (root / path).parent.is_dir() and not (root / path).exists():
                (root / path).write_bytes(data)
        self.safe.clear()
        self.removed.clear()


class DyingDisk(Disk):
    """A disk whose every change is an effect. An append may also end in the middle. `before`: called before each effect."""

    def __init__(
        self, root: Path, effects: Effects, power: Power | None = None, before: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__(root)
        self.effects = effects
        self.power = power or Power()
        self.before = before

    def append(self, path: str, offset: int, data: bytes) -> None:
        self._point(f"append {path} {offset}")
        if data:
            self.power.safe.setdefault(path, offset if (self.root / path).exists() else -1)
            super().append_index(path, offset, data[: len(data) // 2])
            self.effects.point(f"after half of append {path} {offset}")
        super().append(path, offset, data)
        self.power.safe.pop(path, None)
        self.effects.point(f"after append {path} {offset}")

    def append_index(self, path: str, offset: int, data: bytes) -> None:
        self._point(f"index {path} {offset}")
        self.power.safe.setdefault(path, offset if (self.root / path).exists() else -1)
        super().append_index(path, offset, data)
        self.effects.point(f"after index {path} {offset}")

    def overwrite(self, path: str, offset: int, data: bytes) -> None:
        self._point(f"overwrite {path} {offset}")
        super().overwrite(path, offset, data[: len(data) // 2])
        self.effects.point(f"after half of overwrite {path} {offset}")
        super().overwrite(path, offset, data)
        self.effects.point(f"after overwrite {path} {offset}")

    def publish(self, path: str, data: bytes) -> None:
        self._point(f"publish {path}")
        super().publish(path, data)
        self.effects.point(f"after publish {path}")

    def replace_thinly(self, path: str, pieces: Iterable[tuple[bytes, int]]) -> bool:
        self._point(f"replace {path}")

        def written() -> Iterator[tuple[bytes, int]]:
            for piece in pieces:
                yield piece
                self.effects.point(f"after a piece of {path}")

        done = super().replace_thinly(path, written())
        self.effects.point(f"after replace {path}")
        return done

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._point(f"remove {path}")
            if (self.root / path).exists():
                self.power.removed[path] = (self.root / path).read_bytes()
                self.power.safe.pop(path, None)
            super().remove([path])
            self.effects.point(f"after remove {path}")

    def rename(self, source: str, target: str) -> None:
        self._point(f"rename {source}")
        super().rename(source, target)
        self.effects.point(f"after rename {source}")

    def remove_tree(self, folder: str) -> None:
        self._point(f"remove_tree {folder}")
        super().remove_tree(folder)
        self.effects.point(f"after remove_tree {folder}")

    def _point(self, name: str) -> None:
        self.before(name)
        self.effects.point(f"before {name}")


def without_records(transaction: Transaction) -> Transaction:
    return transaction._replace(records=())
