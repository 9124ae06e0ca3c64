"""What `read` gives where files disagree, rot or are asked for in part."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.centre import Centre, d1
from tests.small_files import sealed, source
from tidemark.errors import CorruptionError, RetryableError
from tidemark.receiver import view
from tidemark.receiver.read import Query, read
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.reader import TsFile


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path)


class TestReading:
    def test_files_that_give_a_series_two_types_are_both_read(self, centre: Centre) -> None:
        older = sealed({"root.sg.d1": {"s": [(1, 1), (2, 2)]}}, data_type=DataType.INT32)
        centre.sender().land({source(1): older, source(2): d1((2, 22))})
        centre.load()
        assert centre.rows() == [("root.sg.d1", "s", 1, "INT32", "1"), ("root.sg.d1", "s", 2, "INT64", "22")]

    def test_a_catalog_file_that_rotted_is_named_and_what_is_not_in_it_is_read(self, centre: Centre) -> None:
        centre.sender().land({source(1): d1((1, 10)), source(2): sealed({"root.sg.d2": {"s": [(1, 2)]}})})
        centre.load()
        [(location,)] = centre.sql("SELECT location FROM catalog_file WHERE path = :p", p=source(1))
        (centre.root / location).write_bytes(b"rotten")
        with pytest.raises(CorruptionError, match=location) as caught:
            centre.read()
        assert "./tidemark verify --repair" in caught.value.hint
        assert [row[0] for row in centre.rows(Query(device="root.sg.d2", tall=True))] == ["root.sg.d2"]

    def test_a_catalog_file_that_somebody_removed_stops_the_read_with_the_way_to_mend_it(self, centre: Centre) -> None:
        centre.sender().land({source(1): d1((1, 10))})
        centre.load()
        [(location,)] = centre.sql("SELECT location FROM catalog_file")
        (centre.root / location).unlink()
        with pytest.raises(RetryableError, match="is gone from the receiver") as caught:
            centre.read()
        assert "./tidemark verify --repair" in caught.value.hint

    def test_csv_and_nothing_left_behind(self, centre: Centre, tmp_path: Path) -> None:
        centre.sender().land({source(1): sealed({"root.sg.d1": {"a": [(1, 10)], "b": [(2, 20)]}})})
        centre.load()
        out = tmp_path / "out" / "read.csv"
        out.parent.mkdir()
        assert read(centre.app, centre.receiver, Query(), out).rows == 2
        assert out.read_text() == '"time","device","a","b"\n1,"root.sg.d1",10,\n2,"root.sg.d1",,20\n'
        read(centre.app, centre.receiver, Query(tall=True), out)
        assert out.read_text().splitlines()[1] == '"root.sg.d1","a",1,"INT64","10"'
        assert [p.name for p in out.parent.iterdir()] == ["read.csv"]

    @pytest.mark.parametrize(
        ("start", "end", "kept"), [("1970-01-01T00:00:00.002Z", "", [2, 3]), ("", "3", [1, 2]), ("2", "3", [2])]
    )
    def test_times_from_inclusive_to_exclusive(self, centre: Centre, start: str, end: str, kept: list[int]) -> None:
        centre.sender().land({source(1): d1((1, 1), (2, 2), (3, 3))})
        centre.load()
        assert [row[2] for row in centre.rows(Query(tall=True, start=start, end=end))] == kept

    def test_each_file_of_a_device_in_many_is_opened_once(self, centre: Centre, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not once for each of its measurements, as it would be where files are closed for those that come next."""
        monkeypatch.setattr(view, "_OPEN_FILES", 3)
        opened: list[str] = []
        monkeypatch.setattr(view, "TsFile", lambda path, *named: opened.append(path) or TsFile(path, *named))
        names = [f"s{n}" for n in range(4)]
        centre.sender().land({source(n): sealed({"root.sg.d1": {m: [(n, n)] for m in names}}) for n in range(1, 9)})
        centre.load()
        rows = centre.rows()
        assert rows == [("root.sg.d1", m, n, "INT64", str(n)) for m in names for n in range(1, 9)]
        assert len(opened) == 8
