"""Parts `sink` and `rewind` of `bench delivery`: a Delta table that takes changes, and the preview of a long rewind."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.delivery_data import SHAPE, STATEMENT, Step, make_rows, range_of, write_steps
from bench.measure import Contender, alternate, warm
from bench.merge import PEERS
from bench.rows import REPOSITORY, say
from tidemark.changes.store.model import Op, Rows

TABLE_ROWS, LONG_ROWS = 5_000_000, 10_000_000
NAMES = [column.name for column in SHAPE.columns]


def measure_sink(folder: Path, rounds: int, scale: float) -> tuple[Contender, Contender | None]:
    """`changes deliver` of 1,000,000 changes onto 5,000,000 rows; DuckDB with the same on Parquet, if it is there.

    `scale`: of both numbers. RuntimeError: they do not end with the same rows.
    """
    base, changes = _round(TABLE_ROWS * scale), _round(TABLE_ROWS * scale / 5)
    say(f"{changes:,} changes onto {base:,} rows")
    folder.mkdir()
    steps = [*((Op.INSERT, range_of(first, base)) for first in range(0, base, STATEMENT)), *_change(base, changes)]
    write_steps(folder / "store", steps)
    settings = folder / "tidemark.toml"
    settings.write_text(
        '[sources.orders]\nstore = "store"\n[sinks.lake]\nsource = "orders"\nkind = "delta"\ntarget = "lake"\n'
        'tables = ["bench.*"]\n[ledger]\nurl = "sqlite:///ledger.db"\n'
    )
    deliver = [sys.executable, "-m", "tidemark.cli", "--config", str(settings), "changes", "deliver", "lake", "--json"]
    Contender("the rows of before", [*deliver, "--to", f"seq:{base // STATEMENT + 1}"]).run(REPOSITORY)
    with closing(sqlite3.connect(folder / "ledger.db")) as ledger:
        ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (folder / "lake").rename(folder / "lake.before")
    (folder / "ledger.db").rename(folder / "ledger.before")
    # Files of a Delta table are written once: links to them are a copy.
    again = "cd $0 && rm -rf lake ledger.db* && cp -al lake.before lake && cp ledger.before ledger.db && cd $OLDPWD"
    ours = Contender("deliver", ["sh", "-c", f'{again} && exec "$@"', str(folder), *deliver])
    peer = None
    if (REPOSITORY / PEERS / "duckdb").is_dir():
        _write_parquet(folder, base, changes)
        peer = Contender("duckdb", [sys.executable, "-m", "bench.delivery_sinks", str(folder)])
    everyone = [one for one in (ours, peer) if one]
    warm(everyone, REPOSITORY)
    alternate(everyone, rounds, REPOSITORY)
    if peer is not None:
        told = [float(value) for value in peer.run(REPOSITORY).split()]
        ours.run(REPOSITORY)
        _compare(folder, told)
    return ours, peer


def measure_rewind(folder: Path, rounds: int, scale: float) -> Contender:
    """The preview of a rewind of a task to the begin of a store of 10,000,000 changes."""
    rows = _round(LONG_ROWS * scale)
    say(f"a preview of {rows:,} changes")
    folder.mkdir()
    again = cache(lambda first: range_of(first, 100 * STATEMENT))
    write_steps(folder / "store", ((Op.INSERT, again(n % 100 * STATEMENT)) for n in range(rows // STATEMENT)))
    settings = folder / "tidemark.toml"
    settings.write_text('[sources.orders]\nstore = "store"\n[ledger]\nurl = "sqlite:///ledger.db"\n')
    command = [sys.executable, "-m", "tidemark.cli", "--config", str(settings), "changes"]
    begin = [*command, "consume", "bench", "--source", "orders", "--start", "now", "--out", str(folder / "out")]
    Contender("a task at the end", begin).run(REPOSITORY)
    ours = Contender("rewind", [*command, "rewind", "bench", "--to", "earliest", "--json"])
    warm([ours], REPOSITORY)
    alternate([ours], rounds, REPOSITORY)
    told = json.loads(ours.run(REPOSITORY).splitlines()[-1])
    if told["rows"] != rows:
        raise RuntimeError(f"a preview of {rows} changes tells {told['rows']}")
    return ours


def _round(rows: float) -> int:
    return max(4, int(rows) // STATEMENT // 4 * 4) * STATEMENT


def _change(base: int, changes: int) -> Iterator[Step]:
    """Half updates, a quarter inserts, a quarter deletes, each of ids of their own."""
    quarter = changes // 4
    for first in range(0, 2 * quarter, STATEMENT):
        yield Op.UPDATE, range_of(first, base)
    for first in range(base, base + quarter, STATEMENT):
        yield Op.INSERT, range_of(first, base + quarter)
    for first in range(base - quarter, base, STATEMENT):
        yield Op.DELETE, range_of(first, base)


def _write_parquet(folder: Path, base: int, changes: int) -> None:
    """The same rows and changes for a peer."""

    def take(rows: Rows, side: str) -> pa.Table:
        shift = 3 + (len(NAMES) if side == "after" else 0)
        return pa.table([rows.batch.column(shift + number) for number in range(len(NAMES))], NAMES)

    first = take(make_rows(Op.INSERT, range_of(0, base)), "after")
    with pq.ParquetWriter(folder / "base.parquet", first.schema) as out:
        for start in range(0, base, STATEMENT):
            out.write_table(take(make_rows(Op.INSERT, range_of(start, base)), "after"))
    schema = first.schema.append(pa.field("seq", pa.int64())).append(pa.field("gone", pa.bool_()))
    with pq.ParquetWriter(folder / "changes.parquet", schema) as out:
        for seq, (op, ids) in enumerate(_change(base, changes)):
            found = take(make_rows(op, ids), "before" if op is Op.DELETE else "after")
            found = found.append_column("seq", pa.array([seq] * STATEMENT, pa.int64()))
            out.write_table(found.append_column("gone", pa.array([op is Op.DELETE] * STATEMENT)))


def _compare(folder: Path, told: list[float]) -> None:
    from deltalake import DeltaTable

    [log] = (folder / "lake").rglob("_delta_log")
    table = DeltaTable(log.parent).to_pyarrow_table(columns=["id", "n"])
    found = [table.num_rows, sum(table.column("n").to_pylist()), sum(table.column("id").to_pylist())]
    if found != told:
        raise RuntimeError(f"the table has {found}, DuckDB {told}")


def main() -> int:
    """The upsert by DuckDB. Prints rows, and sums of two columns."""
    sys.path.insert(0, str(PEERS.resolve()))
    import duckdb  # type: ignore[import-not-found]

    folder = Path(sys.argv[1])
    names = ", ".join(f'"{name}"' for name in NAMES)
    base = duckdb.connect(config={"threads": 2})
    base.execute(f"CREATE VIEW base AS SELECT * FROM '{folder}/base.parquet'")
    newest = f"SELECT * FROM '{folder}/changes.parquet' QUALIFY row_number() OVER (PARTITION BY id ORDER BY seq DESC) = 1"
    base.execute(f"CREATE TEMP TABLE newest AS {newest}")
    base.execute(
        f"COPY (SELECT {names} FROM base ANTI JOIN newest USING (id) UNION ALL SELECT {names} FROM newest WHERE NOT gone)"
        f" TO '{folder}/out.parquet'"
    )
    [found] = base.execute(f"SELECT count(*), sum(n), sum(id) FROM '{folder}/out.parquet'").fetchall()
    print(*found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
