"""Summarize a set of TsFiles by their statistics alone: devices, columns, intervals, rows. Reads no page.

A scan is planned by it: which files to open, how many rows a device has, where its times can be split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.errors import UsageError
from tidemark.tsfiles.devices import file_device, is_table, measurement_name, unquote_node
from tidemark.tsfiles.layout.bytes import FileBytes
from tidemark.tsfiles.layout.footer import read_footer
from tidemark.tsfiles.layout.index import Segments
from tidemark.tsfiles.layout.series import Series
from tidemark.tsfiles.layout.structure import walk_series
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.spark.dataset import DataFile

Columns = tuple[tuple[str, DataType], ...]


@dataclass(slots=True)
class Holding:
    """A device in one file. `rows`: of its longest series; `start`, `end` inclusive; `chunks`: (start, rows) of each."""

    file: int
    columns: Columns
    rows: int
    start: int
    end: int
    chunks: tuple[tuple[int, int], ...] = ()


@dataclass
class Survey:
    """The wanted part of a set of files, all of one model. `files` and the holdings of each device are in rank order.

    `table`: the wanted table, empty for the tree model. `tags`: its tag columns. `shown`: device → its name in a tall
    result, where that is another one.
    """

    files: list[DataFile]
    table: str = ""
    tags: tuple[str, ...] = ()
    devices: dict[str, list[Holding]] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)

    def column_types(self) -> dict[str, set[DataType]]:
        """Column → its types in the files."""
        types: dict[str, set[DataType]] = {}
        for columns in {holding.columns for holdings in self.devices.values() for holding in holdings}:
            for name, kind in columns:
                types.setdefault(name, set()).add(kind)
        return types


@dataclass(frozen=True)
class Wanted:
    """The wanted part of a data set. `model`: tree, table, or empty if the files hold only one. `mixed`: a result that names
    whole devices holds several models and tables."""

    model: str = ""
    database: str = ""
    table: str = ""
    mixed: bool = False


def survey_files(files: Sequence[DataFile], wanted: Wanted) -> Survey:
    """Summarize the wanted part of the files.

    Raises as `read_footer`, and UsageError if the files hold both models, several tables or several databases and
    `wanted` does not choose one.
    """
    found = Survey(list(files))
    seen = _Seen()
    for number, file in enumerate(files):
        with FileBytes(file.path) as opened:
            metadata = read_footer(opened)
            seen.note_declared_tags(file, metadata.tables)
            for segments, mine in _group_by_device(walk_series(opened, metadata)):
                if _is_wanted(segments, file, wanted):
                    seen.note_device(segments, file)
                    name = file_device(segments, file.database, file.prefix)
                    _add_holding(found, number, name, is_table(segments), mine)
    if not wanted.mixed:
        found.table = seen.require_one_table(wanted)
        found.tags = seen.tags_of(found.table)
    return found


class _Seen:
    """Collects the models, databases and tables of the devices."""

    def __init__(self) -> None:
        self.models: set[str] = set()
        self.tables: set[str] = set()
        self.databases: set[str] = set()
        self._declared: dict[
            tuple[str, str], dict[tuple[str, ...], str]
        ] = {}  # (database, table) → tags → the first file with these tags

    def note_declared_tags(self, file: DataFile, tables: Mapping[str, tuple[str, ...]]) -> None:
        for table, tags in tables.items():
            self._declared.setdefault((file.database, table), {}).setdefault(tags, str(file.path))

    def tags_of(self, table: str) -> tuple[str, ...]:
        """The tag columns of the wanted table. Raises UsageError unless files differ only in tags appended at the end."""
        found = self._declared.get((next(iter(self.databases), ""), table), {})
        longest = max(found, key=len, default=())
        for tags, path in found.items():
            if longest[: len(tags)] != tags:
                message = (
                    f"table {table} has the tags {', '.join(tags)} in {path}, and {', '.join(longest)} in {found[longest]}"
                )
                raise UsageError(message, hint="load the files of each by themselves", subject=table)
        return longest

    def note_device(self, segments: Segments, file: DataFile) -> None:
        if is_table(segments):
            self.models.add("table")
            self.tables.add(segments[0] or "")
            self.databases.add(file.database)
        else:
            self.models.add("tree")

    def require_one_table(self, wanted: Wanted) -> str:
        """The table, or empty for the tree model. Raises UsageError if there are several to choose from."""
        for option, found in (("model", self.models), ("database", self.databases), ("table", self.tables)):
            if len(found) > 1:
                choice = ", ".join(sorted(found))
                message = f"the files hold {option}s {choice}: a data frame has one of them"
                raise UsageError(message, hint=f'.option("{option}", "{min(found)}")', subject=option)
        return next(iter(self.tables), wanted.table)


def _is_wanted(segments: Segments, file: DataFile, wanted: Wanted) -> bool:
    if not is_table(segments):
        return wanted.model != "table" and not wanted.table and not wanted.database
    ours = not wanted.database or unquote_node(wanted.database) == unquote_node(file.database)
    return wanted.model != "tree" and ours and (not wanted.table or segments[0] == wanted.table)


def _group_by_device(walk: Iterator[tuple[Segments, Series]]) -> Iterator[tuple[Segments, list[Series]]]:
    current: Segments | None = None
    mine: list[Series] = []
    for segments, series in walk:
        if segments != current:
            if current is not None:
                yield current, mine
            current, mine = segments, []
        mine.append(series)
    if current is not None:
        yield current, mine


_KNOWN: dict[Columns, Columns] = {}
"""One tuple for all devices with the same columns: a plan of a million devices goes through a pipe."""


def _add_holding(found: Survey, number: int, device: str, of_table: bool, mine: Sequence[Series]) -> None:
    filled = [series for series in mine if series.statistics.count]
    values = [series for series in filled if not series.is_time]
    if not values:
        return
    columns = tuple((series.name if of_table else measurement_name(series.name), series.type) for series in values)
    columns = _KNOWN.setdefault(columns, columns)
    longest = max(filled, key=lambda series: series.statistics.count)
    chunks = longest.chunks if len(longest.chunks) > 1 else ()
    found.devices.setdefault(device, []).append(
        Holding(
            number,
            columns,
            longest.statistics.count,
            min(series.statistics.start for series in filled),
            max(series.statistics.end for series in filled),
            tuple((chunk.statistics.start, chunk.statistics.count) for chunk in chunks),
        )
    )
