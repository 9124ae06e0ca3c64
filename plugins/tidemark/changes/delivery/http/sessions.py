"""Sessions of clients, each with its feed. Their number is bounded, and who is idle is ended."""

from __future__ import annotations

import secrets
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemark.changes.delivery.http.events import Reply
from tidemark.changes.delivery.http.feed import Feed

IDLE_SECONDS = 90.0
MOST_OF_ALL, MOST_OF_TASK = 512, 128


@dataclass
class Session:
    """A client of a task. `feed`: once it has subscribed. `is_busy`: a request is at work. `ahead`: the next reply."""

    id: str
    task: str
    source: str
    used: float
    feed: Feed | None = None
    is_busy: bool = False
    ahead: Future[Reply] | None = None

    def forget_feed(self) -> None:
        """The client has to subscribe again, from its point: what it was to be given may not have come."""
        self.feed = self.ahead = None


@dataclass
class Counts:
    """What was answered since the start, for metrics."""

    requests: dict[tuple[str, int], int] = field(default_factory=dict)  # by path and status
    rows: dict[str, int] = field(default_factory=dict)  # by task
    bytes_out: int = 0
    bytes_in: int = 0


class Sessions:
    """All sessions. Used by the loop's thread alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def count(self, task: str) -> int:
        return sum(session.task == task for session in self._sessions.values())

    def count_ahead(self) -> int:
        """The bytes of replies that are made and not asked for."""
        done = [one.ahead for one in self._sessions.values() if one.ahead is not None and one.ahead.done()]
        return sum(one.result().size for one in done if not one.cancelled() and one.exception() is None)

    def list_tasks(self, source: str) -> list[str]:
        """The tasks that read a source now."""
        return sorted({one.task for one in self._sessions.values() if one.source == source and one.feed is not None})

    def begin(self, task: str, source: str) -> Session | None:
        """A new session; None where there are too many. Sessions that never subscribed, and do not just now, go first."""
        self.end_idle()
        if len(self._sessions) >= MOST_OF_ALL or self.count(task) >= MOST_OF_TASK:
            waiting = [one for one in self._sessions.values() if one.feed is None and one.task == task and not one.is_busy]
            if not waiting:
                return None
            self.end(min(waiting, key=lambda one: one.used))
        session = Session(secrets.token_urlsafe(24), task, source, self._clock())
        self._sessions[session.id] = session
        return session

    def find(self, id_: str, task_is_allowed: Callable[[str], bool]) -> Session | None:
        """The session of this id, if its task is one of the client's."""
        self.end_idle()
        found = self._sessions.get(id_)
        if found is None or not task_is_allowed(found.task):
            return None
        found.used = self._clock()
        return found

    def end(self, session: Session) -> None:
        self._sessions.pop(session.id, None)

    def end_idle(self) -> None:
        limit = self._clock() - IDLE_SECONDS
        for session in [one for one in self._sessions.values() if one.used < limit and not one.is_busy]:
            self.end(session)
