"""Escape control and other invisible characters in text for people.

Names of devices, sites, files and folders come from the edge. A control character in one could move the cursor, set the
window's title or hide a line. A bidirectional character could reverse the rest of the line. All output for people is
escaped here: the terminal, Airflow's logs, HTML pages. Data (JSON, Parquet, CSV) stays exact.
"""

from __future__ import annotations

import json
import re
import unicodedata
from contextlib import suppress

_LOOKED_AT = re.compile(r"[^ -~]")


def escape_invisible(text: str) -> str:
    r"""Escape controls, line breaks, bidirectional and zero-width characters as `\x1b`, `\n`, `\u202e`: one line."""
    if text.isascii() and text.isprintable():
        return text
    return _LOOKED_AT.sub(lambda found: _escape_letter(found[0]), text)


def plain_json(told: str) -> str:
    r"""Escape in a JSON text what `escape_invisible` escapes, in JSON's own form (`\u001b`). The value stays the same."""
    return told if told.isprintable() else _LOOKED_AT.sub(lambda found: _in_json(found[0]), told)


def escape_error(error: BaseException) -> None:
    """Escape what `error` and all errors behind it say, for those who log them with a traceback. Each keeps its class.
    The message of an exception group cannot be changed; its members' are."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
        one.args = tuple(map(_escape_told, one.args))
        for name in {*vars(one), *_SLOTS}:
            if (told := getattr(one, name, None)) is not None and told is not (shown := _escape_told(told)):
                with suppress(AttributeError, TypeError):  # read-only; then it is made from `args`
                    setattr(one, name, shown)


_SLOTS = ("strerror", "filename", "filename2", "reason", "msg", "text")
"""What errors of Python's own say beside their `args`."""


def _escape_told(told: object) -> object:
    if isinstance(told, list):  # notes
        return [_escape_told(one) for one in told]
    return escape_invisible(told) if isinstance(told, str) else told


def _escape_letter(letter: str) -> str:
    return letter.encode("unicode_escape").decode() if _is_hidden(letter) else letter


def _in_json(letter: str) -> str:
    return json.dumps(letter)[1:-1] if _is_hidden(letter) else letter


def _is_hidden(letter: str) -> bool:
    """Whether it is a control, format (bidirectional, zero-width), line separator, private or unassigned character."""
    return not letter.isprintable() and unicodedata.category(letter) != "Zs"
