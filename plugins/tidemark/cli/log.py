"""The log of one command, for a ticket: `-v` shows it on stderr, `--log-file F` keeps it, `--log-json` writes JSON lines.

It has the command, what the screen said (without results), each step and what it did, each try that failed, the traceback
of an error, and how the command ended. A line has the time (UTC), the level and who says it. What an edge named is escaped
as on the screen, what looks like a password is `***`. Lines that follow a first one are indented, so none can be forged.

A log that cannot be written later on (a full disk) is given up with one line on stderr. The command goes on.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from tidemark import __version__
from tidemark.cli.screen import Screen
from tidemark.errors import UsageError
from tidemark.visible import escape_invisible, plain_json

SCREEN = "tidemark.cli"  # who says what the screen said
_PASSWORD = re.compile(r"(://[^\s/@:]*):\S*@")  # also what may be one in an invalid address, as `hide_password`
_VALUE = re.compile(r"(?i)\b(password|passwd|secret|token|key_passphrase)(\"?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s&,;}]+)")


@contextmanager
def keep_log(asked: argparse.Namespace, words: Sequence[str], screen: Screen) -> Iterator[None]:
    """Write the log for the block, as the arguments ask. Raises UsageError if the file cannot be opened."""
    form = _JsonLines() if asked.log_json else _TextLines()
    handlers: list[_Log] = []
    if asked.log_file:
        handlers.append(_Log(_open_file(Path(asked.log_file)), form, screen, asked.log_file))
    if asked.verbose or not asked.log_file:
        shown = _Log(sys.stderr, form, screen, "stderr")
        shown.addFilter(lambda record: record.name != SCREEN or record.exc_info is not None)  # the screen shows it
        handlers.append(shown)
    logger = logging.getLogger("tidemark")
    before = logger.level
    logger.setLevel(logging.DEBUG)
    for handler in handlers:
        logger.addHandler(handler)
    screen.record, screen.shows_log = _record, len(handlers) > 1 or not asked.log_file
    try:
        place = f"in {Path.cwd()}, process {os.getpid()} on {platform.node()}"
        _record(logging.INFO, f"tidemark {__version__}: {shlex.join(words)} {place}")
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


def _record(level: int, text: str, error: BaseException | None = None) -> None:
    logging.getLogger(SCREEN).log(level, "%s", text.strip(), exc_info=error)


def _open_file(path: Path) -> TextIO:
    """Open a file to append to. Lines of several commands may stand in one file: each is written by one call."""
    try:
        return path.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError as refused:
        hint = "name a file in a folder that is there and may be written"
        raise UsageError(f"no log can be written to {path}: {refused.strerror}", hint=hint, subject=str(path)) from refused


class _Log(logging.StreamHandler[TextIO]):
    """Writes the records; at the first error it says so and writes no more."""

    def __init__(self, stream: TextIO, form: logging.Formatter, screen: Screen, name: str) -> None:
        super().__init__(stream)
        self.setFormatter(form)
        self._screen = screen
        self._name = name
        self._lost = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._lost:
            super().emit(record)

    def handleError(self, _record: logging.LogRecord) -> None:
        self._lost = True
        self._screen.print_error(f"  the log {self._name} cannot be written ({sys.exc_info()[1]}); it ends here")

    def close(self) -> None:
        super().close()
        if self.stream is not sys.stderr:
            try:
                self.stream.close()
            except OSError:
                if not self._lost:
                    self.handleError(logging.makeLogRecord({}))


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = _make_plain(record, self.formatException)
        head = f"{told['time']} {told['level']:<7} {told['from']}"
        thread = f" [{told['thread']}]" if "thread" in told else ""
        first, *more = [*told["message"].split("\n"), *told.get("traceback", "").split("\n")]
        lines = [f"{head}{thread}: {first}", *(f"    {line}" for line in more if line)]
        return "\n".join(escape_invisible(line) for line in lines)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return plain_json(json.dumps(_make_plain(record, self.formatException), ensure_ascii=False))


def _make_plain(record: logging.LogRecord, format_error: Callable[..., str]) -> dict[str, str]:
    """The record as texts without passwords. `thread`: where several work beside each other."""
    told = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "from": record.name,
        "message": record.getMessage(),
    }
    if record.threadName != threading.main_thread().name:
        told["thread"] = record.threadName or ""
    if record.exc_info:
        told["traceback"] = format_error(record.exc_info)
    return {key: hide_secrets(text) for key, text in told.items()}


def hide_secrets(text: str) -> str:
    """Return the text with `***` for the passwords in its addresses and for values that are called so."""
    return _VALUE.sub(r"\1\2***", _PASSWORD.sub(r"\1:***@", text))
