"""Every type, encoding and compression that a real IoTDB accepts, with random values: read exactly, or refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.every_value import SEEDS, START, creating, literal, values_of
from tests.printed import same
from tests.services.iotdb import IoTDB
from tidemark.errors import UnsupportedError
from tidemark.tsfiles.points import column as canonical
from tidemark.tsfiles.points.codes import Compression, DataType, Encoding
from tidemark.tsfiles.points.column import Column, overlay_columns
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.spark.dataset import find_files

pytestmark = pytest.mark.real("iotdb")
ROWS = 130


@pytest.fixture(scope="module")
def accepted(node: IoTDB) -> list[tuple[DataType, Encoding, Compression]]:
    """What this server lets a series be."""
    plain = (DataType.INT32, Encoding.PLAIN)
    compressions = [c for c in Compression if takes(node, *plain, c)]
    kinds = [kind for kind in DataType if kind != DataType.VECTOR]
    coded = [(kind, e) for kind in kinds for e in Encoding if (kind, e) == plain or takes(node, kind, e, Compression.LZ4)]
    return [(kind, encoding, compression) for kind, encoding in coded for compression in compressions]


def takes(node: IoTDB, kind: DataType, encoding: Encoding, compression: Compression) -> bool:
    series = f"root.probe.p.{kind.name}_{encoding.name}_{compression.name}"
    try:
        node.run(
            f"create timeseries {series} with datatype={kind.name}, encoding={encoding.name}, compressor={compression.name}"
        )
    except RuntimeError as refused:
        assert "nsupported" in str(refused) or "does not support" in str(refused), refused
        return False
    return True


def write(
    node: IoTDB, device: str, names: Sequence[str], kind: DataType, cells: Sequence[Sequence[Any]], aligned: str
) -> None:
    """All rows but nulls, a column at a time where there are some, in two flushes: two chunks of each series."""
    half = len(cells) // 2
    for part in (range(half), range(half, len(cells))):
        for begin in range(part.start, part.stop, 13):
            rows = []
            for row in range(begin, min(begin + 13, part.stop)):
                texts = ["null" if cell is None else literal(kind, cell) for cell in cells[row]]
                rows.append(f"({START + row * 1000}, {', '.join(texts)})")
            node.run(f"insert into {device}(timestamp, {', '.join(names)}) {aligned} values {', '.join(rows)}")
        node.run("flush")


def answers(node: IoTDB, device: str, names: Sequence[str]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {name: {} for name in names}
    for at in range(0, len(names), 12):
        some = names[at : at + 12]
        for time, *cells in node.query(f"select {', '.join(some)} from {device}"):
            for name, cell in zip(some, cells, strict=True):
                if cell != "null":
                    found[name][int(time)] = cell
    return found


def read(files: Path, device: str, name: str) -> Column:
    parts = []
    for file in find_files([str(files)]):
        with TsFile(file.path) as tsfile:
            if device in tsfile.list_devices() and name in tsfile.list_measurements(device):
                parts.append(tsfile.read_column(device, name))
    return overlay_columns(parts)


@pytest.mark.parametrize(
    ("mood", "aligned"),
    [
        pytest.param("wild", "aligned", marks=pytest.mark.full),
        pytest.param("wild", "", marks=pytest.mark.soak),
        pytest.param("calm", "aligned", marks=pytest.mark.soak),
        pytest.param("calm", "", marks=pytest.mark.soak),
    ],
)
def test_values_are_the_servers_or_refused(
    node: IoTDB, accepted: list[tuple[DataType, Encoding, Compression]], mood: str, aligned: str
) -> None:
    random = np.random.default_rng(SEEDS[mood])
    refused: set[tuple[str, str]] = set()
    database = f"root.{mood}{aligned}"
    node.run(f"create database {database}")
    for kind in dict.fromkeys(kind for kind, _, _ in accepted):
        device = f"{database}.of_{kind.name.lower()}"
        series = {f"{e.name}_{c.name}": (e, c) for k, e, c in accepted if k == kind}
        for statement in creating(device, kind, series, bool(aligned)):
            node.run(statement)
        columns = [values_of(kind, mood, random, ROWS) for _ in series]
        cells = [[None if aligned and random.random() < 0.2 else column[row] for column in columns] for row in range(ROWS)]
        write(node, device, list(series), kind, cells, aligned)
        told = answers(node, device, list(series))
        for name, (encoding, _) in series.items():
            try:
                column = read(node.folder / "data" / "datanode" / "data", device, name)
            except UnsupportedError as named:
                assert encoding.name in str(named), named
                refused.add((kind.name, encoding.name))
                continue
            texts = canonical.format_values(column.type, column.values)
            assert column.times.tolist() == list(told[name]), (kind, name)
            wrong = [(ours, t) for ours, t in zip(texts, told[name].values(), strict=True) if not same(kind, ours, t)]
            assert not wrong, (kind, name, wrong[:5])
    assert len(accepted) > 300
    loses = {("FLOAT", "SPRINTZ"), ("DOUBLE", "SPRINTZ")} if mood == "calm" else {(k.name, "SPRINTZ") for k in DataType}
    assert refused <= loses  # the server itself answers other values there than were written
