"""The error tree: one exit code a kind, hints and retry classes that survive pickling (DESIGN §9, CONTRACT §1)."""

from __future__ import annotations

import pickle
from itertools import permutations

import pytest

from tidemark import errors
from tidemark.errors import Retry, TidemarkError, worst_exit_code

EXIT_CODES = {2, 3, 5, 6, 7, 10, 21, 22, 23, 24, 30, 31}


def tree(root: type[TidemarkError] = TidemarkError) -> list[type[TidemarkError]]:
    return [
        root,
        *(below for child in root.__subclasses__() if child.__module__ == errors.__name__ for below in tree(child)),
    ]


@pytest.mark.parametrize("kind", tree()[1:], ids=lambda kind: kind.__name__)
def test_every_error_has_an_exit_code_of_the_contract_and_a_retry_class(kind: type[TidemarkError]) -> None:
    assert kind.kind in EXIT_CODES
    assert isinstance(kind.retry, Retry)
    assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.__name__)
def test_an_error_crosses_process_borders_whole(kind: type[TidemarkError]) -> None:
    error = kind("no such link: x", hint="./tidemark status", subject="x")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.as_json() == error.as_json()
    assert again.as_json()["kind"] == kind.kind
    assert str(again) == "no such link: x"


def test_each_branch_has_one_exit_code() -> None:
    branches = [child.kind for child in TidemarkError.__subclasses__()]
    assert len(branches) == len(set(branches))
    for branch in TidemarkError.__subclasses__():
        assert {kind.kind for kind in tree(branch)} == {branch.kind}


@pytest.mark.parametrize("order", list(permutations([22, 21, 7, 23])))
def test_of_several_troubles_the_gravest_gives_the_exit_code(order: tuple[int, ...]) -> None:
    left = list(order)
    for expected in (22, 21, 7, 23):
        assert worst_exit_code({0, *left}) == expected
        left.remove(expected)
    assert worst_exit_code({0}) == 0
    assert worst_exit_code(set()) == 0
    assert worst_exit_code({5, 23}) == 23
