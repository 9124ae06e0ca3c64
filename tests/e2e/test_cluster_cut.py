"""Files of a real server that span time partitions, by the command alone: cut, moved, settled, read the same."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from tests.cluster_world import ClusterWorld, last_json
from tidemark.cluster.slots.hash_ring import data_slot
from tidemark.cluster.slots.table import decode_table
from tidemark.ledger.cluster import tables as cluster_rows
from tidemark.operations.housekeeping import housekeep

REAL = Path(__file__).resolve().parents[1] / "data" / "iotdb" / "2.0.1-beta" / "data" / "datanode" / "data"
DAY = 86_400_000  # ms: so short that the server's files span some
pytestmark = pytest.mark.full
Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def world(tmp_path: Path) -> ClusterWorld:
    made = ClusterWorld(tmp_path, slots=60)
    config = tmp_path / "tidemark.toml"
    text = config.read_text().replace('store = "centre"\n', f'store = "centre"\npartition_interval_ms = {DAY}\n')
    config.write_text(text.replace("quorum = 1\n", "quorum = 1\ngrace_hours = 0\n"))
    for kind in ("sequence", "unsequence"):
        (tmp_path / "site" / "data" / kind).mkdir(parents=True)
    database = "root.plant1"
    shutil.copytree(REAL / "sequence" / database, tmp_path / "site" / "data" / "sequence" / database)
    return made


@pytest.fixture
def ask(world: ClusterWorld, capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*words: str) -> dict[str, Any]:
        found = world.run(*words, "--json", "--quiet")
        said = capsys.readouterr()
        assert found == 0, f"{words}: {said.out}{said.err}"
        return last_json(said.out)

    return run


def catalog(world: ClusterWorld, where: str) -> dict[str, tuple[str, int, int]]:
    """Location → database, first and last partition."""
    query = f"SELECT location, database_name, partition_from, partition_to FROM catalog_file WHERE {where}"
    with world.app.ledger.read() as connection:
        return {str(row[0]): (str(row[1]), int(row[2]), int(row[3])) for row in connection.execute(sa.text(query))}


def each_part_lies_at_its_own_group(world: ClusterWorld) -> None:
    """In the ledger and on the nodes' disks."""
    with world.app.ledger.read() as connection:
        row = cluster_rows.current_table(connection, "centre")
        assert row is not None
        table = decode_table(row.table_bytes)
        names = [node.node for node in cluster_rows.nodes_of_receiver(connection, "centre") if node.state == "serving"]
    seen = catalog(world, "visible = 1")
    for location, (database, first, last) in seen.items():
        assert first == last, f"{location} spans partitions"
        group = table.group_of(data_slot(database, first, table.slots, table.hash))
        assert {name for name in names if location in world.node(name).list_sizes()} == set(group)


def housekeep_days_later(world: ClusterWorld, days: float) -> None:
    world.app.clock = lambda: time.time() + days * 86_400
    housekeep(world.app, replace(world.receiver, partition_interval_ms=DAY))


def test_what_spans_is_cut_and_moves_and_settles_and_reads_the_same(world: ClusterWorld, ask: Ask) -> None:
    ask("sync", "plant1")
    seen = rows(world, ask)
    ask("cluster", "init")
    wide = {at for at, (_, first, last) in catalog(world, "visible = 1").items() if first != last}
    assert len(wide) > 6, "the server's files span days"

    cut = ask("merge")
    assert (cut["groups"], cut["files_in"], cut["kept"], cut["failed"]) == (len(wide), len(wide), [], [])
    assert cut["files_out"] > 2 * len(wide)
    each_part_lies_at_its_own_group(world)
    assert rows(world, ask) == seen and wide <= set(catalog(world, "state = 'live'"))
    (counted,) = counts(world, "SELECT sum(points_in), sum(points_out), sum(overwritten), sum(deleted) FROM merge_account")
    assert counted[1] == cut["rows"] and counted[0] == counted[1] + counted[3] and counted[2] == 0
    assert ask("merge")["groups"] == 0

    (world.folder / "n4").mkdir()
    ask("cluster", "add", f"n4=file://{world.folder / 'n4'}")
    each_part_lies_at_its_own_group(world)
    sound(ask)
    assert rows(world, ask) == seen

    housekeep_days_later(world, 15)  # settled
    housekeep_days_later(world, 30)  # their grace is over, at the receiver and at its nodes
    assert not wide & set(catalog(world, "state = 'live'"))
    assert not wide & {at for name in ("n1", "n2", "n3", "n4") for at in world.node(name).list_sizes()}
    sound(ask)
    assert rows(world, ask) == seen


def sound(ask: Ask) -> None:
    assert ask("cluster", "check")["problems"] == []
    assert ask("verify", "--deep")["differences"] == []


def counts(world: ClusterWorld, query: str) -> list[tuple[int, ...]]:
    with world.app.ledger.read() as connection:
        return [tuple(row) for row in connection.execute(sa.text(query))]


def rows(world: ClusterWorld, ask: Ask) -> list[dict[str, Any]]:
    out = world.folder / "tall.parquet"
    ask("read", "--tall", "--out", str(out))
    found: list[dict[str, Any]] = pq.read_table(out).to_pylist()
    return found
