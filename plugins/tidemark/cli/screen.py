"""Print results to stdout and everything else to stderr; with `--json` the result is one object, last on stdout.

`write_output` writes a file at the user's path atomically.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tidemark.errors import limits_named
from tidemark.spelling import Spelling
from tidemark.visible import escape_invisible, plain_json

WIDE = 100_000  # width of a table that goes into a file or pipe, in characters
NARROW = 24  # least width that a table's last column is folded to, in characters
GAP = 2  # spaces between two columns


class OutputClosed(BaseException):
    """stdout takes no more: its reader closed the pipe (EPIPE), its disk is full, or it is closed. `main` handles it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.errno = number


@contextmanager
def guard_stdout() -> Iterator[None]:
    """Guard a block that writes to stdout: raise OutputClosed if stdout takes no more."""
    if sys.stdout is None:
        raise OutputClosed(errno.EBADF)
    try:
        yield
    except OSError as lost:
        raise OutputClosed(lost.errno or errno.EIO) from lost


class RowStream:
    """stdout as a stream of rows. Invisible characters are escaped where a terminal would obey them.

    Raises OutputClosed if stdout takes no more. `is_shown`: stdout is a terminal."""

    def __init__(self) -> None:
        with guard_stdout():
            self.is_shown = sys.stdout.isatty()

    def write(self, data: bytes) -> None:
        with guard_stdout():
            if self.is_shown:
                text = bytes(data).decode()
                data = "".join(escape_invisible(line) + "\n" for line in text.removesuffix("\n").split("\n")).encode()
            left = memoryview(data)
            while left:  # with PYTHONUNBUFFERED=1 one write may take a part
                left = left[sys.stdout.buffer.write(left) :]

    def flush(self) -> None:
        with guard_stdout():
            sys.stdout.flush()


INFO, ERROR = 20, 40  # levels of `logging`, which is imported where a log is kept


def ignore_record(_level: int, _text: str, _error: BaseException | None = None) -> None:
    """No log is kept."""


class Screen:
    """Prints all text for people. Every text goes through `escape_invisible`, also into a pipe.

    Characters that stdout's encoding lacks (`LC_ALL`, `PYTHONIOENCODING`) are escaped as on stderr. `record(level, text,
    error)` keeps in a log what is said on stderr, and how the command goes (`cli.log`). `spelling` has the commands in it as
    this user would type them."""

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.record: Callable[..., None] = ignore_record
        self.spelling = Spelling()
        self.shows_log = False  # on stderr; then no bar is drawn
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")

    def print_remark(self, text: str) -> None:
        """Print a remark for people on stderr, not with `--quiet`."""
        self.record(INFO, text)
        self.show_remark(text)

    def show_remark(self, text: str) -> None:
        """Print a remark that no log is to have."""
        if not self.quiet:
            self._say(text)

    def print_error(self, text: str) -> None:
        """Print an error on stderr, also with `--quiet`."""
        self.record(ERROR, text)
        self._say(text)

    def _say(self, text: str) -> None:
        if sys.stderr is not None:
            with suppress(OSError):  # stderr is closed: there is no place left to report it
                print(escape_invisible(self.spelling.spell(text)), file=sys.stderr, flush=True)

    def print_line(self, text: str) -> None:
        """Print a line of the result."""
        with guard_stdout():
            print(escape_invisible(self.spelling.spell(text)))

    def print_text(self, text: str) -> None:
        """Print lines of the result."""
        for line in text.splitlines():
            self.print_line(line)

    def print_cells(self, rows: Iterable[Sequence[str]]) -> None:
        """Print rows for another program: a line for each, a tab between two cells."""
        for row in rows:
            with guard_stdout():
                print("\t".join(map(escape_invisible, row)))

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "") -> None:
        """Print a compact table. A title `…>` aligns its column right. `empty` is printed if there are no rows.

        If the table is too wide for the terminal, empty columns are left out, then the last column is folded between words.
        If that is not enough, each row is printed as lines of names and values: nothing is broken in mid-word.
        """
        shown = [[escape_invisible(self.spelling.spell(format_value(cell))) for cell in row] for row in rows]
        if not shown:
            if empty:
                self.print_line(empty)
            return
        on_terminal = sys.stdout is not None and sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if on_terminal else WIDE
        if _measure_width(columns, shown) > width:
            kept = [number for number in range(len(columns)) if any(row[number] for row in shown)]
            columns, shown = [columns[number] for number in kept], [[row[number] for number in kept] for row in shown]
        lines = _lay_out(columns, shown, width)
        if lines is not None:
            bold = on_terminal and os.environ.get("TERM") not in ("dumb", "unknown")
            for number, line in enumerate(lines):
                with guard_stdout():
                    print(f"\x1b[1m{line}\x1b[0m" if bold and not number else line)
            return
        for number, row in enumerate(shown):
            if number:
                self.print_line("")
            self.print_pairs(zip((column.rstrip(">") for column in columns), row, strict=True))

    def print_pairs(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Print names and values of one result, a line each. Values that are None or empty are left out."""
        found = [(name, format_value(value)) for name, value in pairs if value not in (None, "", [], {})]
        width = max((len(name) for name, _ in found), default=0)
        for name, value in found:
            self.print_line(f"{name:<{width}}  {value}")

    def print_json(self, answer: dict[str, Any]) -> None:
        """Print the object of `--json`. Characters that stdout's encoding lacks are escaped as JSON does."""
        if self.spelling != Spelling():
            answer = self.spelling.spell_answer(answer)
        told = json.dumps(answer, ensure_ascii=False, allow_nan=False, default=str)
        with guard_stdout():
            try:
                told.encode(sys.stdout.encoding or "utf-8")
            except UnicodeEncodeError:
                told = json.dumps(answer, allow_nan=False, default=str)
            print(plain_json(told), flush=True)


def _lay_out(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str] | None:
    """Return the lines of a table, None if it is too wide even with its last column folded between words."""
    widths = _measure_columns(columns, rows)
    room = width - sum(widths[:-1]) - GAP * (len(columns) - 1)
    if widths[-1] > room:
        if room < NARROW or columns[-1].endswith(">"):
            return None
        widths[-1] = room
    lines = []
    for row in [[column.rstrip(">") for column in columns], *rows]:
        last = textwrap.wrap(row[-1], widths[-1], break_long_words=False, break_on_hyphens=False) or [""]
        if any(_measure(part) > widths[-1] for part in last):
            return None
        for cells in [[*row[:-1], last[0]], *([*[""] * (len(row) - 1), part] for part in last[1:])]:
            padded = [
                " " * (wide - _measure(cell)) + cell if column.endswith(">") else cell + " " * (wide - _measure(cell))
                for column, cell, wide in zip(columns, cells, widths, strict=True)
            ]
            lines.append((" " * GAP).join(padded).rstrip())
    return lines


def _measure(text: str) -> int:
    """The width of a text in cells of a terminal: those of East Asia take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _measure_columns(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    titles = [column.rstrip(">") for column in columns]
    return [max(map(_measure, cells)) for cells in zip(titles, *rows, strict=True)]


def _measure_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    return sum(_measure_columns(columns, rows)) + GAP * (len(columns) - 1)


def format_value(value: object) -> str:
    """Format a value for people: thousands separated, "" for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def shorten_list(value: object, most: int = 5) -> object:
    """Shorten a list: its items joined, or their number if there are more than `most`. Other values stay as they are."""
    if not isinstance(value, (list, tuple)):
        return value
    if len(value) <= most and all(isinstance(item, (str, int)) for item in value):
        return ", ".join(str(item) for item in value)
    return len(value)


def write_output(place: Path, text: str) -> None:
    """Write `text` to `place`, atomically for a regular file. Raises as `limits_named` if there is no room, else OSError."""
    if not place.is_file() and place.exists():  # a folder raises here; a pipe or a terminal cannot be replaced
        place.write_text(text, encoding="utf-8")
        return
    part = place.with_name(f"{place.name}.{os.getpid()}.tmp")
    try:
        with limits_named(place):
            part.write_text(text, encoding="utf-8")
            part.replace(place)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
