"""The files that `bench source` reads: sensor-like series, the same points for every contender.

    python -m bench.source_data FOLDER DEVICES ROWS     tree.tsfile by the official package (its writer of tablets)

A program of its own for that one, because a process that used the official package may not fork any more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.write.writer import TsFileWriter

SERIES = {
    "level": DataType.DOUBLE,
    "speed": DataType.DOUBLE,
    "temp": DataType.FLOAT,
    "total": DataType.INT64,
    "state": DataType.INT32,
}
START = 1_700_000_000_000


def devices(number: int, rows: int) -> Iterator[tuple[str, dict[str, Column]]]:
    """(last node, its series): about a point a second, values of few decimals, every series at every time."""
    random = np.random.default_rng(20261121)
    for device in range(number):
        times = START + np.cumsum(random.integers(900, 1100, rows))
        values = {
            "level": np.round(random.normal(0, 0.2, rows).cumsum() + 50, 3),
            "speed": np.round(random.normal(1480, 6, rows), 2),
            "temp": np.round(random.normal(20, 2, rows), 1).astype(np.float32),
            "total": random.integers(0, 500, rows).cumsum(),
            "state": random.integers(0, 100, rows).astype(np.int32),
        }
        yield f"d{device:05d}", {name: Column(SERIES[name], times, column) for name, column in values.items()}


def write_aligned(place: Path, number: int, rows: int) -> None:
    """An aligned tree file by Tidemark's writer: the official package cannot write one."""
    with TsFileWriter(place) as writer:
        for name, columns in devices(number, rows):
            writer.write_device(("root.bench.line", name), columns, aligned=True)


def write_parquet(place: Path, number: int, rows: int) -> None:
    """The same rows as Parquet (zstd), a row group a device."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"device": pa.string(), "time": pa.int64(), "level": pa.float64(), "speed": pa.float64()}
    kinds |= {"temp": pa.float32(), "total": pa.int64(), "state": pa.int32()}
    with pq.ParquetWriter(place, pa.schema(list(kinds.items())), compression="zstd") as writer:
        for name, columns in devices(number, rows):
            arrays = [pa.repeat(f"root.bench.line.{name}", rows), pa.array(columns["level"].times)]
            arrays += [pa.array(columns[series].values) for series in SERIES]
            writer.write_table(pa.Table.from_arrays(arrays, names=list(kinds)))


def write_official(place: Path, number: int, rows: int) -> None:
    """A tree file that is not aligned, in the encodings that an IoTDB server gives these types by default."""
    import tsfile

    encodings = {
        name: "GORILLA" if kind in (DataType.DOUBLE, DataType.FLOAT) else "TS_2DIFF" for name, kind in SERIES.items()
    }
    writer = tsfile.TsFileWriter(str(place))
    kinds = [getattr(tsfile.TSDataType, kind.name) for kind in SERIES.values()]
    for name, columns in devices(number, rows):
        device = f"root.bench.line.{name}"
        for series, kind in zip(SERIES, kinds, strict=True):
            encoding = getattr(tsfile.TSEncoding, encodings[series])
            writer.register_timeseries(device, tsfile.TimeseriesSchema(series, kind, encoding, tsfile.Compressor.LZ4))
        tablet = tsfile.Tablet(list(SERIES), kinds, rows)
        tablet.set_table_name(device)
        for row, time in enumerate(columns["level"].times.tolist()):
            tablet.add_timestamp(row, time)
        for place_of, series in enumerate(SERIES):
            for row, value in enumerate(columns[series].values.tolist()):
                tablet.add_value_by_index(place_of, row, value)
        writer.write_tablet(tablet)
    writer.close()


if __name__ == "__main__":
    write_official(Path(sys.argv[1]) / "tree.tsfile", int(sys.argv[2]), int(sys.argv[3]))
