"""A centre balanced by bytes grows and shrinks, with real folders as nodes and files of very different sizes.

After every change: each node's folder has what the table says, no group is above the bound, and no more came to other
headers than the minimum of that change.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.moving_world import put
from tidemark.app import App, open_app
from tidemark.cluster.health.check import check_cluster
from tidemark.cluster.membership.change import Wanted, change_nodes, init_cluster
from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.slots.balance import FREE, least_moved
from tidemark.cluster.slots.table import PartitionTable
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.settings.load import load_settings

pytestmark = pytest.mark.full  # hundreds of files made durable, one by one

SLOTS, FILES, LARGEST = 256, 100, 240_000


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """Three nodes; files in 100 partitions, by Zipf's law, the largest of 240 KB."""
    settings = tmp_path / "tidemark.toml"
    names = ["n1", "n2", "n3"]
    for name in ("centre", *names):
        (tmp_path / name).mkdir()
    settings.write_text(
        f'[ledger]\nurl = "sqlite:///ledger.db"\n\n[receivers.centre]\nstore = "file://{tmp_path / "centre"}"\n\n'
        f'[cluster]\nreceiver = "centre"\nreplicas = 2\nquorum = 2\nslots = {SLOTS}\nbalance = "bytes"\ngrace_hours = 0\n\n'
        + "".join(f'[nodes.{name}]\nstore = "file://{tmp_path / name}"\n\n' for name in names)
    )
    opened = open_app(load_settings(settings, {}))
    try:
        for rank in range(1, FILES + 1):
            content = f"{rank} ".ljust(LARGEST // rank // 3, "x")
            put(opened, opened.receiver_settings("centre"), "root.plant", rank, rank, "", content)
        init_cluster(opened, opened.receiver_settings("centre"))
        yield opened
    finally:
        opened.ledger.close()


def table_of(app: App) -> PartitionTable:
    cluster = Cluster.open(app, app.receiver_settings("centre"))
    assert cluster is not None
    try:
        return cluster.table
    finally:
        cluster.close()


def test_it_is_even_after_every_change_and_moves_no_more_than_it_must(app: App, tmp_path: Path) -> None:
    centre, before = app.receiver_settings("centre"), table_of(app)
    for kind, name in (("rebalance", ""), ("add", "n4"), ("add", "n5"), ("remove", "n2"), ("add", "n6"), ("remove", "n1")):
        if kind == "add":
            (tmp_path / name).mkdir()
        url = f"file://{tmp_path / name}" if kind == "add" else ""
        assert change_nodes(app, centre, Wanted(kind, name, url)).state == "done"
        table = table_of(app)
        sizes = by_slot(app)
        loads = dict.fromkeys(table.ring.names, 0)
        for slot, header in enumerate(table.owners):
            loads[header] += sizes.get(slot, 0)
        bound = 1.03 * max(sum(sizes.values()) / len(loads), *sizes.values())
        assert max(loads.values()) <= bound, (kind, name)
        places = {header: place for place, header in enumerate(table.ring.names)}
        weights = [sizes.get(slot, 0) for slot in range(SLOTS)]
        least = least_moved([places.get(header, FREE) for header in before.owners], weights, len(places), bound)
        moved = sum(weights[slot] for slot in range(SLOTS) if table.owners[slot] != before.owners[slot])
        assert moved <= 1.01 * least, (kind, name)
        assert not check_cluster(app, centre).problems
        assert on_disk(tmp_path, table) == held(app, table)
        before = table


def by_slot(app: App) -> dict[int, int]:
    """Bytes of each slot, one copy."""
    with app.ledger.read() as connection:
        rows = {
            row.location: row for name in table_of(app).ring.names for row in copy_rows.copies_at(connection, "centre", name)
        }
    assert len(rows) == FILES
    found: dict[int, int] = {}
    for row in rows.values():
        found[row.slot] = found.get(row.slot, 0) + row.size
    return found


def held(app: App, table: PartitionTable) -> dict[str, set[str]]:
    """What the ledger says each node holds; two copies of each file, at the members of its group."""
    with app.ledger.read() as connection:
        rows = {name: copy_rows.copies_at(connection, "centre", name) for name in table.ring.names}
    for name, copies in rows.items():
        assert all(name in table.group_of(copy.slot) and copy.state == "held" for copy in copies)
    assert sum(len(copies) for copies in rows.values()) == 2 * FILES
    return {name: {copy.location for copy in copies} for name, copies in rows.items()}


def on_disk(folder: Path, table: PartitionTable) -> dict[str, set[str]]:
    return {
        name: {str(file.relative_to(folder / name)) for file in (folder / name / "data").rglob("*") if file.is_file()}
        for name in table.ring.names
    }
