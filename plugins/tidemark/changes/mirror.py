"""The binary logs of a source beside its store, byte for byte as its server has them: `mirror/<change id>/<log>`.

What a transaction was read from is durable here before the transaction is: the store's writer calls `sync` first. So each
log here ends where the store ends, or behind it. A capture that goes on writes the bytes from there on again. They are the
same ones, so a death at any moment takes nothing that was there.

A dump may begin inside of a log, and one by a GTID set leaves transactions out. What is lacking then is fetched by position.

Before a change id has its first transaction, another server may come in the place of the one whose logs were begun to be
kept, or new logs of the same one. Their first events tell them apart: a log that is another one is begun anew. Two that one
server made in the same second are told apart only by the bytes that are written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

from tidemark.changes.binlog.layout import HEADER_BYTES, MAGIC, EventType, read_header
from tidemark.changes.connection.model import Dump, FilePosition, RawEvent
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.layout import mirror_path
from tidemark.errors import CorruptionError, PermanentError

PART_BYTES = 4 << 20
"""So many bytes wait in memory at most, and one event."""
_BEGIN = len(MAGIC)
Address = tuple[str, int]
_LAST = (EventType.ROTATE, EventType.STOP)
"""One of them ends a log, unless its server died."""


class Mirror:
    """Keeps the logs of one capture. `open_from(address, position)`: the events of a server, to its last."""

    def __init__(self, disk: Disk, open_from: Callable[[Address, FilePosition], Dump]) -> None:
        self.disk = disk
        self.open_from = open_from
        self._address: Address = ("", 0)
        self._change_id = 0
        self._is_begun = True
        self._held: list[RawEvent] | None = None  # what comes while it is not proved that these are the store's logs
        self._log = self._path = ""
        self._there = 0  # bytes that the log had here before this dump
        self._at = 0  # where the next event begins; 0: nothing of the log is known to be whole
        self._is_ended = False
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def use_server(self, address: Address) -> None:
        """What comes next comes from this one of the source's servers."""
        self._address = address

    def keep(
        self, events: Iterable[RawEvent], change_id: int, *, is_proved: bool, is_begun: bool = True
    ) -> Iterator[RawEvent]:
        """The events of a dump, each kept before it is given. What is not proved to be of the store's logs is held until
        `prove`. `is_begun`: the store has a transaction of the change id. Raises what fetching raises; PermanentError: the
        server does not send a log whole."""
        self.sync()
        self._change_id, self._log, self._at, self._is_begun = change_id, "", 0, is_begun
        self._held = None if is_proved else []
        return self._keep_all(events)

    def prove(self) -> None:
        """What came is of the store's logs."""
        held, self._held = self._held, None
        for raw in held or ():
            self._take(raw)

    def sync(self) -> None:
        """Make durable what was taken."""
        if self._waiting:
            data, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
            begin = self._at - len(data)
            # CRASH WINDOW: bytes here of which the store has nothing yet; the next capture writes them again.
            if self._may_stay(begin, data):
                self.disk.overwrite(self._path, begin, data)
            else:
                self.disk.append(self._path, begin, data)

    def _may_stay(self, begin: int, data: bytes) -> bool:
        """Whether what a log has from byte `begin` on are the bytes that come now, and maybe more behind them."""
        if begin >= self._there:
            return True
        with self.disk.open_file(self._path) as file:
            return data.startswith(file.read(begin, len(data)))

    def _keep_all(self, events: Iterable[RawEvent]) -> Iterator[RawEvent]:
        for raw in events:
            if self._held is not None:
                self._held.append(raw)
            else:
                self._take(raw)
            yield raw

    def _take(self, raw: RawEvent) -> None:
        if not raw.data:
            return
        if raw.file != self._log:
            is_first = not self._log
            if not is_first:
                self._end_log()
            self._begin_log(raw, is_first=is_first)
            if is_first:
                return  # the format description, which a dump may change at its beginning
        if not self._at and raw.position > _BEGIN and raw.position <= self._there:
            self._at = raw.position
        elif raw.position > max(self._at, _BEGIN):
            self._fetch(raw.position)
        if raw.position >= self._at:
            self._write(raw)

    def _begin_log(self, first: RawEvent, *, is_first: bool) -> None:
        """`is_first`: it is the dump's first log."""
        if "/" in first.file:
            raise CorruptionError(f"the server names a log {first.file!r}", subject=first.file)
        self._log, self._path = first.file, mirror_path(self._change_id, first.file)
        self._at, self._is_ended = 0, False
        self._there = self._measure(first)
        if not self._there and not self._is_begun and is_first:
            # CRASH WINDOW: nothing is kept of a change id of which the store has nothing: its logs are kept again.
            self.disk.remove_tree(mirror_path(self._change_id, ""))

    def _measure(self, first: RawEvent) -> int:
        """How many bytes are here of a log with this first event. One that is another log is removed."""
        try:
            with self.disk.open_file(self._path) as file:
                size, head = file.size, file.read(_BEGIN, HEADER_BYTES)
        except FileNotFoundError:
            return 0
        try:
            is_same = read_header(head)[:3:2] == first.header[:3:2]  # when it was begun, and by which server
        except CorruptionError:
            is_same = False  # a power loss left it torn
        if is_same:
            return size
        # CRASH WINDOW: a log of which the store has no transaction is gone; the next capture fetches the one that is there.
        self.disk.remove([self._path])
        return 0

    def _end_log(self) -> None:
        """Nothing more comes of this log."""
        if not self._is_ended:
            self._fetch(None)
        self.sync()
        if self._there > self._at:
            # CRASH WINDOW: bytes behind the log's end, which a power loss left; `capture` gets there again, or they stay.
            self.disk.append(self._path, self._at, b"")

    def _fetch(self, end: int | None) -> None:
        """Take what the log has from where this one ends, up to byte `end`; None: to its last event."""
        with closing(self.open_from(self._address, FilePosition(self._log, max(self._at, _BEGIN)))) as dump:
            for raw in dump.events():
                if raw.file != self._log or (end is not None and self._at >= end):
                    break
                if raw.position > max(self._at, _BEGIN):
                    end = raw.position
                    break
                if raw.position >= self._at:
                    self._write(raw)
        if end is not None and self._at != end:
            raise PermanentError(
                f"the server does not send bytes {self._at} to {end} of {self._log}: it keeps its logs encrypted",
                hint="mirror = false for this source",
                subject=self._log,
            )

    def _write(self, raw: RawEvent) -> None:
        data = raw.data if self._at else MAGIC + raw.data
        self._waiting.append(data)
        self._at += len(data)
        self._waiting_bytes += len(data)
        self._is_ended = raw.header.type in _LAST
        if self._waiting_bytes >= PART_BYTES:
            self.sync()
