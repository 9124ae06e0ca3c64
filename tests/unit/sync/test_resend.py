"""Files that a receipt asks for are sent again: if the site still has them, and once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.formats.landing import Receipt, Resend, decode_receipt, encode_document
from tidemark.ledger.database import Ledger
from tidemark.ledger.migrations import migrate_ledger
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender.links import Acked, Seen
from tidemark.sync.send.receipts import send_again

ASKED = Resend("a", 3, "a settled file that holds its points has to be replaced")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A link whose file `a` was acknowledged in generation 3."""
    made = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    migrate_ledger(made)
    with made.write() as connection:
        link_rows.put_site(connection, "id", "plant1", "ms", 1)
        link_rows.add_link(connection, "plant1", "id", "centre")
        link_rows.add_files(connection, "plant1", [Seen("a", 1, 1, 1, None)])
        link_rows.ack_files(connection, "plant1", [Acked("a", 1, 1, 1, 0, 3, "digest", "", "landing-1")])
    yield made
    made.close()


def ask(ledger: Ledger, *resend: Resend) -> list[tuple[str, str, str | None]]:
    """(path, state, reason) of the link's files afterwards."""
    with ledger.write() as connection:
        send_again(connection, "plant1", "run-1", resend)
        return [(row[0], row[5], row[8]) for row in link_rows.stream_files(connection, "plant1")]


def test_what_is_asked_for_is_sent_again_with_the_reason(ledger: Ledger) -> None:
    assert ask(ledger, ASKED) == [("a", "waiting", ASKED.reason)]
    assert ask(ledger, ASKED) == [("a", "waiting", ASKED.reason)]


@pytest.mark.parametrize("generation", [2, 4])
def test_not_where_another_generation_is_the_newest_that_was_sent(ledger: Ledger, generation: int) -> None:
    assert ask(ledger, Resend("a", generation, "")) == [("a", "acked", None)]


def test_not_where_the_site_has_it_no_more_or_never_had(ledger: Ledger) -> None:
    with ledger.write() as connection:
        link_rows.mark_gone(connection, "plant1", ["a"])
    assert ask(ledger, ASKED, Resend("b", 1, "")) == [("a", "gone", None)]


def test_receipts_carry_it_and_older_ones_need_not() -> None:
    receipt = Receipt("landing-1", 1, "digest", 1.0, resend=(ASKED,))
    assert decode_receipt(encode_document(receipt)) == receipt
    raw = json.loads(encode_document(receipt))
    del raw["resend"]
    assert decode_receipt(json.dumps(raw).encode()).resend == ()
