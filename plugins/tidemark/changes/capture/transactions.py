"""From the events of a log to whole transactions, in order. Touches nothing.

`Transactions` is given raw events as files or a server hold them. It gives `Group`s: what is known of a transaction when it
begins, and its items while they are read, so that a transaction may be larger than memory. An item is a record, or an event
with rows: these are decoded later, many together. A group whose end does not come raises `CutOff` out of its items.

What cannot be trusted is refused with the sentence that mends it: changes that came as statements, an incident, rows of a
table that the log does not describe. With `unsafe = "mark"` a record stands in the place of what is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from tidemark.changes.binlog.events import Gtid, Incident, MariaGtid, Query, XaPrepare, Xid
from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.binlog.layout import FormatDescription, Header
from tidemark.changes.binlog.reader import Event, EventDecoder, Plain
from tidemark.changes.binlog.rows import Rows
from tidemark.changes.binlog.tables import Table
from tidemark.changes.capture.definitions import Catalog, Place, Where, find_renames, read_statement
from tidemark.changes.capture.identity import number_of
from tidemark.changes.capture.plain import Feed, Gtids, Head, Run, Stretch, make_run
from tidemark.changes.capture.rows import MOST_BYTES, Item, count_bytes
from tidemark.changes.capture.statements import Sort, find_savepoint, find_xa, name_xa, sort_statement
from tidemark.changes.connection.model import Block, RawEvent
from tidemark.changes.store.model import BinlogInfo, Ddl, Mark, Transaction
from tidemark.errors import CorruptionError, PermanentError, TidemarkError, UnsupportedError

COMMIT, XA_PREPARE, XA_COMMIT, XA_ROLLBACK, UNPROVED = "commit", "xa_prepare", "xa_commit", "xa_rollback", "unproved"
"""Words of the marks that stand in a transaction."""
GO_ON = (
    'unsafe = "mark" of the source goes on without, and then ./tidemark changes bootstrap SOURCE --tables NAME --again'
    " reads what a table has now"
)
ROLLED_BACK = "rows that were rolled back stand in the log, with others of tables that cannot be rolled back"
MOST_HELD = 64 << 20
"""Bytes of rows that are held back behind a savepoint."""
MOST_MISSES = 8
XID = Mark(COMMIT, "xid")
_ROWS_ALONE = "SET GLOBAL binlog_format = 'ROW' at the server; sessions that are connected keep their own"
_GTIDS, _GTID_SETS = (Gtid, MariaGtid), (MysqlGtidSet, MariaGtidPosition)


IsWanted = Callable[[Table], bool]


class CutOff(TidemarkError):
    """The log ends inside of a transaction. Its end may still come."""


@dataclass
class Group:
    """A transaction. `head` has no records; `items` is to be read once. `gtids`: the source's set with it, "": none.

    `is_xa`: its items end in a mark that says what became of an XA transaction, or is in doubt.
    """

    head: Transaction
    gtids: MysqlGtidSet | MariaGtidPosition | str
    items: Iterator[Item]
    is_xa: bool = False
    open: _Open | None = None

    def leave_out(self) -> None:
        """Nobody wants its items: what cannot be trusted in it does no harm."""
        if self.open is not None:
            self.open.is_left_out = True


class _PlainGroup(NamedTuple):
    """A plain transaction, GTID set and offset with it."""

    group: Group
    after: Gtids
    offset: int


@dataclass(frozen=True)
class Rules:
    """What a capture takes. `wants(database, table)`; `stops`: whether what cannot be trusted ends it. `catalog`: what
    describes tables that the log does not; None: nothing. `on_renames` is told the (former, new) names of tables, and
    where the transaction of the statement begins (change id, number of the log, offset): before it is stored, and once more
    where it is read again."""

    wants: Callable[[str, str], bool]
    change_id: int = 1
    stops: bool = True
    catalog: Catalog | None = None
    on_renames: Callable[[Sequence[tuple[str, str]], Place], object] = lambda *_: None


class Transactions:
    """The transactions of a stream of events. `gtids` is the set before the first one; None: the log says it.

    `ahead`: those that come together may be read together, which is faster; `waits`: others may be waited for.
    """

    def __init__(
        self,
        events: Iterable[RawEvent | Block],
        rules: Rules,
        gtids: Gtids = None,
        gtid_offset: int = 0,
        *,
        ahead: bool = False,
        waits: bool = True,
    ) -> None:
        self._feed = Feed(events, waits=waits)
        self._decoder = EventDecoder()
        self._events = self._decode()
        self._rules = rules
        self._gtids = gtids
        self._gtid_offset = gtid_offset
        self._put_back: list[tuple[str, Event]] = []
        self.lost: list[Mark] = []
        """What was lost between two transactions. It stands in the one that comes next."""
        self.is_wanted: IsWanted = lru_cache(1024)(lambda table: rules.wants(table.database, table.name))
        self._is_between = ahead  # no event that is decoded waits
        self._ahead = ahead
        self._patience = self._misses = 0
        self.description: FormatDescription | None = None
        self.gives_runs = False

    @property
    def gtids(self) -> Gtids:
        """The set before the transaction that was given last, until its items are read."""
        return self._gtids

    def __iter__(self) -> Iterator[Group]:
        return (found for found in self.read() if isinstance(found, Group))

    def read(self) -> Iterator[Group | Run]:
        """The transactions, and runs of those that are plain once `gives_runs` is set."""
        while True:
            if self._ahead and self._feed.can_look:
                yield from self._read_plain()
            found = self._next()
            if found is None:
                return
            file, event = found
            group = self._begin(file, event)
            if group is None:
                continue
            yield group
            try:
                for _ in group.items:  # what the caller left
                    pass
            except CutOff:
                if not self._put_back:
                    return

    def _next(self) -> tuple[str, Event] | None:
        return self._put_back.pop() if self._put_back else next(self._events, None)

    def _decode(self) -> Iterator[tuple[str, Event]]:
        for raw in self._feed:
            if raw.data:
                try:
                    found = self._decoder.decode_split(raw.header, raw.data, raw.position, raw.end)
                    self._is_between = isinstance(found, tuple)
                    for event in found:
                        yield raw.file, event
                except TidemarkError as error:
                    where = f"{raw.file}:{raw.position}"
                    raise type(error)(f"{where}: {error.message}", hint=error.hint, subject=where) from error

    def _read_plain(self) -> Iterator[Group | Run]:
        """The transactions that come next, as long as they are plain. What is not is asked for ever more seldom."""
        while self._is_between and self._feed.can_look and not self._put_back and not self.lost:
            if self._patience:
                self._patience -= 1
                return
            found = self._scan_ahead()
            if found is None:
                self._misses = min(self._misses + 1, MOST_MISSES)
                self._patience = 1 << self._misses
                return
            block, first, plain = found
            position = block.position + int((block.ends[:first] - block.begins[:first]).sum())
            self._misses = 0
            self._feed.skip(int(plain.transactions[-1, 1]))
            for stretch in Stretch(block.file, position, plain, 0, len(plain.transactions)).split():
                yield from self._read_stretch(stretch)

    def _scan_ahead(self) -> tuple[Block, int, Plain] | None:
        """Events that stand together, which of them is next, and the plain transactions from there on."""
        from tidemark.changes.binlog.batches import kernels  # it imports Arrow

        self._ahead = kernels() is not None
        seen = self._feed.look_ahead() if self._ahead else None
        while seen is not None:
            block, first = seen
            plain = self._decoder.scan_plain(block.data, block.begins[first:], block.ends[first:], MOST_BYTES)
            if plain is not None:
                return block, first, plain
            seen = self._feed.look_ahead() if self._feed.extend() else None
        return None

    def _read_stretch(self, stretch: Stretch) -> Iterator[Group | Run]:
        """A stretch as a run, or one by one until runs are wanted."""
        run = self._make_run(stretch)
        if run is None:
            for index, one in enumerate(self._read_each(stretch, self._gtids, self._gtid_offset)):
                gave_runs = self.gives_runs
                yield one.group
                self._gtids, self._gtid_offset = one.after, one.offset
                if self.gives_runs and not gave_runs and (run := self._make_run(stretch.cut(index + 1))):
                    break
        if run is not None:
            yield run
            self._gtids, self._gtid_offset = run.gtids_after(run.stretch.count - 1), int(run.offsets[-1])

    def _make_run(self, stretch: Stretch) -> Run | None:
        if not self.gives_runs:
            return None
        return make_run(stretch, self._rules.change_id, self._gtids, self._gtid_offset)

    def read_each(self, run: Run) -> Iterator[Group]:
        """The transactions of a run one by one."""
        return (one.group for one in self._read_each(run.stretch, run.before, run.offset))

    def _read_each(self, stretch: Stretch, gtids: Gtids, offset: int) -> Iterator[_PlainGroup]:
        number = number_of(stretch.file)
        for head, rows in stretch.each():
            gtids = _add_gtid(gtids, head.gtid)
            offset = max(offset, gtids.count() if gtids is not None else 0)
            whole = self._make_head(number, head, offset)
            yield _PlainGroup(self._make_plain_group(whole, gtids, rows, head, stretch.file), gtids, offset)

    def _make_plain_group(self, whole: Transaction, after: Gtids, rows: list[Rows], head: Head, file: str) -> Group:
        gtids = "" if after is None else after
        if not any(each.table.unknown() or not self.is_wanted(each.table) for each in rows):
            return Group(whole, gtids, iter([*rows, XID]))
        state = _Open(self._rules, self.is_wanted, head.gtid, (file, head.position))
        items = chain.from_iterable(state.take_rows(each, head.position) for each in rows)
        return Group(whole, gtids, chain(items, [XID]), open=state)

    # beginning

    def _begin(self, file: str, event: Event) -> Group | None:
        """The transaction that begins with an event outside of one, None where none does."""
        body = event.body
        if isinstance(body, _GTIDS):
            return self._open(file, event, body)
        if isinstance(body, FormatDescription):
            self.description = body
        elif isinstance(body, _GTID_SETS):
            if self._gtids is None or not _fits(self._gtids, body):
                self._gtids = body
        elif isinstance(body, Incident):
            what, hint = _describe_incident(body)
            self.lost.append(Mark(UNPROVED, what))
            _distrust(self._rules, f"{file}:{event.position}", what, hint)
        elif isinstance(body, Query):
            self._put_back.append((file, event))
            return self._open(file, event, None)
        elif isinstance(body, Table | Rows | Xid | XaPrepare):
            raise UnsupportedError(
                f"{file}:{event.position}: rows outside of a transaction",
                hint="begin at the first byte of a log, of MySQL 5.5 or later",
                subject=f"{file}:{event.position}",
            )
        return None

    def _make_head(self, number: int, head: Head, offset: int) -> Transaction:
        gtid = head.gtid
        info = BinlogInfo(
            change_id=self._rules.change_id,
            server_id=head.server_id,
            file=number,
            offset=head.position,
            uuid=_uuid_of(gtid),
            transaction_id=gtid.number if gtid else 0,
            timestamp=head.timestamp,
        )
        return Transaction(info, gtid.text if gtid else "", offset)

    def _open(self, file: str, event: Event, gtid: Gtid | MariaGtid | None) -> Group:
        after = _add_gtid(self._gtids, gtid)
        offset = max(self._gtid_offset, after.count() if after is not None else 0)
        known = Head(event.position, event.header.server_id, _commit_time(event.header, gtid), gtid)
        head = self._make_head(number_of(file), known, offset)
        is_xa = isinstance(gtid, MariaGtid) and (gtid.prepares_xa or gtid.completes_xa)
        if not isinstance(gtid, MariaGtid):
            is_xa = self._looks_like_xa()
        state = _Open(self._rules, self.is_wanted, gtid, (file, event.position))
        return Group(head, "" if after is None else after, self._read_items(state, after, offset), is_xa, state)

    def _looks_like_xa(self) -> bool:
        """Whether the statement that comes first is on an XA transaction. MySQL says it nowhere else."""
        found = self._next()
        if found is None:
            return False
        self._put_back.append(found)
        body = found[1].body
        return isinstance(body, Query) and sort_statement(body) in (Sort.XA_BEGIN, Sort.XA_COMMIT, Sort.XA_ROLLBACK)

    # reading

    def _read_items(self, state: _Open, after: Gtids, offset: int) -> Iterator[Item]:
        yield from self.lost
        while not state.is_whole:
            found = self._next()
            if found is None:
                raise CutOff(f"{state.where}: the transaction has no end yet")
            event = found[1]
            if isinstance(event.body, Rows):
                items = state.take_rows(event.body, event.position)
            elif isinstance(event.body, FormatDescription):
                self._put_back.append(found)
                if self.description is not None and not self.description.in_use:
                    raise CorruptionError(f"{state.where}: the log ends inside of a transaction, and was closed")
                raise CutOff(f"{state.where}: its server died inside of a transaction")
            else:
                items = state.take(event)
            for item in items:
                if state.savepoints.known:
                    yield from state.savepoints.hold(item)
                else:
                    yield item
        yield from state.savepoints.take_all()
        self._gtids, self._gtid_offset = after, offset
        self.lost = []  # of one that is cut off they stand in the next


class _Savepoints:
    """The savepoints of a transaction. Rows since one to which the session goes back never were.

    A log has ROLLBACK TO only where the session wrote to tables that cannot be rolled back, too; else the server takes the
    rows out of it. Rows of such tables are a transaction of their own in the log. So all rows behind the savepoint were
    rolled back. Seen with MariaDB 10.11; `binlog_savepoint_rollback` and `use_trans_cache` in the servers' source.
    """

    def __init__(self) -> None:
        self.known: dict[str, int] = {}  # in their order: name → where it stands in `_held`
        self._held: list[Item] = []
        self._bytes = 0

    def put(self, name: str) -> None:
        self.known.pop(name, None)
        self.known[name] = len(self._held)

    def hold(self, item: Item) -> list[Item]:
        """Keep an item until nobody can go back. Where that takes too much, all is given out, and no savepoint is known."""
        self._held.append(item)
        self._bytes += count_bytes(item)
        return self.take_all() if self._bytes > MOST_HELD else []

    def go_back(self, name: str) -> bool:
        """Drop the rows since a savepoint. False: it is not known."""
        if name not in self.known:
            return False
        place = self.known[name]
        names = list(self.known)
        self.known = {other: self.known[other] for other in names[: names.index(name) + 1]}
        self._held[place:] = [item for item in self._held[place:] if not isinstance(item, Rows)]
        return True

    def take_all(self) -> list[Item]:
        found, self._held = self._held, []
        self.known, self._bytes = {}, 0
        return found


class _Open:
    """A transaction while its events come."""

    def __init__(self, rules: Rules, is_wanted: IsWanted, gtid: Gtid | MariaGtid | None, begins: tuple[str, int]) -> None:
        self.rules, self.is_wanted = rules, is_wanted
        self.begins, self.where = begins, f"{begins[0]}:{begins[1]}"
        self.xa = gtid.xa if isinstance(gtid, MariaGtid) else None
        self.is_standalone = isinstance(gtid, MariaGtid) and gtid.is_standalone
        self.has_begun = isinstance(gtid, MariaGtid) and not gtid.is_standalone
        self.alters_nothing = isinstance(gtid, MariaGtid) and gtid.alters_nothing
        self.is_whole = self.is_left_out = False
        self.has_rows = False
        self.savepoints = _Savepoints()

    def take(self, event: Event) -> Iterator[Item]:
        """What an event without rows means."""
        body = event.body
        if isinstance(body, Xid):
            yield from self._end(XID)
        elif isinstance(body, XaPrepare):
            one_phase = Mark(COMMIT, "xa_one_phase")
            yield from self._end(one_phase if body.is_one_phase else Mark(XA_PREPARE, name_xa(body.xa)))
        elif isinstance(body, Query):
            if self.alters_nothing:
                self.is_whole = True
                return
            if self.rules.catalog is not None:
                self.rules.catalog.note_statement(body, self._find_place(event.position))
            if read_statement(body, (0, 0, 0)) is not None and (renames := find_renames(body)):
                self.rules.on_renames(renames, (self.rules.change_id, number_of(self.begins[0]), self.begins[1]))
            yield from self._take_statement(body)
        elif isinstance(body, Incident):
            yield from self._distrust(*_describe_incident(body))
            self.is_whole = not self.has_begun  # MySQL writes GTID and incident, and no end

    def _find_place(self, position: int) -> Where:
        return Where(self.rules.change_id, *self.begins, position)

    def take_rows(self, rows: Rows, position: int) -> Iterator[Item]:
        table = rows.table
        if self.is_left_out or not self.is_wanted(table):
            return
        if unknown := table.unknown():
            name = f"{table.database}.{table.name}"
            if self.rules.catalog is not None:
                described = self.rules.catalog.describe(table, self._find_place(position))
                self.has_rows = True
                yield Mark(UNPROVED, name) if described is None else rows._replace(table=described)
                return
            yield from self._distrust(
                f"the log does not tell the {' and '.join(unknown)} of {name}",
                "SET GLOBAL binlog_row_metadata = 'FULL' at the server, or leave the table out (exclude)",
                name,
            )
            return
        self.has_rows = True
        yield rows

    def _take_statement(self, query: Query) -> Iterator[Item]:
        sort = sort_statement(query)
        if sort in (Sort.BEGIN, Sort.XA_BEGIN):
            self.has_begun = True
        elif sort is Sort.COMMIT:
            yield from self._end(Mark(COMMIT, "commit"))
        elif sort in (Sort.XA_COMMIT, Sort.XA_ROLLBACK):
            xa = self.xa or find_xa(query.sql)
            if xa is None:
                raise UnsupportedError(f"{self.where}: an XA statement that cannot be read: {query.sql}", subject=self.where)
            yield from self._end(Mark(XA_COMMIT if sort is Sort.XA_COMMIT else XA_ROLLBACK, name_xa(xa)))
        elif sort is Sort.SAVEPOINT:
            if name := find_savepoint(query.sql):
                self.savepoints.put(name)
        elif sort in (Sort.ROLLBACK, Sort.ROLLBACK_TO_SAVEPOINT):
            name = find_savepoint(query.sql) if sort is Sort.ROLLBACK_TO_SAVEPOINT else ""
            if not self.savepoints.go_back(name) and self.has_rows:
                yield from self._distrust(
                    ROLLED_BACK,
                    "write to tables of MyISAM, Aria and MEMORY in transactions of their own",
                )
            if sort is Sort.ROLLBACK:
                yield from self._end(Mark(COMMIT, "rollback"))
        elif sort in (Sort.DEFINITION, Sort.FILLED_TABLE):
            yield Ddl(query.database, query.sql)
            if sort is Sort.FILLED_TABLE:
                yield from self._distrust(f"rows of a new table came as a statement: {_shorten(query.sql)}", _ROWS_ALONE)
            self.is_whole = self.is_standalone or not self.has_begun
        elif sort is Sort.CHANGE:
            yield from self._distrust(f"changes came as a statement: {_shorten(query.sql)}", _ROWS_ALONE)
            self.is_whole = self.is_standalone or not self.has_begun

    def _end(self, mark: Mark) -> Iterator[Item]:
        yield mark
        self.is_whole = True

    def _distrust(self, what: str, hint: str, table: str = "") -> Iterator[Item]:
        if not self.is_left_out:
            yield _distrust(self.rules, self.where, what, hint, table)


def _distrust(rules: Rules, where: str, what: str, hint: str, table: str = "") -> Mark:
    """What stands in the place of what is not known. Raises PermanentError where that ends the capture."""
    if rules.stops:
        raise PermanentError(f"{where}: {what}", hint=f"{hint}; {GO_ON}", subject=where)
    return Mark(UNPROVED, table or what)


def _describe_incident(body: Incident) -> tuple[str, str]:
    return (
        f"the server lost changes ({body.message or f'incident {body.number}'})",
        "what was lost stands in no log",
    )


def _shorten(sql: str) -> str:
    return sql if len(sql) <= 120 else sql[:119] + "…"


def _fits(gtids: Gtids, logged: MysqlGtidSet | MariaGtidPosition) -> bool:
    return type(gtids) is type(logged) and gtids >= logged  # type: ignore[operator]


def _add_gtid(gtids: Gtids, gtid: Gtid | MariaGtid | None) -> Gtids:
    """The set with one transaction more."""
    if isinstance(gtid, MariaGtid):
        last = gtids.last if isinstance(gtids, MariaGtidPosition) else {}
        return MariaGtidPosition({**last, gtid.domain: (gtid.server_id, gtid.number)})
    if isinstance(gtid, Gtid) and gtid.uuid:
        one = MysqlGtidSet.of([(gtid.uuid, gtid.tag, [(gtid.number, gtid.number)])])
        return gtids | one if isinstance(gtids, MysqlGtidSet) else one
    return gtids


def _uuid_of(gtid: Gtid | MariaGtid | None) -> bytes:
    """What makes a GTID's number one of its own: a server's UUID, a domain of MariaDB."""
    if isinstance(gtid, MariaGtid):
        return gtid.domain.to_bytes(16, "big")
    return bytes.fromhex(gtid.uuid.replace("-", "")) if gtid and gtid.uuid else bytes(16)


def _commit_time(header: Header, gtid: Gtid | MariaGtid | None) -> int:
    if isinstance(gtid, Gtid) and gtid.immediate_commit_us is not None:
        return gtid.immediate_commit_us
    return header.timestamp * 1_000_000


def xa_of(items: Iterable[Item]) -> Mark | None:
    """The mark that says what becomes of an XA transaction; None where it was committed in one phase."""
    return next(
        (item for item in items if isinstance(item, Mark) and item.word in (XA_PREPARE, XA_COMMIT, XA_ROLLBACK)), None
    )
