"""Read the JSON of a manifest or receipt one entry at a time. Memory is needed for the result and for one entry.

A manifest comes from an edge, which may write 188 MB of `[]`: as Python's lists that is 5 GB. So no list is ever made whole.
Each entry is decoded, converted and released; the first wrong one ends the reading.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tidemark.errors import CorruptionError

MOST_ENTRIES = 4_000_000
"""Entries of all lists of a record together: four million files."""
MOST_ENTRY = 1 << 25
"""Characters of one entry: a file that holds some 700,000 devices."""
MOST_FIELDS = 1_000
_WINDOW = 1 << 18
_MARGIN = 400  # characters that must be seen after a value: a number may continue
_BRACKETS = 10  # characters for each list and object in a long entry: an interval of a device has 40
_SPACE = re.compile(r"[ \t\n\r]*")


def _parse_finite(number: str) -> float:
    """Raise ValueError for 1e999, NaN and Infinity: they are not valid here, and `int` would raise other errors for them."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is no number of a record")
    return value


_DECODE = json.JSONDecoder(parse_float=_parse_finite, parse_constant=_parse_finite)


def parse_json(data: bytes | str) -> Any:
    """Parse a small document as `json.loads`. ValueError for invalid JSON, or nesting that is too deep."""
    try:
        return json.loads(data, parse_float=_parse_finite, parse_constant=_parse_finite)
    except RecursionError as deep:
        raise ValueError("it is nested too deep") from deep


def read_fields(data: bytes, makers: Mapping[str, Callable[[Any], Any]], one: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Read the fields of the JSON object in `data`. A field in `makers` is a list, and becomes a tuple of the converted
    entries; entries of other lists are checked and dropped. `one` converts any other field from its name and value.

    Raises ValueError (JSONDecodeError, UnicodeDecodeError) and RecursionError for invalid JSON, CorruptionError for too many
    entries, and the makers' errors.
    """
    text = _Text(data)
    fields: dict[str, Any] = {}
    text.expect_character("{")
    named = count = 0
    while text.peek_character() != "}":
        if named:
            text.expect_character(",")
        name, named = text.read_value(), named + 1
        if not isinstance(name, str) or named > MOST_FIELDS:
            raise CorruptionError(f"fields without a name, or more than {MOST_FIELDS}")
        text.expect_character(":")
        if text.peek_character() != "[":
            fields[name] = one(name, text.read_value())
            continue
        made = []
        make = makers.get(name)
        for entry in _iter_entries(text):
            count += 1
            if count > MOST_ENTRIES:
                raise CorruptionError(f"more than {MOST_ENTRIES} entries: no site's record has so many")
            if make is not None:
                made.append(make(entry))
        fields[name] = tuple(made)
    text.expect_character("}")
    text.expect_end()
    return fields


def _iter_entries(text: _Text) -> Iterator[Any]:
    text.expect_character("[")
    first = True
    while text.peek_character() != "]":
        if not first:
            text.expect_character(",")
        first = False
        yield text.read_value()
    text.expect_character("]")


class _Text:
    """The text of a document, decoded one window at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._read = 0
        self._seen = ""
        self._at = 0

    def peek_character(self) -> str:
        """Return the next character that is no space; '' at the end."""
        while True:
            found = _SPACE.match(self._seen, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._seen) or not self._read_more(_WINDOW):
                return self._seen[self._at : self._at + 1]

    def expect_character(self, wanted: str) -> None:
        if self.peek_character() != wanted:
            raise json.JSONDecodeError(f"Expecting {wanted!r}", self._seen[self._at : self._at + 20], 0)
        self._at += 1

    def expect_end(self) -> None:
        if self.peek_character():
            raise json.JSONDecodeError("Extra data", self._seen[self._at : self._at + 20], 0)

    def read_value(self) -> Any:
        """Return the value that begins here."""
        self.peek_character()
        window = _WINDOW
        while True:
            whole = self._read == len(self._data)
            try:
                value, end = _DECODE.raw_decode(self._seen, self._at)
            except json.JSONDecodeError:
                if whole:
                    raise
            else:
                if whole or end + _MARGIN <= len(self._seen):
                    self._at = end
                    return value
            if len(self._seen) - self._at > MOST_ENTRY:
                raise CorruptionError(f"an entry of more than {MOST_ENTRY} characters")
            self._read_more(window)
            window *= 2
            self._check_nesting()

    def _read_more(self, size: int) -> bool:
        """Decode `size` more bytes; the consumed text is released."""
        if self._read == len(self._data):
            return False
        piece = self._data[self._read : self._read + size]
        self._read += len(piece)
        self._seen = self._seen[self._at :] + self._decoder.decode(piece, self._read == len(self._data))
        self._at = 0
        return True

    def _check_nesting(self) -> None:
        """Check, before a long entry is decoded, that it is not only brackets: each takes a hundred bytes."""
        brackets = self._seen.count("[", self._at) + self._seen.count("{", self._at)
        if brackets * _BRACKETS > len(self._seen):
            raise CorruptionError("an entry of lists in lists")
