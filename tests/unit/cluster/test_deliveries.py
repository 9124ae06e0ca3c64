"""What goes to whom, who is late, what may be given up: pure decisions over frozen values."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tidemark.cluster.membership.plan import first_table
from tidemark.cluster.replicas import plan as deliveries
from tidemark.cluster.replicas.plan import Cached, Piece, applied_upto, choose_evictable, due_operations
from tidemark.cluster.slots.balance import even_slots
from tidemark.cluster.slots.hash_ring import SlotHash
from tidemark.ledger.cluster.operations import OperationRow

TABLE = first_table([f"n{n}" for n in range(1, 6)], 3, 20, SlotHash.FULL, even_slots)
WIDE = tuple(range(20))


def piece(*slots: int, location: str = "data/x/0/a.tsfile") -> Piece:
    return Piece(location, "d1", 10, slots[0], slots, "root.x")


def operation(version: int, kind: str = "put", subject: str = "a", state: str = "committed") -> OperationRow:
    return OperationRow("centre", "n1", 1, 0, kind, subject, "d1", 10, state, 0.0, version)


def test_a_file_is_wanted_by_the_union_of_its_slots_groups() -> None:
    one, all_of_them = piece(3), piece(*WIDE)
    assert deliveries.wanting_nodes(TABLE, one) == TABLE.group_of(3)
    assert set(deliveries.wanting_nodes(TABLE, all_of_them)) == set(TABLE.ring.names)
    assert len(deliveries.wanting_nodes(TABLE, all_of_them)) == 5


def test_what_lies_there_with_the_right_digest_is_not_lacking() -> None:
    first, second, third = TABLE.group_of(3)
    held = {"data/x/0/a.tsfile": {first: "d1", second: "another"}}
    assert set(deliveries.lacking_pieces(TABLE, [piece(3)], held)) == {second, third}


def test_an_operation_is_made_for_each_group_that_lacks_it_somewhere() -> None:
    made = deliveries.put_operations(TABLE, "centre", [piece(*WIDE)], {}, 1.0)
    assert {row.header for row in made} == set(TABLE.owners)
    assert all(TABLE.owners[row.slot] == row.header and row.epoch == TABLE.epoch for row in made)
    everywhere = {"data/x/0/a.tsfile": dict.fromkeys(TABLE.ring.names, "d1")}
    assert deliveries.put_operations(TABLE, "centre", [piece(*WIDE)], everywhere, 1.0) == []


def test_a_quorum_counts_in_every_group_by_itself() -> None:
    group = TABLE.group_of(3)
    held = {"data/x/0/a.tsfile": dict.fromkeys(group[:2], "d1")}
    assert deliveries.find_shortages(TABLE, [piece(3)], held, 2) == []
    (short,) = deliveries.find_shortages(TABLE, [piece(3)], held, 3)
    assert (short.header, short.members, short.holders) == (group[0], group, group[:2])
    other = next(slot for slot in WIDE if len(set(TABLE.group_of(slot)) & set(group[:2])) < 2)
    assert deliveries.find_shortages(TABLE, [piece(3, other)], held, 2)[0].header == TABLE.owners[other]


def test_applied_stops_before_the_first_operation_that_is_not_settled() -> None:
    log = [operation(1), operation(2, subject="b"), operation(3, subject="c")]
    assert applied_upto(log, 0, lambda o: o.subject != "b") == 1
    assert applied_upto(log, 0, lambda _: True) == 3
    withdrawn = [operation(1), operation(2, subject="b", state="withdrawn"), operation(3, subject="c")]
    assert applied_upto(withdrawn, 0, lambda o: o.subject != "b") == 3


def test_a_put_that_was_removed_later_needs_no_putting() -> None:
    log = [operation(1), operation(2, "remove")]
    assert applied_upto(log, 0, lambda o: o.kind == "remove") == 2
    assert [row.version for row in due_operations(log)] == [2]


def test_what_is_only_proposed_is_not_due_and_hides_nothing_that_is() -> None:
    log = [operation(1), operation(2, state="proposed"), operation(3, subject="b", state="withdrawn")]
    assert [row.version for row in due_operations(log)] == [1]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "remove"]), st.sampled_from("abc"), st.sampled_from(["proposed", "committed", "withdrawn"])
    ),
    max_size=12,
)


@given(OPERATIONS, st.sets(st.integers(1, 12)))
def test_nothing_committed_that_a_member_lacks_is_ever_below_its_applied(
    drawn: Sequence[tuple[str, str, str]], settled: set[int]
) -> None:
    log = [operation(n, *words) for n, words in enumerate(drawn, 1)]
    upto = applied_upto(log, 0, lambda o: o.version in settled)
    assert all(row.version in settled for row in due_operations(log) if row.version <= upto)
    for row in log[:upto]:
        stood_for = any(o.version > row.version and (o.subject, o.state) == (row.subject, "committed") for o in log)
        assert row.version in settled or row.state == "withdrawn" or stood_for
    if upto < len(log):  # and it stops for nothing else
        assert log[upto].version not in settled and log[upto].state != "withdrawn"


def test_the_longest_unused_goes_first_and_no_more_than_is_too_many() -> None:
    cached = [Cached("a", 10, 3.0), Cached("b", 10, 1.0), Cached("c", 10, 2.0)]
    assert [one.location for one in choose_evictable(cached, {"a", "b", "c"}, 20, 9.0)] == ["b"]
    assert [one.location for one in choose_evictable(cached, {"a", "b", "c"}, 0, 9.0)] == ["b", "c", "a"]
    assert [one.location for one in choose_evictable(cached, {"a", "b"}, 0, 9.0)] == ["b", "a"]
    assert [one.location for one in choose_evictable(cached, {"a", "b", "c"}, 0, 2.0)] == ["b"]
    assert choose_evictable(cached, {"a", "b", "c"}, 30, 9.0) == ()
