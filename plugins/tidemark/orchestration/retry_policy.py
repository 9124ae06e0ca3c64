"""Retries by class of error: *soon* here in the task, *later* by Airflow, *operator* and *never* not at all (DESIGN §6, §9).

An error of the soon class that outlives its tries in the task may take minutes, so Airflow retries it. An error that is not
Tidemark's is a defect: a retry would only hide it, except for network errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from tidemark.errors import Retry, TidemarkError, UsageError
from tidemark.spelling import spelling_of_tasks

try:
    from airflow.sdk import RetryDecision, RetryPolicy
except ImportError:  # an Airflow before 3.3: the wheel's metadata refuses it, but nobody has to ask that
    from airflow import __version__ as installed

    raise UsageError(
        f"Tidemark's DAGs need Airflow 3.3, whose tasks decide by an error's class about another try; this is {installed}",
        hint="upgrade Airflow; or run the command by timers: docs/production.md",
        subject="airflow",
    ) from None

T = TypeVar("T")

RETRIES = 5  # at most, per task; the policy can only give up earlier
RETRY_DELAY = timedelta(seconds=10)  # used if the task process was killed, without the policy
FIRST_DELAY_SECONDS = 20.0
LONGEST_DELAY_SECONDS = 600.0
SOON_TRIES = 3
SOON_WAIT_SECONDS = 1.0


class TidemarkRetryPolicy(RetryPolicy):  # type: ignore[misc]
    """Decide, after a failed try, by the error's own class."""

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: object = None) -> RetryDecision:
        if isinstance(exception, TidemarkError):
            if exception.retry in (Retry.SOON, Retry.LATER):
                return RetryDecision.retry(delay_after(try_number), reason=str(exception))
            return RetryDecision.fail(reason=format_advice(exception))
        if isinstance(exception, (ConnectionError, TimeoutError)):
            return RetryDecision.retry(delay_after(try_number), reason=str(exception))
        return RetryDecision.fail(reason=f"{type(exception).__name__}: {exception}: a defect, trying again would not help")


RETRY_ARGUMENTS: Mapping[str, Any] = {"retries": RETRIES, "retry_delay": RETRY_DELAY, "retry_policy": TidemarkRetryPolicy()}
"""What an operator is given, to be retried by this policy."""


def delay_after(try_number: int) -> timedelta:
    """Return 20 s, 40 s, 80 s … 10 min: the wait after that try (counted from 1)."""
    return timedelta(seconds=min(FIRST_DELAY_SECONDS * 2 ** max(try_number - 1, 0), LONGEST_DELAY_SECONDS))


def format_advice(error: TidemarkError) -> str:
    """Return an error's line in a task's log, with the next command."""
    told = f"{error.message}. Next: {error.hint}" if error.hint else error.message
    return spelling_of_tasks(os.environ).spell(told)


def retry_soon(act: Callable[[], T], wait_seconds: float = SOON_WAIT_SECONDS) -> T:
    """Run `act`, and again within seconds while it fails with an error of the soon class; the last failure is raised."""
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

    retrying = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, TidemarkError) and error.retry is Retry.SOON),
        stop=stop_after_attempt(SOON_TRIES),
        wait=wait_exponential(multiplier=wait_seconds, max=10 * wait_seconds),
        reraise=True,
    )
    return retrying(act)
