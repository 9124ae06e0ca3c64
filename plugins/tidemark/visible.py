"""Text that people see: what a terminal obeys and nobody sees is shown as its escape.

Names of devices, sites, files and folders are what an edge made them: a control character in one would move the cursor,
set the window's title or hide a line, a bidirectional one would turn the rest of the line round. Every way of ours to a
person's eyes goes through here: the command's screen, Airflow's logs, HTML pages. Data (JSON, Parquet, CSV) stays exact.
"""

from __future__ import annotations

import json
import re
import unicodedata

_LOOKED_AT = re.compile(r"[^ -~]")


def escape_invisible(text: str) -> str:
    r"""`text` on one line: controls, line breaks, bidirectional and zero-width characters as `\x1b`, `\n`, `\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return _LOOKED_AT.sub(lambda found: _escape_letter(found[0]), text)


def plain_json(told: str) -> str:
    r"""A JSON text of the same value in which what `escape_invisible` escapes is escaped as JSON does (`\u001b`)."""
    return told if told.isprintable() else _LOOKED_AT.sub(lambda found: _in_json(found[0]), told)


def _escape_letter(letter: str) -> str:
    return letter.encode("unicode_escape").decode() if _is_hidden(letter) else letter


def _in_json(letter: str) -> str:
    return json.dumps(letter)[1:-1] if _is_hidden(letter) else letter


def _is_hidden(letter: str) -> bool:
    """Controls, formats (bidirectional, zero-width), separators of lines, private and unassigned ones; no kind of space."""
    return not letter.isprintable() and unicodedata.category(letter) != "Zs"
