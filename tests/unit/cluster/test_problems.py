"""What `cluster check` says of records that do not fit together: from values alone, no node is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.cluster.health.problems import Recorded, problems_of
from tidemark.cluster.membership.plan import first_table
from tidemark.cluster.slots.hash_ring import SlotHash
from tidemark.ledger.cluster.tables import ChangeRow

TABLE = first_table(["n1", "n2", "n3"], 2, 6, SlotHash.FULL)
SOUND = Recorded(TABLE, b"", None, {}, {}, {}, {}, {}, (), frozenset(), {}, {}, 100.0, 60.0)


def change(kind: str, node: str = "") -> ChangeRow:
    return ChangeRow("c", "centre", kind, node, 1, "anybody", 0.0, "swapped")


@pytest.mark.parametrize(
    ("open_change", "command"),
    [
        (None, "./tidemark load"),
        (change("init"), "./tidemark cluster init"),
        (change("add", "n4"), "./tidemark cluster add n4"),
        (change("rebalance"), "./tidemark cluster rebalance"),
    ],
    ids=["none", "init", "add", "rebalance"],
)
def test_a_slot_that_waits_without_moving_names_the_command_that_goes_on(
    open_change: ChangeRow | None, command: str
) -> None:
    recorded = replace(SOUND, change=open_change, states={("n1", 3): ("gained", 2)})
    [found] = [one for one in problems_of(recorded, ()) if one.slot == 3]
    assert (found.node, found.problem, found.next) == ("n1", "the slot is gained by epoch 2, and does not move", command)
