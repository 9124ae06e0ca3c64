"""Events and audit: written with their effect, readable later, by known words only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from tidemark.ledger import journal as audit
from tidemark.ledger import journal as events
from tidemark.ledger.database import Ledger

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "journal.md"


def test_an_event_tells_what_where_and_when(ledger: Ledger) -> None:
    with ledger.write() as connection:
        events.record_event(connection, "file.sent", link="plant1", run_id="r1", path="a.tsfile", sha256="ab", size=3)
    with ledger.read() as connection:
        row = connection.execute(sa.text("SELECT * FROM event")).mappings().one()
    assert (row["kind"], row["link"], row["run_id"], row["path"], row["site_id"]) == (
        "file.sent",
        "plant1",
        "r1",
        "a.tsfile",
        None,
    )
    assert json.loads(row["detail"]) == {"sha256": "ab", "size": 3}
    assert row["at"] > 1_700_000_000


def test_events_go_with_their_effect(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError), ledger.write() as connection:
        events.record_many(connection, "file.acked", [{"path": "a"}, {"path": "b", "generation": 2}])
        raise ZeroDivisionError
    with ledger.read() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM event")).scalar_one() == 0


def test_an_unknown_word_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match=r"file\.teleported"), ledger.write() as connection:
        events.record_event(connection, "file.teleported")


def test_the_journal_page_lists_every_word() -> None:
    page = PAGE.read_text()
    assert [kind for kind in events.KINDS if f"`{kind}`" not in page] == []


def test_a_decision_names_who_made_it(ledger: Ledger) -> None:
    with ledger.write() as connection:
        audit.record_decision(connection, "approve", "run-1", drops=12)
    with ledger.read() as connection:
        row = connection.execute(sa.text("SELECT * FROM audit")).mappings().one()
    assert row["who"] == audit.user_at_host()
    assert "@" in row["who"]
    assert json.loads(row["detail"]) == {"drops": 12}
