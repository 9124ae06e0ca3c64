"""Random values of every type, and how SQL writes them: for tests that let a real IoTDB write its own files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidemark.tsfiles.points.codes import Compression, DataType, Encoding

START = 1_700_000_000_000
SEEDS = {"calm": 7, "wild": 11}


def values_of(kind: DataType, mood: str, random: np.random.Generator, rows: int) -> list[Any]:
    """Walks, repeats and small numbers (`calm`), or anything the type can hold (`wild`)."""
    wild = mood == "wild"
    match kind:
        case DataType.BOOLEAN:
            return [bool(v) for v in random.random(rows) < 0.5]
        case DataType.INT32:
            values = random.integers(-(2**31), 2**31, rows) if wild else random.integers(-5, 6, rows).cumsum() // 3
        case DataType.INT64:
            values = random.integers(-(2**62), 2**62, rows) if wild else random.integers(-900, 1000, rows).cumsum() // 400
        case DataType.TIMESTAMP:
            values = START + (random.integers(-(2**50), 2**50, rows) if wild else random.integers(0, 1000, rows).cumsum())
        case DataType.FLOAT:
            values = random.normal(0, 1e20 if wild else 9, rows).astype(np.float32)
            return [float(str(v)) for v in (values if wild else values.round(1))]
        case DataType.DOUBLE:
            return [float(v) for v in (random.normal(0, 1e200, rows) if wild else random.normal(0, 9, rows).round(2))]
        case DataType.DATE:
            days = random.integers(0, 60_000 if wild else 40, rows)
            return [str(day) for day in np.datetime64("1950-01-01") + np.sort(days)]
        case DataType.BLOB:
            return [random.bytes(int(size)).hex() for size in random.integers(1, 40 if wild else 4, rows)]
        case _:
            words = ["ok", "warn", "Grüße 温度", "x" * 40]
            return [
                words[int(n)] if not wild else f"{words[int(n)]}{random.integers(10**6)}"
                for n in random.integers(0, 4, rows)
            ]
    return [int(v) for v in values]


def creating(device: str, kind: DataType, series: Mapping[str, tuple[Encoding, Compression]], aligned: bool) -> list[str]:
    """The statements that create a device's series of one type, each with its encoding and compression."""
    if aligned:
        parts = [f"{n} {kind.name} encoding={e.name} compressor={c.name}" for n, (e, c) in series.items()]
        return [f"create aligned timeseries {device}({', '.join(parts)})"]
    return [
        f"create timeseries {device}.{name} with datatype={kind.name}, encoding={e.name}, compressor={c.name}"
        for name, (e, c) in series.items()
    ]


def literal(kind: DataType, value: Any) -> str:
    if kind in (DataType.DATE, DataType.TEXT, DataType.STRING):
        return f"'{value}'"
    return f"X'{value}'" if kind == DataType.BLOB else str(value).lower() if kind == DataType.BOOLEAN else repr(value)
