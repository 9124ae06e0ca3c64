"""Papers are read an entry at a time: wherever a window ends, they say the same; what is no paper takes no memory."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import CorruptionError
from tidemark.formats import json_stream as paper_stream
from tidemark.formats.json_stream import read_fields
from tidemark.formats.landing import decode_manifest, decode_receipt

MB = 1 << 20
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def read(data: bytes) -> dict[str, Any]:
    return read_fields(data, {"list": lambda entry: entry}, lambda _name, value: value)


@pytest.mark.full
@given(st.lists(VALUES, max_size=20), VALUES.filter(lambda v: not isinstance(v, list)), st.integers(1, 90), st.booleans())
def test_a_paper_says_the_same_wherever_a_window_ends(entries: list[Any], one: Any, window: int, spaces: bool) -> None:
    paper = {"list": entries, "one": one, "unknown": [1, [2], {"x": 3}]}
    data = json.dumps(paper, ensure_ascii=False, indent=1 if spaces else None).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(paper_stream, "_WINDOW", window)
        patched.setattr(paper_stream, "_MARGIN", 40)
        patched.setattr(paper_stream, "_BRACKETS", 0)
        assert read(data) == {"list": tuple(entries), "one": one, "unknown": ()}


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_are_not(data: bytes) -> None:
    for text in (data, b'{"list":[' + data + b"]}"):
        try:
            mine: Any = read(text)
        except (ValueError, CorruptionError):
            mine = None
        try:
            wanted = json.loads(text.decode())
        except ValueError:
            wanted = None
        if mine is not None:
            assert isinstance(wanted, dict) and set(mine) == set(wanted)


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("head", "entry", "tail"),
    [
        (b'{"format":1,"files":[', b"[],", b"[]]}"),
        (b'{"format":1,"unknown":[', b"[],", b"[]]}"),
        (b'{"format":1,"files":[[', b"[],", b"[]]]}"),
        (b'{"format":1,"x":{"y":[', b"{},", b"[]]}}"),
        (b'{"format":1,"files":', b"[", b""),
        (b'{"format":1,"files":["', b"\\", b""),
        (b'{"format":1,"files":[1', b"0", b"]}"),
        (b'{"format":1,', b'"a":1,', b'"a":1}'),
    ],
    ids=["lists", "unknown lists", "lists in one", "objects in one", "deep", "escapes", "one number", "fields"],
)
def test_a_paper_of_brackets_takes_no_memory(head: bytes, entry: bytes, tail: bytes) -> None:
    data = head + entry * (24 * MB // len(entry)) + tail
    tracemalloc.start()
    try:
        for decode in (decode_manifest, decode_receipt):
            with pytest.raises(CorruptionError):
                decode(data)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(data)
    finally:
        tracemalloc.stop()
