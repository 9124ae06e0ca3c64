"""Manifests and receipts with anything in them: read as what they say they are, or refused as corrupt; never a crash."""

from __future__ import annotations

import copy
import dataclasses
import json
import types
import typing
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.errors import CorruptionError
from tidemark.formats.landing import (
    Answer,
    InventoryEntry,
    LandedFile,
    LandedSchema,
    Manifest,
    Part,
    Receipt,
    Resend,
    Vanished,
    decode_manifest,
    decode_receipt,
    encode_document,
)
from tidemark.receiver.load.landings import Folder, check_sound

DIGEST = "0" * 64
TSFILE = Part("d/1-1-0-0.tsfile", 10, DIGEST)
PARTS = [dataclasses.replace(TSFILE, path=TSFILE.path + end) for end in (".resource", ".mods")]
MANIFEST = Manifest(
    landing="l",
    site_id="s",
    site_name="plant1",
    time_unit="ms",
    partition_interval_ms=1,
    data=("d",),
    link="plant1",
    run_id="r",
    part=1,
    last=True,
    sequence=1,
    previous=None,
    created=1.5,
    deletes="keep",
    files=(LandedFile(TSFILE.path, 1, 5, TSFILE, PARTS[0], PARTS[1], DIGEST, "source"),),
    schema=(LandedSchema("mlog.bin", 1, 0, Part("_schema/mlog.bin.1.0", 3, DIGEST)),),
    superseded=(Vanished("d/2-2-0-0.tsfile", 1, (TSFILE.path,)),),
    dropped=(Vanished("d/3-3-0-0.tsfile", 1),),
    added=(InventoryEntry(TSFILE.path, 10, 5, (("root.a", 1, 2),)),),
    removed=("d/4-4-0-0.tsfile",),
    inventory_count=1,
    left_out=(("d/5-5-0-0.tsfile", "gone"),),
    listed=2.5,
)
RECEIPT = Receipt(
    "l", 1, DIGEST, 2.5, (Answer("d/1", 1, "refused", "", "root.a", "s"),), (("d/3", "waits"),), (Resend("d/9", 1, "x"),)
)

Node = tuple[Any, ...]  # the keys and numbers that lead to a value
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", "..", "/etc/passwd", "a/../../b", "\0", "\ud800", "manifest.json", "x" * 5000, "1e999"]),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def nodes(value: Any, at: Node = ()) -> list[Node]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(node for key, below in inner for node in nodes(below, (*at, key)))]


def put(paper: Any, node: Node, value: Any) -> Any:
    if not node:
        return value
    paper = copy.deepcopy(paper)
    inner = paper
    for key in node[:-1]:
        inner = inner[key]
    inner[node[-1]] = value
    return paper


def assert_typed(value: Any, wanted: Any, where: str) -> None:
    """`value` is what the annotation says, down to the leaves, and a database could hold it."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        options = [one for one in inner if one is not type(None)]
        if value is not None:
            assert_typed(value, options[0], where)
    elif origin is tuple:
        assert isinstance(value, tuple), where
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        assert len(kinds) == len(value), where
        for one, kind in zip(value, kinds, strict=True):
            assert_typed(one, kind, where)
    elif dataclasses.is_dataclass(wanted):
        hints = typing.get_type_hints(wanted)
        for name, kind in hints.items():
            assert_typed(getattr(value, name), kind, f"{where}.{name}")
    else:
        assert type(value) is wanted, f"{where}: {value!r}"
        if wanted is int:
            assert -(1 << 63) <= value < 1 << 63, where
        if wanted is str:
            assert "\0" not in value
            value.encode()


WHOLE_MANIFEST, WHOLE_RECEIPT = json.loads(encode_document(MANIFEST)), json.loads(encode_document(RECEIPT))


def read_manifest(data: bytes) -> None:
    try:
        manifest = decode_manifest(data)
        assert_typed(manifest, Manifest, "manifest")
        check_sound(manifest, Folder("s", "l", False, True))
    except CorruptionError as refused:
        assert refused.message


def read_receipt(data: bytes) -> None:
    try:
        assert_typed(decode_receipt(data), Receipt, "receipt")
    except CorruptionError as refused:
        assert refused.message


@given(st.sampled_from(nodes(WHOLE_MANIFEST)), ANYTHING)
@example(("sequence",), float("inf"))
@example(("files", 0, "path"), 5)
@example(("files", 0, "path"), "\ud800")
@example(("created",), float("nan"))
@example(("data",), "text")
def test_any_value_anywhere_in_a_manifest(node: Node, value: Any) -> None:
    read_manifest(json.dumps(put(WHOLE_MANIFEST, node, value)).encode())


@given(st.sampled_from(nodes(WHOLE_RECEIPT)), ANYTHING)
def test_any_value_anywhere_in_a_receipt(node: Node, value: Any) -> None:
    read_receipt(json.dumps(put(WHOLE_RECEIPT, node, value)).encode())


@given(st.integers(0, len(encode_document(MANIFEST)) - 1), st.binary(min_size=0, max_size=3))
def test_any_bytes_anywhere_in_a_paper(at: int, value: bytes) -> None:
    data = encode_document(MANIFEST)
    read_manifest(data[:at] + value + data[at + len(value) :])
    read_manifest(data[:at])
    read_receipt(encode_document(RECEIPT)[:at] + value)


def test_a_paper_nested_deeper_than_any_stack() -> None:
    for read in (read_manifest, read_receipt):
        read(b"[" * 200_000)
        read(b'{"format":1,"files":' + b"[" * 200_000)


def test_a_sound_paper_is_read_as_it_was_written() -> None:
    assert decode_manifest(encode_document(MANIFEST)) == MANIFEST
    assert decode_receipt(encode_document(RECEIPT)) == RECEIPT
