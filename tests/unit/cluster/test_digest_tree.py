"""Two members are equal if the roots of their trees are, and what differs is found by asking for little else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.cluster.replicas.core.digest_tree import FEW, DigestTree, Leaf, compare_trees

FILES = st.dictionaries(st.text(max_size=3), st.sampled_from("abc"), max_size=60)


def tree_of(files: dict[str, str]) -> DigestTree:
    return DigestTree(Leaf(location, sha256, "1") for location, sha256 in files.items())


@given(FILES, FILES)
def test_differences_are_those_of_the_files_and_none_if_the_roots_are_equal(
    mine: dict[str, str], other: dict[str, str]
) -> None:
    found = compare_trees(tree_of(mine), tree_of(other)).differences
    told = {(one or two).location for one, two in found if one or two}
    assert told == {at for at in mine.keys() | other.keys() if mine.get(at) != other.get(at)}
    assert (tree_of(mine).root == tree_of(other).root) is (mine == other)


@given(FILES)
def test_the_order_in_which_files_came_does_not_count(files: dict[str, str]) -> None:
    backwards = dict(reversed(files.items()))
    assert tree_of(files).root == tree_of(backwards).root


@pytest.mark.full
def test_of_many_files_few_are_asked_for() -> None:
    files = {f"data/root.sg/{n}.tsfile": "aa" for n in range(20_000)}
    one = tree_of(files)
    assert compare_trees(one, tree_of(files)).asked == 1
    found = compare_trees(one, tree_of({**files, "data/root.sg/777.tsfile": "bb"}))
    assert [(ours.sha256, theirs.sha256) for ours, theirs in found.differences if ours and theirs] == [("aa", "bb")]
    assert found.asked < 100 + FEW


def test_the_same_bytes_by_another_operation_are_a_difference() -> None:
    one, two = DigestTree([Leaf("a", "aa", "1")]), DigestTree([Leaf("a", "aa", "2")])
    assert compare_trees(one, two).differences == ((Leaf("a", "aa", "1"), Leaf("a", "aa", "2")),)


def test_an_empty_tree_lacks_everything() -> None:
    files = {str(n): "aa" for n in range(50)}
    assert len(compare_trees(tree_of(files), tree_of({})).differences) == 50
