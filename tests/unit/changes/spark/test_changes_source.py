"""Frames of the format `tidemark_changes`. `changes read` is the measure of what they hold."""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.commanded import run_here
from tests.delivery_worlds import expected_changes
from tests.spark_frames import LAST, Line, places, read_frame, read_parts

DATA = Path(__file__).resolve().parents[3] / "data" / "binlogs"


class Told:
    """A store, and what `changes read` says of it: rows by column instead of by position."""

    def __init__(self, config: Path) -> None:
        self.config = config

    def lines(self, *words: str) -> Iterator[Line]:
        out = self.config.parent / "changes.jsonl"
        assert run_here(self.config, "changes", "read", "orders", *words, "--out", str(out)).code == 0
        columns: dict[tuple[str, str], list[str]] = {}
        for line in map(json.loads, out.read_text(encoding="utf-8").splitlines()):
            table = (line.get("db"), line.get("table"))
            if line["k"] == "schema":
                columns[table] = [column["name"] for column in line["columns"]]
                continue
            for side in ("before", "after"):
                if line.get(side) is not None:
                    pairs = zip(columns[table], line[side], strict=True)
                    line[side] = {name: value for name, value in pairs if value != {"absent": True}}
            yield line

    def rows(self, *words: str) -> list[Line]:
        return [line for line in self.lines(*words) if line["k"] == "row"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What a MariaDB logged: every type, DDL, keys that change."""
    folder = tmp_path_factory.mktemp("recorded")
    config = folder / "tidemark.toml"
    config.write_text('[sources.orders]\nstore = "store"\n')
    logs = [DATA / "workload" / f"mysql-bin.{number:06d}.xz" for number in range(1, 10)]
    for log in logs:
        (folder / log.stem).write_bytes(lzma.decompress(log.read_bytes()))
    files = [str(folder / log.stem) for log in logs]
    assert run_here(config, "changes", "capture", "orders", "--files", *files).code == 0
    return Told(config)


def as_typed(line: Line, side: str) -> Line | None:
    if line[side] is None:
        return None
    return {name: bytes.fromhex(v["hex"]) if isinstance(v, dict) else v for name, v in line[side].items()}


def assert_same_rows(rows: Sequence[Line], told: Sequence[Line]) -> None:
    """Typed rows are those that `changes read` told, in the same order."""
    assert len(rows) == len(told)
    for row, line in zip(rows, told, strict=True):
        for name in ("seq", "file", "txn_pos", "gtid", "i", "op"):
            assert row[name] == line[name], (row, line)
        assert row["ts"].isoformat(timespec="microseconds").replace("+00:00", "Z") == line["ts"]
        for side in ("before", "after"):
            typed, expected = row[side], as_typed(line, side)
            if expected is None:
                assert typed is None
                continue
            absent = set(row[f"{side}_absent"] or ())
            given = {name: value for name, value in typed.items() if name not in absent}
            for name in expected.keys() | given.keys():
                value, wanted = given.get(name), expected.get(name)
                if isinstance(value, bytes) and isinstance(wanted, str):
                    value = value.decode()
                assert value == wanted, (side, name, row, line)


# frames


def test_every_table_of_a_recorded_server_equals_changes_read(recorded: Told) -> None:
    told = defaultdict(list)
    for line in recorded.rows():
        told[f"{line['db']}.{line['table']}"].append(line)
    assert len(told) > 5
    for table, lines in told.items():
        assert_same_rows(read_frame(path=recorded.config, tables=table), lines)


def test_several_tables_and_what_is_no_row_equal_changes_read(recorded: Told) -> None:
    lines, rows = list(recorded.lines()), read_frame(path=recorded.config, controls="true", rowsPerPartition=100)
    assert {"row", "ddl", "commit"} <= {line["k"] for line in lines}
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        shown = {name: value for name, value in row.items() if value is not None}
        shown |= json.loads(shown.pop("detail", "{}"))
        shown |= {side: json.loads(shown[side]) for side in ("before", "after") if side in shown}
        shown["ts"] = row["ts"].isoformat(timespec="microseconds").replace("+00:00", "Z")
        assert shown == {name: value for name, value in line.items() if value is not None}
    assert [row for row in rows if row["k"] == "row"] == read_frame(path=recorded.config)


def test_json_is_canonical(recorded: Told) -> None:
    texts = [row["after"] for row in read_frame(path=recorded.config) if row["after"]]
    assert texts and all(text == json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")) for text in texts)


def test_a_stretch_is_named_by_the_points_of_changes_read(recorded: Told) -> None:
    lines = recorded.rows("--from", "0-1-100", "--to", "seq:150")
    rows = read_frame(path=recorded.config, from_="0-1-100", to="seq:150")
    assert rows and places(rows) == places(lines)
    latest = read_frame(path=recorded.config, from_="latest", controls="true")
    assert {row["seq"] for row in latest} == {line["seq"] for line in recorded.lines("--from", "latest")}


def test_up_to_8_shards_are_a_partition_each_in_the_order_of_the_store(recorded: Told) -> None:
    parts = read_parts(path=recorded.config, shards=8, controls="true")
    assert len(parts) == 8
    for shard in (0, 3, 7):
        rows = parts[shard]
        lines = list(recorded.lines("--shards", "8", "--shard", str(shard)))
        assert [(row["k"], row["seq"], row["i"]) for row in rows] == [(x["k"], x["seq"], x.get("i")) for x in lines]
        assert {row["shard"] for row in rows} == {shard}
        assert [row["moved"] for row in rows] == [line.get("moved") for line in lines]


def test_more_shards_are_stretches_whose_rows_tell_their_shard(recorded: Told) -> None:
    rows = read_frame(path=recorded.config, shards=11, rowsPerPartition=200)
    assert {row["shard"] for row in rows} == set(range(11))
    for shard in (0, 10):
        mine = sorted(places([row for row in rows if row["shard"] == shard]))
        assert mine == places(recorded.rows("--shards", "11", "--shard", str(shard)))


def test_stretches_are_as_large_as_asked_and_hold_each_row_once(config: Path) -> None:
    parts = read_parts(path=config, tables="shop.orders,shop.notes", rowsPerPartition=50)
    assert len(parts) > 2
    assert places([row for part in parts for row in part]) == sorted(expected_changes(1, LAST))


def test_a_store_is_named_by_its_folder_too(config: Path) -> None:
    by_folder = read_frame(store=config.parent / "store", tables="shop.notes")
    assert by_folder and by_folder == read_frame(path=config, source="orders", tables="shop.notes")


def test_an_empty_stretch_has_no_rows(config: Path) -> None:
    assert read_parts(path=config, from_="seq:61") == [[]]
