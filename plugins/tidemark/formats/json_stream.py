"""A paper's JSON, read an entry at a time: the memory that it takes is that of what it is made into, and of one entry.

A manifest comes from an edge, which may write 188 MB of `[]`: as Python's lists that is 5 GB. So no list of a paper is ever
made whole. Each of its entries is decoded, made into what it has to be, which ends with the first that is none, and let go.
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
"""Entries of all lists of a paper together: four million files."""
MOST_ENTRY = 1 << 25
"""Characters of one entry: a file that holds some 700,000 devices."""
MOST_FIELDS = 1_000
_WINDOW = 1 << 18
_MARGIN = 400  # characters that must be seen behind a value: a number may go on
_BRACKETS = 10  # characters of a long entry for each of its lists and objects: an interval of a device takes 40
_SPACE = re.compile(r"[ \t\n\r]*")


def _parse_finite(number: str) -> float:
    """ValueError for 1e999, NaN and Infinity: no number of ours, and `int` raises of them what nobody awaits."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is no number of a paper")
    return value


_DECODE = json.JSONDecoder(parse_float=_parse_finite, parse_constant=_parse_finite)


def parse_json(data: bytes | str) -> Any:
    """What `json.loads` gives of a small paper. ValueError for what is no JSON, or is nested beyond any stack."""
    try:
        return json.loads(data, parse_float=_parse_finite, parse_constant=_parse_finite)
    except RecursionError as deep:
        raise ValueError("it is nested too deep") from deep


def read_fields(data: bytes, makers: Mapping[str, Callable[[Any], Any]], one: Callable[[str, Any], Any]) -> dict[str, Any]:
    """The fields of the JSON object in `data`. A field that `makers` name is a list, and a tuple of what they make of each
    entry; entries of other lists are looked at and forgotten. Any other field is what `one` makes of its name and value.

    Raises ValueError (JSONDecodeError, UnicodeDecodeError) and RecursionError for what is no JSON, CorruptionError for more
    than any paper holds, and what the makers raise.
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
                raise CorruptionError(f"more than {MOST_ENTRIES} entries: no site's paper has so many")
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
    """The text of a paper, of which a window is decoded at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._read = 0
        self._seen = ""
        self._at = 0

    def peek_character(self) -> str:
        """The next character that is no space; '' at the end."""
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
        """The value that begins here."""
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
        """See `size` bytes more; what was taken is let go."""
        if self._read == len(self._data):
            return False
        piece = self._data[self._read : self._read + size]
        self._read += len(piece)
        self._seen = self._seen[self._at :] + self._decoder.decode(piece, self._read == len(self._data))
        self._at = 0
        return True

    def _check_nesting(self) -> None:
        """Before a long entry is decoded: it is not made of brackets alone, each of which takes a hundred bytes."""
        brackets = self._seen.count("[", self._at) + self._seen.count("{", self._at)
        if brackets * _BRACKETS > len(self._seen):
            raise CorruptionError("an entry of lists in lists")
