"""Run in a process of its own: writes TsFiles with the official package and tells what it put into them.

`python official_writer.py FOLDER` writes `tree.tsfile` (a series for each type, encoding and compression, several chunks
of several pages), `table.tsfile` (tags, nulls), and `written.json`: {series: [type, encoding, [[time, text], …]]}.
The package is never imported into a test's own process: after a call of it a fork would hang.
"""

from __future__ import annotations

import json
import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np
from tsfile import (
    ColumnCategory,
    ColumnSchema,
    Compressor,
    TableSchema,
    Tablet,
    TimeseriesSchema,
    TSDataType,
    TSEncoding,
    TsFileTableWriter,
    TsFileWriter,
    set_tsfile_config,
)

ROWS, CHUNKS, POINTS_OF_A_PAGE = 700, 3, 97
INTEGERS = [TSEncoding.PLAIN, TSEncoding.RLE, TSEncoding.TS_2DIFF, TSEncoding.GORILLA, TSEncoding.ZIGZAG, TSEncoding.CHIMP]
FLOATS = [TSEncoding.PLAIN, TSEncoding.GORILLA, TSEncoding.CHIMP]
TEXTS = [TSEncoding.PLAIN, TSEncoding.DICTIONARY]
ENCODINGS = {
    TSDataType.BOOLEAN: [TSEncoding.PLAIN],
    TSDataType.INT32: INTEGERS,
    TSDataType.INT64: INTEGERS,
    TSDataType.TIMESTAMP: [TSEncoding.TS_2DIFF, TSEncoding.PLAIN],
    TSDataType.DATE: [TSEncoding.TS_2DIFF, TSEncoding.PLAIN],
    TSDataType.FLOAT: FLOATS,
    TSDataType.DOUBLE: FLOATS,
    TSDataType.TEXT: TEXTS,
    TSDataType.STRING: TEXTS,
    TSDataType.BLOB: [TSEncoding.PLAIN],
}
COMPRESSIONS = [
    Compressor.UNCOMPRESSED,
    Compressor.SNAPPY,
    Compressor.GZIP,
    Compressor.LZ4,
    Compressor.ZSTD,
    Compressor.LZMA2,
]


def values_of(data_type: TSDataType, rng: np.random.Generator) -> list[object]:
    """Values with extremes, runs, repeats, signs."""
    match data_type:
        case TSDataType.BOOLEAN:
            return [bool(value) for value in rng.integers(0, 2, ROWS)]
        case TSDataType.INT32:
            steps = rng.integers(-3, 4, ROWS).cumsum().tolist()
            return [2**31 - 1, -(2**31) + 1, 0, -1, *steps[4:-60], *[7] * 60]
        case TSDataType.INT64 | TSDataType.TIMESTAMP:
            steps = (rng.integers(-1000, 5000, ROWS).cumsum() + 1_700_000_000_000).tolist()
            return [2**62, -(2**62), 0, -1, *steps[4:-60], *[7] * 60]
        case TSDataType.FLOAT:
            return [0.0, -0.0, 1e-38, *[float(np.float32(value)) for value in rng.normal(20, 3, ROWS - 63)], *[1.5] * 60]
        case TSDataType.DOUBLE:
            return [0.0, -0.0, 5e-324, *np.round(rng.normal(20, 3, ROWS - 63), 3).tolist(), *[1.5] * 60]
        case TSDataType.DATE:
            return [date(1999, 12, 31) + timedelta(days=int(day)) for day in rng.integers(-9000, 9000, ROWS)]
        case TSDataType.BLOB:
            return [rng.bytes(int(size)) for size in rng.integers(0, 9, ROWS)]
        case _:
            words = ["", "ok", "warn", "Grüße", "温度", "a,b\n"]
            return [words[int(index)] for index in rng.integers(0, len(words), ROWS)]


def text_of(data_type: TSDataType, value: object) -> str:
    """Canonical text (CONTRACT §1), written apart from the code under test."""
    match data_type:
        case TSDataType.BOOLEAN:
            return "true" if value else "false"
        case TSDataType.FLOAT:
            return str(np.float32(value))
        case TSDataType.DOUBLE:
            return repr(value)
        case TSDataType.BLOB:
            return value.hex()
        case _:
            return str(value)


def write_tree(folder: Path) -> dict[str, list[object]]:
    """Chunks follow each other in time; every 7th row of a series is null."""
    device = "root.lab.d1"
    combinations = [(kind, encoding, Compressor.LZ4) for kind, choices in ENCODINGS.items() for encoding in choices]
    combinations += [(TSDataType.INT64, TSEncoding.PLAIN, compression) for compression in COMPRESSIONS]
    rng = np.random.default_rng(11)
    written: dict[str, list[object]] = {}
    writer = TsFileWriter(str(folder / "tree.tsfile"))
    set_tsfile_config({"page_writer_max_point_num_": POINTS_OF_A_PAGE})
    names = [f"s{number}" for number in range(len(combinations))]
    for name, (kind, encoding, compression) in zip(names, combinations, strict=True):
        writer.register_timeseries(device, TimeseriesSchema(name, kind, encoding, compression))
        written[f"{device}.{name}"] = [kind.name, encoding.name, []]
    for chunk in range(CHUNKS):
        tablet = Tablet(names, [kind for kind, _, _ in combinations], ROWS)
        tablet.set_table_name(device)
        times = (1_700_000_000_000 + chunk * 10_000_000 + rng.integers(1, 9000, ROWS).cumsum()).tolist()
        for row, time in enumerate(times):
            tablet.add_timestamp(row, time)
        for index, (kind, _, _) in enumerate(combinations):
            for row, value in enumerate(values_of(kind, rng)):
                if (row + index) % 7:
                    tablet.add_value_by_index(index, row, value)
                    written[f"{device}.{names[index]}"][2].append([times[row], text_of(kind, value)])
        writer.write_tablet(tablet)
        writer.flush()
    writer.close()
    return written


def write_table(folder: Path) -> dict[str, list[object]]:
    """Two tags, one of them null for a device; nulls in fields, pages without a value."""
    fields = [("ok", TSDataType.BOOLEAN), ("n", TSDataType.INT64), ("t", TSDataType.STRING), ("x", TSDataType.DOUBLE)]
    columns = [ColumnSchema(tag, TSDataType.STRING, ColumnCategory.TAG) for tag in ("site", "line")]
    columns += [ColumnSchema(name, kind, ColumnCategory.FIELD) for name, kind in fields]
    written: dict[str, list[object]] = {}
    rng = np.random.default_rng(12)
    with TsFileTableWriter(str(folder / "table.tsfile"), TableSchema("meter", columns)) as writer:
        for site, line in (("a.b", "x\\y"), ("c", None), (None, "z")):
            device = ".".join(
                [
                    "lab",
                    "meter",
                    *("\\N" if tag is None else tag.replace("\\", "\\\\").replace(".", "\\.") for tag in (site, line)),
                ]
            )
            tablet = Tablet([column.get_column_name() for column in columns], [c.get_data_type() for c in columns], ROWS)
            for row in range(ROWS):
                tablet.add_timestamp(row, 1000 + row * 10)
                if site is not None:
                    tablet.add_value_by_name("site", row, site)
                if line is not None:
                    tablet.add_value_by_name("line", row, line)
            for name, kind in fields:
                series = written.setdefault(f"{device}.{name}", [kind.name, "", []])
                for row, value in enumerate(values_of(kind, rng)):
                    if not 100 <= row < 400 and rng.integers(0, 3):
                        tablet.add_value_by_name(name, row, value)
                        series[2].append([1000 + row * 10, text_of(kind, value)])
            writer.write_table(tablet)
    return written


if __name__ == "__main__":
    target = Path(sys.argv[1])
    everything = {"tree": write_tree(target), "table": write_table(target)}
    (target / "written.json").write_text(json.dumps(everything))
