"""What a read pays to learn which settled files hold what is gone at its site (`sql/queries/kept_files.sql`).

    python -m bench.kept_query [--sources 300000] [--sql FILE]

On SQLite and on a PostgreSQL that it starts, it fills a ledger with settled sources, ten in a merged file, and as many files
that were compacted at their site and left. `none`, `some` and `all`: how many settled files hold a source that is gone. It
prints seconds, smallest and largest of five rounds, and the plan. `--sql`: another text of the query, in alternating rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from tests.services import postgres
from tidemark.ledger.database import Ledger
from tidemark.ledger.migrations import FOLDER, migrate_ledger
from tidemark.ledger.receiver.settled import note_gone
from tidemark.ledger.sql import write_tuples

EACH, ROUNDS = 10, 5
QUERY = FOLDER / "queries" / "kept_files.sql"
ASKED = {"receiver": "centre", "mixed_only": 1}
SOURCE = """INSERT INTO catalog_file (file_id, receiver, site_id, role, path, generation, database_name, model, format,
partition_from, partition_to, location, sha256, size, mods_location, mods_sha256, points, rank_unsequence, rank_version,
rank_inner, rank_cross, rank_created, state, visible, created) VALUES (:id, 'centre', 'site', :role, :path, 1, 'root.sg',
'tree', 3, 0, 0, :place, :sha256, 1000, '', '', 100, 0, :id, 0, 0, :id, :state, :visible, 1)"""
LISTED = """INSERT INTO inventory (receiver, site_id, path, size, mtime, extent, live, generation, landing, excluded)
VALUES ('centre', 'site', :path, 1000, 1, '[]', :live, 1, 'landing', 0)"""
ACCOUNT = """INSERT INTO merge_account (merged_id, batch, points_in, points_out, overwritten, deleted, at, settled)
VALUES (:merged, 'batch', 1, 1, 0, 0, 1, 2)"""
LINEAGE = "INSERT INTO lineage (merged_id, source_id) VALUES (:merged, :source)"


def path_of(number: int) -> str:
    return f"data/sequence/root.sg/0/0/{1_600_000_000_000 + number}-{number}-0-0.tsfile"


def fill(ledger: Ledger, sources: int) -> None:
    """So many settled sources, and as many that left with the merged files that they were in."""
    every, first = 2 * sources, 2 * sources + 1  # id of the first merged file
    of = {n: first + n // EACH for n in range(every)}
    with ledger.write() as connection:
        rows = [(n + 1, "source", path_of(n), f"data/{n:090}", f"{n:064}", "reclaimed", 0) for n in range(every)]
        for number, merged in enumerate(dict.fromkeys(of.values())):
            here = number < sources // EACH
            rows.append(
                (merged, "merged", "", f"data/{merged:090}", f"{merged:064}", "live" if here else "reclaimed", int(here))
            )
        write_tuples(connection, SOURCE, ("id", "role", "path", "place", "sha256", "state", "visible"), rows)
        write_tuples(connection, LISTED, ("path", "live"), ((path_of(n), int(n < sources)) for n in range(every)))
        write_tuples(connection, ACCOUNT, ("merged",), ((merged,) for merged in dict.fromkeys(of.values())))
        write_tuples(connection, LINEAGE, ("merged", "source"), ((merged, n + 1) for n, merged in of.items()))


def drop(ledger: Ledger, numbers: range) -> None:
    """The site has these sources no more."""
    with ledger.write() as connection:
        sql = "UPDATE inventory SET live = 0 WHERE receiver = 'centre' AND site_id = 'site' AND path = :path"
        write_tuples(connection, sql, ("path",), ((path_of(n),) for n in numbers))
        note_gone(connection, "centre", "site", map(path_of, numbers))


def measure(ledger: Ledger, what: str, texts: dict[str, str]) -> None:
    taken: dict[str, list[float]] = {name: [] for name in texts}
    counts: dict[str, int] = {}
    with ledger.read() as connection:
        for turn in range(ROUNDS):
            for name in sorted(texts, reverse=bool(turn % 2)):
                began = time.perf_counter()
                rows = len(connection.execute(sa.text(texts[name]), ASKED).all())
                taken[name].append(time.perf_counter() - began)
                counts[name] = rows
    for name, seconds in taken.items():
        print(f"{what:>6} {name}: {counts[name]} rows in {min(seconds):.4f} to {max(seconds):.4f} s")


def run(url: str, sources: int, texts: dict[str, str]) -> None:
    ledger = Ledger(url)
    migrate_ledger(ledger)
    fill(ledger, sources)
    if not url.startswith("sqlite"):
        with ledger.write() as connection:
            connection.execute(sa.text("ANALYZE"))
    measure(ledger, "none", texts)
    drop(ledger, range(0, sources, sources // 30))
    measure(ledger, "some", texts)
    explain = "EXPLAIN QUERY PLAN " if url.startswith("sqlite") else "EXPLAIN "
    with ledger.read() as connection:
        for row in connection.execute(sa.text(explain + texts["now"]), ASKED):
            print("      ", row[-1])
    drop(ledger, range(sources))
    with ledger.write() as connection:  # as the load does that learns of the last one
        connection.execute(sa.text("UPDATE catalog_file SET rank_unsequence = -1 WHERE role = 'merged'"))
    measure(ledger, "all", texts)
    ledger.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=int, default=300_000)
    parser.add_argument("--sql", type=Path)
    asked = parser.parse_args()
    texts = {"now": QUERY.read_text(encoding="utf-8")}
    if asked.sql:
        texts["other"] = asked.sql.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        run(f"sqlite:///{folder}/ledger.db", asked.sources, texts)
    server = postgres.start()
    try:
        run(server.new_database(), asked.sources, texts)
    finally:
        server.close()
