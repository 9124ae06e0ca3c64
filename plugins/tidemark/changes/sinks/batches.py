"""What a sink writes in one go: whole transactions of a store, and their rows by table.

Which transactions is decided once and recorded, so that a batch holds the same each time it is written. A batch is in
memory while it is written, or its rows are in files (`tasks`). It has one transaction at least, however large that is.

Blocks are read apart from what they mean. `read_notes` gives rows by table, and what stands between them. It knows nothing
of what was before, so several processes may each read some blocks of a batch. `judge_notes` goes through the notes of all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.changes.bootstrap.state import BEGIN, END
from tidemark.changes.capture.run import GAP
from tidemark.changes.capture.transactions import UNPROVED
from tidemark.changes.delivery.blocks import read_shard
from tidemark.changes.delivery.shards import Sharding, ShardPiece
from tidemark.changes.sinks.definitions import ALL, CHANGED, COLUMNS, EMPTIED, MADE, RENAMED, VERSIONED, Effect, find_effects
from tidemark.changes.sinks.fold import Folded, MisfitError, Types, fold_rows
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import BinlogInfo, Ddl, Mark, Rows, Shape
from tidemark.changes.store.read import Reader
from tidemark.errors import RetryableError
from tidemark.ledger.delivery import PARTIAL, STOPPED, WHOLE, SinkBatch, SinkTable

Wants = Callable[[str, str], bool]
Numbers = NDArray[np.int64]
T = TypeVar("T")
_NOTED = (BEGIN, END, UNPROVED, GAP)


@dataclass(frozen=True)
class Limits:
    """A batch ends behind the transaction with which it has `rows` rows, or `blocks` blocks of the store: of 4 MiB in memory
    at most, however small they are on the disk. `run`: bytes of rows that are one Arrow batch; of text that may not have
    2 GiB."""

    rows: int = 1_000_000
    blocks: int = 256
    run: int = 1 << 30


def find_batch_end(reader: Reader, first: int, until: int, limits: Limits) -> int:
    """The first transaction behind a batch that begins with `first`; at most `until`. `first`: there is nothing."""
    end, rows = first, 0
    for blocks, stretch in enumerate(reader.read_stretches(first) if first < until else (), 1):
        rows += stretch.header.rows
        end = max(end, stretch.header.after.seq + 1)
        if end >= until or (end > first and (rows >= limits.rows or blocks >= limits.blocks)):
            break
    return min(end, until)


class AnyRun(Protocol):
    """Rows of one table and shape, one behind the other, in memory or in files. `numbers`: their transactions, ascending."""

    @property
    def shape(self) -> Shape: ...

    @property
    def numbers(self) -> Sequence[int]: ...

    @property
    def rows(self) -> int: ...

    def load(self) -> Run:
        """The same in memory."""


@dataclass
class Run:
    """Rows of one table and shape, one behind the other. A list has an item a transaction, `counts` the rows of each."""

    shape: Shape
    parts: list[tuple[Any, int, int]] = field(default_factory=list)  # Arrow batch, start, count
    counts: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    gtids: list[str] = field(default_factory=list)
    size: int = 0  # bytes of the Arrow batches that it has rows of

    def has_room(self, rows: Rows, most: int) -> bool:
        """Whether these rows can be added, by their shape, and by the bytes that a run has at most."""
        is_known = bool(self.parts) and self.parts[-1][0] is rows.whole
        return self.shape == rows.shape and (is_known or self.size + rows.whole.nbytes <= most)

    def add(self, seq: int, info: BinlogInfo, gtid: str, rows: Rows) -> None:
        whole, start, count = self.parts[-1] if self.parts else (None, 0, 0)
        if whole is rows.whole and start + count == rows.start:
            self.parts[-1] = (whole, start, count + rows.count)
        else:
            self.size += 0 if whole is rows.whole else rows.whole.nbytes
            self.parts.append((rows.whole, rows.start, rows.count))
        for values, value in (
            (self.counts, rows.count),
            (self.numbers, seq),
            (self.times, info.timestamp),
            (self.gtids, gtid),
        ):
            values.append(value)  # type: ignore[arg-type]

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def load(self) -> Run:
        return self

    def join(self) -> Any:
        """The rows as one Arrow batch: `Shape.arrow_schema` with `i` and `moved` behind."""
        return pa.concat_batches([whole.slice(start, count) for whole, start, count in self.parts])

    def spread(self, values: Sequence[int]) -> Numbers:
        """A value a row of what has one a transaction."""
        return np.repeat(np.array(values, np.int64), self.counts)


@dataclass
class TableChanges:
    """What a batch has of one table. `events`: (transaction, what, why) that are no rows, in order."""

    name: str
    runs: list[AnyRun] = field(default_factory=list)
    events: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)


@dataclass(frozen=True)
class Rename:
    """A table that gets another name; `if_exists`: if it was there. `name`: "": one that is not wanted. `is_outside`: rows
    of `former` are not wanted, or not captured."""

    former: str
    name: str
    if_exists: bool = False
    is_outside: bool = False


@dataclass
class Content:
    """What a batch has: its tables, and where it ends. A statement that renames tables is a batch of its own: `renames` are
    in its order."""

    end: int
    tables: dict[str, TableChanges] = field(default_factory=dict)
    renames: list[Rename] = field(default_factory=list)

    def table_of(self, name: str) -> TableChanges:
        return self.tables.setdefault(name, TableChanges(name))

    def count_rows(self) -> dict[str, int]:
        """The rows of each table that has some."""
        return {name: one.rows for name, one in sorted(self.tables.items()) if one.rows}


@dataclass(frozen=True)
class Noted:
    """What a transaction, or a part of a large one, has beside rows, in its order. A name is that of a table which has rows
    here, and had none before. `ends`: with this the transaction is whole."""

    seq: int
    items: Sequence[str | Ddl | Mark]
    ends: bool = True


def read_notes(
    disk: Disk, wants: Wants, bounds: tuple[int, int], runs: MutableMapping[str, list[Run]], most: int
) -> Iterator[Noted]:
    """What stands in the transactions `bounds[0]` to before `bounds[1]`. Who asks for the next note has the rows of the
    former one in `runs`, by table. `most`: bytes of a run.

    BinlogGapError: retention took it. RetryableError: the store does not show all of them.
    """
    behind = bounds[0]
    for piece in _read_pieces(disk, wants, bounds):
        seq, transaction = piece.seq, piece.transaction
        items: list[str | Ddl | Mark] = []
        for record in transaction.records:
            if isinstance(record, Rows):
                name = f"{record.shape.database}.{record.shape.table}"
                if name not in runs and name not in items:
                    items.append(name)
            elif isinstance(record, Ddl) or (isinstance(record, Mark) and record.word in _NOTED):
                items.append(record)
        yield Noted(seq, items, piece.ends)
        for record in transaction.records:
            if isinstance(record, Rows):
                of_table = runs.setdefault(f"{record.shape.database}.{record.shape.table}", [])
                if not of_table or not of_table[-1].has_room(record, most):
                    of_table.append(Run(record.shape))
                of_table[-1].add(seq, transaction.info, transaction.gtid, record)
        if piece.ends:
            behind = seq + 1
        if behind == bounds[1]:
            return
    if behind < bounds[1]:  # or its rows would be left out, and nobody would know
        raise RetryableError(
            f"the store {disk.root} shows no seq:{behind} here, and had it: a capture takes it over, or it is another one",
            hint='run it again; executors have to see the store under the same path, or set engine = "pool" for the sink',
            subject=str(disk.root),
        )


def read_content(
    disk: Disk, wants: Wants, batch: SinkBatch, known: Sequence[str] = (), *, most: int = Limits.run
) -> Content:
    """The rows and events of a batch by `database.table`. Arguments and errors as of `read_notes` and `judge_notes`."""
    runs: dict[str, list[Run]] = {}
    content = judge_notes(read_notes(disk, wants, (batch.first, batch.end), runs, most), wants, batch, known)
    for name, found in runs.items():
        content.table_of(name).runs.extend(found)
    return content


def judge_notes(notes: Iterable[Noted], wants: Wants, batch: SinkBatch, known: Sequence[str] = ()) -> Content:
    """What becomes of the tables of a batch, without their rows. `known`: tables that may be emptied with their database.

    It ends before a statement that renames tables, or behind one that stands at its beginning.
    """
    found = Content(batch.end)
    for noted in notes:
        seq = noted.seq
        if seq >= found.end:
            break
        effects = [
            placed
            for item in noted.items
            if isinstance(item, Ddl)
            for effect in find_effects(item.database, item.sql)
            for placed in _place_effect(effect, {*known, *found.tables})
        ]
        if any(_find_renamed(effect, wants) for effect in effects):
            found.end = max(seq, batch.first + 1)
            if seq > batch.first:
                break
        for item in noted.items:
            if isinstance(item, str):
                found.table_of(item)
            elif isinstance(item, Mark) and item.word in (BEGIN, END) and wants(*_split(item.text)):
                found.table_of(item.text).events.append((seq, item.word, ""))
            elif isinstance(item, Mark) and item.word in (UNPROVED, GAP):
                _add_lost(found, (seq, item), known)
        for effect in effects:
            _add_effect(found, wants, (seq, effect), known)
    return found


def _place_effect(effect: Effect, there: Collection[str]) -> list[Effect]:
    """What a statement does to tables that are there. Rows have the name of their table as it is, a statement as it was
    written. A store does not know whether its server tells names apart by case (lower_case_table_names): a table that has
    the name but for case may be another one, or the one that is meant. It is marked."""
    name = f"{effect.database}.{effect.table}"
    named = [one for one in (name, effect.former) if one]
    if effect.table == ALL:
        twins = [one for one in there if one.casefold().startswith(name.casefold()) and not one.startswith(name)]
    else:
        unknown = {one.casefold() for one in named if one not in there}
        twins = [one for one in there if one not in named and one.casefold() in unknown]
    if not twins:
        return [effect]
    why = f"a statement has {' or '.join(named)}, which is this table where the server does not tell names apart by case"
    marked = [one for one in sorted(there) if one in twins or one in named]
    return [Effect(CHANGED, *_split(one), why=why) for one in marked] + ([effect] if effect.table == ALL else [])


def _add_effect(found: Content, wants: Wants, placed: tuple[int, Effect], known: Sequence[str]) -> None:
    seq, effect = placed
    names = [f"{effect.database}.{effect.table}"]
    if effect.table == ALL:
        names = sorted(name for name in {*known, *found.tables} if name.startswith(names[0]))
    for name in names:
        if effect.what == RENAMED:
            found.renames += _find_renamed(effect, wants)
        elif wants(*_split(name)):
            found.table_of(name).events.append((seq, effect.what, effect.why))


def _add_lost(found: Content, placed: tuple[int, Mark], known: Sequence[str]) -> None:
    """Changes that the store does not have: of the table that a mark names, or of any, where it names none."""
    seq, mark = placed
    there = sorted({*known, *found.tables})
    if mark.word == GAP:
        names, why = there, f"changes before seq:{seq} were lost in gap {mark.text}"
    elif mark.text in there:
        names, why = [mark.text], f"the store does not have rows that the log had at seq:{seq}"
    else:  # a statement, an incident, an XA transaction; or a table of which the sink has nothing, whose name has no space
        names, why = there if " " in mark.text else [], f"the store does not have all changes of seq:{seq}: {mark.text}"
    for name in names:
        found.table_of(name).events.append((seq, CHANGED, why))


_OF_SEQUENCE = (
    *("next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment"),
    *("cache_size", "cycle_option", "cycle_count"),
)


def leave_sequences(content: Content) -> None:
    """Take out the sequences of MariaDB. What they hold is logged as a row of these columns, without a key. No log and no
    statement says more, so a table of a user that is just so is left out, too; no sink could keep it as it is."""
    for name, one in [*content.tables.items()]:
        if one.runs and all(_is_sequence(run.shape) for run in one.runs):
            del content.tables[name]


def _is_sequence(shape: Shape) -> bool:
    return tuple(column.name for column in shape.columns) == _OF_SEQUENCE and not any(one.key for one in shape.columns)


def _find_renamed(effect: Effect, wants: Wants) -> list[Rename]:
    """A table that is renamed, if one of its names is wanted."""
    if effect.what != RENAMED:
        return []
    found = Rename(effect.former, f"{effect.database}.{effect.table}", effect.if_exists)
    return keep_wanted([found], wants)


def keep_wanted(renames: Iterable[Rename], wants: Wants) -> list[Rename]:
    """Those of which one name is wanted, and which one is not."""
    found = []
    for one in renames:
        is_outside = one.is_outside or not wants(*_split(one.former))
        name = one.name if one.name and wants(*_split(one.name)) else ""
        if name or not is_outside:
            found.append(replace(one, name=name, is_outside=is_outside))
    return found


def find_renamed(disk: Disk, wants: Wants, bounds: tuple[int, int]) -> set[str]:
    """The former and the new names of tables that are renamed in the transactions `bounds[0]` to before `bounds[1]`."""
    found: set[str] = set()
    runs: dict[str, list[Run]] = {}
    for noted in read_notes(disk, wants, bounds, runs, 0):
        runs.clear()
        for item in noted.items:
            for effect in find_effects(item.database, item.sql) if isinstance(item, Ddl) else ():
                for one in _find_renamed(effect, wants):
                    found |= {one.former, one.name}
    return found


def follow_renames(batch: SinkBatch, content: Content, known: Mapping[str, SinkTable]) -> list[tuple[SinkTable, str]]:
    """How tables are behind a batch that renames some, and of which former name each has the rows; "": it has none.

    Nothing is said of a name of which the sink knows nothing, where it knows nothing of the former one either: that is a
    view, which has no rows, or a table that was never read. If rows of it come, it is `partial` by these. Pure.
    """
    rows: dict[str, str] = {}  # by table, whose rows it gets; "": nobody's

    def is_there(name: str) -> bool:
        """Whether the source has a table for sure: rows came since it was made."""
        return bool(rows[name] if name in rows else name in known and known[name].key)

    for one in content.renames:
        if one.if_exists and one.name:
            if is_there(one.name):
                continue  # or the statement had failed: there was no former one
            if not is_there(one.former) and one.name not in {*known, *rows}:
                rows[one.former] = ""  # one of both may be a table that was never read
                continue
        rows[one.name], rows[one.former] = rows.get(one.former, one.former), ""
    outside = {one.former for one in content.renames if one.is_outside}
    found = []
    for name, former in sorted(rows.items()):
        if not name:
            continue
        if former in known:
            state = known[former]
            if former in content.tables:
                state, _ = judge_table(state, content.tables[former], batch)
            found.append((replace(state, name=name, begun=0, seq=batch.first), former))
        elif former in outside or (former and name in known):
            state_word = STOPPED if former in outside else PARTIAL
            why = f"{name} was {former} before, of which the sink has no rows"
            found.append((SinkTable(name, state_word, seq=batch.first, why=why), ""))
        elif name in known:
            found.append((SinkTable(name, seq=batch.first), ""))
    return found


def _read_pieces(disk: Disk, wants: Wants, bounds: tuple[int, int]) -> Iterator[ShardPiece]:
    first, end = bounds
    for pieces in read_shard(disk, Sharding(), wants, 0, (first, 0)) if first < end else ():
        for piece in pieces:
            if piece.seq >= end:
                return
            yield piece


def _split(name: str) -> tuple[str, str]:
    database, _, table = name.partition(".")
    return database, table


@dataclass(frozen=True)
class Window:
    """Which rows of a batch count for a table that is kept as it is: those of transactions from `low` on.

    `clear`: rows that are at the target and were last written before that transaction go. `anew`: the target is made anew.
    """

    low: int
    clear: int = 0
    anew: bool = False

    def choose_runs(self, runs: Sequence[AnyRun]) -> list[AnyRun]:
        """Those that have a row that counts."""
        return [run for run in runs if len(run.numbers) and run.numbers[-1] >= self.low]


def judge_table(state: SinkTable | None, changes: TableChanges, batch: SinkBatch) -> tuple[SinkTable, Window]:
    """How a table is behind a batch, if all can be written, and which of its rows count. Pure."""
    first = batch.first
    if state is None:
        state = SinkTable(changes.name, PARTIAL, seq=first, why="the store has no reading of all its rows")
    low, clear, anew = first, 0, False
    if state.state == STOPPED:
        low = batch.end
    for seq, what, why in changes.events:
        is_stopped = state.state == STOPPED
        if what == COLUMNS and state.state == WHOLE and not state.key and not _has_rows(changes, low, seq):
            continue  # as tools do that change a large table on-line: of a table without a row
        if what in (CHANGED, COLUMNS) and not is_stopped:
            state = replace(state, state=PARTIAL, begun=0, seq=seq, why=why)  # rows that are read already are of before
        elif what in (EMPTIED, MADE, BEGIN):
            if is_stopped or what == MADE:
                state, anew, clear = replace(state, key=()), True, 0
            if is_stopped or what != BEGIN:
                low = seq
            if what == BEGIN:
                state = replace(state, state=PARTIAL, begun=seq, seq=seq, why="its rows are being read")
            else:
                clear = seq if what == EMPTIED else 0
                state = replace(state, state=WHOLE, seq=seq, why="")
        elif what == END and state.begun and not is_stopped:
            clear, low = max(clear, state.begun), max(low, state.begun)
            state = replace(state, state=WHOLE, begun=0, seq=seq, why="")
    if state.state == WHOLE and any(map(_is_versioned, changes.runs)):  # no statement says it of one made LIKE another
        state = replace(state, state=PARTIAL, seq=first, why=VERSIONED)
    return state, Window(low, clear, anew)


def _is_versioned(run: AnyRun) -> bool:
    """Whether the server itself gave a table the columns by which MariaDB tells what its rows were from what they are."""
    last = run.shape.columns[-2:]
    return [(one.name, one.type) for one in last] == _OF_VERSIONS and last[-1].key


_OF_VERSIONS = [(name, "timestamp(6) not null") for name in ("row_start", "row_end")]


def _has_rows(changes: TableChanges, low: int, end: int) -> bool:
    return any(low <= number < end for run in changes.runs for number in run.numbers)


def cut_run(run: Run, window: Window) -> tuple[Any, Numbers]:
    """The rows of a run that count, and the transaction of each."""
    numbers = run.spread(run.numbers)
    low = int(np.searchsorted(numbers, window.low))
    return run.join().slice(low), numbers[low:]


# the last state of keys


@dataclass(frozen=True)
class Ask:
    """Rows of a table of which the last state of each key is asked for. `key`, `types`: as of `fold_rows`."""

    runs: Sequence[AnyRun]
    window: Window
    key: tuple[str, ...]
    types: Types


Fold = Callable[[Sequence[Ask]], Iterator[Folded | MisfitError]]
"""Answers asks, in their order. Rows that do not fit are an answer, too."""


def fold_runs(ask: Ask) -> Folded | MisfitError:
    """The answer to one ask."""
    loaded = [run.load() for run in ask.runs]
    try:
        return fold_rows([(run.shape, *cut_run(run, ask.window)) for run in loaded], ask.key, ask.types)
    except MisfitError as misfit:
        return misfit


def finish_tables(steps: Sequence[Generator[Ask, Folded, T]], fold: Fold) -> list[T]:
    """Run the work on each table of a batch to its end, and tell what it returned. The asks of all are answered together;
    then one goes on after the other."""
    done: dict[int, T] = {}
    asked: dict[int, Ask] = {}

    def go_on(number: int, answer: Folded | MisfitError | None) -> None:
        step = steps[number]
        try:
            asked[number] = step.throw(answer) if isinstance(answer, MisfitError) else step.send(answer)  # type: ignore[arg-type]
        except StopIteration as end:
            done[number] = end.value

    for number in range(len(steps)):
        go_on(number, None)
    while asked:
        numbers, asks = [*asked], [*asked.values()]
        asked.clear()
        for number, answer in zip(numbers, fold(asks), strict=True):
            go_on(number, answer)
    return [done[number] for number in range(len(steps))]
