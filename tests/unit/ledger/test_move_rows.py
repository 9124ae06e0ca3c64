"""What moves goes forward, whoever tells it how often: slots, acknowledgements by name and epoch, states at nodes."""

from __future__ import annotations

import pytest

from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster.moves import MoveRow
from tidemark.ledger.database import Ledger


def a_move(slot: int, epoch: int = 2, **more: object) -> MoveRow:
    return MoveRow("centre", epoch, slot, ("n1", "n2", "n3"), ("n4", "n2", "ä"), at=1.0, **more)  # type: ignore[arg-type]


def test_moves_by_epoch_and_slot(ledger: Ledger) -> None:
    with ledger.write() as connection:
        move_rows.add_moves(connection, [a_move(9), a_move(3), a_move(3, epoch=5)])
        move_rows.add_moves(connection, [])
        assert move_rows.moves_of_epoch(connection, "centre", 2) == [a_move(3), a_move(9)]
        assert move_rows.moves_of_epoch(connection, "centre", 5) == [a_move(3, epoch=5)]
        assert move_rows.moves_of_epoch(connection, "another", 2) == []


def test_a_move_that_is_added_again_stays_as_far_as_it_is(ledger: Ledger) -> None:
    with ledger.write() as connection:
        move_rows.add_moves(connection, [a_move(3)])
        move_rows.add_bytes(connection, "centre", 2, {3: 100, 4: 1})
        move_rows.add_bytes(connection, "centre", 2, {3: 10})
        move_rows.set_move_state(connection, "centre", 2, [3], "acknowledged", 5.0)
        move_rows.add_moves(connection, [a_move(3)])
        (move,) = move_rows.moves_of_epoch(connection, "centre", 2)
        assert (move.state, move.bytes_done, move.at) == ("acknowledged", 110, 5.0)


def test_a_move_goes_forward_only(ledger: Ledger) -> None:
    with ledger.write() as connection:
        move_rows.add_moves(connection, [a_move(3), a_move(4)])
        for state, at in (("acknowledged", 2.0), ("acknowledged", 3.0), ("done", 4.0), ("acknowledged", 5.0), ("done", 6.0)):
            move_rows.set_move_state(connection, "centre", 2, [3], state, at)

        assert [(m.slot, m.state, m.at) for m in move_rows.moves_of_epoch(connection, "centre", 2)] == [
            (3, "done", 4.0),
            (4, "moving", 1.0),
        ]
        assert [m.slot for m in move_rows.moves_of_epoch(connection, "centre", 2, open_only=True)] == [4]


def test_acknowledgements_are_by_name_and_epoch_not_by_count(ledger: Ledger) -> None:
    with ledger.write() as connection:
        for _ in range(3):
            move_rows.acknowledge_slots(connection, "centre", 2, [3, 4], "n4", 1.0)
        move_rows.acknowledge_slots(connection, "centre", 2, [3], "n2", 2.0)
        move_rows.acknowledge_slots(connection, "centre", 1, [4], "n2", 2.0)  # of an earlier epoch: counts for that alone
        move_rows.acknowledge_slots(connection, "another", 2, [4], "n3", 2.0)

        assert move_rows.acknowledged_nodes(connection, "centre", 2) == {3: frozenset({"n4", "n2"}), 4: frozenset({"n4"})}
        assert move_rows.acknowledged_nodes(connection, "centre", 1) == {4: frozenset({"n2"})}
        assert move_rows.acknowledged_nodes(connection, "centre", 9) == {}


def test_slot_states_are_put_replaced_and_removed(ledger: Ledger) -> None:
    with ledger.write() as connection:
        for _ in range(2):
            move_rows.put_slot_states(connection, "centre", {("n1", 3): "sending", ("n4", 3): "pulling"}, 2)
        move_rows.put_slot_states(connection, "centre", {("n4", 3): "pulling_writable", ("n9", 1): "null"}, 2)
        assert move_rows.slot_states(connection, "centre") == {
            ("n1", 3): ("sending", 2),
            ("n4", 3): ("pulling_writable", 2),
        }
        assert move_rows.slot_states(connection, "centre", "n4") == {("n4", 3): ("pulling_writable", 2)}

        for _ in range(2):
            move_rows.put_slot_states(connection, "centre", {("n1", 3): "null"}, 2)
        assert move_rows.slot_states(connection, "centre", "n1") == {}


@pytest.mark.full_after(1)
@pytest.mark.parametrize("late", ["pulling", "sent", "null"])
def test_a_task_of_an_earlier_epoch_changes_no_state(ledger: Ledger, late: str) -> None:
    with ledger.write() as connection:
        move_rows.put_slot_states(connection, "centre", {("n1", 3): "sending"}, 5)
        move_rows.put_slot_states(connection, "centre", {("n1", 3): late}, 4)
        assert move_rows.slot_states(connection, "centre") == {("n1", 3): ("sending", 5)}

        move_rows.put_slot_states(connection, "centre", {("n1", 3): "sent"}, 6)
        assert move_rows.slot_states(connection, "centre") == {("n1", 3): ("sent", 6)}
