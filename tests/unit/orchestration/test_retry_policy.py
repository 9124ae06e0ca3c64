"""Who tries again: soon inside the task, later by Airflow, operator and never by nobody."""

from __future__ import annotations

import inspect
import runpy

import pytest
from airflow.sdk.definitions.retry_policy import RetryAction

from tidemark import errors
from tidemark.errors import (
    DiskFullError,
    GuardError,
    HostKeyError,
    LeaseHeldError,
    Retry,
    TidemarkError,
    UnreachableError,
    UsageError,
)
from tidemark.orchestration.retry_policy import RETRIES, SOON_TRIES, TidemarkRetryPolicy, delay_after, retry_soon

ALL_ERRORS = sorted(
    (c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, TidemarkError)), key=lambda c: c.__name__
)


@pytest.mark.parametrize("kind", ALL_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_of_the_tree_is_decided_by_its_class(kind: type[TidemarkError]) -> None:
    decision = TidemarkRetryPolicy().evaluate(kind("it broke", hint="./tidemark doctor"), 1, RETRIES)
    again = kind.retry in (Retry.SOON, Retry.LATER)
    assert decision.action is (RetryAction.RETRY if again else RetryAction.FAIL)
    assert "it broke" in decision.reason


def test_a_failure_that_needs_somebody_says_what_to_do() -> None:
    decision = TidemarkRetryPolicy().evaluate(HostKeyError("key differs", hint="./tidemark doctor"), 1, RETRIES)
    assert decision.reason == "key differs. Next: ./tidemark doctor"


def test_a_held_lease_is_waited_for_ever_longer_up_to_ten_minutes() -> None:
    policy = TidemarkRetryPolicy()
    waits = [policy.evaluate(LeaseHeldError("held"), n, RETRIES).retry_delay.total_seconds() for n in range(1, 9)]
    assert waits[:3] == [20, 40, 80]
    assert waits == sorted(waits)
    assert waits[-1] == 600
    assert delay_after(1).total_seconds() == 20


@pytest.mark.parametrize("kind", [ConnectionResetError, TimeoutError, BrokenPipeError])
def test_the_network_s_own_errors_are_tried_later(kind: type[Exception]) -> None:
    assert TidemarkRetryPolicy().evaluate(kind(), 1, RETRIES).action is RetryAction.RETRY


def test_a_defect_is_not_hidden_by_trying_again() -> None:
    decision = TidemarkRetryPolicy().evaluate(KeyError("x"), 1, RETRIES)
    assert decision.action is RetryAction.FAIL
    assert "KeyError" in decision.reason


class Flaky:
    """Fails with the given errors, one a call, then answers."""

    def __init__(self, *troubles: Exception) -> None:
        self.troubles = list(troubles)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.troubles:
            raise self.troubles.pop(0)
        return "done"


def test_what_heals_within_seconds_is_tried_again_inside_the_task() -> None:
    flaky = Flaky(UnreachableError("no route"), UnreachableError("no route"))
    assert retry_soon(flaky, wait_seconds=0.001) == "done"
    assert flaky.calls == 3 == SOON_TRIES


def test_what_does_not_heal_within_seconds_is_handed_on() -> None:
    flaky = Flaky(*[UnreachableError(f"no route {n}") for n in range(9)])
    with pytest.raises(UnreachableError, match="no route 2"):
        retry_soon(flaky, wait_seconds=0.001)
    assert flaky.calls == SOON_TRIES


@pytest.mark.parametrize(
    "trouble", [LeaseHeldError("held"), DiskFullError("full"), GuardError("22"), UsageError("2"), KeyError()]
)
def test_nothing_else_is_tried_again_inside_the_task(trouble: Exception) -> None:
    flaky = Flaky(trouble)
    with pytest.raises(type(trouble)):
        retry_soon(flaky, wait_seconds=0.001)
    assert flaky.calls == 1


def test_an_airflow_before_3_3_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import airflow.sdk

    monkeypatch.setattr(airflow, "__version__", "3.2.2")
    monkeypatch.delattr(airflow.sdk, "RetryPolicy", raising=False)
    monkeypatch.setattr(airflow.sdk, "__getattr__", _has_not, raising=False)
    with pytest.raises(UsageError, match=r"need Airflow 3\.3, .* this is 3\.2\.2") as refused:
        runpy.run_module("tidemark.orchestration.retry_policy")
    assert "upgrade Airflow" in refused.value.hint


def _has_not(name: str) -> object:
    raise AttributeError(name)
