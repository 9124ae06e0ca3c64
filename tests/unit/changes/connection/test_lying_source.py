"""A source that lies, stalls or breaks off: an error that names it, events before that are true, and never a hang."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.binlog_maker import event as make_event
from tests.binlog_maker import log, recorded, uint
from tests.dump_worlds import MYSQL, gtids_of, settings_for
from tests.services.binlog_source import END, HANG_UP, STALL, BinlogSource, Bytes, Refusal, Sent
from tidemark.changes.binlog.cursor import Cursor
from tidemark.changes.binlog.events import read_previous_gtids
from tidemark.changes.binlog.gtid_sets import MysqlGtidSet
from tidemark.changes.connection import packets
from tidemark.changes.connection.dump import open_dump
from tidemark.changes.connection.model import FilePosition, RawEvent
from tidemark.changes.connection.packets import PacketStream
from tidemark.errors import (
    BinlogGapError,
    CorruptionError,
    PermanentError,
    PermissionDeniedError,
    TidemarkError,
    UnreachableError,
)

FIRST = FilePosition("binlog.000007")
Tamper = Callable[[Iterator[bytes]], Iterable[Sent]]


@pytest.fixture
def source() -> Iterator[BinlogSource]:
    with BinlogSource({name: recorded(file) for name, file in MYSQL.items()}) as made:
        yield made


def read(source: BinlogSource, tamper: Tamper, *, follow: bool = False) -> tuple[list[RawEvent], TidemarkError]:
    """The events that came, and the error that came then."""
    source.tamper = tamper
    events: list[RawEvent] = []
    dump = open_dump(settings_for(source.address), FIRST, follow=follow)
    with pytest.raises(TidemarkError) as caught:
        for event in dump.events():
            events.append(event)
    return events, caught.value


def after(number: int, *then: Sent) -> Tamper:
    """So many packets of the dump, then something else."""

    def tamper(sent: Iterator[bytes]) -> Iterator[Sent]:
        for _ in range(number):
            yield next(sent)
        yield from then

    return tamper


def changed(number: int, change: Callable[[bytes], Sent]) -> Tamper:
    """One packet of the dump is another."""

    def tamper(sent: Iterator[bytes]) -> Iterator[Sent]:
        for index, packet in enumerate(sent):
            yield change(packet) if index == number else packet

    return tamper


def without(number: int) -> Tamper:
    return lambda sent: (packet for index, packet in enumerate(sent) if index != number)


def with_log_pos(packet: bytes, position: int) -> bytes:
    return packet[:14] + uint(position, 4) + packet[18:]


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("tamper", "kind", "words"),
    [
        (after(4, STALL), UnreachableError, "silent for 0.6 s"),
        (after(4, Bytes(b"\x10\0\0\x05\0half"), STALL), UnreachableError, "silent"),
        (after(4, Bytes(b"\x10\0\0\x05\0half"), HANG_UP), UnreachableError, "inside a packet"),
        (after(4, HANG_UP), UnreachableError, "ended the connection"),
        (after(4, Bytes(b"\x01\0\0\x63\0")), CorruptionError, "packet 99 where"),
        (after(4, b""), CorruptionError, "unknown kind -1"),
        (after(4, b"\x07what"), CorruptionError, "unknown kind 7"),
        (after(4, b"\0short"), CorruptionError, "5 bytes"),
        (changed(4, lambda packet: packet + b"more"), CorruptionError, "bytes in"),
        (changed(4, lambda packet: packet[:-1]), CorruptionError, "bytes in"),
        (changed(4, lambda packet: with_log_pos(packet, 30)), CorruptionError, "ends at 30"),
        (changed(4, lambda packet: with_log_pos(packet, 1 << 31)), CorruptionError, "ends at"),
        (without(4), CorruptionError, "was due"),
        (without(0), CorruptionError, "where a log begins"),
        (without(1), CorruptionError, "where a log begins"),
        (changed(0, lambda packet: packet.replace(b"binlog.000007", b"binlog.000009")), CorruptionError, "asked to"),
        (after(4, Refusal(1236, "the master has purged binary logs").packet), BinlogGapError, "purged"),
        (after(4, Refusal(1236, "Could not open log file").packet), BinlogGapError, "open log file"),
        (after(4, Refusal(29, "File 'b.000008' not found (Errcode: 2)").packet), BinlogGapError, "not found"),
        (after(4, Refusal(1236, "log event entry exceeded max_allowed_packet").packet), PermanentError, "max_allowed"),
        (after(4, Refusal(1053, "Server shutdown in progress").packet), UnreachableError, "shutdown"),
        (after(4, Refusal(1227, "Access denied").packet), PermissionDeniedError, "denied"),
    ],
)
def test_events_before_a_fault_are_given_and_the_fault_is_named(
    source: BinlogSource, tamper: Tamper, kind: type[TidemarkError], words: str
) -> None:
    whole = list(open_dump(settings_for(source.address), FIRST).events())
    events, error = read(source, tamper)
    assert type(error) is kind
    assert words in error.message
    assert f"127.0.0.1:{source.address[1]}" in error.message or isinstance(error, CorruptionError)
    assert events == whole[: len(events)]


def test_a_dump_that_follows_does_not_end_in_peace(source: BinlogSource) -> None:
    _, error = read(source, after(4, END), follow=True)
    assert isinstance(error, UnreachableError)


@pytest.mark.full
def test_a_stream_cut_anywhere_gives_whole_events_alone(source: BinlogSource) -> None:
    whole = list(open_dump(settings_for(source.address), FIRST).events())
    size = sum(len(event.data) + 5 for event in whole)
    for cut in range(0, size, size // 20):
        events, error = read(source, lambda sent, cut=cut: cut_stream(sent, cut))  # type: ignore[misc]
        assert isinstance(error, UnreachableError)
        assert events == whole[: len(events)]


def cut_stream(sent: Iterator[bytes], size: int) -> Iterator[Sent]:
    number, left = 1, size
    for packet in sent:
        framed = uint(len(packet), 3) + bytes([number]) + packet
        yield Bytes(framed[:left])
        number, left = number + 1, left - len(framed)
        if left <= 0:
            break
    yield HANG_UP


def test_with_gtids_a_server_may_leave_out_transactions(source: BinlogSource) -> None:
    every = gtids_of(open_dump(settings_for(source.address), FIRST))
    known = MysqlGtidSet.parse(f"{every[1]},{every[3]},{every[-1]}")
    left = [gtid for gtid in every if gtid not in (every[1], every[3], every[-1])]
    assert gtids_of(open_dump(settings_for(source.address), known)) == left


def test_what_was_purged_and_is_not_known_is_a_gap(source: BinlogSource) -> None:
    every = gtids_of(open_dump(settings_for(source.address), FIRST))
    source.purged = MysqlGtidSet.parse(every[0])
    with pytest.raises(BinlogGapError):
        gtids_of(open_dump(settings_for(source.address), MysqlGtidSet.parse(every[1])))
    assert gtids_of(open_dump(settings_for(source.address), MysqlGtidSet.parse(every[0]))) == every[1:]


@pytest.mark.full
def test_a_row_of_more_than_a_packet_is_joined() -> None:
    whole = recorded("variants/row_over_16MB.binlog")
    with BinlogSource({"mysql-bin.000001": whole}, version="10.11.19-MariaDB") as source:
        events = list(
            open_dump(settings_for(source.address, heartbeat_seconds=20), FilePosition("mysql-bin.000001")).events()
        )
    assert whole == b"\xfebin" + b"".join(event.data for event in events)


def test_a_packet_without_end_is_refused(source: BinlogSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "LARGEST", 1 << 24)
    _, error = read(source, after(4, b"\0" + bytes(1 << 25)))
    assert isinstance(error, CorruptionError) and "more than" in error.message


def test_places_beyond_4_gb_are_told_by_their_lower_half() -> None:
    """A log of 4 GB is not served here: one whose first event says a far place is, and the next goes on from there."""
    far = (1 << 32) + 1000
    first = make_event(2, bytes(20), log_pos=far & 0xFFFFFFFF)
    second = make_event(2, bytes(20), log_pos=0)
    begin = log(first, second)
    start = FilePosition("b.000001", far - len(first))
    with BinlogSource({"b.000001": begin}, variables={"binlog_checksum": "NONE"}) as source:
        events = list(open_dump(settings_for(source.address), MysqlGtidSet({})).events())
        assert source.received[-1][0] == 0x1E
        assert [event.end for event in events[1:]] == [1000, 1000 + len(second)]  # nothing says that it is so far yet

        def goes_on(sent: Iterator[bytes]) -> Iterator[bytes]:
            yield from (next(sent), next(sent))
            for place in range(1 << 30, 1 << 32, 1 << 30):
                yield b"\0" + make_event(2, bytes(20), log_pos=place & 0xFFFFFFFF)
            yield from sent

        source.tamper = goes_on
        ends = [event.end for event in open_dump(settings_for(source.address), MysqlGtidSet({})).events()]
        assert ends[1:] == [*range(1 << 30, 1 << 32, 1 << 30), far, far + len(second)]
        with pytest.raises(CorruptionError):
            list(open_dump(settings_for(source.address), start).events())
        assert source.received[-1][1:5] == uint(4, 4)  # the request has no room for the place


_SETS = st.lists(
    st.tuples(
        st.uuids().map(str),
        st.from_regex(r"([a-z_][a-z0-9_]{0,31})?", fullmatch=True),
        st.lists(st.integers(1, 1 << 40).map(lambda first: (first, first + first % 7)), max_size=4),
    ),
    max_size=5,
)


@given(_SETS)
def test_a_set_is_asked_for_as_a_log_tells_it(parts: list[tuple[str, str, list[tuple[int, int]]]]) -> None:
    known = MysqlGtidSet.of(parts)
    assert read_previous_gtids(Cursor(packets.encode_gtid_set(known), "a set")) == known


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_any_bytes_are_packets_or_an_error(first: bytes, second: bytes) -> None:
    ours, theirs = socket.socketpair()
    stream = PacketStream(ours, "a peer", 5)
    writer = threading.Thread(target=lambda: (theirs.sendall(first + second), theirs.close()))
    writer.start()
    with ours, pytest.raises((UnreachableError, CorruptionError)):
        while True:
            stream.read_packet()
    writer.join()
