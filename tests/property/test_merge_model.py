"""Random files of random types, ranks and deletions: what is merged is what a plain model of "newest wins" says."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.receiver import windows as merge_pieces
from tidemark.receiver.merge.device import Counts
from tidemark.receiver.merge.plan import Group, Unit, overlapping_groups, tasks_of
from tidemark.receiver.merge.task import MergeOutcome, run_merge_task
from tidemark.tsfiles.devices import file_device
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import VALUE_DTYPES, Column
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.statistics import describe_file
from tidemark.tsfiles.write import pages as writer_pages
from tidemark.tsfiles.write.writer import TsFileWriter, device_order

DATABASE = "root.db"
TABLES = {"t": ("tag1", "tag2")}
INTERVAL = 10
SEGMENTS: list[tuple[str | None, ...]] = [
    ("root.db.a", "d1"),
    ("root.db.a", "`d.2`"),
    ("t", None, "x"),
    ("t", "x.y"),
    ("t", "x", "y"),
]
TYPES = {f"s{n}_{t.name.lower()}": t for n, t in enumerate(VALUE_DTYPES)}
VALUES: dict[DataType, st.SearchStrategy[Any]] = {
    DataType.BOOLEAN: st.booleans(),
    DataType.INT32: st.integers(-(2**31), 2**31 - 1),
    DataType.INT64: st.integers(-(2**63), 2**63 - 1),
    DataType.FLOAT: st.floats(width=32),
    DataType.DOUBLE: st.floats(),
    DataType.TEXT: st.text(max_size=5).map(str.encode),
    DataType.TIMESTAMP: st.integers(-(2**63), 2**63 - 1),
    DataType.DATE: st.sampled_from([19700101, 20240229, 18991231]),
    DataType.BLOB: st.binary(max_size=5),
    DataType.STRING: st.text(max_size=5).map(str.encode),
}
TIMES = st.integers(-15, 25)

Series = tuple[str, str]  # device, measurement


@dataclass(frozen=True)
class Deleted:
    """`measurement` None: all of the device (tree) or table."""

    device: int
    measurement: str | None
    start: int
    end: int


@dataclass(frozen=True)
class RandomFile:
    """`points`: (segments' number, measurement) → time → value; `aligned`: devices of the tree that share their times."""

    points: Mapping[tuple[int, str], Mapping[int, Any]]
    deletions: tuple[Deleted, ...]
    aligned: bool


@st.composite
def files(draw: st.DrawFn) -> RandomFile:
    keys = st.tuples(st.sampled_from(range(len(SEGMENTS))), st.sampled_from(sorted(TYPES)))
    chosen = draw(st.lists(keys, min_size=1, max_size=5, unique=True))
    points = {k: draw(st.dictionaries(TIMES, VALUES[TYPES[k[1]]], min_size=1, max_size=8)) for k in chosen}
    deletion = st.builds(
        lambda device, measurement, times: Deleted(device, measurement, min(times), max(times)),
        st.sampled_from(range(len(SEGMENTS))),
        st.none() | st.sampled_from(sorted(TYPES)),
        st.tuples(TIMES, TIMES),
    )
    return RandomFile(points, tuple(draw(st.lists(deletion, max_size=3))), draw(st.booleans()))


@given(
    st.lists(files(), min_size=2, max_size=5),
    st.sampled_from([0, 2, 1000]),
    st.sampled_from([1, 2, 10_000]),
    st.sampled_from([1, 4, 10**6]),
)
def test_merged_files_hold_what_the_model_says(
    chosen: list[RandomFile], copy_rows: int, page_rows: int, window: int
) -> None:
    """Whatever is copied and whatever is decoded, at once or window by window: files of many small chunks too."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_pieces, "COPY_ROWS", copy_rows)
        patch.setattr(merge_pieces, "WINDOW_POINTS", window)
        patch.setattr(merge_pieces, "WINDOW_ROWS", 1)
        patch.setattr(writer_pages, "PAGE_ROWS", page_rows)
        patch.setattr(writer_pages, "CHUNK_PAGES", 2 if page_rows == 1 else 1)
        units = [write_unit(Path(folder), number, file) for number, file in enumerate(chosen)]
        for group in overlapping_groups(units):
            members = [chosen[file_id - 1] for file_id in (unit.file.file_id for unit in group.units)]
            outcomes = [run_merge_task(task) for task in tasks_of(group, 0, folder, "staging", INTERVAL)]
            assert read_back(Path(folder), outcomes) == model(members)
            check_counts(group, members, outcomes)


def model(members: list[RandomFile]) -> dict[tuple[str, str, int], tuple[str, str]]:
    """(device, measurement, time) → (type, value) of the newest file that has a value there."""
    seen = {}
    for file in members:
        for (number, measurement), points in file.points.items():
            for time, value in points.items():
                if not gone(file, number, measurement, time):
                    kind = TYPES[measurement]
                    exact = np.array([value], VALUE_DTYPES[kind])
                    seen[name(number), measurement, time] = (kind.name, exact_text(exact[0]))
    return seen


def gone(file: RandomFile, number: int, measurement: str, time: int) -> bool:
    return any(applies(entry, number, measurement) and entry.start <= time <= entry.end for entry in file.deletions)


def applies(entry: Deleted, number: int, measurement: str) -> bool:
    """Entries of the tree name a device; those of the table model have no predicate here: they mean the whole table."""
    same = entry.device == number or (is_table(entry.device) and is_table(number))
    return same and entry.measurement in (None, measurement)


def is_table(number: int) -> bool:
    return SEGMENTS[number][0] == "t"


def name(number: int) -> str:
    return file_device(SEGMENTS[number], DATABASE)


def exact_text(value: Any) -> str:
    """Tells NaN, -0.0 and 0.0 apart."""
    return repr(value.item() if isinstance(value, np.generic) else value)


def read_back(folder: Path, outcomes: list[MergeOutcome]) -> dict[tuple[str, str, int], tuple[str, str]]:
    found = {}
    for outcome in outcomes:
        assert outcome.refused is None
        for staged in outcome.staged:
            with TsFile(folder / staged.location, DATABASE) as file:
                for device in file.list_devices():
                    for measurement in file.list_measurements(device):
                        column = file.read_column(device, measurement)
                        for time, value in zip(column.times.tolist(), column.values, strict=True):
                            assert time // INTERVAL == staged.partition
                            assert (device, measurement, time) not in found
                            found[device, measurement, time] = (column.type.name, exact_text(value))
    return found


def check_counts(group: Group, members: list[RandomFile], outcomes: list[MergeOutcome]) -> None:
    total = sum((o.unplaced for o in outcomes), Counts())
    for outcome in outcomes:
        for staged in outcome.staged:
            assert staged.counts.is_balanced and staged.points == staged.counts.points_out
            assert staged.points == sum(points for *_, points in staged.devices)
            total += staged.counts
    deleted = sum(gone(f, n, m, t) for f in members for (n, m), points in f.points.items() for t in points)
    out = len(model(members))
    assert total == Counts(group.points, out, group.points - out - deleted, deleted)


def write_unit(folder: Path, number: int, random: RandomFile) -> Unit:
    place = folder / f"{number}.tsfile"
    with TsFileWriter(place, TABLES) as writer:
        for at in sorted({n for n, _ in random.points}, key=lambda n: device_order(SEGMENTS[n])):
            columns = {m: column(TYPES[m], points) for (n, m), points in random.points.items() if n == at}
            writer.write_device(SEGMENTS[at], columns, random.aligned)
    mods = ""
    if random.deletions:
        mods = f"{number}.tsfile.mods2"
        (folder / mods).write_bytes(b"".join(encode(entry) for entry in random.deletions))
    facts = describe_file(place, DATABASE)
    file = CatalogFile(
        receiver="r",
        site_id="site",
        role="source",
        path=place.name,
        generation=1,
        database=DATABASE,
        model=facts.model,
        format=4,
        partition_from=0,
        partition_to=0,
        location=place.name,
        sha256="",
        size=place.stat().st_size,
        mods_location=mods,
        mods_sha256="",
        points=facts.points,
        rank=(0, number, 0, 0, 0),
        created=0.0,
        file_id=number + 1,
    )
    return Unit(file, tuple(CatalogDevice(d.device, d.start, d.end, d.points) for d in facts.devices))


def column(kind: DataType, points: Mapping[int, Any]) -> Column:
    values = np.empty(len(points), VALUE_DTYPES[kind])
    values[:] = [points[time] for time in sorted(points)]
    return Column(kind, np.array(sorted(points), np.int64), values)


def encode(entry: Deleted) -> bytes:
    """An entry of `.mods2`: kind, first and last time, then a path, or a table, no predicate and its columns."""
    times = struct.pack(">qq", entry.start, entry.end)
    if is_table(entry.device):
        columns = [] if entry.measurement is None else [entry.measurement]
        return b"\0" + times + text("t") + b"\0" + bytes((2 * len(columns),)) + b"".join(text(c) for c in columns)
    return b"\1" + times + text(f"{name(entry.device)}.{entry.measurement or '*'}")


def text(value: str) -> bytes:
    data = value.encode()
    return bytes((2 * len(data),)) + data  # zigzag of a length below 64
