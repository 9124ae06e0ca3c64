"""A receiver with data nodes in local folders, made row by row and file by file: what `cluster` verbs look at.

The nodes' folders and the ledger agree until a test says otherwise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tidemark.app import App, open_app
from tidemark.cli.main import main
from tidemark.cluster.membership.plan import first_table, plan_change
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.cluster.nodes.formats import schema_bytes_of
from tidemark.cluster.slots import table as table_paper
from tidemark.cluster.slots.hash_ring import SlotHash, identifier_of
from tidemark.cluster.slots.routing import home_slot, members_of
from tidemark.cluster.slots.table import PartitionTable
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as cluster_rows
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.settings.load import load_settings
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.local import LocalStore

SETTINGS = """
[receivers.centre]
store = "centre"
[sites.plant1]
id = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
store = "site"
[links.plant1]
site = "plant1"
[cluster]
replicas = {replicas}
quorum = 1
slots = {slots}
{nodes}
"""

Asked = Callable[..., tuple[int, dict[str, Any]]]
"""A command by its words: its exit code and the object of its `--json`."""


@dataclass
class ClusterWorld:
    """`names`: the nodes of the settings, folders beside the receiver's."""

    folder: Path
    names: tuple[str, ...] = ("n1", "n2", "n3")
    replicas: int = 2
    slots: int = 12
    app: App = field(init=False)
    table: PartitionTable = field(init=False)

    def __post_init__(self) -> None:
        nodes = "".join(f'[nodes.{name}]\nstore = "{name}"\n' for name in self.names)
        (self.folder / "tidemark.toml").write_text(SETTINGS.format(replicas=self.replicas, slots=self.slots, nodes=nodes))
        for name in (*self.names, "centre", "site"):
            (self.folder / name).mkdir()
        self.app = open_app(load_settings(str(self.folder / "tidemark.toml"), {}))

    @property
    def receiver(self) -> ReceiverSettings:
        return self.app.receiver_settings("centre")

    def node(self, name: str) -> NodeFolder:
        return NodeFolder(LocalStore(str(self.folder / name)), name)

    def begin(self) -> None:
        """The first table in force, at every node, as after `cluster init` of an empty receiver."""
        table = first_table(self.names, self.replicas, self.slots, SlotHash.FULL)
        for name in self.names:
            self.node(name).claim_folder("first")
            row = cluster_rows.NodeRow("centre", name, identifier_of(name), f"file://{self.folder / name}", state="serving")
            with self.app.ledger.write() as connection:
                cluster_rows.put_node(connection, row)
        self.swap(table, "first")

    def swap(self, table: PartitionTable, change: str) -> None:
        """Put a table in force and into every node's folder."""
        paper = table_paper.encode_table(table)
        with self.app.ledger.write() as connection:
            cluster_rows.swap_table(connection, cluster_rows.TableRow("centre", table.epoch, paper, change, 1.0))
            for name in table.ring.names:
                cluster_rows.note_node(connection, "centre", name, table.epoch)
        for name in table.ring.names:
            self.node(name).put_table(table.epoch, paper)
        self.table = table

    def join(self, name: str) -> None:
        """A node more, in force and nothing moved yet: as when a process dies behind the swap."""
        (self.folder / name).mkdir(exist_ok=True)
        self.node(name).claim_folder("first")
        row = cluster_rows.NodeRow("centre", name, identifier_of(name), f"file://{self.folder / name}", state="serving")
        change = cluster_rows.ChangeRow("join", "centre", "add", name, self.table.epoch, "somebody", 1.0, "migrating")
        planned = plan_change(self.table, "add", name, {})
        with self.app.ledger.write() as connection:
            cluster_rows.put_node(connection, row)
            cluster_rows.put_change(connection, change)
        self.swap(planned.new, "join")
        moves = [
            move_rows.MoveRow("centre", planned.new.epoch, slot, move.old, move.new)
            for move in planned.moves
            for slot in move.slots
        ]
        with self.app.ledger.write() as connection:
            move_rows.add_moves(connection, moves)
            states = planned.swap_states({})
            move_rows.put_slot_states(connection, "centre", {k: str(v) for k, v in states.items()}, planned.new.epoch)

    def put(self, database: str, partition: int, content: bytes = b"points") -> CatalogFile:
        """A file of the catalog, with its copies at the members of its slot's group."""
        sha256 = hashlib.sha256(content).hexdigest()
        location = f"data/{database}/{partition}/1b4e28ba-{sha256[:12]}-{partition}.tsfile"
        file = CatalogFile(
            receiver="centre",
            site_id="1b4e28ba-2fa1-41d2-883f-0016d3cca427",
            role="source",
            path=f"data/sequence/{database}/{partition}.tsfile",
            generation=1,
            database=database,
            model="tree",
            format=3,
            partition_from=partition,
            partition_to=partition,
            location=location,
            sha256=sha256,
            size=len(content),
            mods_location="",
            mods_sha256="",
            points=1,
            rank=(0, 1, 0, 0, 1),
            created=1.0,
        )
        members = members_of(self.table, file)
        for name in ("centre", *members):
            place = self.folder / name / location
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        slot = home_slot(self.table, file)
        rows = [copy_rows.CopyRow("centre", name, location, slot, sha256, len(content), at=1.0) for name in members]
        with self.app.ledger.write() as connection:
            catalog_rows.add_file(connection, file, [])
            copy_rows.put_copies(connection, rows)
            paper = schema_bytes_of(connection, "centre", database)
        for name in self.table.route_schema(database).members:
            self.node(name).put_schema(database, paper)
        return file

    def members(self, file: CatalogFile) -> tuple[str, ...]:
        return members_of(self.table, file)

    def sql(self, statement: str, **values: object) -> None:
        with self.app.ledger.write() as connection:
            connection.execute(sa.text(statement), values)

    def run(self, *words: str) -> int:
        """`./tidemark …` in this process; its exit code."""
        return main(["--config", str(self.folder / "tidemark.toml"), *words])


def last_json(out: str) -> dict[str, object]:
    """The last line of stdout."""
    found: dict[str, object] = json.loads(out.splitlines()[-1])
    return found
