"""Status: one word a link, decided from what the ledger says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.ledger.sender.links import Try
from tidemark.proof.status import LinkFacts, StatusReport, link_status

IDLE = LinkFacts("plant1", "plant1", "centre", run="r1", run_state="finished", step="done", last_success=100.0)

PARKED = {"step": "transfer_files", "holder": "r1", "host": "edge", "parked": True}
SECOND = Try("transfer_files", "retrying", 2, 6, 220.0, "no route")
BUSY = Try("transfer_files", "working", 1, 6)


@pytest.mark.parametrize(
    ("change", "state", "reason"),
    [
        ({}, "idle", ""),
        ({"run": "", "run_state": ""}, "new", "never ran"),
        ({"run_state": "running", "step": "transfer_files", "holder": "r1", "host": "edge"}, "running", "edge"),
        ({"run_state": "running", "step": "transfer_files"}, "interrupted", "transfer_files"),
        ({**PARKED, "run_state": "running"}, "running", "between two tasks, after transfer_files"),
        ({**PARKED, "run_state": "failed", "error": "no route"}, "failed", "no route"),
        ({**PARKED, "run_state": "failed", "error_kind": 10, "error": "window over"}, "window", "window over"),
        ({**PARKED, "run_state": "running", "attempt": SECOND}, "retrying", "try 2 of 6 failed: no route; next try at 1970"),
        ({**PARKED, "run_state": "failed", "attempt": replace(SECOND, next_try=200.0 - 901)}, "interrupted", "was due"),
        ({**PARKED, "run_state": "failed", "attempt": replace(SECOND, state="failed")}, "failed", "try 2 of 6: no route"),
        ({"attempt": replace(SECOND, task="recover", state="failed")}, "failed", "task recover, try 2 of 6: no route"),
        ({"attempt": replace(SECOND, state="done")}, "idle", ""),
        ({"holder": "r1", "host": "a", "run_state": "running", "attempt": SECOND}, "running", "run r1 on a"),
        ({"run_state": "running", "attempt": BUSY, "worker": False}, "interrupted", "its process is gone"),
        ({"run_state": "running", "attempt": BUSY, "worker": True}, "running", "try 1 of 6"),
        ({"run_state": "running", "attempt": BUSY, "attempted": 190.0}, "running", "try 1 of 6"),
        ({"run_state": "running", "attempt": BUSY, "attempted": 100.0}, "interrupted", "its process is gone"),
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
    assert link_status(replace(IDLE, guard="x", guard_run="r9"), 0.0).next.endswith(
        "tidemark plan plant1; then ./tidemark approve r9"
    )
    assert link_status(replace(IDLE, asking="x", asking_run="r7"), 0.0).next == "./tidemark approve r7"


def test_a_failed_link_is_no_good_end() -> None:
    retrying = link_status(replace(IDLE, attempt=SECOND, run_state="failed"), 200.0)
    assert (retrying.as_json()["try"], retrying.as_json()["next_try"]) == (2, "1970-01-01T00:03:40Z")
    assert StatusReport((link_status(IDLE, 0.0), retrying)).exit_code == 0
    report = StatusReport((retrying, link_status(replace(IDLE, run_state="failed", error="no route", hint="do it"), 0.0)))
    assert (report.exit_code, report.as_json()["hint"]) == (23, "do it")
    assert "no route" in report.as_json()["error"]
