"""Any group, whatever one round saw of it: what the state processing flow may never do."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tidemark.cluster.replicas.core.election import Restart
from tidemark.cluster.replicas.core.quorum import has_majority
from tidemark.cluster.replicas.core.roles import (
    ORIGIN,
    Arbitrator,
    Group,
    LogEnd,
    Member,
    Position,
    Role,
    find_master,
)
from tidemark.cluster.replicas.core.status import Evaluation, Kind, evaluate

positions = st.builds(Position, st.integers(1, 2), st.integers(0, 3))
states = st.tuples(st.sampled_from(Role), positions, st.integers(0, 1))


@st.composite
def groups(draw: st.DrawFn) -> Group:
    found = draw(st.lists(states, min_size=1, max_size=5))
    members = tuple(Member("ABCDE"[i], role, LogEnd(at, crc)) for i, (role, at, crc) in enumerate(found))
    quorum = draw(st.integers(1, len(members)))
    return Group(members, quorum, draw(st.sampled_from(Arbitrator)), draw(st.just(ORIGIN.position) | positions))


def settle(group: Group) -> Evaluation:
    """Evaluate again until nothing changes any more, as rounds do."""
    for _ in range(2 * len(group.members)):
        found = evaluate(group, consistent=True)
        if found.group == group:
            return found
        group = found.group
    raise AssertionError(f"the roles go in a circle: {group}")


@given(groups(), st.booleans(), st.sampled_from(Restart))
def test_what_one_evaluation_may_never_do(group: Group, consistent: bool, restart: Restart) -> None:
    found = evaluate(group, consistent=consistent, restart=restart)
    masters = [member for member in found.group.members if member.role is Role.MASTER]
    assert [member.name for member in masters] == ([found.master] if found.master else [])
    assert [m.name for m in found.group.members if not m.online] == [m.name for m in group.members if not m.online]
    assert [m.end for m in found.group.members] == [m.end for m in group.members]
    if master := find_master(found.group):
        assert group.has_all_committed(master)
        assert has_majority(len(group.online), len(group.members), group.arbitrated)
        ends_alike = [m for m in found.group.members if m.end.position == master.end.position]
        assert all(m.end == master.end for m in ends_alike if m.role is Role.SLAVE)
    kinds = {action.kind for action in found.actions}
    if Kind.ELECT in kinds:
        assert consistent or len(group.members) == 1
    assert (Kind.WAIT in kinds or Kind.STEP_DOWN in kinds) == (found.master is None)
    told = {action.member for action in found.actions}
    assert all(new.role is old.role or new.name in told for new, old in zip(found.group.members, group.members, strict=True))


@given(groups())
def test_who_is_in_step_behind_a_master_has_what_is_committed(group: Group) -> None:
    found = evaluate(group, consistent=True)
    for member in found.group.members if found.master else ():
        assert member.role in (Role.UNSYNCED, Role.OFFLINE) or member.end.position >= group.committed


@given(groups())
def test_rounds_that_see_the_same_come_to_rest(group: Group) -> None:
    found = settle(group)
    assert Kind.ELECT not in {action.kind for action in found.actions}
    everybody = replace(group, committed=ORIGIN.position, members=tuple(_back(member) for member in group.members))
    assert settle(everybody).master is not None, "all are there, and nobody is the master"


def _back(member: Member) -> Member:
    return member if member.online else replace(member, role=Role.UNSYNCED)
