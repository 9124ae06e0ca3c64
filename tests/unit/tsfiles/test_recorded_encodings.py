"""Files of real servers (2.0.1-beta, 0.12.0) in every type and encoding they accept: its own answers, or refused by name.

`tests/data/encodings` was made by the steps of test_iotdb_encodings.py with other random values: `root.calm` small steps,
`root.wild` anything the types hold; two files a series; compressions in turn. `expected.json.gz`: series → type, (time,
printed value).
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path

import pytest

from tests.printed import same
from tidemark.errors import UnsupportedError
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column, format_values, overlay_columns
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.spark.dataset import find_files

FOLDERS = Path(__file__).parents[2] / "data" / "encodings"
LOSES = {"root.calm.of_float.SPRINTZ", "root.calm.of_double.SPRINTZ"} | {
    f"root.wild.of_{kind}.SPRINTZ" for kind in ("int32", "int64", "timestamp", "float", "double", "date")
}


@pytest.mark.usefixtures("decoding")
@pytest.mark.parametrize("version", sorted(path.name for path in FOLDERS.iterdir()))
def test_every_value_is_the_servers_or_refused(version: str) -> None:
    with gzip.open(FOLDERS / version / "expected.json.gz", "rt") as file:
        expected = json.load(file)
    read: dict[str, list[Column]] = defaultdict(list)
    refused = set()
    for place in find_files([str(FOLDERS / version)]):
        with TsFile(place.path) as tsfile:
            for device in tsfile.list_devices():
                for name in tsfile.list_measurements(device):
                    try:
                        read[f"{device}.{name}"].append(tsfile.read_column(device, name))
                    except UnsupportedError as named:
                        assert name in named.message and device in named.message
                        refused.add(f"{device}.{name}")
    assert refused <= LOSES
    assert {*read, *refused} == set(expected)
    for series in set(read) - refused:
        kind, points = DataType[expected[series][0]], expected[series][1]
        column = overlay_columns(read[series])
        assert column.type == kind
        assert column.times.tolist() == [time for time, _ in points]
        texts = format_values(kind, column.values)
        wrong = [(ours, told) for ours, (_, told) in zip(texts, points, strict=True) if not same(kind, ours, told)]
        assert not wrong, (series, wrong[:3])
