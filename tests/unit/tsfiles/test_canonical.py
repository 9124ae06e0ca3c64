"""The canonical text of every type (CONTRACT §1)."""

from __future__ import annotations

import numpy as np
import pytest

from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import VALUE_DTYPES, format_values


@pytest.mark.parametrize(
    ("data_type", "values", "texts"),
    [
        (DataType.BOOLEAN, [True, False], ["true", "false"]),
        (DataType.INT32, [-(2**31), 7], ["-2147483648", "7"]),
        (DataType.INT64, [2**63 - 1, -1], ["9223372036854775807", "-1"]),
        (DataType.TIMESTAMP, [1_700_000_000_977], ["1700000000977"]),
        (DataType.FLOAT, [20.98528, -0.0, 1e-7, 3.0, 16777216.0], ["20.98528", "-0.0", "1e-07", "3.0", "1.6777216e+07"]),
        (DataType.FLOAT, [float("nan"), float("inf"), float("-inf")], ["nan", "inf", "-inf"]),
        (DataType.DOUBLE, [97.76, -0.0, 5e-324, 1e22], ["97.76", "-0.0", "5e-324", "1e+22"]),
        (DataType.DOUBLE, [float("nan"), float("inf"), float("-inf")], ["nan", "inf", "-inf"]),
        (DataType.TEXT, [b"", "Grüße".encode(), b"a\x00b", b"\xff,"], ["", "Grüße", "a\x00b", "\\xff,"]),
        (DataType.STRING, [b"s6"], ["s6"]),
        (DataType.BLOB, [b"", b"\x00\xdf"], ["", "00df"]),
        (DataType.DATE, [20011203, 19700101], ["2001-12-03", "1970-01-01"]),
    ],
)
def test_values(data_type: DataType, values: list[object], texts: list[str]) -> None:
    array = np.empty(len(values), VALUE_DTYPES[data_type])
    array[:] = values
    assert format_values(data_type, array) == texts
