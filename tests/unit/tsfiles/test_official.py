"""Files of the official package read as what was put into them: types, encodings, compressions, many pages and chunks.

The package runs in a process of its own (official_writer.py). Independent of the real folders: those hold one page a chunk.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemark.tsfiles.companions.mods import Deletion, Deletions
from tidemark.tsfiles.devices import pad_null_tags
from tidemark.tsfiles.layout.structure import check_structure
from tidemark.tsfiles.points.column import format_values
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.statistics import describe_file

CHUNKS = 3


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("official")
    script = Path(__file__).parent / "official_writer.py"
    subprocess.run([sys.executable, script, folder], check=True, timeout=120)
    return folder, json.loads((folder / "written.json").read_text())


def columns(tsfile: TsFile, tags: int = 0) -> Iterator[tuple[str, str, str]]:
    for device in tsfile.list_devices():
        for measurement in tsfile.list_measurements(device):
            yield f"{pad_null_tags(device, tags) if tags else device}.{measurement}", device, measurement


@pytest.mark.full
def test_every_encoding_and_compression_of_the_tree_model(written: tuple[Path, dict[str, Any]]) -> None:
    folder, everything = written
    assert check_structure(folder / "tree.tsfile") == 4
    series = {f"{d.device}.{m}": f for d in describe_file(folder / "tree.tsfile").devices for m, f in d.series.items()}
    with TsFile(folder / "tree.tsfile") as tsfile:
        read = {name: tsfile.read_column(device, measurement) for name, device, measurement in columns(tsfile)}
    assert read.keys() == everything["tree"].keys()
    for name, (type_name, encoding, rows) in everything["tree"].items():
        column = read[name]
        assert (column.type.name, series[name].encoding) == (type_name, encoding)
        got = [
            [time, value]
            for time, value in zip(column.times.tolist(), format_values(column.type, column.values), strict=True)
        ]
        assert got == rows, (name, type_name, encoding)
    assert len({(f.type, f.encoding, f.compression) for f in series.values()}) > 30


def test_nulls_and_null_tags_of_the_table_model(written: tuple[Path, dict[str, Any]]) -> None:
    folder, everything = written
    assert check_structure(folder / "table.tsfile") == 4
    facts = describe_file(folder / "table.tsfile", "lab")
    assert (facts.model, facts.tables, {device.aligned for device in facts.devices}) == ("table", {"meter": 2}, {True})
    assert {(device.start, device.end) for device in facts.devices} == {(1000, 7990)}
    with TsFile(folder / "table.tsfile", "lab") as tsfile:
        read = {name: tsfile.read_column(device, measurement) for name, device, measurement in columns(tsfile, 2)}
    assert read.keys() == everything["table"].keys()
    for name, (type_name, _, rows) in everything["table"].items():
        column = read[name]
        assert column.type.name == type_name
        got = [
            [time, value]
            for time, value in zip(column.times.tolist(), format_values(column.type, column.values), strict=True)
        ]
        assert got == rows, name


@pytest.mark.parametrize("model", ["tree", "table"])
def test_a_span_of_time_is_cut_to_the_point(written: tuple[Path, dict[str, Any]], model: str) -> None:
    folder, everything = written
    tags = 2 if model == "table" else 0
    with TsFile(folder / f"{model}.tsfile", "lab") as tsfile:
        for name, device, measurement in list(columns(tsfile, tags))[:12]:
            times = [time for time, _ in everything[model][name][2]]
            middle, late = times[len(times) // 2], times[-3]
            for start, end in (
                (None, None),
                (middle, None),
                (None, middle),
                (middle, late),
                (late, middle),
                (late + 1, late + 1),
            ):
                wanted = [t for t in times if (start is None or t >= start) and (end is None or t < end)]
                assert tsfile.read_column(device, measurement, start, end).times.tolist() == wanted, (name, start, end)


def test_deletions_by_offset_spare_the_later_chunks(written: tuple[Path, dict[str, Any]]) -> None:
    folder, everything = written
    name = "root.lab.d1.s0"
    times = [time for time, _ in everything["tree"][name][2]]
    per_chunk = len(times) // CHUNKS
    with TsFile(folder / "tree.tsfile") as tsfile:
        offsets = [place.offset for place in tsfile._find_series("root.lab.d1", "s0").chunks]
        everywhere = Deletion(times[0], times[-1], path="root.lab.d1.*", before=offsets[2])
        column = tsfile.read_column("root.lab.d1", "s0", deletions=Deletions([everywhere]))
        assert column.times.tolist() == times[2 * per_chunk :]
        some = Deletion(times[3], times[5], path="root.**")
        assert tsfile.read_column("root.lab.d1", "s0", deletions=Deletions([some])).times.tolist() == times[:3] + times[6:]
        other = Deletion(times[0], times[-1], path="root.lab.d2.*")
        assert len(tsfile.read_column("root.lab.d1", "s0", deletions=Deletions([other]))) == len(times)
