"""`bench sync` beside the Pipe of a real IoTDB 2.0.1-beta: `to_pipe_200` and `to_pipe_2000`.

A server has a set of files, which it was given by LOAD; its compaction is off. Its Pipe, in the mode for files, carries
them to a second server: from `create pipe` until that one answers with every point. Ours is a whole `./tidemark sync` of
the first server's folder over SSH, load included, from an empty ledger.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.rows import say
from bench.sync_tool_data import DEVICES, FIRST_WEEK, GROUPS, SERIES, WEEK, EdgeSet
from tests.services import iotdb
from tests.services.iotdb import IoTDB
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.write.writer import TsFileWriter

ONE_REGION = {  # of a database: LOAD cuts a file by regions
    "data_region_group_extension_policy": "CUSTOM",
    "default_data_region_group_num_per_database": "1",
}
LONGEST_SECONDS = 900.0
POLL_SECONDS = 0.2
PIPE = (
    "create pipe away with source ('source'='iotdb-source', 'source.realtime.mode'='batch') with sink"
    " ('sink'='iotdb-thrift-sink', 'sink.node-urls'='127.0.0.1:{port}')"
)


@dataclass
class PipeSite:
    """The server that has the files of a set."""

    edge_set: EdgeSet
    node: IoTDB

    @property
    def data(self) -> Path:
        return self.node.folder / "data" / "datanode" / "data"

    def pipe(self) -> float:
        """Seconds until a second server, which runs already, has every point. RuntimeError if it takes too long."""
        with _server() as centre:
            began = time.monotonic()
            self.node.run(PIPE.format(port=centre.ports["rpc"]))
            try:
                while _count(centre) != self.edge_set.points:
                    if time.monotonic() - began > LONGEST_SECONDS:
                        raise RuntimeError(f"the Pipe brought {_count(centre):,} of {self.edge_set.points:,} points")
                    time.sleep(POLL_SECONDS)
                return time.monotonic() - began
            finally:
                self.node.run("drop pipe away")


@contextmanager
def start_site(edge_set: EdgeSet) -> Iterator[PipeSite]:
    """A server that was given the files of the set. RuntimeError where it has other files or points."""
    with _server() as node:
        say(f"a server loads {edge_set.files:,} files")
        for folder in _write_files(node.incoming, edge_set):
            node.run(f"load '{folder}' with ('on-success'='delete')")
        site = PipeSite(edge_set, node)
        files = len(list(site.data.rglob("*.tsfile")))
        if (files, _count(node)) != (edge_set.files, edge_set.points):
            raise RuntimeError(f"the server has {files} files and {_count(node):,} points")
        node.run("flush")
        yield site


def _write_files(folder: Path, edge_set: EdgeSet) -> Iterator[Path]:
    random = np.random.default_rng(5)
    for group in GROUPS:
        place = folder / group
        place.mkdir()
        for week in range(edge_set.weeks):
            with TsFileWriter(place / f"{week + 1}-{week + 1}-0-0.tsfile") as writer:
                for device in range(DEVICES):
                    writer.write_device(
                        (group, f"d{device}"), _make_columns(FIRST_WEEK + week, edge_set.rows, random), aligned=False
                    )
        yield place


def _make_columns(week: int, rows: int, random: np.random.Generator) -> dict[str, Column]:
    times = week * WEEK + np.sort(random.choice(WEEK, rows, replace=False)).astype(np.int64)
    values = np.round(100 + random.standard_normal((SERIES, rows)).cumsum(axis=1), 6)
    return {f"s{n}": Column(DataType.DOUBLE, times, values[n]) for n in range(SERIES)}


def _count(node: IoTDB) -> int:
    counted = [node.query(f"select count(*) from {group}.*") for group in GROUPS]
    return sum(int(cell) for rows in counted for cell in (rows[0] if rows else ()))


@contextmanager
def _server() -> Iterator[IoTDB]:
    node = iotdb.start(ONE_REGION, heap="1536m")
    try:
        yield node
    finally:
        node.close()
