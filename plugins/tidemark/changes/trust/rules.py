"""What is wrong with a server as a source of changes, and the SQL that mends it. Pure.

Each rule looks at one thing. A warning is a finding that is right: nothing is lost by it. With `unsafe = "mark"` what makes
single rows uncertain is a warning, too. Sources: cdc.md §3.6; the manuals of MySQL 8.4 and MariaDB 10.11 on binary logs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.trust.answers import Answers, Gtids, StoreEnd, find_rest
from tidemark.changes.trust.headroom import RED_SHARE, has_other_logs, has_rest, measure_headroom
from tidemark.changes.trust.patterns import Patterns
from tidemark.errors import BinlogGapError, PermanentError
from tidemark.progress import format_count

CLOCK_SECONDS, CLOCK_WRONG_SECONDS = 5.0, 60.0
SHORT_PURGE_SECONDS = 86_400
WEEK_SECONDS = 604_800
_SHOWN = 5


@dataclass(frozen=True)
class Finding:
    """One finding. `hint`: the SQL or the next command. `kind`: the exit code if it is not right."""

    subject: str
    detail: str
    hint: str = ""
    kind: int = 0

    @property
    def ok(self) -> bool:
        return self.kind == 0


@dataclass(frozen=True)
class Wanted:
    """What the source's settings and its store say. `needs_names`: the log must tell the names of columns; else the catalog
    does. `replica_name`: the name under which our dumps are connected."""

    name: str
    server_id: int = 0
    stops: bool = True
    end: StoreEnd | None = None
    needs_names: bool = True
    patterns: Patterns = field(default_factory=Patterns)

    @property
    def replica_name(self) -> str:
        return f"tidemark-{self.name}"


def judge(answers: Answers, wanted: Wanted) -> tuple[Finding, ...]:
    """All findings, in the order of the rules. Without a binary log nothing else is judged."""
    if not answers.facts.log_bin:
        return (_bad("log_bin", "the server writes no binary log", _option("log_bin = binlog")),)
    return tuple(finding for rule in RULES for finding in rule(answers, wanted))


Rule = Callable[[Answers, Wanted], Iterator[Finding]]


def _bad(subject: str, detail: str, hint: str) -> Finding:
    return Finding(subject, detail, hint, PermanentError.kind)


def _warn(subject: str, detail: str, hint: str = "") -> Finding:
    return Finding(subject, f"warning: {detail}" + (f": {hint}" if hint else ""))


def _doubt(wanted: Wanted, subject: str, detail: str, hint: str) -> Finding:
    return _bad(subject, detail, hint) if wanted.stops else _warn(subject, detail, hint)


def _option(line: str) -> str:
    return f"write `{line}` under [mysqld] in the server's option file, and start it again"


def _name(names: Sequence[str]) -> str:
    left = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {left} more" if left > 0 else "")


def _quote(table: str) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in table.split(".", 1))


# what the log holds


def check_format(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    found = answers.facts.binlog_format
    if found == "ROW":
        yield Finding("binlog_format", "ROW")
    else:
        mend = "SET GLOBAL binlog_format = 'ROW'; sessions that are connected keep their own"
        yield _doubt(wanted, "binlog_format", f"{found}: changes come as statements", mend)


def check_image(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    found = answers.facts.row_image
    if found in ("FULL", ""):  # servers before the variable log whole rows
        yield Finding("binlog_row_image", found or "FULL")
    else:
        mend = "SET GLOBAL binlog_row_image = 'FULL'; sessions that are connected keep their own"
        yield _doubt(wanted, "binlog_row_image", f"{found}: columns that a statement leaves alone are absent", mend)


def check_metadata(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    found = answers.facts.row_metadata
    if found == "FULL":
        yield Finding("binlog_row_metadata", "FULL")
    elif not wanted.needs_names:
        yield _warn("binlog_row_metadata", f"{found or 'not known'}: names come from the catalog; a table that is changed"
                    " before its rows are captured is parked")  # fmt: skip
    elif found:
        mend = "SET GLOBAL binlog_row_metadata = 'FULL'"
        yield _doubt(wanted, "binlog_row_metadata", f"{found}: the log has no names of columns", mend)
    else:
        version = answers.facts.version
        mend = 'metadata = "catalog" of the source; MySQL 8.0.1 and MariaDB 10.5 have binlog_row_metadata: upgrade'
        yield _doubt(wanted, "binlog_row_metadata", f"{version} does not log the names of columns", mend)


def check_filters(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    del wanted
    facts = answers.facts
    databases = sorted({table.partition(".")[0] for table in answers.tables})
    logged, left_out = (set(filter(None, text.split(","))) for text in (facts.do_db, facts.ignore_db))
    lost = [name for name in databases if (logged and name not in logged) or name in left_out]
    if lost:
        yield _bad(
            "binlog filters",
            f"changes of {_name(lost)} are not logged",
            "take binlog_do_db and binlog_ignore_db out of the server's option file, and start it again",
        )
    elif logged or left_out:
        yield _warn("binlog filters", "the server has some; they leave out no table of this source that is there now")
    else:
        yield Finding("binlog filters", "none")


def check_replica(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    del wanted
    facts = answers.facts
    if facts.is_replica and not facts.log_replica_updates:
        new = not facts.is_maria and facts.version_numbers >= (8, 0, 26)
        line = "log_replica_updates = ON" if new else "log_slave_updates = ON"
        yield _bad("replica", "it does not log the changes that it replicates", _option(line))
    elif facts.is_replica is None:
        yield _warn("replica", "the login may not ask whether it is one")
    else:
        yield Finding("replica", "it logs what it replicates" if facts.is_replica else "it is none")


def check_checksum(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    del wanted
    if answers.facts.checksum in ("NONE", ""):
        mend = "SET GLOBAL binlog_checksum = 'CRC32'"
        yield _warn("binlog_checksum", "the log has none, so a flipped bit may go unseen", mend)
    else:
        yield Finding("binlog_checksum", answers.facts.checksum)


# tables


def check_cascades(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    facts = answers.facts
    if not answers.cascades:
        yield Finding("foreign keys", "none changes rows on its own")
    elif not facts.is_maria and facts.version_numbers >= (9, 6):
        yield Finding("foreign keys", f"{len(answers.cascades)} change rows on their own, and the server logs that")
    else:
        told = _name([f"{one.table} {one.rule}" for one in answers.cascades])
        first = answers.cascades[0]
        mend = (
            f"ALTER TABLE {_quote(first.table)} DROP FOREIGN KEY {_quote(first.name)}, and add it again with RESTRICT;"
            ' or leave the table out (exclude); or unsafe = "mark"'
        )
        yield _doubt(wanted, "foreign keys", f"rows that they change stand in no log: {told}", mend)


def check_keys(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    del wanted
    if not answers.tables:
        yield _warn("tables", "none is seen that the patterns of the source mean, or SELECT is missing")
        return
    count = format_count(len(answers.tables), "table")
    if answers.without_key:
        mend = f"ALTER TABLE {_quote(answers.without_key[0])} ADD PRIMARY KEY (…)"
        yield _warn("tables", f"{count}; without a key: no row can be told from another like it, tasks divide it by whole"
                    f" rows: {_name(answers.without_key)}", mend)  # fmt: skip
    else:
        yield Finding("tables", f"{count}, each with a key")


def check_sequences(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    """What a sequence holds is logged as a row, so a store and its consumers have it."""
    del wanted
    if answers.sequences:
        mend = f'exclude = ["{answers.sequences[0]}"] of the source leaves it out of the store'
        told = f"delta and catalog sinks leave them out: {_name(answers.sequences)}; {mend}"
        yield Finding("sequences", told)


def check_patterns(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    """A table may come later, so a pattern without one is no fault."""
    if idle := wanted.patterns.list_idle(answers.names):
        yield _warn("patterns", "; ".join(idle))


def check_locks(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    """Which tables a bootstrap locks. A lock is short: that of one chunk. It needs the right LOCK TABLES."""
    del wanted
    by_place = not answers.facts.has_gtids  # such a MySQL does not tell the place of a snapshot
    locked = answers.tables if by_place else answers.without_snapshot
    if not locked:
        yield Finding("locks", "a bootstrap locks no table")
        return
    rights = {right.strip() for rights in _read_grants(answers) for right in rights.upper().split(",")}
    ends = "gtid_mode = ON" if by_place else f"ALTER TABLE {_quote(locked[0])} ENGINE = InnoDB"
    missing = "" if rights & {"LOCK TABLES", *_EVERYTHING} else "; GRANT LOCK TABLES ON the databases TO the login"
    told = f"a bootstrap keeps writers out of a table while it reads a chunk of it: {_name(locked)}"
    yield _warn("locks", told, f"{ends} ends that{missing}")


# rights

_GRANT = re.compile(r"GRANT (?P<rights>.+?) ON (?P<scope>\S+|`.*`\.\S+) TO (?P<user>.+?)(?: WITH .*)?", re.DOTALL)
_EVERYTHING = {"ALL PRIVILEGES", "ALL", "SUPER"}
_NEEDED = (("REPLICATION SLAVE", "REPLICATION REPLICA"), ("REPLICATION CLIENT", "BINLOG MONITOR"))


def _read_grants(answers: Answers) -> list[str]:
    """The rights of each grant, wherever it holds. A role is none."""
    return [found["rights"] for grant in answers.facts.grants if (found := _GRANT.fullmatch(grant))]


def check_rights(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    del wanted
    everywhere, somewhere, user, has_role = set[str](), set[str](), "…", False
    for grant in answers.facts.grants:
        found = _GRANT.fullmatch(grant)
        if found is None:
            has_role = True
            continue
        user = found["user"]
        rights = {right.strip().upper() for right in found["rights"].split(",")}
        somewhere |= {right.partition(" (")[0] for right in rights}
        everywhere |= rights if found["scope"] == "*.*" else set()
    missing = [names[0] for names in _NEEDED if not everywhere & {*names, *_EVERYTHING}]
    mend = [f"GRANT {', '.join(missing)} ON *.* TO {user}"] if missing else []
    if not somewhere & {"SELECT", "ALL PRIVILEGES", "ALL"}:
        missing.append("SELECT")
        mend.append(f"GRANT SELECT ON the databases TO {user}" if not answers.tables else f"GRANT SELECT ON *.* TO {user}")
    if missing and has_role:
        yield _warn("rights", f"a role may give {', '.join(missing)}: what it gives is not told")
    elif missing:
        yield _bad("rights", f"missing: {', '.join(missing)}", "; ".join(mend))
    else:
        yield Finding("rights", "REPLICATION SLAVE, REPLICATION CLIENT, SELECT")


def check_server_id(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    facts = answers.facts
    if not facts.server_id:
        yield _bad("server_id", "the server's own is 0, with which it serves no replica", "SET GLOBAL server_id = 1")
        return
    others = {each.server_id: each.host for each in facts.replicas or () if each.host != wanted.replica_name}
    if wanted.server_id == facts.server_id or wanted.server_id in others:
        whose = others.get(wanted.server_id) or "the server itself"
        yield _bad(
            "server_id",
            f"{wanted.server_id} is in use by {whose}",
            f"let [sources.{wanted.name}] have server_id = 0, or another one",
        )
    elif facts.replicas is None and wanted.server_id:
        right = "REPLICATION MASTER ADMIN" if facts.is_maria else "REPLICATION SLAVE"
        yield _warn("server_id", f"who else replicates may not be asked ({right}); with server_id = 0 nobody has ours")
    else:
        yield Finding(
            "server_id", f"{wanted.server_id} is free" if wanted.server_id else "one that nobody there uses is taken"
        )


# time


def check_clock(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    del wanted
    ahead = answers.facts.time - answers.time
    told = f"{abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} ours"
    if abs(ahead) > CLOCK_WRONG_SECONDS:
        yield _bad("clock", told, "set both clocks by NTP")
    elif abs(ahead) > CLOCK_SECONDS:
        yield _warn("clock", told, "set both clocks by NTP")
    else:
        yield Finding("clock", "agrees with ours")


def check_purge(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    del wanted
    facts = answers.facts
    reach = ""
    if answers.oldest is not None and answers.oldest.time:
        reach = f"; the oldest log begins {(facts.time - answers.oldest.time) / 3600:,.1f} hours ago"
    if facts.expire_seconds:
        told = f"logs go {facts.expire_seconds / 3600:,.1f} hours after they are closed{reach}"
        if facts.expire_seconds < SHORT_PURGE_SECONDS:
            yield _warn("purge", told, f"SET GLOBAL {_expire_statement(answers)}")
        else:
            yield Finding("purge", told)
    elif facts.space_limit:
        yield Finding("purge", f"the oldest log goes above {facts.space_limit:,} bytes of all{reach}")
    else:
        yield _warn("purge", f"logs go only by hand{reach}: is its disk watched?")


def _expire_statement(answers: Answers) -> str:
    facts = answers.facts
    if facts.is_maria and facts.version_numbers < (10, 6):
        return f"expire_logs_days = {WEEK_SECONDS // 86_400}"
    return f"binlog_expire_logs_seconds = {WEEK_SECONDS}"


def check_position(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    """Whether the server still has what follows the store."""
    end = wanted.end
    if end is None:
        yield Finding("position", "nothing is captured yet")
        return
    place = f"{end.position.file}:{end.position.position}"
    names = [name for name, _ in answers.facts.logs]
    rest = find_rest(names, end.position.file)
    has_it = has_rest(answers, end)
    if has_it and end.position.file in rest:
        yield Finding("position", f"the server has what follows {place}")
    elif not has_it and has_other_logs(answers, end):
        yield Finding(
            "position",
            f"{answers.address} has other logs than the store, and no more what follows {place}",
            "let url name a server that has it; or give this one a source and a store of its own",
            BinlogGapError.kind,
        )
    elif has_it:
        yield Finding("position", f"{end.position.file} is purged; by GTID the server has what follows {end.gtids}")
    else:
        first = rest[0] if rest else "none"
        yield Finding(
            "position",
            f"what follows {place} is purged: the server's logs go on with {first}",
            f"./tidemark changes repair {wanted.name} reads the tables anew; what is lost stands in no log",
            BinlogGapError.kind,
        )


def check_identity(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    """Whether the server has every transaction that the store has, by GTID."""
    if wanted.end is None or not wanted.end.gtids or not answers.facts.has_gtids:
        return
    only_store = list_missing(wanted.end.gtids, answers.facts.gtids)
    if only_store is None:
        kind = "MariaDB" if answers.facts.is_maria else "MySQL"
        yield _bad("identity", f"a {kind}, and the store is from the other kind", "give it a source and a store of its own")
    elif only_store:
        yield _bad(
            "identity",
            f"the server lacks what the store has: {only_store}; it was restored or RESET, is behind, or is another one",
            "let url name a server that has them; or give this one a source and a store of its own",
        )
    else:
        yield Finding("identity", f"the server has all that the store has: {wanted.end.gtids}")


def list_missing(has: Gtids, there: Gtids) -> str | None:
    """The transactions of one set that another one lacks, as text; None where they cannot be compared."""
    if isinstance(has, MysqlGtidSet) and isinstance(there, MysqlGtidSet):
        return str(has - there)
    if isinstance(has, MariaGtidPosition) and isinstance(there, MariaGtidPosition):
        return ", ".join(f"domain {domain}: {first} to {last}" for domain, (first, last) in (has - there).items())
    return None


def check_headroom(answers: Answers, wanted: Wanted) -> Iterator[Finding]:
    room = measure_headroom(answers, wanted.end)
    if room.hours is None:
        yield Finding("headroom", "the server removes no log on its own")
    elif room.is_red:
        yield Finding(
            "headroom",
            f"{room.hours:,.1f} hours until what comes next is purged, less than {RED_SHARE:.0%} of {room.purge_hours:,.1f}",
            f"./tidemark changes capture {wanted.name}; and SET GLOBAL {_expire_statement(answers)}",
            PermanentError.kind,
        )
    else:
        yield Finding("headroom", f"{room.hours:,.1f} hours until what comes next is purged")


RULES: tuple[Rule, ...] = (
    *(check_format, check_image, check_metadata, check_filters, check_replica, check_checksum),
    *(check_cascades, check_keys, check_patterns, check_sequences, check_locks, check_rights),
    *(check_server_id, check_clock, check_purge, check_identity, check_position, check_headroom),
)
