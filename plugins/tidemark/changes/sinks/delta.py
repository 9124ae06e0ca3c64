"""Tables as they are at the source, in the format of Delta Lake: one commit a batch and table.

Each commit carries the number of its batch as the transaction of an application. A table that has the number has the batch.
The package `deltalake` does not refuse a second commit of the same number, so it is compared here, under the sink's lease.
A table is opened before the lease is looked at, and written as it was opened: of two commits on one version with the
number of one application the package refuses the second. So a run that sleeps in between past its lease writes nothing.

A table's log tells of each file the least and the greatest value of columns, by which a MERGE leaves files out. The package
tells long decimals as floats there, which are other values: rows by such a key were not found, or all of a file were taken
for one. So the log of a table does not tell of those columns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.changes.sinks.batches import (
    Ask,
    Content,
    Fold,
    TableChanges,
    Window,
    finish_tables,
    follow_renames,
    judge_table,
)
from tidemark.changes.sinks.fold import DELETED, SEQ, Folded, MisfitError, key_of, spell_alike, unite_types
from tidemark.errors import PermanentError, RetryableError, UsageError, limits_named
from tidemark.ledger.delivery import STOPPED, SinkBatch, SinkTable
from tidemark.stores.agent import durable
from tidemark.untrusted_files import UntrustedFile

Effect = Callable[[str], None]
Step = Generator[Ask, Folded, SinkTable]
MOST_OF_A_COMMIT = 256 << 20
"""Bytes of an entry of a table's log: about half a million files."""
TOLD = "delta.dataSkippingStatsColumns"
"""The property of a table that names the columns of which its log tells the least and the greatest value."""
MOST_TOLD = 32
"""Of so many columns it is told where nothing is said."""


class DeltaTables:
    """The Delta tables of a sink: a folder a table. `folder_of`: what a table's folder is called."""

    def __init__(self, root: Path, sink: str, folder_of: Callable[[str], str]) -> None:
        import deltalake  # the command that follows names the extra where it is missing

        self._package = deltalake
        self.root = root
        self.sink = sink
        self._folder_of = folder_of
        self._app = f"tidemark:{sink}"

    def find_highest(self) -> int:
        """The highest number of a batch that a table has, 0: there is none. A ledger that was lost knows no more of it."""
        highest = 0
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            with self._errors_named(folder):
                table = self._open(folder)
                highest = max(highest, self._number_of(table))
        return highest

    def write(
        self, batch: SinkBatch, content: Content, known: Mapping[str, SinkTable], effect: Effect, fold: Fold
    ) -> list[SinkTable]:
        """Bring tables to the end of a batch, and tell how they are. One whose rows do not fit is stopped, and the others go
        on."""
        if content.renames:
            return self._rename_tables(batch, content, known, effect)
        tables = sorted(content.tables.items())
        return finish_tables([self._bring(batch, one, known.get(name), effect) for name, one in tables], fold)

    def _bring(self, batch: SinkBatch, changes: TableChanges, known: SinkTable | None, effect: Effect) -> Step:
        """Bring one table to the end of a batch. Where its rows do not fit, it is stopped, unless a reading that begins
        behind them makes it anew."""
        judged = judge_table(known, changes, batch)
        try:
            return (yield from self._write_table(batch, changes, judged, effect))
        except MisfitError as misfit:
            stopped = replace(judged[0], state=STOPPED, seq=batch.first, why=f"{changes.name}: {misfit}", begun=0)
        judged = judge_table(stopped, changes, batch)
        if judged[0].state == STOPPED:
            return stopped
        try:
            return (yield from self._write_table(batch, changes, judged, effect))
        except MisfitError as again:
            return replace(stopped, why=f"{changes.name}: {again}")

    def _rename_tables(
        self, batch: SinkBatch, content: Content, known: Mapping[str, SinkTable], effect: Effect
    ) -> list[SinkTable]:
        """Give tables the rows of others, as these were before the batch: Delta tables keep their former versions.

        After a rewind to before this a former table has the rows that changed since, and no others. It is told by its state,
        which is of this transaction or a later one. What it gave is not overwritten then, and stops.
        """
        found = []
        for state, former in follow_renames(batch, content, known):
            name = state.name
            if former and known[former].seq >= batch.first:
                why = f"{name} was {former} before, and the sink was rewound to before that: it has not all rows of {former}"
                found.append(SinkTable(name, STOPPED, seq=batch.first, why=why))
                continue
            found.append(state)
            place = self.root / self._folder_of(name)
            with self._errors_named(place):
                table = self._open(place)
                effect(f"before {name}")
                if self._number_of(table) < batch.number:
                    self._copy_table(table, place, former, batch.number)
                else:
                    self._make_durable(place, table)
            # CRASH WINDOW: some tables are renamed: the others get the rows that the former ones had before the batch.
            effect(f"after {name}")
        return found

    def _copy_table(self, table: Any, place: Path, former: str, number: int) -> None:
        """Give a table the rows that another one had before a batch; none where that is "" or has no table."""
        commit = self._commit(number)
        source = self._open(self.root / self._folder_of(former)) if former else None
        while source is not None and self._number_of(source) >= number:
            version = source.version() - 1
            source = self._package.DeltaTable(source.table_uri, version=version) if version >= 0 else None
        if source is not None:
            rows = self._package.QueryBuilder().register("found", source).execute("SELECT * FROM found")
            schema = pa.schema(source.schema().to_arrow())
            batches = (_cast_batch(batch, schema) for batch in pa.RecordBatchReader.from_stream(rows))
            self._write_anew(table, place, pa.RecordBatchReader.from_batches(schema, batches), commit)
        elif table is not None:
            table.delete(commit_properties=commit)
        else:
            return
        self._make_durable(place, self._open(place))

    def _number_of(self, table: Any) -> int:
        """The number of the newest batch that a table has."""
        return 0 if table is None else table.transaction_version(self._app) or 0

    def _write_table(
        self, batch: SinkBatch, changes: TableChanges, judged: tuple[SinkTable, Window], effect: Effect
    ) -> Step:
        state, window = judged
        runs = window.choose_runs(changes.runs)
        if state.state == STOPPED and not runs and not window.clear:
            return state
        key = state.key
        place = self.root / self._folder_of(changes.name)
        with self._errors_named(place):
            table = self._open(place)
            spelled = {} if table is None or window.anew else self._types_of(table)
            shapes = spell_alike([run.shape for run in runs], [*spelled, *state.key])
            if runs:
                keys = {key_of(shape) for shape in shapes}
                key = key_of(shapes[-1])
                if len(keys) > 1 or (state.key and key != state.key):
                    was = state.key or next(iter(keys - {key}))
                    raise MisfitError(f"its key was {', '.join(was)} and is {', '.join(key)} now")
            if self._number_of(table) >= batch.number:
                self._make_durable(place, table)
                return replace(state, key=key)
            is_empty = table is None or window.anew or table.count() == 0
            if not is_empty and TOLD not in table.metadata().configuration and not _are_told(spelled, key):
                raise MisfitError("its files were written by a former version, and their log tells long keys as floats")
            types = {} if is_empty else spelled
            for shape in shapes:
                types = unite_types(types, shape)
            folded = yield Ask(runs, window, key, types)
            is_emptied = table is not None and window.anew
            if not (folded.kept or is_emptied or (not is_empty and (folded.gone or window.clear))):
                return replace(state, key=key)
            effect(f"before {changes.name}")
            if folded.kept and is_empty:
                self._make_table(table, place, folded, batch.number)
            elif is_emptied:
                table.delete(commit_properties=self._commit(batch.number))
            else:
                self._fit_columns(table, types)
                # CRASH WINDOW: the table has the columns, and no row of the batch: they are found there, and it goes on.
                effect(f"columns of {changes.name}")
                self._merge(table, (key, folded), window.clear, batch.number)
            table = self._open(place)
            assert table is not None
            self._make_durable(place, table)
            # CRASH WINDOW: the table has the batch and no point says so: its number is found there, and nothing is written.
            effect(f"after {changes.name}")
        return replace(state, key=key)

    def describe(self, name: str) -> tuple[int, dict[str, Any]] | None:
        """The newest version of a table, and the Arrow types of its columns without our own. None: there is no table."""
        place = self.root / self._folder_of(name)
        with self._errors_named(place):
            table = self._open(place)
            return None if table is None else (table.version(), self._types_of(table))

    def read(
        self, name: str, key: tuple[str, ...], columns: tuple[str, ...] = (), *, version: int | None = None
    ) -> Iterator[Any]:
        """The rows of a table as Arrow batches, in the order of its key (texts by their bytes), without our own column.

        `version`: those of a former one.
        """
        place = self.root / self._folder_of(name)
        with self._errors_named(place):
            table = self._open(place, version)
            if table is None:
                return
            chosen = [one for one in self._types_of(table) if not columns or one in columns]
            listed = ", ".join(map(_quote, chosen))
            order = f" ORDER BY {', '.join(map(_quote, key))}" if key else ""
            asked = self._package.QueryBuilder().register("found", table).execute(f"SELECT {listed} FROM found{order}")
            types = self._types_of(table)
            schema = pa.schema([(one, types[one]) for one in chosen])
            for batch in pa.RecordBatchReader.from_stream(asked):
                yield pa.record_batch([batch.column(one).cast(types[one]) for one in chosen], schema=schema)

    # the package

    def _open(self, place: Path, version: int | None = None) -> Any:
        """The table of a folder; None where there is none."""
        if not (place / "_delta_log").is_dir():
            return None
        try:
            return self._package.DeltaTable(str(place), version=version)
        except self._package.exceptions.TableNotFoundError:
            return None

    def _types_of(self, table: Any) -> dict[str, Any]:
        schema = pa.schema(table.schema().to_arrow())
        return {one.name: one.type for one in schema if one.name != SEQ}

    def _commit(self, number: int) -> Any:
        return self._package.CommitProperties(app_transactions=[self._package.Transaction(self._app, number)])

    def _make_table(self, table: Any, place: Path, folded: Folded, number: int) -> None:
        """Make a table of these rows alone, in the place of what is there."""
        rows = folded.rows.filter(pc.invert(folded.rows[DELETED])).drop_columns([DELETED])
        self._write_anew(table, place, rows, self._commit(number))

    def _write_anew(self, table: Any, place: Path, rows: Any, commit: Any) -> None:
        """Have a table, or a new one where that is None, hold these rows alone."""
        types = {one.name: one.type for one in rows.schema}
        if table is not None:
            self._tell_columns(table, types)
            self._package.write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite", commit_properties=commit)
            return
        with limits_named(place):
            durable.make_folder(os.fsencode(place))
        known = self._package.exceptions
        try:
            self._package.write_deltalake(
                str(place), rows, mode="error", commit_properties=commit, configuration=_name_told(types)
            )
        except known.DeltaError as refused:
            if self._open(place) is None:
                raise
            raise known.CommitFailedError("it was made meanwhile") from refused

    def _tell_columns(self, table: Any, types: Mapping[str, Any]) -> None:
        """Have the log tell the values of those columns alone that it tells exactly."""
        if (told := _name_told(types)) and table.metadata().configuration.get(TOLD) != told[TOLD]:
            table.alter.set_table_properties(told, commit_properties=self._commit(self._number_of(table)))

    def _fit_columns(self, table: Any, types: Mapping[str, Any]) -> None:
        """Give a table the columns that it lacks; where one is to be wider, write it anew. It is as it is then."""
        self._tell_columns(table, {**types, SEQ: pa.int64()})
        there, commit = self._types_of(table), self._commit(self._number_of(table))
        wider = {name for name, one in there.items() if types[name] != one}
        if wider:
            casts = [
                f"CAST({_quote(name)} AS {_sql_type(one)}) AS {_quote(name)}" if name in wider else _quote(name)
                for name, one in types.items()
                if name in there
            ]
            asked = f"SELECT {', '.join([*casts, SEQ])} FROM found"
            rows = self._package.QueryBuilder().register("found", table).execute(asked)
            schema = pa.schema([*((name, one) for name, one in types.items() if name in there), (SEQ, pa.int64())])
            batches = (_cast_batch(batch, schema) for batch in pa.RecordBatchReader.from_stream(rows))
            stream = pa.RecordBatchReader.from_batches(schema, batches)
            self._package.write_deltalake(table, stream, mode="overwrite", schema_mode="overwrite", commit_properties=commit)
        if new := [(name, one) for name, one in types.items() if name not in there]:
            empty = pa.schema(new).empty_table()
            self._package.write_deltalake(table, empty, mode="append", schema_mode="merge", commit_properties=commit)

    def _merge(self, table: Any, found: tuple[tuple[str, ...], Folded], clear: int, number: int) -> None:
        (key, folded), commit = found, self._commit(number)
        old = f"{SEQ} < {clear}"
        if not folded.rows.num_rows:
            table.delete(old, commit_properties=commit)
            return
        columns = [name for name in folded.rows.column_names if name != DELETED]
        same = " AND ".join(f"t.{_quote(name)} = s.{_quote(name)}" for name in key)
        values = {_quote(name): f"s.{_quote(name)}" for name in columns}
        merger = (
            table.merge(folded.rows, same, source_alias="s", target_alias="t", streamed_exec=False, commit_properties=commit)
            .when_matched_delete(f"s.{DELETED}")
            .when_matched_update(values)
            .when_not_matched_insert(values, f"NOT s.{DELETED}")
        )
        if clear:
            merger = merger.when_not_matched_by_source_delete(f"t.{old}")
        merger.execute()

    def _make_durable(self, place: Path, table: Any) -> None:
        """Have the disk hold what the table's newest commits name: the package leaves that to the system."""
        log = place / "_delta_log"
        with limits_named(place):
            # A batch makes four at most: the columns that are told, wider columns, more columns, the rows.
            for version in range(max(0, table.version() - 3), table.version() + 1):
                entry = log / f"{version:020}.json"
                if not entry.exists():
                    continue
                told = UntrustedFile(str(log), entry.name).read(MOST_OF_A_COMMIT)
                for line in told.decode().splitlines():
                    if added := json.loads(line).get("add"):
                        _sync_file(place / unquote(added["path"]))
                _sync_file(entry)
            durable.sync_folder(os.fsencode(log))
            durable.sync_folder(os.fsencode(place))

    @contextmanager
    def _errors_named(self, place: Path) -> Iterator[None]:
        known = self._package.exceptions
        try:
            yield
        except known.CommitFailedError as other:
            raise RetryableError(
                f"{place}: another program changed the table meanwhile: {_first_line(other)}",
                hint="run it again; write to a sink's tables with nothing else",
                subject=str(place),
            ) from other
        except (known.DeltaError, OSError) as broken:
            if "os error 28" in str(broken):
                with limits_named(place):
                    raise OSError(28, os.strerror(28)) from broken
            raise PermanentError(
                f"{place}: {_first_line(broken)}",
                hint="mend the table, or move it away and read it anew",
                subject=str(place),
            ) from broken


def _is_told(type_: Any) -> bool:
    """Whether the package tells a type's values in a log as they are: whole numbers of 64 bits, and floats, are."""
    if not pa.types.is_decimal(type_):
        return True
    return bool(type_.precision <= (15 if type_.scale else 18))


def _are_told(types: Mapping[str, Any], names: Iterable[str]) -> bool:
    return all(_is_told(types[name]) for name in names if name in types)


def _name_told(types: Mapping[str, Any]) -> dict[str, str]:
    """The property that names the columns of which the log tells; none where it may tell of all."""
    named = [name for name, one in types.items() if _is_told(one)]
    if len(named) == len(types):
        return {}
    return {TOLD: ",".join("`" + name.replace("`", "``") + "`" for name in named[:MOST_TOLD])}


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _sync_file(place: Path) -> None:
    try:
        handle = UntrustedFile(str(place.parent), place.name).open_handle()
    except FileNotFoundError:
        return  # a later commit took it
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _cast_batch(batch: Any, schema: Any) -> Any:
    return pa.record_batch([batch.column(one.name).cast(one.type) for one in schema], schema=schema)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sql_type(type_: Any) -> str:
    if not pa.types.is_decimal(type_):
        raise UsageError(f"{type_} is no type that a column is widened to")
    return f"DECIMAL({type_.precision},{type_.scale})"
