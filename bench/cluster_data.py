"""A receiver with two data nodes, of which one holds everything: what `cluster remove n1` has to move, all of it, to n2.

The rows are written through the doors that loading uses; the files are hard links to one set, so that a stage is laid out
anew for every round in no time. Files of several sizes, each of a time partition whose slot is n1's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.services.sshd import Sshd
from tidemark.app import App, open_app
from tidemark.cluster.membership.change import init_cluster
from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.slots.table import PartitionTable
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver.catalog import CatalogFile, FileWithDevices
from tidemark.settings.load import load_settings

SIZES = ((200_000_000, 4), (10_000_000, 70), (100_000, 4_000), (20_000, 5_000))  # bytes, files: 2 GB
PARTITIONS = 200
SITE_ID = "00000000-0000-4000-8000-00000000be7d"
DATABASE = "root.bench"


@dataclass(frozen=True)
class Stage:
    """`world`: the deployment a command runs in, laid out by `fresh`; `target`: where n2 keeps its files."""

    template: Path
    world: Path

    @property
    def settings(self) -> Path:
        return self.world / "tidemark.toml"

    @property
    def source(self) -> Path:
        return self.world / "n1" / "data"

    @property
    def target(self) -> Path:
        return self.world / "n2" / "data"

    def fresh(self) -> None:
        """As it was before anything moved."""
        shutil.rmtree(self.world, ignore_errors=True)
        shutil.copytree(self.template, self.world, copy_function=_linked)


def stage(below: Path, scale: float, servers: tuple[Sshd, Sshd] | None) -> Stage:
    """A stage in `below`. `servers`: of n1 and n2; without them both are local folders."""
    made = Stage(below / "template", below / "world")
    for name in ("centre", "n1", "n2"):
        (made.world / name).mkdir(parents=True)
    made.settings.write_text(
        f'[ledger]\nurl = "sqlite:///ledger.db"\n\n[receivers.centre]\nstore = "file://{made.world / "centre"}"\n\n'
        f'[cluster]\nreceiver = "centre"\nreplicas = 1\nquorum = 1\nslots = 1000\n\n'
        + "".join(_node(made.world / name, servers[place] if servers else None) for place, name in enumerate(("n1", "n2")))
    )
    app = open_app(load_settings(made.settings, {}))
    try:
        receiver = app.receiver_settings("centre")
        init_cluster(app, receiver)
        cluster = Cluster.open(app, receiver)
        if cluster is None:
            raise RuntimeError("there is no cluster after its init")
        table = cluster.table
        cluster.close()
        _fill(app, table, made.world / "n1", scale)
    finally:
        app.ledger.close()
    made.world.rename(made.template)
    return made


def _node(folder: Path, server: Sshd | None) -> str:
    if server is None:
        return f'[nodes.{folder.name}]\nstore = "file://{folder}"\n\n'
    return f'[nodes.{folder.name}]\nstore = "{server.url(folder)}"\nhost_key = "{server.host_key}"\nkey = "{server.key}"\n\n'


def _fill(app: App, table: PartitionTable, folder: Path, scale: float) -> None:
    """Files in n1's folder, in the catalog and among its copies."""
    partitions = [number for number in range(10 * PARTITIONS) if table.route_data(DATABASE, number).header == "n1"][
        :PARTITIONS
    ]
    files, copies = [], []
    for number, (size, content) in enumerate(_contents(scale)):
        partition, sha256 = partitions[number % len(partitions)], hashlib.sha256(content).hexdigest()
        slot = table.route_data(DATABASE, partition).slot
        file = make_row(SITE_ID, number, partition, sha256, size=size)
        path = folder / file.location
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        files.append(file)
        copies.append(CopyRow("centre", "n1", file.location, slot, sha256, size, "held", 1.0))
    with app.ledger.write() as connection:
        catalog_rows.add_files(connection, [FileWithDevices(file, ()) for file in files])
        copy_rows.put_copies(connection, copies)


def _contents(scale: float) -> Iterator[tuple[int, bytes]]:
    """(size, bytes) of each file: bytes that do not compress, no two files alike."""
    common = os.urandom(max(size for size, _ in SIZES))
    for size, count in SIZES:
        many = count >= 1_000  # `scale` makes them fewer, the others smaller
        size_now = size if many else max(20_000, int(size * scale))
        for _ in range(max(1, int(count * scale)) if many else count):
            yield size_now, os.urandom(32) + common[: size_now - 32]


def make_row(site_id: str, number: int, partition: int, sha256: str, *, size: int) -> CatalogFile:
    """The row of a source file of one point, `size` bytes, in the database DATABASE."""
    return CatalogFile(
        receiver="centre",
        site_id=site_id,
        role="source",
        path=f"data/sequence/{DATABASE}/0/{partition}/{number}-{number}-0-0.tsfile",
        generation=1,
        database=DATABASE,
        model="tree",
        format=3,
        partition_from=partition,
        partition_to=partition,
        location=f"data/{DATABASE}/{partition}/{site_id[:8]}-{sha256[:12]}-{number}-{number}-0-0.tsfile",
        mods_location="",
        mods_sha256="",
        sha256=sha256,
        size=size,
        points=1,
        rank=(0, number, 0, 0, number),
        created=1.0,
    )


def _linked(source: str, target: str) -> None:
    """TsFiles as hard links, for they never change; the rest as copies."""
    if source.endswith(".tsfile"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)
