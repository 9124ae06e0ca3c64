"""The catalog as Spark's tasks would read it, without Spark: what is planned, and that its rows are those of `read`."""

from __future__ import annotations

import csv
import pickle
import shutil
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from tests.centre import Centre, d1, rows
from tests.clustered import SLOTS, Clustered
from tests.landing_maker import SITE_B
from tests.small_files import column_of, deletion, file_of, sealed, source
from tidemark.catalog_source import CatalogSource, plan_catalog
from tidemark.cli.main import main
from tidemark.cluster.replicas.commit import record_slots
from tidemark.errors import CorruptionError, NoQuorumError, NotFoundError, RetryableError, UsageError
from tidemark.operations.decisions import owners_transfer
from tidemark.receiver.read import Query
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.spark.scan_plan import ScanTask, shape_of, tasks_of
from tidemark.tsfiles.spark.scan_read import TaskReader


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return write_settings(Centre(tmp_path))


World = TypeVar("World", bound=Centre)


def write_settings(centre: World, more: str = "") -> World:
    (centre.folder / "tidemark.toml").write_text(f'[receivers.{centre.name}]\nstore = "centre"\n{more}')
    return centre


def planned(centre: Centre, **options: str) -> tuple[list[ScanTask], TaskReader]:
    """The tasks and their reader, as executors get them."""
    where = {} if "ledger" in options else {"path": str(centre.folder / "tidemark.toml")}
    asked, found = plan_catalog({**where, **options})
    shape = shape_of(found, asked.cut)
    tasks = tasks_of(found, asked.cut, shape)
    return pickle.loads(pickle.dumps((tasks, TaskReader(shape, asked.unit, asked.lenient))))


def scan(centre: Centre, **options: str) -> pa.Table:
    tasks, reader = planned(centre, **options)
    return pa.Table.from_batches([batch for task in tasks for batch in reader.read_task(task)], reader.schema)


def tall(centre: Centre, **options: str) -> list[Any]:
    return [tuple(row.values()) for row in scan(centre, layout="tall", **options).to_pylist()]


def fill(centre: Centre) -> None:
    """Overlapping files, deletions, a late file, a dropped one; two sites, two models."""
    sender = centre.sender(deletes="keep")
    older = sealed({"root.sg.d1": {"s": [(1, 1), (2, 2), (3, 3)], "t": [(1, 7)]}, "root.sg.d2": {"s": [(5, 5)]}})
    newer = d1((2, 22), (4, 44), mods=deletion("root.sg.d1.s", 4, 4))
    sender.land({source(2): older, source(3): newer, source(5): d1((2, 92), (9, 99))})
    centre.load()
    sender.land({source(1): d1((1, 91), (8, 88))}, dropped=(sender.drop(source(5)),))  # a late one: it wins nowhere
    tags = {
        ("works", "r0", "l0"): {"s": column_of(DataType.DOUBLE, {1: 1.5})},
        ("works", "r1"): {"s": column_of(DataType.DOUBLE, {2: -0.5})},
    }
    other = centre.sender(SITE_B, name="plant2")
    other.land({source(4, database="plant"): file_of(tags, tables={"works": ("region", "line")})})
    centre.load()


def test_its_rows_are_those_of_read_before_and_after_a_merge(centre: Centre) -> None:
    fill(centre)
    before = centre.rows()
    assert ("root.sg.d1", "s", 9, "INT64", "99") in before and ("plant.works.r1.\\N", "s", 2, "DOUBLE", "-0.5") in before
    assert tall(centre) == before
    assert tall(centre, liveOnly="true") == centre.rows(Query(tall=True, live_only=True)) != before
    centre.merge()
    assert centre.sql("SELECT count(*) FROM catalog_file WHERE role = 'merged'") != [(0,)]
    assert tall(centre) == centre.rows() == before


def test_a_wide_result_has_the_tags_of_its_table_or_devices_and_times_as_instants(centre: Centre) -> None:
    fill(centre)
    with pytest.raises(UsageError, match="the files hold models table, tree"):
        scan(centre)
    tree = scan(centre, model="tree")
    assert (
        tree.column_names == ["time", "device", "s", "t"] and str(tree.schema.field("time").type) == "timestamp[us, tz=UTC]"
    )
    seen = {(row["device"], row["time"].timestamp() * 1000, row["s"]) for row in tree.to_pylist()}
    expected = {
        (device, time, int(text)) for device, name, time, _, text in centre.rows() if name == "s" and "root." in device
    }
    assert seen == expected
    table = scan(centre, table="works", times="number")
    assert table.to_pylist() == [
        {"time": 1, "region": "r0", "line": "l0", "s": 1.5},
        {"time": 2, "region": "r1", "line": None, "s": -0.5},
    ]
    assert scan(centre, devices="root.sg.d2").column_names == ["time", "device", "s"]
    assert scan(centre, devices="root.sg.d1", columns="t", times="number").to_pydict() == {"t": [7]}


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("options", "query"),
    [
        ({"site": "plant2"}, Query(tall=True, site="plant2")),
        ({"devices": "root.sg.d2,plant.**"}, None),
        ({"start": "1970-01-01T00:00:00.002Z", "end": "8"}, Query(tall=True, start="2", end="8")),
    ],
)
def test_only_files_of_what_is_asked_for_are_in_tasks(centre: Centre, options: dict[str, str], query: Query | None) -> None:
    fill(centre)
    expected = [row for row in centre.rows(query) if query or row[0] != "root.sg.d1"]
    assert expected and tall(centre, **options) == expected


def test_files_of_other_databases_are_not_opened(centre: Centre) -> None:
    fill(centre)
    tasks, _ = planned(centre, database="plant", layout="tall")
    assert {file.database for task in tasks for file in task.files} == {"plant"}
    assert tall(centre, database="plant,root.sg") == centre.rows()


@pytest.mark.full
def test_of_each_device_its_present_owners_points_win(centre: Centre) -> None:
    """The same two files, of one device in the one order, of the other in the other."""
    for sender, value in ((centre.sender(), 10), (centre.sender(SITE_B, name="plant2"), 99)):
        sender.land({source(1): sealed({f"root.sg.d{n}": {"s": [(1, value)]} for n in (0, 1)})})
        centre.load()
    for device, site in (("root.sg.d0", "plant2"), ("root.sg.d1", "plant2"), ("root.sg.d0", "plant1")):
        owners_transfer(centre.app, centre.receiver, device, site)
    assert tall(centre) == centre.rows() == [("root.sg.d0", "s", 1, "INT64", "10"), *rows((1, 99))]


def test_sites_with_different_units_are_read_in_numbers(centre: Centre) -> None:
    centre.sender().land({source(1): d1((1, 10))})
    centre.sender(SITE_B, name="plant2", time_unit="ns").land({source(1): sealed({"root.sg.d2": {"s": [(5, 50)]}})})
    centre.load()
    assert scan(centre).column("time").to_pylist() == [1, 5]
    assert str(scan(centre, site="plant2").schema.field("time").type) == "timestamp[us, tz=UTC]"
    assert tall(centre, start="2") == centre.rows(Query(tall=True, start="2"))
    for options in ({"times": "instant"}, {"start": "2026-01-01"}):
        with pytest.raises(UsageError, match="count time in different units") as caught:
            scan(centre, **options)
        assert 'option("site"' in caught.value.hint


def test_a_file_that_rotted_or_is_gone_is_named(centre: Centre) -> None:
    centre.sender().land({source(1): d1((1, 10))})
    centre.load()
    tasks, reader = planned(centre)
    [(location,)] = centre.sql("SELECT location FROM catalog_file")
    whole = (centre.root / location).read_bytes()
    (centre.root / location).write_bytes(bytes(len(whole)))
    with pytest.raises(CorruptionError, match=location):
        scan(centre)
    (centre.root / location).unlink()
    with pytest.raises(RetryableError, match="is gone from the receiver"):
        scan(centre)
    with pytest.raises(RetryableError, match=r"is gone since the data frame was made: load\(\) again"):
        list(reader.read_task(tasks[0]))
    (centre.root / location).symlink_to(centre.folder / "elsewhere")
    with pytest.raises(CorruptionError, match="symlink"):
        list(reader.read_task(tasks[0]))


def test_files_of_nodes_are_at_the_receiver_when_the_tasks_start(tmp_path: Path) -> None:
    nodes = "".join(f'[nodes.n{n}]\nstore = "nodes/n{n}"\n' for n in (1, 2, 3))
    centre = write_settings(Clustered(tmp_path), f'[cluster]\nreceiver = "centre"\nslots = {SLOTS}\n{nodes}')
    centre.begin("n1", "n2", "n3")
    fill(centre)
    before = centre.rows()
    centre.empty_cache()
    tasks, reader = planned(centre, layout="tall")
    centre.away |= {"n1", "n2", "n3"}
    assert [tuple(row.values()) for task in tasks for batch in reader.read_task(task) for row in batch.to_pylist()] == before


@pytest.mark.full
def test_without_a_ledger_the_nodes_tell_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are those of `read --from-nodes`, and of the ledger before it was lost."""
    monkeypatch.setenv("TIDEMARK__LEDGER__URL", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    nodes = "".join(f'[nodes.n{n}]\nstore = "nodes/n{n}"\n' for n in (1, 2, 3))
    centre = write_settings(Clustered(tmp_path), f'[cluster]\nreceiver = "centre"\nquorum = 2\nslots = {SLOTS}\n{nodes}')
    centre.begin("n1", "n2", "n3")
    fill(centre)
    centre.merge()
    with centre.cluster() as cluster:
        record_slots(cluster)
    before = centre.rows()
    centre.app.ledger.close()
    centre.empty_cache()
    out = centre.folder / "told.csv"
    asked = ["read", "--from-nodes", "--tall", "--out", str(out)]
    assert main(["--config", str(centre.folder / "tidemark.toml"), *asked]) == 0
    told = [(device, name, int(time), kind, value) for device, name, time, kind, value in list(csv.reader(out.open()))[1:]]
    assert tall(centre, fromNodes="true") == before == told
    shutil.rmtree(centre.node("n2"))
    assert tall(centre, fromNodes="true") == before
    shutil.rmtree(centre.node("n1"))
    with pytest.raises(NoQuorumError, match="1 of the 3 nodes of centre answer"):
        tall(centre, fromNodes="true")
    with pytest.raises(UsageError, match="fromNodes asks no ledger"):
        tall(centre, fromNodes="true", ledger="sqlite:////nowhere.db")


def test_a_ledger_and_a_folder_will_do(centre: Centre) -> None:
    centre.sender().land({source(1): d1((1, 10))})
    centre.load()
    ledger = f"sqlite:///{centre.folder}/var/ledger.db"
    assert tall(centre, ledger=ledger, receiver="centre", store=str(centre.root)) == rows((1, 10))
    with pytest.raises(UsageError, match="a ledger needs its receiver"):
        scan(centre, ledger=ledger)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeUnit": "ms"}, "no option 'timeUnit'"),
        ({"receiver": "other"}, "no receiver named 'other'"),
        ({"site": "nowhere"}, "nowhere"),
        ({"start": "yesterday"}, "'yesterday' is neither"),
        ({"devices": "root.none"}, "no points of what is asked for"),
    ],
)
def test_what_is_wrong_is_said(centre: Centre, options: dict[str, str], words: str) -> None:
    with pytest.raises((UsageError, NotFoundError), match=words):
        scan(centre, **options)


def test_it_is_not_written(centre: Centre) -> None:
    with pytest.raises(UsageError, match="only reads"):
        CatalogSource({}).writer(None, overwrite=True)
