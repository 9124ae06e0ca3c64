"""A file has ten minutes, and what its size takes at the slowest rate worth waiting for."""

from __future__ import annotations

from tidemark.errors import Retry
from tidemark.transfer.limits import LEAST_SECONDS, FileDeadlines


def test_a_file_has_its_time_from_the_first_asking_on() -> None:
    deadlines = FileDeadlines(slowest=1000.0)
    deadlines.begin_file("a", 100.0)
    deadlines.begin_file("a", 500.0)  # asked for again, after a cut
    allowed = LEAST_SECONDS + 50
    assert deadlines.overdue_error("a", 50_000, 100.0 + allowed) is None
    error = deadlines.overdue_error("a", 50_000, 100.0 + allowed + 1)
    assert error is not None and error.retry is Retry.SOON and "a (50000 bytes)" in error.message and "slowest" in error.hint
    assert error.subject == "a"


def test_files_that_share_a_line_have_more() -> None:
    deadlines = FileDeadlines(slowest=1000.0)
    deadlines.begin_file("a", 0.0)
    late = LEAST_SECONDS + 51
    assert deadlines.overdue_error("a", 50_000, late) is not None
    assert deadlines.overdue_error("a", 50_000, late, sharing=4) is None


def test_what_came_or_was_never_asked_for_is_in_no_hurry() -> None:
    deadlines = FileDeadlines(slowest=1000.0)
    deadlines.begin_file("a", 0.0)
    deadlines.end_file("a")
    assert deadlines.overdue_error("a", 1, 1e9) is None and deadlines.overdue_error("b", 1, 1e9) is None


def test_without_a_slowest_rate_there_is_no_deadline() -> None:
    deadlines = FileDeadlines(slowest=0.0)
    deadlines.begin_file("a", 0.0)
    assert deadlines.overdue_error("a", 1, 1e9) is None
