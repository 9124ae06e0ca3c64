"""What columns and devices of rows are called in the files that are made of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemark.errors import UsageError
from tidemark.tsfiles.spark.arrow import devices_of
from tidemark.tsfiles.spark.options import WriteOptions, write_options


def asked(rows: pa.Table, **options: str) -> WriteOptions:
    return write_options({"path": "/nowhere", **options}, rows.schema, False)


def test_names_of_the_tree_are_written_as_iotdb_writes_them() -> None:
    """In back-quotes where its SQL needs them: a server that is given others cannot be asked for them."""
    rows = pa.table(
        {"device": ["root.a.b.my-dev", "root.a.b.`x.y`"], "time": [1, 1], "my col": [1, 2], "1": [3, 4], "s": [5, 6]}
    )
    found = {segments: sorted(columns) for segments, columns in devices_of(rows, asked(rows))}
    columns = ["`1`", "`my col`", "s"]
    assert found == {("root.a.b", "`my-dev`"): columns, ("root.a.b", "`x.y`"): columns}


def test_two_spellings_are_one_device() -> None:
    rows = pa.table({"device": ["root.a.x", "root.a.`x`", "root.a.w"], "time": [2, 1, 1], "s": [2, 1, 0]})
    found = {segments: columns["s"].values.tolist() for segments, columns in devices_of(rows, asked(rows))}
    assert found == {("root.a", "w"): [0], ("root.a", "x"): [1, 2]}
    twice = pa.table({"device": ["root.a.x", "root.a.`x`"], "time": [1, 1], "s": [2, 1]})
    with pytest.raises(UsageError, match=r"two rows of root\.a\.x have the time 1"):
        list(devices_of(twice, asked(twice)))


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (["device", "time", "a b", "`a b`"], {}, "two columns are called '`a b`'"),
        (["g", "time", "s", "S"], {"table": "t", "tags": "g"}, "two columns are called 's'"),
        (["g", "time", "s"], {"table": "t", "tags": "g,G"}, "tags names one twice: g, g"),
        (["g", "time", "s"], {"table": "Root", "tags": "g"}, "no table can be called 'root'"),
    ],
)
def test_names_that_say_two_things_are_refused(columns: list[str], options: dict[str, str], words: str) -> None:
    rows = pa.table([pa.array([1]) if name not in ("device", "g") else pa.array(["root.a.d"]) for name in columns], columns)
    with pytest.raises(UsageError, match=words):
        asked(rows, **options)
