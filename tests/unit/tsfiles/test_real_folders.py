"""The data folders of real servers read back as the servers themselves answer: every point, V3 and V4, tree and table."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.expected import SITES, RealSite, Row
from tidemark.stores.protocol import Entry
from tidemark.tsfiles.companions.mods import NO_DELETIONS, parse_mods
from tidemark.tsfiles.companions.resource import read_extent
from tidemark.tsfiles.devices import pad_null_tags
from tidemark.tsfiles.layout.structure import check_structure
from tidemark.tsfiles.names import rank_of_source
from tidemark.tsfiles.points import column as canonical
from tidemark.tsfiles.points.column import Column, overlay_columns
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.sealed import SealedFile, classify_listing
from tidemark.tsfiles.statistics import check_and_describe, describe_file

ALL_SITES = pytest.mark.parametrize("site", SITES.values(), ids=SITES.keys())


def listing(site: RealSite) -> list[Entry]:
    found = []
    for folder in site.data:
        for path in sorted((site.root / folder).rglob("*")):
            if path.is_file():
                stat = path.stat()
                found.append(Entry(str(path.relative_to(site.root)), stat.st_size, int(stat.st_mtime), stat.st_ino))
    return found


def sealed_files(site: RealSite) -> list[SealedFile]:
    return sorted(classify_listing(listing(site), site.data).sealed, key=lambda file: rank_of_source(file.name))


def read_tall(site: RealSite) -> list[Row]:
    """All sealed files in rank order, each with its own deletions, the newest point winning: what a reader would see."""
    columns: dict[tuple[str, str], list[Column]] = defaultdict(list)
    tags: dict[str, int] = {}
    for file in sealed_files(site):
        deletions = NO_DELETIONS
        if file.mods is not None:
            form = "mods2" if file.mods.path.endswith(".mods2") else "mods"
            deletions = parse_mods((site.root / file.mods.path).read_bytes(), form)
        with TsFile(site.root / file.entry.path, file.place.database) as tsfile:
            for table, number in tsfile.tables.items():
                tags[f"{file.place.database}.{table}"] = number
            for device in tsfile.list_devices():
                for measurement in tsfile.list_measurements(device):
                    columns[device, measurement].append(tsfile.read_column(device, measurement, deletions=deletions))
    rows = []
    for (device, measurement), parts in columns.items():
        column = overlay_columns(parts)
        padded = pad_null_tags(device, tags.get(".".join(device.split(".")[:2]), 0))
        texts = canonical.format_values(column.type, column.values)
        times = column.times.tolist()
        rows += [(padded, measurement, time, column.type.name, text) for time, text in zip(times, texts, strict=True)]
    return sorted(rows, key=lambda row: (row[0].encode(), row[1].encode(), row[2]))


@pytest.mark.full_after(1)
@ALL_SITES
def test_every_point_is_the_servers_own_answer(site: RealSite) -> None:
    ours, expected = read_tall(site), site.rows()
    assert len(expected) > 30_000
    assert ours == expected


@ALL_SITES
def test_all_files_of_the_folders_are_sealed(site: RealSite) -> None:
    result = classify_listing(listing(site), site.data)
    assert result.skipped == []
    assert len(result.sealed) == len(list((site.root / "data").rglob("*.tsfile")))


@ALL_SITES
def test_resource_says_what_the_file_holds(site: RealSite) -> None:
    for file in sealed_files(site):
        facts = describe_file(site.root / file.entry.path, file.place.database)
        extent = read_extent((site.root / file.resource.path).read_bytes(), file.place.database)
        assert extent == tuple((device.device, device.start, device.end) for device in facts.devices), file.entry.path


@ALL_SITES
def test_facts_are_those_of_the_points(site: RealSite) -> None:
    """Statistics and pages tell the same: points, first and last time, types."""
    version = 3 if site.name == "0.12.0" else 4
    for file in sealed_files(site):
        path = site.root / file.entry.path
        assert check_structure(path) == version
        facts = describe_file(path, file.place.database)
        assert check_and_describe(path, file.place.database) == facts
        assert facts.version == version
        assert facts.undecodable == ()
        with TsFile(path, file.place.database) as tsfile:
            assert [device.device for device in facts.devices] == tsfile.list_devices()
            for device in facts.devices:
                columns = {name: tsfile.read_column(device.device, name) for name in tsfile.list_measurements(device.device)}
                assert {name: series.points for name, series in device.series.items()} == {
                    name: len(column) for name, column in columns.items()
                }
                assert {name: series.type for name, series in device.series.items()} == {
                    name: column.type for name, column in columns.items()
                }
                assert min(int(column.times[0]) for column in columns.values()) >= device.start
                assert max(int(column.times[-1]) for column in columns.values()) <= device.end


def test_facts_name_encodings_and_compressions_as_the_server_does() -> None:
    for site in SITES.values():
        expected = site.series()
        seen = {}
        for file in sealed_files(site):
            for device in describe_file(site.root / file.entry.path, file.place.database).devices:
                for name, series in device.series.items():
                    seen[f"{device.device}.{name}"] = (series.type.name, series.encoding, series.compression)
        tree = {series: facts for series, facts in seen.items() if series.startswith("root.")}
        assert tree == {series: expected[series] for series in tree}
        assert len(tree) > 35


def test_a_reader_lets_go_of_its_file(tmp_path: Path) -> None:
    site = SITES["0.12.0"]
    before = len(list(Path("/proc/self/fd").iterdir()))
    for file in sealed_files(site):
        with TsFile(site.root / file.entry.path) as tsfile:
            tsfile.list_devices()
    cut = tmp_path / "cut.tsfile"
    cut.write_bytes((site.root / sealed_files(site)[0].entry.path).read_bytes()[:-5])
    with pytest.raises(Exception, match="not sealed or cut off"):
        TsFile(cut)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
