"""The events of a server from where a store ends on: by its position, or by its GTID set where other logs stand there.

A position is believed where the store's last transaction stands in the same log (`changes.capture.run` judges that). Else
the server must have all that the store has, by GTID, and have the store's last transaction as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tidemark.changes.binlog.gtid_sets import MysqlGtidSet, contains_gtid
from tidemark.changes.capture.identity import read_origin
from tidemark.changes.capture.plain import Gtids
from tidemark.changes.capture.run import OpenDump, Place, parse_gtids
from tidemark.changes.capture.transactions import Rules
from tidemark.changes.connection.dump import open_dump, open_stretches
from tidemark.changes.connection.facts import read_facts, read_logs
from tidemark.changes.connection.login import Server, open_server
from tidemark.changes.connection.model import Dump, FilePosition, SourceSettings
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Reader
from tidemark.changes.store.view import read_next_view
from tidemark.changes.trust.answers import find_stretches, read_log_start
from tidemark.changes.trust.rules import list_missing
from tidemark.errors import CorruptionError, PermanentError
from tidemark.progress import Progress, Tick, ignore_progress

_OWN_STORE = "a server of its own is a source of its own, with a store of its own"


@dataclass(frozen=True)
class Resume:
    """A store and the server it is from. `wants(database, table)`: of the source. `on_server`: is told the address of each
    server whose events are opened."""

    disk: Disk
    login: SourceSettings
    wants: Callable[[str, str], bool]
    follow: bool = False
    on_server: Callable[[tuple[str, int]], object] = bool
    progress: Progress = ignore_progress

    def open_server(self, gtids: Gtids) -> Server:
        """Log in at a server that has all that a store has, `gtids`, and did not give their numbers again; where none does,
        or a store has none, at any."""

        def goes_on(server: Server) -> bool:
            if gtids is None:
                return True
            there = parse_gtids(server.read_gtids())
            if there is None or list_missing(gtids, there) != "":
                return False
            other = self.find_other(server)
            if other is not None:
                self.progress(Tick(f"{server.name} is passed over: {other.message}"))
            return other is None

        return open_server(self.login, goes_on)

    def open_from(self, log: str = "") -> OpenDump:
        """From a store's end on; a new store begins with a log, or the oldest that the server has."""

        def open_events(end: Place | None) -> tuple[Dump, bool]:
            server = self.open_server(end.gtids if end else None)
            self.on_server(server.address)
            try:
                logs = _list_logs(server)
            except BaseException:
                server.close()
                raise
            if end is None:
                return open_dump(server, FilePosition(log or logs[0]), follow=self.follow), False
            if end.gtids is not None and end.position.file not in logs:  # one without anything new behind it may be purged
                server.close()
                return self.open_behind(end), False
            return open_dump(server, end.position, follow=self.follow), True

        return open_events

    def open_behind(self, end: Place, found: PermanentError | None = None) -> Dump:
        """What a server has behind a store's GTID set, in any order. Raises PermanentError where each lacks what the store
        has. `found`: what stands at the store's position; raised where there are no GTIDs."""
        with self.open_server(end.gtids) as server:
            facts, name = read_facts(server), server.name
            login = server.pin_login()
            if end.gtids is None or not facts.has_gtids:
                raise found or PermanentError(f"{name} has no GTIDs, and no log {end.position.file}", subject=name)
            only_store = list_missing(end.gtids, facts.gtids)
            if only_store is None or only_store:
                why = f"; {found.message}" if found else ""
                raise PermanentError(
                    f"{name} lacks what the store has: {only_store or end.gtids}; it was restored or RESET, is behind, or is"
                    f" another one{why}",
                    hint=f"let url name a server that has them; {_OWN_STORE}",
                    subject=name,
                )
            other = self.find_other(server)
            if other is not None:
                raise other
        self.on_server(server.address)
        return open_dump(login, end.gtids, follow=self.follow)

    def find_other(self, server: Server) -> PermanentError | None:
        """What is wrong where the GTID with which the store ends is another transaction at a server: it was restored, and
        gave its numbers again. Where the server purged that log, the GTID sets alone prove the point."""
        from tidemark.changes.capture.known import read_logged, read_stored  # it imports Arrow

        reader, origin = Reader(self.disk), read_origin(self.disk)
        info = reader.view.end.info
        stored = read_stored(reader, info)
        if stored is None or origin is None or not stored.gtid:
            return None
        login, logs, rules = server.pin_login(), _list_logs(server), Rules(self.wants, stops=False)
        place = FilePosition(origin.name_log(info.file, info.change_id), info.offset)
        if place.file in logs:
            # In most cases these are the store's logs: then nothing else is read.
            with suppress(CorruptionError, PermanentError):
                there = read_logged(open_dump(login, place), rules, stored.gtid, most=1)
                if there is not None and stored.may_be(there):
                    return None
        behind = bisect_left(logs, True, key=lambda log: _begins_behind(login, log, stored.gtid))
        if not behind:
            return None
        there = read_logged(open_dump(login, FilePosition(logs[behind - 1])), rules, stored.gtid)
        if there is None or stored.may_be(there):
            return None
        return PermanentError(
            f"{stored.gtid} is another transaction at {server.name} than in the store: it was restored, and gave numbers"
            " again",
            hint=_OWN_STORE,
            subject=stored.gtid,
        )

    def open_logs(self, first: str) -> tuple[Dump, MysqlGtidSet]:
        """All events of the server's logs from one on, or of all where it has none of that name; and what a MySQL says that
        no log has: a restored one was told so, and the first of its logs does not tell it."""
        with self.open_server(parse_gtids(read_next_view(self.disk).gtids)) as server:
            facts, login = read_facts(server), server.pin_login()
        logs = [name for name, _ in facts.logs]
        wanted = logs[logs.index(first) :] if first in logs else logs
        return open_stretches(login, [stretch[0] for stretch in find_stretches(wanted)]), facts.purged


def _list_logs(server: Server) -> list[str]:
    return [name for name, _ in read_logs(server)]


def _begins_behind(login: SourceSettings, log: str, gtid: str) -> bool:
    """Whether a log begins behind a transaction."""
    start = read_log_start(login, log)
    return start is not None and contains_gtid(start.gtids, gtid)
