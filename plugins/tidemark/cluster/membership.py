"""How the members of a group change while a node joins or leaves, in two steps: first add, then take away.

Between the steps a group has both, so that it is never without a majority that knows the newest table. Each step may be
done again, and a step of phase 1 after one of phase 2: the result is the same. Pure functions; the record is the caller's.
Source: seed 001 "Implementation of the method"; research/iotdb.md §3.5.
"""

from __future__ import annotations

from itertools import pairwise

from tidemark.cluster.ring import Group, Node, Ring


def pre_joined(group: Group, node: Node, ring: Ring) -> Group:
    """Phase 1 of a node that joins: it is put where it lies on the ring. `ring`: with or without the node.

    A group between whose members it does not come stays as it is.
    """
    if node.name in group:
        return group
    before = ring.left(node.name) if node.name in ring else ring
    known = [(at, name) for at, name in enumerate(group) if name in before]
    for (at, first), (_, last) in pairwise(known):
        if before.between(first, node, last):
            return (*group[: at + 1], node.name, *group[at + 1 :])
    return group


def formally_joined(group: Group, node: Node, ring: Ring, replicas: int) -> Group:
    """Phase 2: the last member leaves a group that has one too many."""
    grown = pre_joined(group, node, ring)
    return grown[:replicas] if node.name in grown else grown


def pre_left(group: Group, leaving: str, replicas: int, after: Ring) -> Group:
    """Phase 1 of a node that leaves: the group gets the member that replaces it. `after`: the ring without the node.

    The group that the node begins is dismissed: it stays as it is, to be read from, until its slots have moved.
    """
    if leaving not in group or group[0] == leaving:
        return group
    replacement = after.group(group[0], replicas)[-1]
    return group if replacement in group else (*group, replacement)


def formally_left(group: Group, leaving: str, replicas: int, after: Ring) -> Group:
    """Phase 2: the node is no member any more. Of the group it begins nothing is left."""
    if group and group[0] == leaving:
        return ()
    return tuple(name for name in pre_left(group, leaving, replicas, after) if name != leaving)
