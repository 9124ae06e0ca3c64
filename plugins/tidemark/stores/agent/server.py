"""The program in python3 at the far end of an SSH connection: it receives operations on `Disk` and `durable` in frames.

Sent over the exec channel for as long as the connection lives (`stores.python.bundle`). Nothing is installed, no file
stays. The standard library alone, Python 3.6. `frames` describes the protocol.
"""

from __future__ import annotations

import errno
import gc
import json
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from tidemark.stores.agent import durable
from tidemark.stores.agent.disk import PIECE, TOO_MANY, UNLISTED, Disk, pack_rows
from tidemark.stores.agent.frames import BEAT, DATA, DONE, FAILED, HEAD, LAST, STOP
from tidemark.stores.agent.limits import MEMORY_BYTES, TOO_MUCH, end_with, limit_memory
from tidemark.stores.agent.reader import RangeReader, editions_of, widen_pipe, write_all

BEAT_SECONDS = 3.0  # between two signs of life
ROWS = 4000  # files a frame of a listing
GATHER = 1 << 18  # bytes of small files a frame


class Stopped(Exception):
    """The near end gave up in the middle of a write."""


class Server:
    """Answers the near end until it disconnects. Each operation is a method `do_…` that sends DATA frames."""

    def __init__(self, root: str, source: BinaryIO, sink: BinaryIO, load: Callable[[bytes], None], rest: bytes) -> None:
        self.disk = Disk(root)
        self.load = load
        self.rest = rest  # the packed modules that only writing needs, until they are loaded
        self.resumed: dict[str, Any] = {}  # what `do_begin` found in parts, by path
        self.forward: Any = None  # forward.Forward, once another node was reached
        self.source = source
        self.sink = sink
        self.beaten = 0.0

    def beat(self) -> None:
        """Send a BEAT every BEAT_SECONDS. Called when work has progressed, so a disk that hangs sends none."""
        now = time.monotonic()
        if now - self.beaten >= BEAT_SECONDS:
            self.beaten = now
            self.sink.write(HEAD.pack(BEAT, 0, 0))
            self.sink.flush()

    def serve(self) -> None:
        while True:
            frame = self.receive()
            if frame is None:
                return
            name, arguments = frame[1]
            act: Callable[..., Any] = getattr(self, "do_" + name)
            self.beaten = time.monotonic()
            try:
                self.send(DONE, act(*arguments))
            except Stopped:
                self.send(FAILED, [0, "stopped", None])
            except OSError as error:
                self.send(FAILED, [error.errno, error.strerror, _decode_name(error.filename)])
            except MemoryError:
                self.send(FAILED, [errno.ENOMEM, TOO_MUCH, None])
            self.sink.flush()

    def receive(self) -> tuple[int, Any, bytes] | None:
        head = self.source.read(HEAD.size)
        if len(head) < HEAD.size:
            return None
        kind, words, size = HEAD.unpack(head)
        return kind, json.loads(self.source.read(words).decode()) if words else None, self.source.read(size)

    def send(self, kind: int, words: Any, data: bytes = b"") -> None:
        text = json.dumps(words, separators=(",", ":")).encode()
        self.sink.write(HEAD.pack(kind, len(text), len(data)) + text)
        if data:
            self.sink.write(data)

    def incoming(self) -> Iterator[bytes]:
        while True:
            frame = self.receive()
            if frame is None or frame[0] == STOP:
                raise Stopped
            if frame[0] == LAST:
                return
            yield frame[2]

    def do_list(self, folders: list[str], by_name: str = "") -> list[Any]:
        """Send rows in frames, ordered by path. JSON: [[folder, count], …]; bytes: `pack_rows`, compressed."""
        missing: list[str] = []
        odd: list[tuple[str, str]] = []
        groups: list[tuple[str, int]] = []
        rows: list[tuple[str, int, int, int]] = []
        for prefix, found in self.disk.walk_folders(folders, missing, odd, by_name):
            if len(found) >= ROWS:  # in a frame of its own: it may need too much memory
                self._send_rows(groups, rows)
                groups, rows = [], []
            groups.append((prefix, len(found)))
            rows += found
            if len(rows) >= ROWS:
                try:
                    self._send_rows(groups, rows)
                except MemoryError:
                    odd.append((prefix.rstrip("/"), UNLISTED + TOO_MANY))
                groups, rows = [], []
        self._send_rows(groups, rows)
        return [missing, odd]

    def _send_rows(self, groups: list[tuple[str, int]], rows: list[tuple[str, int, int, int]]) -> None:
        if rows:
            self.send(DATA, groups, zlib.compress(pack_rows(rows), 1))

    def do_names(self, folder: str) -> list[str]:
        return self.disk.list_folder(folder)

    def do_stat(self, paths: list[str]) -> list[Any]:
        return self.disk.stat_all(paths)

    def do_read(self, path: str, offset: int, length: int | None, size: int) -> None:
        for piece in self.disk.read_pieces(path, offset, length, size):
            self.send(DATA, None, piece)

    def do_read_range(self, path: str, offset: int, length: int | None) -> None:
        """`do_read`, but a file may end early."""
        for piece in self.disk.read_available(path, offset, length):
            self.send(DATA, None, piece)

    def do_read_many(self, paths: list[str], lengths: list[int] | None) -> None:
        """Send frames of [sizes of the next files, None for a missing one] and their bytes. The first pieces of a large file
        come before, without JSON."""
        sizes: list[int | None] = []
        held: list[bytes] = []
        total = 0
        for number, path in enumerate(paths):
            size = 0
            try:
                for piece in self.disk.read_available(path, 0, lengths[number] if lengths else None):
                    if size == 0 and len(piece) == PIECE and sizes:  # a large file begins
                        self.send(DATA, sizes, b"".join(held))
                        sizes, held, total = [], [], 0
                    size += len(piece)
                    held.append(piece)
                    if size >= PIECE:
                        self.send(DATA, None, b"".join(held))
                        held = []
            except OSError as error:
                if not isinstance(error, FileNotFoundError) or size:
                    raise
                sizes.append(None)
                continue
            sizes.append(size)
            total += size
            if total >= GATHER or len(sizes) >= ROWS:
                self.send(DATA, sizes, b"".join(held))
                sizes, held, total = [], [], 0
        if sizes:
            self.send(DATA, sizes, b"".join(held))

    def do_stream(self, frame: int, digest: bool) -> None:
        """Answer the requests that come as DATA with frames of RECORDs (instead of JSON) and bytes."""
        sink = self.sink.fileno()
        self.sink.flush()
        widen_pipe(sink)

        def send(records: bytes, data: Any) -> None:
            write_all(sink, [HEAD.pack(DATA, len(records), len(data)), records, data])

        ranges = RangeReader(self.disk, send, frame, digest)
        for asked in self.incoming():
            ranges.answer(asked)

    def writing(self) -> Any:
        rest, self.rest = self.rest, b""
        self.load(rest)
        from tidemark.stores.agent import writer

        return writer

    def do_begin(self, files: list[Any]) -> list[Any]:
        with self.disk.reporting_progress(self.beat):
            found: list[Any] = self.writing().begin_parts(self.disk, files, self.resumed)
            return found

    def do_receive(self, frame: int, reserve: int) -> None:
        """Receive DATA of `writer` words and at most `frame` bytes. Answers RECORDs. `reserve`: bytes that stay free."""
        sink = self.sink.fileno()
        self.sink.flush()
        widen_pipe(self.source.fileno())

        def send(records: bytes) -> None:
            write_all(sink, [HEAD.pack(DATA, len(records), 0), records])

        buffer = memoryview(bytearray(frame))
        receiver = self.writing().FrameReceiver(self.disk, send, self.resumed, reserve)
        try:
            for words, size in self.coming():
                text, data = self.source.read(words), buffer[:size]
                if len(text) < words:
                    raise Stopped
                self.fill(data, receiver.send_alive)
                receiver.receive_frame(text, data)
        finally:
            receiver.finish_files()
            self.resumed.clear()

    def fill(self, data: memoryview, alive: Callable[[], None]) -> None:
        """Fill `data` from the input. Calls `alive` every BEAT_SECONDS: a sender on a slow line cannot see its progress."""
        while data:
            got = self.source.readinto1(data)  # type: ignore[attr-defined]
            if not got:
                raise Stopped
            data = data[got:]
            if data and time.monotonic() - self.beaten >= BEAT_SECONDS:
                self.beaten = time.monotonic()
                alive()

    def do_reach(self, command: list[str], known: str, seconds: float) -> str:
        """Receive the packed module `forward` and the program for the other node, and connect to that node. Returns why it
        cannot be reached, or ""."""
        own, *program = self.incoming()
        self.writing()
        self.load(own)
        from tidemark.stores.agent import forward

        try:
            self.forward = forward.Forward(command, known, b"".join(program), seconds)
        except (forward.NoRoute, OSError) as why:
            return str(why) or "it cannot start its ssh client"
        return ""

    def do_forward(self, frame: int, digest: bool, reserve: int) -> None:
        """Receive DATA of `forward` words and send what they request to the reached node. Answers RECORDs."""
        from tidemark.stores.agent.forward import Sending

        sink = self.sink.fileno()
        self.sink.flush()

        def say(kind: int, words: bytes) -> None:
            write_all(sink, [HEAD.pack(kind, len(words), 0), words])

        self.forward.run(Sending(self.disk, say, frame, digest, reserve), self.incoming_words())

    def coming(self) -> Iterator[tuple[int, int]]:
        """Yield the lengths of the words and of the data of each DATA frame. The caller reads them."""
        while True:
            head = self.source.read(HEAD.size)
            if len(head) < HEAD.size:
                raise Stopped
            kind, words, size = HEAD.unpack(head)
            if kind != DATA:
                return
            yield words, size

    def incoming_words(self) -> Iterator[bytes]:
        """Yield the words of DATA frames that are not JSON."""
        for words, size in self.coming():
            text = self.source.read(words + size)[:words]
            if len(text) < words:
                raise Stopped
            yield text

    def do_digests(self, ranges: list[list[Any]]) -> list[str | None]:
        with self.disk.reporting_progress(self.beat):
            return [self.disk.digest_range(path, offset, length) for path, offset, length in ranges]

    def do_editions(self, paths: list[str]) -> list[int | None]:
        return editions_of(self.disk, paths)

    def do_publish(self, path: str) -> None:
        self.write(lambda pieces: durable.publish(self.disk.locate(path), pieces))

    def do_append(self, path: str, end: list[Any] | None) -> Any:
        self.writing()
        from tidemark.stores.agent import appender

        place = self.disk.locate(path)

        def act(pieces: Iterator[bytes]) -> bool:
            data = b"".join(pieces)
            if end is None:
                return appender.make_new(place, data)
            size, offset, tail = end
            return appender.append_after(place, data, size, offset, bytes.fromhex(tail))

        return self.write(act)

    def do_write(self, path: str, offset: int, sync: bool) -> Any:
        return self.write(lambda pieces: durable.write_part(self.disk.locate(path), offset, pieces, sync))

    def write(self, act: Callable[[Iterator[bytes]], Any]) -> Any:
        pieces = self.incoming()
        try:
            return act(pieces)
        finally:
            for _ in pieces:  # read what the near end is still sending, then answer
                continue

    def do_write_many(self, files: list[list[Any]]) -> None:
        """Write files whose bytes come one after another. Pieces need not end where files end."""
        pieces = self.incoming()
        held = bytearray()
        try:
            for path, size in files:
                while len(held) < size:
                    held += next(pieces)
                durable.write_part(self.disk.locate(path), 0, (bytes(held[:size]),))
                del held[:size]
        finally:
            for _ in pieces:
                continue

    def do_seal(self, renames: list[list[str]]) -> None:
        parts = self.disk.locate_all([part for part, _ in renames])
        finals = self.disk.locate_all([final for _, final in renames])
        durable.seal(list(zip(parts, finals)))  # noqa: B905 Python 3.6

    def do_link(self, pairs: list[tuple[str, str]]) -> list[str]:
        return self.disk.link(pairs)

    def do_folders(self, folders: list[str]) -> None:
        for folder in folders:
            durable.make_folder(self.disk.locate(folder))

    def do_remove(self, paths: list[str]) -> None:
        self.disk.remove(paths)

    def do_remove_tree(self, folder: str) -> None:
        self.disk.remove_tree(folder)

    def do_rename(self, source: str, target: str) -> None:
        durable.rename_durably(self.disk.locate(source), self.disk.locate(target))

    def do_free(self, folder: str) -> int:
        return self.disk.free_bytes(folder)


def _decode_name(name: Any) -> str | None:
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name


def serve(root: str, load: Callable[[bytes], None] | None = None, memory: int = MEMORY_BYTES) -> None:
    """Serve stdin and stdout until the near end disconnects. `load`: loads the packed modules that follow the program on its
    input (`stores.python.bundle`), before the first write. None: no modules follow."""
    gc.disable()  # a listing makes a million tuples and no cycles
    limit_memory(memory)
    sys.stdout.buffer.write(b"tidemark python3 ready\n")
    sys.stdout.buffer.flush()
    source = sys.stdin.buffer
    rest = source.read(int(source.readline() or 0)) if load else b""
    server = Server(root, source, sys.stdout.buffer, lambda packed: load(packed) if load and packed else None, rest)
    end_with(source.fileno(), lambda: server.forward and server.forward.child.kill())
    try:
        server.serve()
    finally:
        if server.forward is not None:
            server.forward.close()
