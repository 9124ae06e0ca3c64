"""Who tries again: *soon* here inside the task, *later* Airflow, *operator* and *never* nobody (DESIGN §6, §9).

A failure of the soon class that outlives its tries inside the task is a matter of minutes, so Airflow takes it over. An
error that is not Tidemark's is a defect: trying again would only hide it, except for what the network does to anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from airflow.sdk import RetryDecision, RetryPolicy

from tidemark.errors import Retry, TidemarkError

T = TypeVar("T")

RETRIES = 5  # at most, per task; the policy can only give up earlier
RETRY_DELAY = timedelta(seconds=10)  # where the policy is not asked: the task process was killed
FIRST_DELAY_SECONDS = 20.0
LONGEST_DELAY_SECONDS = 600.0
SOON_TRIES = 3
SOON_WAIT_SECONDS = 1.0


class TidemarkRetryPolicy(RetryPolicy):  # type: ignore[misc]
    """Airflow's question after a failed try, answered from the error's own class."""

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: object = None) -> RetryDecision:
        if isinstance(exception, TidemarkError):
            if exception.retry in (Retry.SOON, Retry.LATER):
                return RetryDecision.retry(delay_after(try_number), reason=str(exception))
            return RetryDecision.fail(reason=format_advice(exception))
        if isinstance(exception, (ConnectionError, TimeoutError)):
            return RetryDecision.retry(delay_after(try_number), reason=str(exception))
        return RetryDecision.fail(reason=f"{type(exception).__name__}: {exception}: a defect, trying again would not help")


def delay_after(try_number: int) -> timedelta:
    """20 s, 40 s, 80 s … 10 min: the wait after that try (counted from 1)."""
    return timedelta(seconds=min(FIRST_DELAY_SECONDS * 2 ** max(try_number - 1, 0), LONGEST_DELAY_SECONDS))


def format_advice(error: TidemarkError) -> str:
    """What a task's log says of an error, with the next command."""
    return f"{error.message}. Next: {error.hint}" if error.hint else error.message


def retry_soon(act: Callable[[], T], wait_seconds: float = SOON_WAIT_SECONDS) -> T:
    """Run `act`, again within seconds while it fails with an error of the soon class; the last failure is raised."""
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

    retrying = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, TidemarkError) and error.retry is Retry.SOON),
        stop=stop_after_attempt(SOON_TRIES),
        wait=wait_exponential(multiplier=wait_seconds, max=10 * wait_seconds),
        reraise=True,
    )
    return retrying(act)
