"""The stream of a server's binary log events, from a place on: to its end, or following.

The server sends its logs as they are, and beside them what it makes up: a rotation that names the log, heartbeats, a list
of GTIDs. `_read_events` takes that away. It also knows where each event stands: one inside of a transaction may not say it,
and one beyond 4 GB says the lower half.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from tidemark.changes.binlog import layout
from tidemark.changes.binlog.cursor import Cursor
from tidemark.changes.binlog.events import read_rotate
from tidemark.changes.binlog.gtid_sets import MysqlGtidSet
from tidemark.changes.binlog.layout import HEADER_BYTES, MAGIC, EventType, Header
from tidemark.changes.connection import packets
from tidemark.changes.connection.facts import Replica, read_replicas
from tidemark.changes.connection.login import Server, open_server
from tidemark.changes.connection.model import Block, Dump, FilePosition, RawEvent, SourceSettings, Start
from tidemark.changes.connection.packets import PacketStream
from tidemark.errors import BinlogGapError, CorruptionError, PermanentError, UnreachableError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SILENT_HEARTBEATS = 3
_MADE_UP = 0x0020
"""Flag of an event that no log holds."""
_BEGIN = len(MAGIC)
_HEARTBEATS = {int(EventType.HEARTBEAT), int(EventType.HEARTBEAT_V2)}
_ROTATE = int(EventType.ROTATE)
_ODD = {*_HEARTBEATS, _ROTATE, int(EventType.FORMAT_DESCRIPTION), int(EventType.MARIA_START_ENCRYPTION)}
"""Types of events that stand elsewhere than others, or nowhere. Numbers: an enum's members are dear to ask for."""
_NONE = -1
_LASTS = {_NONE, _ROTATE, int(EventType.STOP)}
"""Types of events with which a log ends. A server that died wrote none; the log with which it starts again has a time of
creation, as the one has with which it starts after a RESET. A log that it goes on with has none."""
_TYPE = 4
_CREATED = slice(HEADER_BYTES + 52, HEADER_BYTES + 56)
_make_tuple = tuple.__new__
_OWN_IDS = range(1 << 31, 1 << 32)
"""Server ids to choose from: people number their servers from 1."""


def open_dump(source: SourceSettings | Server, start: Start, *, follow: bool = False) -> Dump:
    """Have a server send its events from `start` on: to the end of its newest log, or, following, until it ends.

    A `Server` becomes the dump's own: ask it before. Events come as they stand in its logs; what a server makes up
    for replicas does not. The format description alone differs where a dump begins inside of a log, or the log is in use.
    MariaDB sends a domain that `start` does not know from its oldest log on.

    BinlogGapError: the server no longer has what follows `start`. UnreachableError: the line broke, or the server was silent
    for three heartbeats; open again from the last whole transaction. PermissionDeniedError: a right is missing.
    PermanentError: another refusal, such as a `start` that the server never reached. CorruptionError: what no server sends.
    Each may come from `events()` too.
    """
    server = open_server(source) if isinstance(source, SourceSettings) else source
    try:
        settings = server.settings
        host = f"tidemark-{settings.name}" if settings.name else "tidemark"
        server_id = choose_server_id(
            settings.server_id, host, _ask_own_id(server), read_replicas(server) or (), random.Random()
        )
        _announce(server, start)
        stream = PacketStream(server.take_socket(), server.name, SILENT_HEARTBEATS * settings.heartbeat_seconds)
    except BaseException:
        server.close()
        raise
    try:
        stream.send_command(packets.register_command(server_id, host))
        answer = stream.read_packet()
        if answer[:1] == bytes([packets.REFUSAL]):
            raise packets.read_refusal(answer, server.name)
        if isinstance(start, MysqlGtidSet):
            command = packets.dump_gtid_command(server_id, start, follow=follow)
        else:
            command = packets.dump_command(server_id, _place_to_ask(start), follow=follow, is_maria=server.is_maria)
        stream.send_command(command)
    except BaseException:
        stream.close()
        raise
    return _ServerDump(stream, server.name, start, follow=follow)


def read_first_event(login: SourceSettings, log: str) -> RawEvent:
    """The format description with which a log begins: no other log has the same. Errors as of `open_dump`."""
    with closing(open_dump(login, FilePosition(log))) as dump:
        return next(dump.events())


def open_stretches(source: SourceSettings, files: Sequence[str]) -> Dump:
    """All events from the first byte of each of these logs to the end, or to where the next log is gone."""
    return _Stretches(source, files)


class _Stretches:
    def __init__(self, source: SourceSettings, files: Sequence[str]) -> None:
        self._source, self._files = source, files
        self._dump: Dump | None = None

    @property
    def file(self) -> str:
        return self._dump.file if self._dump else ""

    def blocks(self) -> Iterator[RawEvent | Block]:
        return self.events()

    def events(self) -> Iterator[RawEvent]:
        for file in self._files:
            try:
                self._dump = open_dump(self._source, FilePosition(file))
                yield from self._dump.events()
            except BinlogGapError:
                if file == self._files[-1]:
                    raise

    def close(self) -> None:
        if self._dump is not None:
            self._dump.close()


def choose_server_id(wanted: int, host: str, servers_own: int, replicas: Collection[Replica], chance: random.Random) -> int:
    """The server id that a dump takes. A server ends the elder of two dumps with one id, so nobody else's may be taken.

    A replica with the wanted id and our name is a former connection of ours that the server has not missed yet.
    """
    taken = {servers_own} | {replica.server_id for replica in replicas if replica.host != host or not wanted}
    if wanted in taken:
        raise PermanentError(
            f"server_id {wanted} is taken by another server or replica",
            hint="let the source have server_id = 0, or another one",
        )
    while not wanted or wanted in taken:
        wanted = chance.choice(_OWN_IDS)
    return wanted


def _place_to_ask(start: Start) -> FilePosition:
    """Where the server is asked to begin: at the log's beginning if the request has no room for the position, above 4 GB."""
    if not isinstance(start, FilePosition):
        return FilePosition("")
    return start if start.position < 1 << 32 else FilePosition(start.file)


def _ask_own_id(server: Server) -> int:
    try:
        return int(server.read_variables("server_id")["server_id"])
    except (KeyError, ValueError) as error:
        raise CorruptionError(f"{server.name} has no server id", subject=server.name) from error


def _announce(server: Server, start: Start) -> None:
    """Say what the dump can take: heartbeats, checksums, events of MariaDB as they are."""
    period = int(server.settings.heartbeat_seconds * 1e9)
    server.ask("SET @master_heartbeat_period = %s, @source_heartbeat_period = %s", period, period)
    checksum = server.read_variables("binlog_checksum").get("binlog_checksum")
    if checksum is not None:
        server.ask("SET @master_binlog_checksum = %s, @source_binlog_checksum = %s", checksum, checksum)
    if not server.is_maria:
        return
    server.ask("SET @mariadb_slave_capability = 4")
    if not isinstance(start, FilePosition):
        # strict: where the log holds not this very transaction, but later ones, the server refuses
        server.ask(
            "SET @slave_connect_state = %s, @slave_gtid_strict_mode = 1, @slave_gtid_ignore_duplicates = 0", str(start)
        )


class _ServerDump:
    """A dump that runs."""

    def __init__(self, stream: PacketStream, peer: str, start: Start, *, follow: bool) -> None:
        self._stream, self._peer, self._start, self._follow = stream, peer, start, follow
        self.file = ""

    def events(self) -> Iterator[RawEvent]:
        return (found for found in self._read_all() if isinstance(found, RawEvent))

    def blocks(self) -> Iterator[RawEvent | Block]:
        soon = 0 if self._follow else packets.SOON  # who follows gets at once what is there
        return self._read_all(lambda at: self._stream.read_events(at, soon))

    def _read_all(self, read_many: ReadMany | None = None) -> Iterator[RawEvent | Block]:
        start = self._start if isinstance(self._start, FilePosition) else None
        begin = start and _place_to_ask(start)
        try:
            for event in _read_events(self._read_packets(), self._peer, begin, read_many if start == begin else None):
                self.file = event.file
                is_before = start and event.file == start.file and _BEGIN < event.position < start.position
                if (event.data and not is_before) or (self._follow and not event.data):
                    yield event
        finally:
            self.close()  # of a dump that ended nothing more can be read

    def close(self) -> None:
        self._stream.close()

    def _read_packets(self) -> Iterator[bytes]:
        """The events that the server sends, until it says that there are no more."""
        while True:
            packet = self._stream.read_packet()
            kind = packet[0] if packet else -1
            if kind == packets.EVENT:
                yield packet[1:]
            elif kind == packets.REFUSAL:
                raise packets.read_refusal(packet, self._peer)
            elif kind != packets.END:
                raise CorruptionError(f"{self._peer} sent a packet of the unknown kind {kind}", subject=self._peer)
            elif self._follow:
                raise UnreachableError(f"{self._peer} ended the dump", subject=self._peer)
            else:
                return


ReadMany = Callable[[int], tuple[bytes, "NDArray[np.int64]", "NDArray[np.int64]"] | None]
"""From where the next event stands in its log to many events from there on, and where they begin and end."""


def _read_events(
    sent: Iterator[bytes], peer: str, begin: FilePosition | None, read_many: ReadMany | None = None
) -> Iterator[RawEvent | Block]:
    """Those of the sent events that stand in logs, with their places. With `begin` none may be left out from there on."""
    file, at, head, newest = "", 0, 0, _NONE
    while True:
        if head and read_many is not None and (many := read_many(at)) is not None:
            yield (block := Block(file, at, *many))
            at, newest = block.end, block.data[int(block.begins[-1]) + _TYPE]
            continue
        if (data := next(sent, None)) is None:
            return
        header = layout.read_header(data)
        size = len(data)
        if header.size != size:
            raise CorruptionError(f"{peer} sent an event of {header.size} bytes in {size}", subject=peer)
        is_odd = header.flags & _MADE_UP or (header.type in _ODD and (header.type != _ROTATE or not header.timestamp))
        if head and not is_odd:
            end = at + size if header.log_pos == at + size else _find_end(header, at)
            if end is None or (begin and end != at + size):
                raise CorruptionError(
                    f"{peer} sent of {file} an event that ends at {header.log_pos} where one from {at} on was due",
                    subject=peer,
                )
            yield _make_tuple(RawEvent, (file, end - size, header, data))
            at, newest = end, header.type
        elif header.type in _HEARTBEATS:
            yield RawEvent(file, at, header, b"")
        elif header.type == _ROTATE and is_odd:
            named = read_rotate(Cursor(_without_checksum(data), "a ROTATE event", HEADER_BYTES))
            if file and header.log_pos == at + size:
                newest = _ROTATE  # it stands in the log, without a time
            if begin and not file and (named.file, named.position) != (begin.file, begin.position):
                raise CorruptionError(
                    f"{peer} begins at {named.file}:{named.position}, not where it was asked to", subject=peer
                )
            file, at, head = named.file, named.position, 0
        elif header.flags & _MADE_UP:
            continue
        elif file and header.type == EventType.FORMAT_DESCRIPTION:
            if begin and newest not in _LASTS and not any(data[_CREATED]):
                # By GTIDs MariaDB sends no time of creation.
                raise BinlogGapError(
                    f"{peer} goes on with {file}, and the log before has no end: it was made anew meanwhile", subject=peer
                )
            newest = _NONE
            yield RawEvent(file, _BEGIN, header, data)
            head = _BEGIN + len(data)
            at = max(at, head)
        elif not head:
            raise CorruptionError(f"{peer} sent a {layout.name_type(header.type)} event where a log begins", subject=peer)
        else:  # MARIA_START_ENCRYPTION, how the log lies on the disk: what is sent is plain
            head += size  # its place is behind the format description, wherever the dump begins
            at = max(at, head)


def _find_end(header: Header, at: int) -> int | None:
    """Where an event ends that begins at byte `at` or later. None if it says a place before that."""
    soonest = at + header.size
    if not header.log_pos:
        return soonest
    skipped = (header.log_pos - soonest) & 0xFFFFFFFF
    return soonest + skipped if skipped < 1 << 31 else None


def _without_checksum(data: bytes) -> bytes:
    """What a server makes up has a checksum or none, before a format description says which."""
    has_checksum = len(data) > HEADER_BYTES + 4 and zlib.crc32(data[:-4]) == int.from_bytes(data[-4:], "little")
    return data[:-4] if has_checksum else data
