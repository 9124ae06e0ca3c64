"""Every point of a TsFile as the official `tsfile` package reads it. A program of its own: that package may crash, and no
process that opened a TsFile with it may fork (research/spark-tsfile.md §1.5).

    python official_reader.py FILE > pickle of {(segments, measurement): (type, times, values)}
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

from tsfile import TsFileReader

_ALL = (-(2**63), 2**63 - 1)


def read_all(path: str) -> dict[tuple[tuple[str | None, ...], str], tuple[int, list[int], list[Any]]]:
    size = Path(path).stat().st_size
    reader = TsFileReader(path)
    found = {}
    try:
        for group in reader.get_timeseries_metadata().values():
            for series in group.timeseries:
                prepared = reader.prepare_series(_locator(series, size), trust_index=True)
                batches = reader.query_prepared(prepared, *_ALL)
                times: list[int] = []
                values: list[Any] = []
                while (batch := batches.read_arrow_record_batch()) is not None:
                    rows = batch.column(1).is_valid()  # of an aligned device: rows where the series has no value
                    batch = batch.filter(rows)
                    times += batch.column(0).cast("int64").to_pylist()
                    values += _plain(batch.column(1))
                batches.close()
                prepared.close()
                key = (tuple(group.segments), series.measurement_name)
                found[key] = (int(series.data_type), times, values)
    finally:
        reader.close()
    return found


def _plain(column: Any) -> list[Any]:
    return list((column.cast("int64") if str(column.type).startswith("timestamp") else column).to_pylist())


def _locator(series: Any, size: int) -> tuple[int, ...]:
    time = (series.time_metadata_offset, series.time_metadata_length) if series.layout else (0, 0)
    flags = series.locator_flags if series.layout else 0
    return (1, 0, size, 0, 0, flags, series.layout, series.value_metadata_offset, series.value_metadata_length, *time)


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(read_all(sys.argv[1])))
