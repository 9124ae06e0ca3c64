"""The chapter of the changes: a table of a MariaDB is read, changes, is captured under a kill, read twice, kept in a lake.

A deployment of its own beside the demo's. Where the machine has no MariaDB the chapter is left out, and the demo says so.
"""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from pathlib import Path

from demo.command import StoryBroke, kill_in_the_middle, tidemark
from tests.services import mariadb
from tests.services.processes import PartMissing

ORDERS = 20_000
SHARDS = 2
READ = ("changes", "consume", "billing", "--source", "orders", "--shards", str(SHARDS), "--out")
CHANGES = (
    "INSERT INTO shop.orders SELECT seq, 'new', seq / 7 FROM seq_20001_to_23000",
    "UPDATE shop.orders SET state = 'paid' WHERE id % 4 = 0",
    "DELETE FROM shop.orders WHERE id % 20 = 7",
)


class Changes:
    """`folder`: of the deployment, its store and its lake. `why_not`: what is missing for a server; empty: nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.settings, self.why_not = folder, folder / "tidemark.toml", ""
        folder.mkdir()
        try:
            self.server = mariadb.start()
        except PartMissing as missing:
            self.why_not = str(missing)
            return
        (folder / "password").write_text(mariadb.PASSWORD, encoding="utf-8")
        self.settings.write_text(
            f'[ledger]\nurl = "sqlite:///ledger.db"\n\n[sources.orders]\nstore = "{folder / "store"}"\ntables = ["shop.*"]\n'
            f'url = "mariadb://{mariadb.USER}@127.0.0.1:{self.server.port}"\npassword_file = "password"\ntls = "off"\n\n'
            f'[sinks.lake]\nsource = "orders"\nkind = "delta"\ntarget = "{folder / "lake"}"\ntables = ["shop.*"]\n'
        )

    def close(self) -> None:
        if not self.why_not:
            self.server.close()

    def capture(self) -> str:
        """Rows from before and changes come into the store, though the capture is killed; nothing of the logs is missing."""
        self.server.run(
            *("CREATE DATABASE shop", "USE shop"),
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, state VARCHAR(9), amount DECIMAL(9, 2)) ENGINE=InnoDB",
            f"INSERT INTO shop.orders SELECT seq, 'open', seq / 7 FROM seq_1_to_{ORDERS}",
            "FLUSH BINARY LOGS",  # a store begins with the newest log
        )
        tidemark(self.settings, "changes", "capture", "orders")
        self.server.run(*CHANGES)
        before = self._measure_store()
        killed = kill_in_the_middle(
            self.settings, ("changes", "capture", "orders", "--follow"), lambda: self._measure_store() != before
        )
        tidemark(self.settings, "changes", "capture", "orders")
        verified = tidemark(self.settings, "changes", "verify", "orders", "--deep")
        if not killed or verified["differences"]:
            raise StoryBroke(f"the store lacks what the server's logs have: {verified}")
        return f"{ORDERS:,} rows and {len(CHANGES)} transactions on them; each of the server's logs is in the store, once"

    def read_twice(self) -> str:
        """Two shards of the changes are read to files, rewound and read again: the same rows, in the same order."""
        tidemark(self.settings, *READ, str(self.folder))
        first = self._read_shards()
        tidemark(self.settings, "changes", "rewind", "billing", "--to", "earliest", "--yes")
        tidemark(self.settings, *READ, str(self.folder))
        again = self._read_shards()
        once = [_rows_of(text) for text in first]
        is_same = again == [text * 2 for text in first]  # else only the lines around the rows may differ
        if not is_same and [_rows_of(text) for text in again] != [rows * 2 for rows in once]:
            raise StoryBroke("after a rewind a consumer has other rows")
        if any(before >= after for rows in once for before, after in pairwise(rows)):
            raise StoryBroke("a consumer has rows out of order, or twice")
        return f"{sum(map(len, once)):,} rows in {SHARDS} shards, and the same again"

    def deliver(self) -> str:
        """A Delta table is as the server's, though its writer is killed."""
        kill_in_the_middle(self.settings, ("changes", "deliver", "lake"), lambda: any(self.folder.glob("lake/*")))
        tidemark(self.settings, "changes", "deliver", "lake")
        compared = tidemark(self.settings, "changes", "verify", "orders", "--sink", "lake")["tables"]
        return f"{sum(table['rows'] for table in compared):,} rows at the server, the same in the lake"

    def _measure_store(self) -> int:
        found = subprocess.run(["du", "-sb", self.folder / "store"], capture_output=True, text=True, check=False).stdout
        return int(found.split()[0])

    def _read_shards(self) -> list[str]:
        return [(self.folder / f"billing-{number}.jsonl").read_text(encoding="utf-8") for number in range(SHARDS)]


def _rows_of(text: str) -> list[tuple[int, int]]:
    """The changes of a file, in its order: number of the transaction, and place in it."""
    lines = map(json.loads, text.splitlines())
    return [(line["seq"], line["i"]) for line in lines if line["k"] == "row"]
