"""Where words go: results to stdout, everything else to stderr; with `--json` one object, last on stdout."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

WIDE = 100_000  # columns of a table that no terminal bounds


class Screen:
    """On a stdout of few letters (`LC_ALL`, `PYTHONIOENCODING`) others are escaped as on stderr: names of files have any."""

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")

    def tell(self, text: str) -> None:
        """What happens: for people, on stderr, not with `--quiet`."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def fail(self, text: str) -> None:
        """What went wrong: on stderr, also with `--quiet`."""
        print(text, file=sys.stderr, flush=True)

    def line(self, text: str) -> None:
        """A line of the result."""
        print(text)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "") -> None:
        """A compact table of the result. A column titled `…>` is set right. `empty`: said when there are no rows."""
        shown = [[text(cell) for cell in row] for row in rows]
        if not shown:
            if empty:
                self.line(empty)
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            right = column.endswith(">")
            table.add_column(column.rstrip(">"), justify="right" if right else "left", overflow="fold", no_wrap=right)
        for row in shown:
            table.add_row(*(Text(cell) for cell in row))
        if sys.stdout.isatty():
            Console(highlight=False, emoji=False).print(table)
            return
        plain = io.StringIO()
        Console(file=plain, width=WIDE, highlight=False, emoji=False).print(table)
        for line in plain.getvalue().splitlines():
            self.line(line.rstrip())

    def pairs(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Names and values of one result, a line each; values that are None or empty are left out."""
        found = [(name, text(value)) for name, value in pairs if value not in (None, "", [], {})]
        width = max((len(name) for name, _ in found), default=0)
        for name, value in found:
            self.line(f"{name:<{width}}  {value}")

    def result(self, answer: dict[str, Any]) -> None:
        """The one object of `--json`. What stdout has no letters for is escaped, so that it stays JSON."""
        told = json.dumps(answer, ensure_ascii=False, allow_nan=False, default=str)
        try:
            told.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:
            told = json.dumps(answer, allow_nan=False, default=str)
        print(told, flush=True)


def text(value: object) -> str:
    """A value for people: thousands apart, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def listed(value: object, most: int = 5) -> object:
    """A list in a few words: what it holds, or how many it holds."""
    if not isinstance(value, (list, tuple)):
        return value
    if len(value) <= most and all(isinstance(item, (str, int)) for item in value):
        return ", ".join(str(item) for item in value)
    return len(value)
