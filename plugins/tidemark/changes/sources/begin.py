"""Where a new store begins, and the events from there on: those of the server whose log it begins with. Its writer.

A store without a transaction is begun again at another server of its url where that one is away: nobody has read of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tidemark.changes.bootstrap.state import read_state, write_state
from tidemark.changes.bootstrap.tables import list_tables
from tidemark.changes.capture.run import Job, OpenDump, Place, open_writer
from tidemark.changes.connection.login import Server, name_address, open_server
from tidemark.changes.connection.model import Dump, SourceSettings
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Target
from tidemark.changes.store.write import Writer
from tidemark.changes.trust.patterns import Patterns, note_taken
from tidemark.changes.trust.resume import Resume
from tidemark.errors import RetryableError, UnreachableError


@dataclass(frozen=True)
class Begin:
    """Where a new store begins: with a log of the server at `login` ("": the oldest), or with a transaction."""

    log: str = ""
    login: SourceSettings | None = None
    start: Target | None = None


class BegunElsewhereError(RetryableError):
    """A store without a transaction was begun with the log of another server than the one that answers now."""


def begin_with_tables(disk: Disk, login: SourceSettings, wants: Callable[[str, str], bool]) -> Begin:
    """Begin a store with the newest log of a server, and ask for the tables that are there."""
    with open_server(login) as server:
        only = server.pin_login()
        log = [str(row["Log_name"]) for row in server.ask("SHOW BINARY LOGS")][-1]
        # The log comes first: a table that is made behind this line stands in it wholly.
        names = [name for name, found in list_tables(server).items() if wants(found.database, found.table)]
    # CRASH WINDOW: tables are asked for, and nothing is captured: the next capture begins with the log that is newest then,
    # and asks for the tables that are there then.
    write_state(disk, read_state(disk).with_waiting(names))
    return Begin(log, login=only)


def open_begun(resume: Resume, begin: Begin) -> OpenDump:
    """The events of a store that is begun, or goes on. One that is begun with a log takes it from that log's server, or
    raises BegunElsewhereError: that one is away, and another one answers."""

    def open_events(end: Place | None) -> tuple[Dump, bool]:
        if end is not None or begin.login is None:
            return resume.open_from(begin.log)(end)
        if resume.login.only not in (None, begin.login.only):
            raise _begun_elsewhere(begin.login)
        try:
            return replace(resume, login=begin.login).open_from(begin.log)(None)
        except UnreachableError as away:
            with open_server(resume.login) as server:
                if server.read_identity() == begin.login.only:
                    raise
            raise _begun_elsewhere(begin.login) from away

    return open_events


def _begun_elsewhere(login: SourceSettings) -> BegunElsewhereError:
    return BegunElsewhereError(
        f"source {login.name} was begun at {name_address(login.addresses[0])}, and another server of its url answers; its"
        " store has nothing yet",
        hint="run it again",
    )


def pin_job(job: Job, resume: Resume, begin: Begin, server: Server) -> Job:
    """A job with the events of one server."""
    pinned = replace(resume, login=server.pin_login())
    return replace(job, open_dump=open_begun(pinned, begin), switch=pinned.open_behind)


@contextmanager
def open_noted(job: Job, patterns: Patterns) -> Iterator[Writer]:
    """The writer of a job's store, which notes that what comes next is captured with these patterns."""
    with open_writer(job) as writer:
        note_taken(job.disk, patterns, writer.durable.seq + 1)
        yield writer
