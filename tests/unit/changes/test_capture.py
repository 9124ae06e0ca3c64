"""Binary logs captured into a store and read again, by the commands that users type."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest

import tidemark
from tests.binlog_maker import SIGNED, charset, event, field, log, rows_event, table_map, uint
from tests.commanded import Said, run_here
from tidemark.changes.binlog.layout import EventType as E
from tidemark.changes.binlog.tables import ColumnType as T

DATA = Path(__file__).resolve().parents[2] / "data" / "binlogs"
NAMES = [f"mysql-bin.{number:06d}" for number in range(1, 14)]


class World:
    """A source `orders` without a server, and logs to give to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "tidemark.toml"
        self.write_settings()

    def write_settings(self, more: str = "") -> None:
        self.config.write_text(f'[sources.orders]\nstore = "store"\n{more}\n')

    def unpack(self, *paths: str) -> list[str]:
        """Logs of the test data, by their names below `data/binlogs`."""
        found = []
        for path in paths:
            place = self.folder / Path(path).name
            place.write_bytes(lzma.decompress((DATA / f"{path}.xz").read_bytes()))
            found.append(str(place))
        return found

    def put_log(self, path: str, name: str = "mysql-bin.000001") -> str:
        """A log of the test data under a name that a server gives."""
        [place] = self.unpack(path)
        return str(Path(place).rename(self.folder / name))

    def run(self, *words: str) -> Said:
        return run_here(self.config, "changes", *words)

    def capture(self, *words: str) -> dict[str, Any]:
        said = self.run("capture", "orders", *words)
        assert said.code == 0, said
        return said.json

    def read(self, *words: str) -> list[dict[str, Any]]:
        out = self.folder / "changes.jsonl"
        said = self.run("read", "orders", *words, "--out", str(out))
        assert said.code == 0, said
        lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        assert said.json["rows"] == sum(line["k"] == "row" for line in lines)
        return lines


@pytest.mark.full
def test_a_store_that_is_compressed_reads_the_same(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write_settings("retain_hours = 1000000\ncompress_hours = 0")
    logs = world.unpack(*(f"workload/{name}" for name in NAMES))
    world.capture("--files", *logs, "--until", "seq:231")
    world.capture("--files", *logs)
    before = world.read()
    first, _ = sorted((tmp_path / "store").rglob("*.data"))
    taken = first.stat().st_blocks
    assert world.run("retain", "orders").json["compressed"] == []
    world.write_settings("retain_hours = 1000000\ncompress_hours = 2")
    assert len(world.run("retain", "orders").json["compressed"]) == 1
    assert first.stat().st_blocks < 0.75 * taken
    assert world.read() == before
    assert world.run("verify", "orders", "--deep", "--files", *logs).json["differences"] == []
    assert world.capture("--files", *logs)["state"] == "nothing new"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def told(names: list[str]) -> Iterator[dict[str, Any]]:
    """The workload's record as a reader of the store is to see it.

    XA rows stand at their commit, or nowhere. A savepoint is no change. The log does not tell UUID and INET6 from BINARY.
    """
    parked: dict[str, list[dict[str, Any]]] = {}
    rows: list[dict[str, Any]] = []
    prepared = {"0-1-220": "x-two", "0-1-222": "x-back"}
    with lzma.open(DATA / "workload" / "expected.jsonl.xz") as lines:
        for line in map(json.loads, lines):
            if line["k"] == "schema" or line["file"] not in names or line.get("sql", "").startswith("SAVEPOINT"):
                continue
            if line["k"] == "row":
                rows.append(untyped(line))
                continue
            if line["k"] == "xa_prepare":
                xid = prepared[line["gtid"]]
                parked[xid], rows = rows, []
                yield {"k": "xa_prepare", "xid": xid} | {key: line[key] for key in ("file", "txn_pos", "gtid")}
                continue
            if line["k"] == "xa_commit":
                place = {key: line[key] for key in ("file", "txn_pos", "gtid")}
                rows = [{**row, **place} for row in parked.pop(line["xid"])]
            yield from rows
            rows = []
            yield line


def untyped(row: dict[str, Any]) -> dict[str, Any]:
    if row["table"] != "types":
        return row
    for side in ("before", "after"):
        if row[side]:
            row[side][-2:] = [as_hex(value) for value in row[side][-2:]]
    return row


def as_hex(text: str | None) -> dict[str, str] | None:
    import ipaddress

    if text is None:
        return None
    return {"hex": (ipaddress.IPv6Address(text).packed if text.count(":") > 1 else UUID(text).bytes).hex()}


def bare(line: dict[str, Any]) -> dict[str, Any]:
    """A line without what the record does not have."""
    left = {key: value for key, value in line.items() if key not in ("seq", "ts")}
    if left["k"] == "ddl":
        del left["db"]
    return left


@pytest.mark.parametrize("logs", [NAMES[:12], pytest.param(NAMES, marks=pytest.mark.full)], ids=["small", "all"])
def test_the_workload_is_read_as_it_happened(world: World, logs: list[str]) -> None:
    files = world.unpack(*(f"workload/{name}" for name in logs))
    done = world.capture("--files", *files)
    lines = world.read()
    shapes: dict[tuple[str, str], list[dict[str, Any]]] = {}
    expected = told(logs)
    for line in lines:
        if line["k"] == "schema":
            shapes[line["db"], line["table"]] = line["columns"]
            continue
        assert bare(line) == next(expected)
        if line["k"] == "row":
            images = [image for image in (line["before"], line["after"]) if image is not None]
            assert {len(image) for image in images} == {len(shapes[line["db"], line["table"]])}
    assert next(expected, None) is None
    assert [line["seq"] for line in lines] == sorted(line["seq"] for line in lines)
    assert done["transactions"] == lines[-1]["seq"]


@pytest.mark.full
def test_halves_are_the_same_as_the_whole(world: World, tmp_path: Path) -> None:
    files = world.unpack(*(f"workload/{name}" for name in NAMES[1:12]))
    parked = world.unpack("workload/mysql-bin.000013")[0]
    (tmp_path / "other").mkdir()
    other = World(tmp_path / "other")
    other.capture("--files", *files, parked, "--until", "mysql-bin.000013:982")
    for until in ("mysql-bin.000006:1", "0-1-180", "0-1-219", "0-1-221", "0-1-224", "0-1-225", "mysql-bin.000013:982"):
        world.capture("--files", *files, parked, "--until", until)
    assert world.run("capture", "orders", "--files", *files).json["state"] == "nothing new"
    assert world.read() == other.read()
    assert not list((tmp_path / "store" / "parked").iterdir())


def test_a_stretch_is_read_from_any_point_to_any_other(world: World) -> None:
    world.capture("--files", *world.unpack(*(f"workload/{name}" for name in NAMES[5:12])))
    lines = world.read()
    by_seq = {line["seq"]: line for line in lines}
    last = max(by_seq)
    points = {
        f"seq:{last - 2}": last - 2,
        by_seq[5]["gtid"]: 5,
        f"{by_seq[5]['file']}:{by_seq[5]['txn_pos']}": 5,
        f"{by_seq[5]['file']}:{by_seq[5]['txn_pos'] + 1}": 6,
        "earliest": 1,
        "latest": last,
        "2001-01-01T00:00:00": 1,
        by_seq[last]["ts"]: next(seq for seq in sorted(by_seq) if by_seq[seq]["ts"] >= by_seq[last]["ts"]),
    }
    for point, seq in points.items():
        assert world.run("find", "orders", point).json["point"] == f"seq:{seq}", point
    assert world.run("find", "orders", "now").json["point"] is None
    some = [line for line in world.read("--from", "seq:3", "--to", "seq:6") if line["k"] != "schema"]
    assert some == [line for line in lines if 3 <= line["seq"] < 6 and line["k"] != "schema"]
    world.run("find", "orders", "the other day").refused(2, "the other day", "seq:N")


def test_only_the_tables_that_are_wanted(world: World) -> None:
    world.write_settings('tables = ["alpha.*", "beta.account"]\nexclude = ["*.wide*"]')
    done = world.capture("--files", *world.unpack("workload/mysql-bin.000001"))
    lines = world.read()
    tables = {(line["db"], line["table"]) for line in lines if line["k"] == "row"}
    assert {("alpha", "device"), ("beta", "account")} <= tables
    assert all(database == "alpha" or table == "account" for database, table in tables)
    assert done["transactions"] == max(line["seq"] for line in lines), "a transaction without rows moves the position"
    one = world.read("--tables", "beta.account")
    assert {(line["db"], line["table"]) for line in one if line["k"] == "row"} == {("beta", "account")}


def test_parquet_says_the_same(world: World) -> None:
    world.capture("--files", *world.unpack("workload/mysql-bin.000006"))
    lines = world.read()
    place = world.folder / "changes.parquet"
    assert world.run("read", "orders", "--out", str(place)).code == 0
    rows = pq.read_table(place).to_pylist()
    assert [row["k"] for row in rows] == [line["k"] for line in lines]
    for row, line in zip(rows, lines, strict=True):
        if line["k"] == "row":
            assert [json.loads(row[side] or "null") for side in ("before", "after")] == [line["before"], line["after"]]
            assert [row[key] for key in ("seq", "file", "txn_pos", "gtid", "i", "db", "table", "op")] == [
                line[key] for key in ("seq", "file", "txn_pos", "gtid", "i", "db", "table", "op")
            ]


def make_xa_log(rows: int, *, one_phase: bool) -> bytes:
    """An XA transaction of a table with one BLOB of 60,000 bytes, and, where it is only prepared, its commit."""
    name = uint(1, 4) + uint(2, 4) + uint(0, 4)
    table = table_map([T.BLOB], b"\x02", charset(63), field(4, b"\x01b"))
    events = [event(E.MARIA_GTID, uint(1, 8) + uint(0, 4) + b"\x40" + uint(1, 4) + b"\x02\0xa"), table]
    events += [
        rows_event(b"\0" + uint(60_000, 2) + uint(number, 4) * 15_000, 1, kind=E.WRITE_ROWS_V1, ends=number == rows - 1)
        for number in range(rows)
    ]
    events += [event(E.XA_PREPARE, bytes([one_phase]) + name + b"xa")]
    if not one_phase:
        commit = bytes(8) + b"\0" + bytes(4) + b"\0XA COMMIT X'7861',X'',1"
        done = uint(2, 8) + uint(0, 4) + b"\x81" + uint(1, 4) + b"\x02\0xa"
        events += [event(E.MARIA_GTID, done), event(E.QUERY, commit)]
    return log(*events, server="10.11.9-MariaDB")


@pytest.mark.parametrize("one_phase", [False, True])
def test_an_xa_transaction_larger_than_a_block_waits_in_parts_on_the_disk(world: World, one_phase: bool) -> None:
    place = world.folder / "mysql-bin.000001"
    place.write_bytes(make_xa_log(150, one_phase=one_phase))
    if not one_phase:
        world.capture("--files", str(place), "--until", "0-1-2")
        [parked] = (world.folder / "store" / "parked").iterdir()
        assert parked.read_bytes().count(b"TMCB") >= 2
        assert [line["k"] for line in world.read()] == ["xa_prepare"]
    world.capture("--files", str(place))
    rows = [line["after"] for line in world.read() if line["k"] == "row"]
    assert rows == [[{"hex": (uint(number, 4) * 15_000).hex()}] for number in range(150)]
    assert not list((world.folder / "store" / "parked").iterdir())


def make_log_of(*steps: int | str) -> bytes:
    """A transaction of MariaDB: numbers are rows that are inserted, texts are statements."""
    table = table_map([T.LONG], b"", SIGNED, field(4, b"\x01a"))
    events = [event(E.MARIA_GTID, uint(1, 8) + uint(0, 4) + bytes(7))]
    for step in steps:
        if isinstance(step, int):
            events += [table, rows_event(b"\0" + uint(step, 4), 1, kind=E.WRITE_ROWS_V1)]
        else:
            events.append(event(E.QUERY, bytes(8) + b"\0" + bytes(4) + b"\0" + step.encode()))
    return log(*events, event(E.XID, uint(9, 8)), server="10.11.9-MariaDB")


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ((1, "SAVEPOINT `s`", 2, "ROLLBACK TO `s`", 3), [1, 3]),
        ((1, "SAVEPOINT `s`", "ROLLBACK TO `s`"), [1]),
        (("SAVEPOINT `A b`", 1, "SAVEPOINT t", 2, "ROLLBACK TO SAVEPOINT `a B`", 3), [3]),
        ((1, "SAVEPOINT s", 2, "SAVEPOINT t", 3, "ROLLBACK TO t", 4, "ROLLBACK TO s", 5), [1, 5]),
        ((1, "SAVEPOINT s", 2, "SAVEPOINT s", 3, "ROLLBACK TO s", 4), [1, 2, 4]),
        ((1, 'SAVEPOINT "s""t"', 2, 'ROLLBACK TO "s""t"', 'ROLLBACK TO `s"t`', 3), [1, 3]),
        ((1, "SAVEPOINT s", 2, "RELEASE SAVEPOINT s", 3), [1, 2, 3]),
    ],
)
def test_rows_behind_a_savepoint_that_was_gone_back_to_never_were(
    world: World, steps: tuple[int | str, ...], left: list[int]
) -> None:
    place = world.folder / "mysql-bin.000001"
    place.write_bytes(make_log_of(*steps))
    world.capture("--files", str(place))
    lines = world.read()
    assert [line["after"][0] for line in lines if line["k"] == "row"] == left
    assert lines[-1]["k"] == "commit"


def test_a_savepoint_that_is_not_known_stops(world: World) -> None:
    place = world.folder / "mysql-bin.000001"
    place.write_bytes(make_log_of(1, "SAVEPOINT s", 2, "ROLLBACK TO t"))
    world.run("capture", "orders", "--files", str(place)).refused(6, "rolled back")


@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ("statement_and_mixed", ("came as a statement", "INSERT")),
        ("metadata_minimal", ("names of",)),
        ("metadata_no_log", ("names",)),
    ],
)
def test_what_cannot_be_trusted_stops(world: World, variant: str, says: tuple[str, ...]) -> None:
    log = world.put_log(f"variants/{variant}.binlog")
    said = world.run("capture", "orders", "--files", log)
    said.refused(6, *says)
    assert "SET GLOBAL" in said.json["hint"]
    world.write_settings('unsafe = "mark"')
    world.capture("--files", log)
    assert [line for line in world.read() if line["k"] == "unproved"]


@pytest.mark.parametrize("variant", ["plain", "log_bin_compress", "checksum_none", "unclean_end", "row_image_minimal"])
def test_other_logs_have_the_rows_that_their_server_counted(world: World, variant: str) -> None:
    world.capture("--files", world.put_log(f"variants/{variant}.binlog"))
    rows = [line for line in world.read() if line["k"] == "row"]
    assert [sum(row["op"] == op for row in rows) for op in "IUD"] == [30, 11, 5]
    if variant == "row_image_minimal":
        assert {"absent": True} in [value for row in rows if row["op"] == "U" for value in row["after"]]


@pytest.mark.parametrize(
    ("log", "gtids"),
    [
        ("binlog-invisible-columns.000001", "97c7af02-0f4a-11ed-9a9b-0242ac110002"),
        ("mysql-enum-string-set.000001", "93e95066"),
    ],
)
def test_logs_of_mysql(world: World, log: str, gtids: str) -> None:
    world.capture("--files", world.put_log(f"real/{log}"))
    shown = world.run("show", "orders").json["sources"][0]
    assert gtids[:8] in shown["gtid_set"]
    assert any(line["k"] == "row" for line in world.read())
    assert world.capture("--files", str(world.folder / "mysql-bin.000001"))["state"] == "nothing new"


def test_a_small_capture_does_not_wait_for_pandas(world: World) -> None:
    program = (
        "import sys; from pathlib import Path; from tidemark.changes.capture.run import Job, capture, open_log_files;"
        "from tidemark.changes.capture.transactions import Rules; from tidemark.changes.store.disk import Disk;"
        "done = capture(Job(Disk(Path(sys.argv[1])), 1, Rules(lambda *_: True), open_log_files([Path(sys.argv[2])])));"
        "print(done.rows > 0, {'pandas', 'pyarrow.compute'} & set(sys.modules))"
    )
    words = [sys.executable, "-c", program, str(world.folder / "s"), world.put_log("variants/plain.binlog")]
    path = os.pathsep.join([str(Path(tidemark.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": path})
    assert done.stdout == "True set()\n"


def test_logs_of_another_server_are_not_appended(world: World) -> None:
    world.capture("--files", world.put_log("variants/plain.binlog"))
    before = world.read()
    other = world.put_log("variants/checksum_none.binlog")
    world.run("capture", "orders", "--files", other).refused(6, "of another server")
    assert world.read() == before


def test_a_lost_ledger_costs_no_capture(world: World) -> None:
    [first, second] = world.unpack("workload/mysql-bin.000006", "workload/mysql-bin.000007")
    world.capture("--files", first)
    for place in (world.folder / "var").glob("ledger.db*"):
        place.unlink()
    assert world.capture("--files", first, second)["transactions"]
    assert world.run("verify", "orders").json["differences"] == []


def test_a_log_that_is_missing_in_between_is_named(world: World) -> None:
    files = world.unpack("workload/mysql-bin.000006", "workload/mysql-bin.000008")
    world.run("capture", "orders", "--files", *files).refused(2, "missing")
    world.capture("--files", files[0])
    world.run("capture", "orders", "--files", files[1]).refused(31, "mysql-bin.000006", "mysql-bin.000008")


def test_verify_names_a_flipped_bit(world: World) -> None:
    world.capture("--files", *world.unpack("workload/mysql-bin.000006"))
    assert world.run("verify", "orders").json["checked"]
    [bucket] = (world.folder / "store" / "data").glob("*/*.data")
    data = bytearray(bucket.read_bytes())
    data[len(data) // 2] ^= 1
    bucket.write_bytes(data)
    assert world.run("verify", "orders").code in (7, 20)


def test_retention_takes_old_hours(world: World) -> None:
    files = world.unpack(*(f"workload/{name}" for name in NAMES[5:12]))
    world.capture("--files", *files)
    done = world.run("retain", "orders").json
    assert done["oldest"] == "seq:1", "the newest hour stays, however old"
    world.run("retain", "others").refused(3, "others", "orders")


def test_without_gtids_a_log_that_was_made_again_is_not_believed(world: World) -> None:
    """Its name, and what stands where the store ends, are the same; it was begun at another time."""
    world.write_settings('tables = ["other.*"]')
    place = Path(world.put_log("real/tsdb-mysql-bin.000002"))
    world.capture("--files", str(place))
    data = bytearray(place.read_bytes())
    size = int.from_bytes(data[13:17], "little")
    data[4:8] = (int.from_bytes(data[4:8], "little") + 60).to_bytes(4, "little")
    data[size : 4 + size] = zlib.crc32(data[4:size]).to_bytes(4, "little")
    place.write_bytes(data)
    world.run("capture", "orders", "--files", str(place)).refused(6, "mysql-bin.000001", "begun at")


@pytest.mark.parametrize("others", [(2,), (1, 2), (1, "ALTER TABLE db.t ADD b INT")])
def test_a_log_that_was_made_again_within_a_second_is_known_by_its_rows(world: World, others: tuple[int | str, ...]) -> None:
    """Its first event is the same, and so is all that stands before the rows."""
    place = world.folder / "mysql-bin.000001"
    place.write_bytes(make_log_of(1, "CREATE TABLE db.u (b INT)"))
    world.capture("--files", str(place))
    assert world.capture("--files", str(place))["state"] == "nothing new"
    place.write_bytes(make_log_of(*others))
    before = world.read()
    world.run("capture", "orders", "--files", str(place)).refused(6, "mysql-bin.000001", "other rows")
    assert world.read() == before


def make_log_of_text(collation: int, text: str) -> bytes:
    """A row with a VARCHAR of these bytes, and a statement of a client of this charset with them."""
    data = bytes.fromhex(text)
    table = table_map([T.VARCHAR], uint(40, 2), charset(collation), field(4, b"\x01a"))
    row = rows_event(b"\0" + bytes([len(data)]) + data, 1, kind=E.WRITE_ROWS_V1)
    client = b"\x04" + 3 * uint(collation, 2)
    statement = bytes(11) + uint(len(client), 2) + client + b"\0ALTER TABLE db.t COMMENT '" + data + b"'"
    events = event(E.MARIA_GTID, uint(1, 8) + uint(0, 4) + bytes(7)), table, row, event(E.QUERY, statement)
    return log(*events, event(E.XID, uint(9, 8)), server="10.11.9-MariaDB")


@pytest.mark.parametrize(
    ("former", "now", "texts", "other"),
    [
        ((51, "b9"), (36, "fc"), "№ⁿ", "fd"),  # cp866
        ((8, "af"), (16, "af"), "¯‾", "2d"),  # hebrew
        ((95, "815f"), (13, "815f"), "＼\\", "8160"),  # sjis, "～"
        ((12, "a1c1"), (97, "a1c1"), "〜～", "a1c2"),  # eucjpms, "∥"
    ],
)
def test_a_log_is_known_again_where_a_former_version_stored_another_character_than_the_server_has(
    world: World, former: tuple[int, str], now: tuple[int, str], texts: str, other: str
) -> None:
    """It was that of Python's codec. Here the store gets it from a log whose charset has it."""
    place = world.folder / "mysql-bin.000001"
    place.write_bytes(make_log_of_text(*former))
    world.capture("--files", str(place))
    before = world.read()
    assert [line["after"] for line in before if line["k"] == "row"] == [[texts[0]]]
    place.write_bytes(make_log_of_text(now[0], other))
    world.run("capture", "orders", "--files", str(place)).refused(6, "mysql-bin.000001", "other rows")
    place.write_bytes(make_log_of_text(*now))
    assert world.capture("--files", str(place))["state"] == "nothing new"
    assert world.read() == before
    (world.folder / "new").mkdir()
    new = World(world.folder / "new")
    new.capture("--files", str(place))
    assert [line["after"] for line in new.read() if line["k"] == "row"] == [[texts[1]]]


@pytest.mark.parametrize(("first", "then"), [("db.*", "other.*"), ("other.*", "db.*")])
def test_a_log_is_known_again_whatever_tables_are_taken_now(world: World, first: str, then: str) -> None:
    place = world.folder / "mysql-bin.000001"
    place.write_bytes(make_log_of(1, 2))
    for tables, state in ((first, "captured"), (then, "nothing new")):
        world.write_settings(f'tables = ["{tables}"]')
        assert world.capture("--files", str(place))["state"] == state


def test_a_shard_is_read_and_all_shards_together_are_what_is_read_at_once(world: World) -> None:
    world.capture("--files", *world.unpack("workload/mysql-bin.000008"))
    whole = world.read()
    shards = [world.read("--shards", "3", "--shard", str(shard), "--hash", "ptubes") for shard in range(3)]
    others = [line for line in whole if line["k"] not in ("row", "schema", "commit")]
    for lines in shards:
        assert [line for line in lines if line["k"] not in ("row", "schema", "commit")] == others
        assert [line["seq"] for line in lines] == sorted(line["seq"] for line in lines)
    rows = [line for lines in shards for line in lines if line["k"] == "row"]
    assert all(any(line["k"] == "row" for line in lines) for lines in shards)
    stayed = [line for line in rows if "moved" not in line]
    moved = {(line["seq"], line["i"]) for line in rows if "moved" in line}
    by_place = lambda line: (line["seq"], line["i"])  # noqa: E731
    assert sorted(stayed, key=by_place) == [line for line in whole if line["k"] == "row" and by_place(line) not in moved]
    said = world.run("read", "orders", "--shards", "3", "--out", "x.jsonl")
    assert said.code == 2 and "--shard I" in said.json["error"]
