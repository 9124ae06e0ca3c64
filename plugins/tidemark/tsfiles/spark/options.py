"""Parse the options of scans and writes, and limit the time of reading unverified bytes. Without Spark.

`scan_options` parses those of `spark.read.format("tsfile")`, `write_options` those of `df.write.format("tsfile")`
(docs/spark.md).

`TimeLimit` sets kill timers that no library can ignore. It is for expendable processes such as a Spark worker. The
kernel ends a process that exceeds the limit (SIGXCPU, SIGALRM), and its parent reports the failure of that task alone.
"""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from tidemark.errors import UsageError
from tidemark.tsfiles.devices import is_table, measurement_name
from tidemark.tsfiles.points.codes import Compression, DataType
from tidemark.tsfiles.spark.dataset import local_path
from tidemark.tsfiles.spark.scan_plan import ROWS_OF_A_TASK, Cut
from tidemark.tsfiles.spark.survey import Wanted
from tidemark.tsfiles.times import PER_SECOND, parse_time_bound

CPU_SECONDS, WALL_SECONDS = 900, 1800


class TimeLimit:
    """Limits the CPU time and the wall time of a block, in seconds. 0 is no limit. Wall time includes waiting for a disk.

    A lower CPU limit of the process stays, and so does an alarm that is already set. Not nestable: the end of the block
    removes the limits.
    """

    def __init__(self, cpu_seconds: int = CPU_SECONDS, wall_seconds: int = WALL_SECONDS) -> None:
        self._cpu_seconds = cpu_seconds
        self._wall_seconds = wall_seconds

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_CPU)
        if self._cpu_seconds:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            allowed = int(usage.ru_utime + usage.ru_stime) + self._cpu_seconds + 1
            soft, hard = self._before
            if soft == resource.RLIM_INFINITY or soft > allowed:
                resource.setrlimit(resource.RLIMIT_CPU, (allowed, hard))
        self._alarm = self._wall_seconds > 0 and not any(signal.getitimer(signal.ITIMER_REAL))
        if self._alarm:
            signal.setitimer(signal.ITIMER_REAL, self._wall_seconds)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_CPU, self._before)


SCAN_OPTIONS = (
    "path",
    "paths",
    "model",
    "database",
    "table",
    "columns",
    "devices",
    "start",
    "end",
    "timeUnit",
    "layout",
    "undecodable",
    "rowsPerTask",
    "cpuSeconds",
    "wallSeconds",
)


@dataclass(frozen=True)
class ScanOptions:
    """The options of a scan. `unit`: of the times; if empty they stay numbers. `limit`: for reading some devices."""

    paths: tuple[str, ...]
    wanted: Wanted
    cut: Cut
    unit: str = ""
    lenient: bool = False
    limit: TimeLimit = field(default_factory=TimeLimit)


def scan_options(options: Mapping[str, str]) -> ScanOptions:
    """Parse the options of a reader, names in any case. Raises UsageError with the wrong option and what is allowed."""
    given = lower_option_names(options, SCAN_OPTIONS)
    paths = (*parse_names(given.get("path", ""), single=True), *parse_names(given.get("paths", "")))
    if not paths:
        raise UsageError(
            "no path", hint='spark.read.format("tsfile").load("/data/iotdb/data/datanode/data")', subject="path"
        )
    return parse_scan(given, paths)


def parse_scan(given: Mapping[str, str], paths: tuple[str, ...]) -> ScanOptions:
    """Parse the options of a scan of `paths`. `given`: of `lower_option_names`. Raises UsageError."""
    unit = parse_choice(given, "timeUnit", ("", *PER_SECOND))
    cut = Cut(
        columns=parse_names(given.get("columns", "")),
        devices=parse_names(given.get("devices", "")),
        start=parse_time_bound(given.get("start", ""), unit or "ms"),
        end=parse_time_bound(given.get("end", ""), unit or "ms"),
        tall=parse_choice(given, "layout", ("wide", "tall")) == "tall",
        rows=parse_number(given, "rowsPerTask", ROWS_OF_A_TASK, 1),
    )
    if len(set(cut.columns)) < len(cut.columns):
        raise UsageError(f"columns names one twice: {', '.join(cut.columns)}", subject="columns")
    if cut.tall and cut.columns:
        raise UsageError("layout=tall has its own columns: leave `columns` out", subject="columns")
    wanted = Wanted(parse_choice(given, "model", ("", "tree", "table")), given.get("database", ""), given.get("table", ""))
    lenient = parse_choice(given, "undecodable", ("fail", "null")) == "null"
    limit = TimeLimit(parse_number(given, "cpuSeconds", CPU_SECONDS, 0), parse_number(given, "wallSeconds", WALL_SECONDS, 0))
    return ScanOptions(paths, wanted, cut, unit, lenient, limit)


def lower_option_names(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """The options by their lower-case and their documented names. Raises UsageError for an unknown option."""
    names_of = {name.lower(): name for name in known}
    for name in options:
        if name.lower() not in names_of:
            raise UsageError(f"no option {name!r}; there are {', '.join(known)}", hint="docs/spark.md", subject=name)
    return {name.lower(): value for name, value in options.items()} | {
        names_of[name.lower()]: value for name, value in options.items()
    }


def parse_names(text: str, single: bool = False) -> tuple[str, ...]:
    """Parse a list of names: a JSON list, else separated by commas. `single`: one name that may contain commas."""
    if text.startswith("["):
        try:
            found = json.loads(text)
        except ValueError as broken:
            raise UsageError(f"{text!r} is not a JSON list: {broken}", subject=text) from broken
        return tuple(str(item) for item in found)
    if single:
        return (text,) if text else ()
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_choice(given: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """The value of an option with few `allowed` values, of which the first is the default."""
    value = given.get(name, allowed[0]).lower()
    if value not in allowed:
        wanted = ", ".join(word for word in allowed if word)
        raise UsageError(f"{name} = {value!r}; allowed are {wanted}", hint="docs/spark.md", subject=name)
    return value


def parse_number(given: Mapping[str, str], name: str, default: int, least: int) -> int:
    """The value of an option that is a whole number of at least `least`."""
    text = given.get(name, str(default))
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise UsageError(f"{name} = {text!r}: a whole number from {least} on is wanted", hint="docs/spark.md", subject=name)
    return value


WRITE_OPTIONS = ("path", "table", "tags", "aligned", "timeUnit", "compression", "rowsPerFile", "graceSeconds")
ROWS_OF_A_FILE = 4_000_000
GRACE_SECONDS = 900

_TYPES = {
    pa.bool_(): DataType.BOOLEAN,
    pa.int8(): DataType.INT32,
    pa.int16(): DataType.INT32,
    pa.int32(): DataType.INT32,
    pa.int64(): DataType.INT64,
    pa.float32(): DataType.FLOAT,
    pa.float64(): DataType.DOUBLE,
    pa.string(): DataType.STRING,
    pa.large_string(): DataType.STRING,
    pa.binary(): DataType.BLOB,
    pa.large_binary(): DataType.BLOB,
    pa.date32(): DataType.DATE,
}
_COMPRESSIONS = {
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
    "snappy": Compression.SNAPPY,
    "none": Compression.UNCOMPRESSED,
}


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write. Without a `table`: tree model, devices in the column `device`. Else `tags` are tag columns.

    `fields`: column → type. `unit`: of the times in the file. `grace`: seconds before replaced files are deleted.
    """

    folder: Path
    fields: Mapping[str, DataType]
    table: str = ""
    tags: tuple[str, ...] = ()
    aligned: bool = True
    unit: str = "ms"
    compression: Compression = Compression.LZ4
    rows: int = ROWS_OF_A_FILE
    grace: int = GRACE_SECONDS
    overwrite: bool = False


def write_options(options: Mapping[str, str], schema: pa.Schema, overwrite: bool) -> WriteOptions:
    """Parse the options of a writer for rows of `schema`. Raises UsageError for missing, unknown or unsupported ones."""
    given = lower_option_names(options, WRITE_OPTIONS)
    if not given.get("path"):
        raise UsageError("no path", hint='df.write.format("tsfile").mode("append").save("/data/merged")', subject="path")
    table, tags = given.get("table", "").lower(), tuple(tag.lower() for tag in parse_names(given.get("tags", "")))
    if tags and not table:
        raise UsageError("tags without a table", hint='.option("table", "sensors")', subject="tags")
    if len(set(tags)) < len(tags):
        raise UsageError(f"tags names one twice: {', '.join(tags)}", subject="tags")
    if table and not is_table((table,)):
        raise UsageError(f"no table can be called {table!r}: IoTDB takes it for a device of the tree model", subject="table")
    return WriteOptions(
        Path(local_path(given["path"])),
        _value_fields(schema, ("time", *(tags if table else ("device",))), table),
        table,
        tags,
        parse_choice(given, "aligned", ("true", "false")) == "true" or bool(table),
        parse_choice(given, "timeUnit", tuple(PER_SECOND)),
        _COMPRESSIONS[parse_choice(given, "compression", tuple(_COMPRESSIONS))],
        parse_number(given, "rowsPerFile", ROWS_OF_A_FILE, 1),
        parse_number(given, "graceSeconds", GRACE_SECONDS, 0),
        overwrite,
    )


def written_name(name: str, table: str) -> str:
    """The name of a column in files: lower case in a table, as IoTDB's, else the canonical measurement name.

    IoTDB cannot query a measurement that needs back-quotes in its SQL and has none in the file."""
    return name.lower() if table else measurement_name(name)


def _value_fields(schema: pa.Schema, keys: tuple[str, ...], table: str) -> dict[str, DataType]:
    """The columns with values: name in the file → type. Raises UsageError for missing or unsuitable columns."""
    columns: dict[str, pa.DataType] = {}
    for one in schema:
        name = written_name(one.name, table)
        if name in columns:
            raise UsageError(f"two columns are called {name!r}", subject=name)
        columns[name] = one.type
    missing = [key for key in keys if key not in columns]
    if missing:
        what = "a table needs its tags" if table else 'the tree model needs them; for a table: .option("table", …)'
        raise UsageError(f"no column {', '.join(missing)}: {what}", hint="docs/spark.md", subject=missing[0])
    for key in keys[1:]:
        if columns[key] not in (pa.string(), pa.large_string()):
            raise UsageError(f"column {key!r} is {columns[key]}: names of devices and tags are strings", subject=key)
    if columns["time"] != pa.int64() and not pa.types.is_timestamp(columns["time"]):
        raise UsageError(f"column 'time' is {columns['time']}: a bigint or a timestamp is wanted", subject="time")
    fields = {name: _type_of(name, kind) for name, kind in columns.items() if name not in keys}
    if not fields:
        raise UsageError("no column holds values", subject="columns")
    return fields


def _type_of(name: str, kind: pa.DataType) -> DataType:
    if pa.types.is_timestamp(kind):
        return DataType.TIMESTAMP
    if kind not in _TYPES:
        known = ", ".join(dict.fromkeys(str(known) for known in _TYPES))
        raise UsageError(f"column {name!r} is {kind}: a TsFile holds {known}, timestamp", hint="cast it", subject=name)
    return _TYPES[kind]
