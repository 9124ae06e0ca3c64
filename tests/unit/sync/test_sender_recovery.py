"""Crash recovery of an original sender, vectors R1 to R7, and what its lists mean at our site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidemark.sync.adopt import ADDED, DELETED, match_site_files, parse_acknowledged

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "sync_recovery_vectors.json").read_text())["cases"]
NAME = "1581324718762-101-1"


def text(lines: list[str] | None, torn: bool = False) -> str | None:
    return None if lines is None else "".join(f"{line}\n" for line in lines)[: -1 if torn else None]


@pytest.mark.parametrize("case", VECTORS, ids=[c["id"] for c in VECTORS])
def test_vectors(case: dict[str, Any]) -> None:
    log = text(case["log"], case["torn_last_line"])
    assert parse_acknowledged(text(case["last"]), text(case["current"]), log) == frozenset(case["expected"])


def test_a_log_may_name_files_in_three_ways() -> None:
    last = f"/d/sequence/sg/{NAME}.tsfile\n"
    for entry in (f"/d/sequence/sg/{NAME}.tsfile", f"{NAME}.tsfile", NAME):
        assert parse_acknowledged(last, None, f"sync start\n{DELETED}\n{entry}\n{ADDED}\n") == frozenset()


def test_entries_outside_the_two_lists_mean_nothing() -> None:
    log = f"sync start\n{ADDED}\nA\nsync tsfile end\nB\nsync end\n"
    assert parse_acknowledged(None, None, log) == {"A"}


def test_a_list_without_its_last_newline_is_whole() -> None:
    assert parse_acknowledged("A\nB", None, None) == {"A", "B"}


SITE = [
    f"data/sequence/root.a/0/1/{NAME}-0.tsfile",
    f"data/unsequence/root.a/0/1/{NAME}-0.tsfile",
    "data/sequence/root.b/0/1/7-7-0-0.tsfile",
]


@pytest.mark.parametrize(
    ("entry", "meant"),
    [
        (SITE[0], SITE[0]),
        (f"/opt/iotdb/{SITE[0]}", SITE[0]),
        (f"/elsewhere/unsequence/root.a/0/1/{NAME}-0.tsfile", SITE[1]),
        ("7-7-0-0.tsfile", SITE[2]),
        ("7-7-0-0", SITE[2]),
        (f"{NAME}-0.tsfile", None),  # two files bear the name: better sent twice than not at all
        ("/x/sequence/root.c/0/1/7-7-0-0.tsfile", None),  # another database
        ("8-8-0-0.tsfile", None),
    ],
)
def test_matching(entry: str, meant: str | None) -> None:
    assert match_site_files([entry], SITE) == ({meant} if meant else frozenset())
