"""A receiver with three data nodes behind SSH servers, rows of its catalog, and a landing of 200 files for it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.cluster_data import DATABASE, make_row
from tests.landing_maker import SITE_A, Sender
from tests.services.sshd import Sshd
from tests.small_files import sealed
from tidemark.app import App
from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas.plan import pieces_of, wanting_nodes
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.receiver.catalog import CatalogFile

FILES = 200
PARTITIONS = 20
POINTS = 2_000  # of each of its series
SERIES = 10
_INTERVAL_MS = 604_800_000


def cluster_settings_of(below: Path, running: Sequence[Sshd]) -> str:
    """Make the folders of a receiver and its nodes in `below`; return the path of its settings."""
    for name in ("centre", *(f"n{number}" for number in range(1, len(running) + 1))):
        (below / name).mkdir(parents=True)
    nodes = "".join(
        f'[nodes.n{number}]\nstore = "{server.url(below / f"n{number}")}"\n'
        f'host_key = "{server.host_key}"\nkey = "{server.key}"\n\n'
        for number, server in enumerate(running, 1)
    )
    settings = below / "tidemark.toml"
    settings.write_text(
        f'[ledger]\nurl = "sqlite:///ledger.db"\n\n[receivers.centre]\nstore = "file://{below / "centre"}"\n\n'
        f'[sites.plant1]\nid = "{SITE_A}"\nstore = "file://{below / "site"}"\n\n[links.plant1]\nsite = "plant1"\n\n'
        f'[spark]\nengine = "pool"\n\n'
        f'[cluster]\nreceiver = "centre"\nreplicas = {len(running)}\nquorum = 2\nslots = 100\n\n{nodes}'
    )
    return str(settings)


def land_files(receiver: Path) -> None:
    """Leave a landing of `FILES` files of some hundred kilobytes in `PARTITIONS` time partitions, as a sync would."""
    random = np.random.default_rng(19)
    files = {}
    for number in range(FILES):
        partition = number % PARTITIONS
        times = (partition * _INTERVAL_MS + 1000 * (number // PARTITIONS * POINTS + np.arange(POINTS))).tolist()
        values = random.integers(0, 1 << 40, (SERIES, POINTS)).tolist()
        series = {f"s{place}": list(zip(times, mine, strict=True)) for place, mine in enumerate(values)}
        path = f"data/sequence/{DATABASE}/0/{partition}/{1_600_000_000_000 + number}-{number + 1}-0-0.tsfile"
        files[path] = sealed({f"{DATABASE}.d1": series})
    Sender(receiver).land(files)


def add_file(number: int, partition: int) -> CatalogFile:
    """Return the row of a file that nobody has."""
    return make_row(SITE_A, number, partition, hashlib.sha256(str(number).encode()).hexdigest(), size=100_000)


def hold_everywhere(app: App, cluster: Cluster, files: Sequence[CatalogFile]) -> None:
    """Say in the ledger that all members of their groups have these files."""
    rows = [
        CopyRow("centre", node, piece.location, piece.home, piece.sha256, piece.size, "held", 1.0)
        for piece in pieces_of(cluster.table, files)
        for node in wanting_nodes(cluster.table, piece)
    ]
    with app.ledger.write() as connection:
        copy_rows.put_copies(connection, rows)
