"""What is rare but sound: every value as it was written, before a merge and after it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.centre import Centre, Row
from tests.expected import canonical
from tests.small_files import column_of, file_of, source
from tests.unit.tsfiles.handmade import TIME, VALUE, Chunk, HandmadeFile
from tidemark.receiver.merge.batch import MergeResult
from tidemark.receiver.read import Query
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column

WEEK = 604_800_000
LOWEST, HIGHEST = -(2**63), 2**63 - 1
D1 = ("root.sg", "d1")
Written = Mapping[str, Column]


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path)


def rows_of(device: str, columns: Written) -> list[Row]:
    """What a tall read must give of columns: text written apart from the code under test."""
    return [
        (device, name, int(time), one.type.name, _text(one.type, value))
        for name, one in columns.items()
        for time, value in zip(one.times.tolist(), one.values.tolist(), strict=True)
    ]


def _text(data_type: DataType, value: object) -> str:
    if data_type is DataType.BLOB:
        return value.hex() if isinstance(value, bytes) else ""
    if data_type is DataType.DATE:
        digits = f"{value:08}"
        return f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"
    return canonical(data_type.name, value.decode() if isinstance(value, bytes) else value)


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row[0].encode(), row[1].encode(), row[2]))


def read_merge_read(centre: Centre, files: list[dict[str, bytes]], expected: list[Row], groups: int = 1) -> MergeResult:
    """Land and load the files in rank order; a read before and after the merge gives `expected`."""
    centre.sender().land({source(number): file for number, file in enumerate(files, 1)})
    loaded = centre.load()
    assert (loaded.loaded, loaded.troubles) == (len(files), ())
    expected = in_order(expected)
    read, rows = centre.read()
    assert rows == expected and dict(read.undecodable) == {}
    result = centre.merge()
    assert result.groups == groups and result.failed == ()
    assert centre.rows() == expected
    return result


EDGES: dict[DataType, list[object]] = {
    DataType.BOOLEAN: [True, False],
    DataType.INT32: [2**31 - 1, -(2**31), 0, -1],
    DataType.INT64: [HIGHEST, LOWEST, 0, -1, 2**53 + 1],
    DataType.FLOAT: [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e-45],
    DataType.DOUBLE: [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 5e-324, 0.1],
    DataType.TEXT: [b"", b" ", "气温 🌡".encode(), b"x" * 70_000, b'a\0b\n,"'],
    DataType.STRING: [b"", b"null", b"NaN"],
    DataType.BLOB: [b"", b"\0", bytes(range(256))],
    DataType.DATE: [19691231, 20240229, 10000101, 99991231],
    DataType.TIMESTAMP: [HIGHEST, LOWEST, 0],
}


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "not aligned"])
def test_values_at_the_edge_of_their_type(centre: Centre, aligned: bool) -> None:
    """Empty texts, NaN, infinities, -0.0, the largest and smallest numbers, dates before 1970; of different rows each."""
    columns = {
        data_type.name.lower(): column_of(data_type, {3 * at + shift: value for at, value in enumerate(values)})
        for shift, (data_type, values) in enumerate(EDGES.items())
    }
    newer = {"int64": column_of(DataType.INT64, {2: LOWEST, 5: HIGHEST})}
    expected = rows_of(
        "root.sg.d1", {**columns, "int64": column_of(DataType.INT64, {2: LOWEST, 5: HIGHEST, 8: 0, 11: -1, 14: 2**53 + 1})}
    )
    read_merge_read(centre, [file_of({D1: columns}, aligned), file_of({D1: newer}, aligned)], expected)


def test_an_empty_text_is_a_value_and_overwrites(centre: Centre) -> None:
    older = {"s": column_of(DataType.TEXT, {1: b"a", 2: b"b", 3: b""})}
    newer = {"s": column_of(DataType.TEXT, {2: b"", 4: b""})}
    expected = rows_of("root.sg.d1", {"s": column_of(DataType.TEXT, {1: b"a", 2: b"", 3: b"", 4: b""})})
    read_merge_read(centre, [file_of({D1: older}), file_of({D1: newer})], expected)


def test_a_column_of_nulls_overwrites_nothing(centre: Centre) -> None:
    """The newer file has the column and its rows, and not one value in it."""
    rows = [1, 2, 3]
    nulls = HandmadeFile(
        "root.sg.d1",
        [[Chunk("", TIME, [(rows, None)]), Chunk("a", VALUE, [(rows, None)]), Chunk("b", VALUE, [(rows, [7, 8, 9])])]],
    )
    older = {"a": column_of(DataType.INT64, {1: 10, 3: 30}), "b": column_of(DataType.INT64, {3: 1, 4: 2})}
    whole = {"a": older["a"], "b": column_of(DataType.INT64, {1: 7, 2: 8, 3: 9, 4: 2})}
    read_merge_read(centre, [file_of({D1: older}, aligned=True), {"": nulls.data()}], rows_of("root.sg.d1", whole))


def test_a_file_of_nulls_alone_is_kept_and_read_as_nothing(centre: Centre) -> None:
    rows = [1, 2]
    nulls = HandmadeFile("root.sg.d1", [[Chunk("", TIME, [(rows, None)]), Chunk("a", VALUE, [(rows, None)])]])
    centre.sender().land({source(1): {"": nulls.data()}})
    assert (centre.load().loaded, centre.rows()) == (1, [])


BORDERS = [LOWEST, -WEEK - 1, -WEEK, -WEEK + 1, -1, 0, 1, WEEK - 1, WEEK, HIGHEST]


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "not aligned"])
def test_times_at_the_borders_of_partitions_and_before_1970(centre: Centre, aligned: bool) -> None:
    older = {"s": column_of(DataType.INT64, {time: n for n, time in enumerate(BORDERS)})}
    newer = {"s": column_of(DataType.INT64, {-WEEK: 100, -1: 101, 0: 102, WEEK: 103})}
    values = dict(zip(BORDERS, range(len(BORDERS)), strict=True)) | {-WEEK: 100, -1: 101, 0: 102, WEEK: 103}
    expected = rows_of("root.sg.d1", {"s": column_of(DataType.INT64, values)})
    read_merge_read(centre, [file_of({D1: older}, aligned), file_of({D1: newer}, aligned)], expected)
    merged = centre.sql("SELECT partition_from, partition_to, points FROM catalog_file WHERE role = 'merged' ORDER BY 1")
    assert merged == [
        (LOWEST // WEEK,) * 2 + (1,),
        (-2, -2, 1),
        (-1, -1, 3),
        (0, 0, 3),
        (1, 1, 1),
        (HIGHEST // WEEK,) * 2 + (1,),
    ]
    within = Query(tall=True, start=str(-WEEK), end="0")
    assert [row[2] for row in centre.rows(within)] == [-WEEK, -WEEK + 1, -1]
    day = Query(tall=True, start="1969-12-31T23:59:59.999Z", end="1970-01-01T00:00:00.001Z")
    assert [row[2] for row in centre.rows(day)] == [-1, 0]


def test_a_device_that_reaches_over_1970_is_in_no_ones_way(centre: Centre) -> None:
    """Its times are on both sides of 0; the devices of other files have nothing to do with it."""
    d2 = ("root.sg", "d2")
    files = [
        file_of({D1: {"s": column_of(DataType.INT64, {-5: 1, 5: 2})}}),
        file_of({D1: {"s": column_of(DataType.INT64, {5: 3, 6: 4})}}),
        file_of({d2: {"s": column_of(DataType.INT64, {100: 1, 101: 2})}}),
        file_of({d2: {"s": column_of(DataType.INT64, {101: 3})}}),
    ]
    first = rows_of("root.sg.d1", {"s": column_of(DataType.INT64, {-5: 1, 5: 3, 6: 4})})
    second = rows_of("root.sg.d2", {"s": column_of(DataType.INT64, {100: 1, 101: 3})})
    assert read_merge_read(centre, files, first + second, groups=2).moved == 0


def test_a_file_between_the_times_of_two_others_is_in_no_ones_way(centre: Centre) -> None:
    """Two files overlap in one device; in another a third lies between them, and what they become reaches over it."""
    d2 = ("root.sg", "d2")
    files = [
        file_of({D1: {"s": column_of(DataType.INT64, {5: 5})}}),
        file_of({D1: {"s": column_of(DataType.INT64, {9: 9})}, d2: {"s": column_of(DataType.INT64, {1: 1})}}),
        file_of({D1: {"s": column_of(DataType.INT64, {1: 1})}, d2: {"s": column_of(DataType.INT64, {1: 2})}}),
    ]
    first = rows_of("root.sg.d1", {"s": column_of(DataType.INT64, {1: 1, 5: 5, 9: 9})})
    assert read_merge_read(centre, files, [*first, ("root.sg.d2", "s", 1, "INT64", "2")]).moved == 0


def test_a_series_whose_type_changes_is_read_as_each_file_has_it(centre: Centre) -> None:
    """No TsFile holds two types of a series, so such files stay as they came, and why is told."""
    written = [
        {"s": column_of(DataType.INT32, {1: 1, 2: 2, 3: 3}), "t": column_of(DataType.INT64, {1: 1})},
        {"s": column_of(DataType.DOUBLE, {2: 2.5})},
        {"s": column_of(DataType.TEXT, {3: b"three", 4: b"four"}), "t": column_of(DataType.INT64, {2: 2})},
    ]
    kept = [rows_of("root.sg.d1", written[n]) for n in range(3)]
    expected = [kept[0][0], kept[0][3], *kept[1], *kept[2]]
    result = read_merge_read(centre, [file_of({D1: columns}) for columns in written], expected, groups=0)
    assert [(subject, "INT32" in reason) for subject, reason in result.kept] == [("root.sg.d1.s", True)]


def test_a_device_that_becomes_aligned_and_back(centre: Centre) -> None:
    files = [
        file_of(
            {D1: {"a": column_of(DataType.INT64, {1: 1, 2: 2}), "b": column_of(DataType.TEXT, {2: b"x"})}}, aligned=False
        ),
        file_of(
            {D1: {"a": column_of(DataType.INT64, {2: 20, 3: 30}), "c": column_of(DataType.FLOAT, {3: 0.5})}}, aligned=True
        ),
        file_of({D1: {"a": column_of(DataType.INT64, {3: 300}), "b": column_of(DataType.TEXT, {1: b""})}}, aligned=False),
    ]
    whole = {
        "a": column_of(DataType.INT64, {1: 1, 2: 20, 3: 300}),
        "b": column_of(DataType.TEXT, {1: b"", 2: b"x"}),
        "c": column_of(DataType.FLOAT, {3: 0.5}),
    }
    read_merge_read(centre, files, rows_of("root.sg.d1", whole))


def test_a_schema_that_grows(centre: Centre) -> None:
    """Measurements and devices of the tree; tags and columns of a table, whose older devices show the new tag as null."""
    tree = [
        file_of({D1: {"a": column_of(DataType.INT64, {1: 1, 2: 2})}}),
        file_of(
            {
                D1: {"a": column_of(DataType.INT64, {2: 3}), "b": column_of(DataType.DATE, {1: 20240101})},
                ("root.sg", "d2"): {"a": column_of(DataType.BOOLEAN, {1: True})},
            }
        ),
    ]
    grown = {"a": column_of(DataType.INT64, {1: 1, 2: 3}), "b": column_of(DataType.DATE, {1: 20240101})}
    tables = [
        file_of({("t", "x"): {"f": column_of(DataType.INT32, {1: 1, 2: 2})}}, tables={"t": ["tag"]}),
        file_of(
            {
                ("t", "x"): {"f": column_of(DataType.INT32, {2: 20}), "g": column_of(DataType.STRING, {2: b"new"})},
                ("t", "x", "y"): {"f": column_of(DataType.INT32, {1: 5})},
            },
            tables={"t": ["tag", "more"]},
        ),
    ]
    table = {"f": column_of(DataType.INT32, {1: 1, 2: 20}), "g": column_of(DataType.STRING, {2: b"new"})}
    sender = centre.sender()
    sender.land({source(n): file for n, file in enumerate(tree, 1)})
    sender.land({source(n, database="works"): file for n, file in enumerate(tables, 3)})
    assert centre.load().troubles == ()
    expected = in_order(
        rows_of("root.sg.d1", grown)
        + rows_of("root.sg.d2", {"a": column_of(DataType.BOOLEAN, {1: True})})
        + rows_of("works.t.x.\\N", table)
        + rows_of("works.t.x.y", {"f": column_of(DataType.INT32, {1: 5})})
    )
    assert centre.rows() == expected
    assert centre.merge().groups == 2
    assert centre.rows() == expected


@pytest.mark.full_after(1)
@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "not aligned"])
def test_two_thousand_columns(centre: Centre, aligned: bool) -> None:
    def columns(first: int, value: int) -> dict[str, Column]:
        return {f"s{n:04}": column_of(DataType.INT32, {first + n % 3: value + n}) for n in range(2000)}

    files = [file_of({D1: columns(0, 0)}, aligned), file_of({D1: columns(1, 10_000)}, aligned)]
    both = rows_of("root.sg.d1", columns(0, 0)) + rows_of("root.sg.d1", columns(1, 10_000))
    read_merge_read(centre, files, both)


@pytest.mark.full
def test_ten_thousand_devices(centre: Centre) -> None:
    def devices(count: int, time: int) -> dict[tuple[str | None, ...], dict[str, Column]]:
        return {("root.sg", f"d{n}"): {"s": column_of(DataType.INT64, {time: n})} for n in range(count)}

    files = [
        file_of(devices(10_000, 1)),
        file_of(devices(5_000, 1) | {("root.sg", "d1"): {"s": column_of(DataType.INT64, {2: 7})}}),
    ]
    expected = [(f"root.sg.d{n}", "s", 1, "INT64", str(n)) for n in range(10_000)]
    read_merge_read(centre, files, [*expected, ("root.sg.d1", "s", 2, "INT64", "7")])
