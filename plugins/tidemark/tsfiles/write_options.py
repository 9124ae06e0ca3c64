"""The words with which TsFiles are written: options of `df.write.format("tsfile")` (docs/spark.md), without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidemark.errors import UsageError
from tidemark.tsfiles.codes import Compression, DataType
from tidemark.tsfiles.dataset import local_path
from tidemark.tsfiles.devices import is_table, measurement_name
from tidemark.tsfiles.moments import PER_SECOND
from tidemark.tsfiles.scan_options import choice, lowered, names, number

OPTIONS = ("path", "table", "tags", "aligned", "timeUnit", "compression", "rowsPerFile", "graceSeconds")
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
    """What is written. `table` empty: tree model, devices in the column `device`; else `tags` are the tag columns.

    `fields`: column → type. `unit`: of the times in the file. `grace`: seconds that replaced files keep their bytes.
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
    """The options of a writer for rows of `schema`. UsageError names what is missing, unknown or has no type in a TsFile."""
    given = lowered(options, OPTIONS)
    if not given.get("path"):
        raise UsageError("no path", hint='df.write.format("tsfile").mode("append").save("/data/merged")', subject="path")
    table, tags = given.get("table", "").lower(), tuple(tag.lower() for tag in names(given.get("tags", "")))
    if tags and not table:
        raise UsageError("tags without a table", hint='.option("table", "sensors")', subject="tags")
    if len(set(tags)) < len(tags):
        raise UsageError(f"tags names one twice: {', '.join(tags)}", subject="tags")
    if table and not is_table((table,)):
        raise UsageError(f"no table can be called {table!r}: IoTDB takes it for a device of the tree model", subject="table")
    return WriteOptions(
        Path(local_path(given["path"])),
        _fields(schema, ("time", *(tags if table else ("device",))), table),
        table,
        tags,
        choice(given, "aligned", ("true", "false")) == "true" or bool(table),
        choice(given, "timeUnit", tuple(PER_SECOND)),
        _COMPRESSIONS[choice(given, "compression", tuple(_COMPRESSIONS))],
        number(given, "rowsPerFile", ROWS_OF_A_FILE, 1),
        number(given, "graceSeconds", GRACE_SECONDS, 0),
        overwrite,
    )


def written_name(name: str, table: str) -> str:
    """A column as files name it: IoTDB gives columns of a table no case, and cannot ask for a measurement that its SQL would
    take in back-quotes and its file has without."""
    return name.lower() if table else measurement_name(name)


def _fields(schema: pa.Schema, keys: tuple[str, ...], table: str) -> dict[str, DataType]:
    """The columns that hold values, by the names that they are written under, with their types."""
    columns: dict[str, pa.DataType] = {}
    for field in schema:
        name = written_name(field.name, table)
        if name in columns:
            raise UsageError(f"two columns are called {name!r}", subject=name)
        columns[name] = field.type
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
