"""The papers of decisions and of settled merges: what is written is read, what is not one is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemark.errors import CorruptionError
from tidemark.formats import records as decided
from tidemark.formats import records as settled
from tidemark.formats.records import (
    ADOPTED,
    APPROVE,
    GIVE_UP,
    TRANSFER,
    Decision,
    SettledSource,
    Settlement,
    decode_decision,
    decode_settlement,
    encode_decision,
    encode_settlement,
)

DECISIONS = [
    Decision(1.5, "me@here", TRANSFER, "root.d", {"to": "site"}),
    Decision(1.5, "me@here", ADOPTED, "plant1", {"owners": {"root.d": "site"}}),
    Decision(1.5, "me@here", APPROVE, "run", {"drops": {"site": [("päth", 2)]}}),
    Decision(1.5, "me@here", GIVE_UP, "path", {"site": "site", "generation": 3}),
]
SETTLED = Settlement(
    "site", "root.sg", "tree", 0, 1, "data/root.sg/0/m.tsfile", "ab", 9, 4, (0, 1, 2, 3, 4), "batch", 6, 1, 1, 2.0, 3.0,
    (SettledSource("a", 1, "data/a", "cd"), SettledSource("", 0, "data/m", "ef")),
)  # fmt: skip


@pytest.mark.parametrize("paper", DECISIONS, ids=lambda paper: paper.action)
def test_a_decision_comes_back(paper: Decision) -> None:
    assert decode_decision(encode_decision(paper)) == paper
    assert decided.decided_place(paper).startswith("decided/000000000001500-")


def test_decisions_of_one_moment_have_two_places() -> None:
    assert len({decided.decided_place(paper) for paper in DECISIONS}) == len(DECISIONS)


def test_a_settled_paper_comes_back() -> None:
    assert decode_settlement(encode_settlement(SETTLED)) == SETTLED
    assert settled.settled_place(SETTLED.location) == "settled/m.tsfile.json"


def changed(data: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(data), **fields}).encode()


@pytest.mark.parametrize(
    "data",
    [
        encode_decision(DECISIONS[0])[:-9],
        b"[]",
        b"\xff",
        changed(encode_decision(DECISIONS[0]), format=2),
        changed(encode_decision(DECISIONS[0]), action="forget everything"),
        changed(encode_decision(DECISIONS[0]), detail={}),
        changed(encode_decision(DECISIONS[2]), detail={"drops": {"site": ["path"]}}),
        changed(encode_decision(DECISIONS[1]), detail=None),
    ],
)
def test_what_is_no_decision_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="a decision's record"):
        decode_decision(data)


@pytest.mark.parametrize(
    "data",
    [
        encode_settlement(SETTLED)[:40],
        b"7",
        changed(encode_settlement(SETTLED), format=2),
        changed(encode_settlement(SETTLED), rank=0),
    ],
)
def test_what_is_no_settled_paper_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="a settled record"):
        decode_settlement(data)
