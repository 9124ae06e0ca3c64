"""Binary log files without a server, read as a dump of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from tidemark.changes.binlog import layout
from tidemark.changes.binlog.reader import split_events
from tidemark.changes.connection.model import Block, Dump, FilePosition, RawEvent
from tidemark.errors import CorruptionError, UsageError

_BEGIN = len(layout.MAGIC)
_BLOCK = 1 << 20
_make_tuple = tuple.__new__  # to call the class is dear, and this is done for each event


def open_files(paths: Iterable[Path], start: FilePosition | None = None) -> Dump:
    """The events of binary logs, in the order of their numbers, from `start` or the first on.

    UsageError: none is given, a number between two is missing, two have one name, `start` is in none, or one is no file.
    CorruptionError and UnsupportedError come from `events()`: a log is damaged, cut off or encrypted.
    """
    logs = sorted(paths, key=lambda path: _split_name(path.name))
    if not logs:
        raise UsageError("no binary log is given")
    for before, after in pairwise(logs):
        base, number = _split_name(before.name)
        if _split_name(after.name) != (base, number + 1):
            raise UsageError(
                f"between {before} and {after} a binary log is missing, or they are not of one server",
                hint="give all logs of one server, each once",
            )
    if start is not None:
        names = [path.name for path in logs]
        if start.file not in names:
            raise UsageError(f"no binary log {start.file} is among those given", hint="give it too", subject=start.file)
        logs = logs[names.index(start.file) :]
    for path in logs:
        if not path.is_file():
            raise UsageError(f"no binary log can be read at {path}", subject=str(path))
    if start is not None and start.position > logs[0].stat().st_size:
        raise UsageError(f"{logs[0]} ends before byte {start.position}", subject=str(logs[0]))
    return _FileDump(logs, start.position if start else _BEGIN)


def _split_name(name: str) -> tuple[str, int]:
    """`mysql-bin.000007` → (`mysql-bin`, 7). Logs of more than a million are numbered with more digits."""
    found = re.fullmatch(r"(.*)\.(\d{1,18})", name)
    return (found[1], int(found[2])) if found else (name, 0)


class _FileDump:
    def __init__(self, logs: list[Path], start: int) -> None:
        self._logs, self._start = logs, start
        self.file = ""

    def events(self) -> Iterator[RawEvent]:
        return (found for found in self._read_logs(in_blocks=False) if isinstance(found, RawEvent))

    def blocks(self) -> Iterator[RawEvent | Block]:
        from tidemark.changes.binlog.batches import kernels  # it imports Arrow

        return self._read_logs(in_blocks=kernels() is not None)

    def _read_logs(self, *, in_blocks: bool) -> Iterator[RawEvent | Block]:
        for path in self._logs:
            self.file = path.name
            try:
                yield from self._read_log(path, in_blocks=in_blocks)
            except CorruptionError as error:
                raise type(error)(f"{path}: {error.message}", hint=error.hint, subject=str(path)) from error
            except OSError as error:
                raise UsageError(f"{path} cannot be read: {error.strerror}", subject=str(path)) from error

    def close(self) -> None:
        self._logs = []

    def _read_log(self, path: Path, *, in_blocks: bool) -> Iterator[RawEvent | Block]:
        """The format description, then the events from the start on."""
        start, self._start = max(self._start, _BEGIN), _BEGIN
        with path.open("rb") as log:
            layout.check_magic(log.read(_BEGIN))
            name, at = path.name, _BEGIN
            for header, data in split_events(log):
                yield RawEvent(name, at, header, data)
                at += header.size
                break
            at = max(at, start)
            while True:
                if in_blocks:
                    for block in _read_blocks(log, name, at):
                        yield block
                        at = block.end
                log.seek(at)
                for header, data in split_events(log):
                    yield _make_tuple(RawEvent, (name, at, header, data))
                    at += header.size
                    if in_blocks:
                        break
                else:
                    return


def _read_blocks(log: BinaryIO, name: str, at: int) -> Iterator[Block]:
    """The events from byte `at` on, up to one that is larger than a block, or wrong."""
    from tidemark.changes.binlog.batches import split_block  # it imports Arrow

    log.seek(at)
    rest = b""
    while piece := log.read(_BLOCK):
        data = rest + piece
        begins, ends = split_block(data)
        if not len(begins):
            return
        yield (block := Block(name, at, data, begins, ends))
        at, rest = block.end, data[ends[-1] :]
