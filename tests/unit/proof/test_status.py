"""Status: one word a link, decided from what the ledger says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.proof.status import LinkFacts, link_status

IDLE = LinkFacts("plant1", "plant1", "centre", run="r1", run_state="finished", step="done", last_success=100.0)


@pytest.mark.parametrize(
    ("change", "state", "reason"),
    [
        ({}, "idle", ""),
        ({"run": "", "run_state": ""}, "new", "never ran"),
        ({"run_state": "running", "step": "transfer_files", "holder": "r1", "host": "edge"}, "running", "edge"),
        ({"run_state": "running", "step": "transfer_files"}, "interrupted", "transfer_files"),
        ({"run_state": "failed", "error_kind": 10, "error": "window over at 06:00"}, "window", "06:00"),
        ({"run_state": "failed", "error_kind": 5, "error": "no route", "hint": "./tidemark doctor"}, "failed", "no route"),
        ({"guard": "the source looks empty", "guard_run": "r1"}, "guard", "looks empty"),
        ({"asking": "b was dropped after its points had settled", "asking_run": "r7"}, "guard", "settled"),
        ({"late": (("a", "its deletion waits"), ("b", "it waits"))}, "pending", "a: its deletion waits (and 1 more)"),
        ({"behind_gap": 2, "landing_reason": "landing 3 has not come"}, "gap", "landing 3"),
        ({"rejected": 1, "landing_reason": "two landings 3"}, "gap", "two landings"),
        ({"refused": 1}, "partial", "1 refused"),
        ({"quarantined": 2}, "partial", "2 in quarantine"),
        ({"unanswered": 1}, "landed", "1 landing"),
    ],
)
def test_every_state_has_its_reason(change: dict[str, object], state: str, reason: str) -> None:
    found = link_status(replace(IDLE, **change), 200.0)  # type: ignore[arg-type]
    assert found.state == state
    assert reason in found.reason
    assert state == "idle" or found.next


def test_lag_is_how_long_the_oldest_unsent_file_waits() -> None:
    assert link_status(IDLE, 200.0).lag == 0.0
    behind = link_status(replace(IDLE, backlog_files=2, backlog_bytes=30, oldest_unsent=50.0, oldest_path="a"), 200.0)
    assert behind.lag == 150.0
    answer = behind.as_json()
    assert answer["name"] == "plant1"
    assert (answer["backlog_files"], answer["backlog_bytes"]) == (2, 30)
    assert answer["oldest_unsent"] == "1970-01-01T00:00:50Z"
    assert answer["last_run"] == "r1"


def test_a_guard_names_the_command_that_decides() -> None:
    assert link_status(replace(IDLE, guard="x", guard_run="r9"), 0.0).next == "./tidemark approve r9"
    assert link_status(replace(IDLE, asking="x", asking_run="r7"), 0.0).next == "./tidemark approve r7"
