"""Who holds which shard: decided by each member for itself, and even in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.changes.delivery.members import Choice, Seen, choose_shards, read_seen
from tidemark.ledger.leases import Identity, LeaseRow

NAMES = ("a", "b", "c", "d", "e")


def row(name: str, holder: str) -> LeaseRow:
    return LeaseRow(name, 1, holder, Identity("host", "boot", 1, "1"), 0.0, 100.0)


def test_what_leases_say() -> None:
    rows = [row("task:t/0", "a@2"), row("task:t/1", "b@1"), row("task:t/member-0", "a"), row("task:t/member-10", "b")]
    assert read_seen("b", 4, 2, rows) == Seen("b", 4, ["a", "b"], {0: "a", 1: "b"}, is_former=True)


@given(st.integers(1, 13), st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True), st.data())
def test_in_the_end_each_has_its_even_share_and_few_move(shards: int, members: list[str], data: st.DataObject) -> None:
    owner = st.sampled_from([*members, "dead", ""])
    before = {shard: name for shard in range(shards) if (name := data.draw(owner)) not in ("dead", "")}
    held = dict(before)
    for _ in range(2 * len(members) + 2):  # each in turn, as they come
        for me in data.draw(st.permutations(members)):
            choice = choose_shards(Seen(me, shards, members, dict(held)))
            assert not set(choice.take) & set(held)
            for shard in choice.give:
                assert held.pop(shard) == me
            held |= dict.fromkeys(choice.take, me)
    counts = sorted(list(held.values()).count(member) for member in members)
    assert sum(counts) == shards
    assert counts[-1] - counts[0] <= 1
    share = -(-shards // len(members))
    for member in members:  # nobody gives what is within its share
        kept = [shard for shard, name in before.items() if name == member and held[shard] == member]
        assert len(kept) >= min(list(before.values()).count(member), shards // len(members))
        assert len(kept) <= share


def test_nobody_takes_a_shard_while_the_former_division_is_out() -> None:
    seen = Seen("b", 2, ["a", "b"], {3: "a"}, is_former=True)
    assert choose_shards(seen) == Choice()
    assert choose_shards(Seen("b", 2, ["a", "b"], {})) == Choice(take=(1,))


def test_who_is_no_member_takes_nothing() -> None:
    assert choose_shards(Seen("z", 2, ["a"], {})) == Choice()
