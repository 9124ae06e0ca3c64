"""Parts `live` of `bench delivery`: from a running server to a consumer's Arrow rows, while a capture follows.

Run as a program: `bulk SETTINGS ROWS` prints the rows that a consumer has, and the seconds from the start of capture and
consumer on; `lag SETTINGS PORT` prints of how many transactions a second each row came, and the 99th percentile of the
milliseconds between the end of its COMMIT and its arrival.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

from bench.changes_data import COLUMNS, ROWS, make_load
from bench.debezium import Debezium, Rated, compile_engine
from bench.measure import Contender, alternate, warm
from bench.rows import REPOSITORY, say
from tests.services.mariadb import PASSWORD, USER, MariaDb, start
from tests.services.processes import PartMissing
from tidemark.changes import subscribe

WRITERS, SECONDS, UNCOUNTED_SECONDS, A_SECOND = 4, 20.0, 5.0, 1_000
RUN = [sys.executable, "-m", "bench.delivery_live"]


def measure_bulk(stack: ExitStack, folder: Path, rounds: int, absent: dict[str, str]) -> tuple[Rated, Rated | None]:
    """A consumer behind a capture that begins with the load's log; Debezium's engine with JSON, if it is there."""
    say(f"live: {ROWS['bulk']:,} changes")
    folder.mkdir()
    server = start({"max_binlog_size": "1073741824", "binlog_annotate_row_events": "0"})
    stack.callback(server.close)
    engine = None
    try:
        (folder / "classes").mkdir()
        engine = Debezium(compile_engine(folder / "classes"), folder / "debezium", server, "bench.bulk")
    except PartMissing as missing:
        absent["debezium"] = str(missing)
    make_load(server, "bulk", engine.begin) if engine else make_load(server, "bulk")
    ours = Rated("live", [*RUN, "bulk", str(_write_settings(folder, server)), str(ROWS["bulk"])])
    peer = engine.contend(ROWS["bulk"], "json") if engine else None
    everyone: list[Contender] = [one for one in (ours, peer) if one]
    warm(everyone, REPOSITORY)
    alternate(everyone, rounds, REPOSITORY)
    return ours, peer


def measure_lag(stack: ExitStack, folder: Path, rounds: int) -> tuple[float, float]:
    """Medians: transactions a second that the writers reached, 99th percentile of the ms until their row is there."""
    say(f"lag: {A_SECOND:,} transactions a second")
    folder.mkdir()
    server = start()
    stack.callback(server.close)
    server.run("CREATE DATABASE bench", f"CREATE TABLE bench.bulk ({COLUMNS})")
    one = Contender("lag", [*RUN, "lag", str(_write_settings(folder, server)), str(server.port)])
    told = [json.loads(one.run(REPOSITORY).splitlines()[-1]) for _ in range(rounds)]
    return (
        statistics.median(round_["transactions_s"] for round_ in told),
        statistics.median(round_["p99_ms"] for round_ in told),
    )


def _write_settings(folder: Path, server: MariaDb) -> Path:
    (folder / "password").write_text(PASSWORD, encoding="utf-8")
    settings = folder / "tidemark.toml"
    settings.write_text(
        f'[sources.orders]\nstore = "store"\nurl = "mysql://{USER}@127.0.0.1:{server.port}"\npassword_file = "password"\n'
        'tls = "off"\nstart = "earliest"\n[ledger]\nurl = "sqlite:///ledger.db"\n'
    )
    return settings


@contextmanager
def _follow(settings: Path) -> Iterator[None]:
    """A capture into a new store, by the command, which goes on."""
    folder = settings.parent
    shutil.rmtree(folder / "store", ignore_errors=True)
    for old in folder.glob("ledger.db*"):
        old.unlink()
    command = [sys.executable, "-m", "tidemark.cli", "--config", str(settings), "changes", "capture", "orders", "--follow"]
    capture = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not any(folder.glob("store/*")):
            time.sleep(0.01)
        yield
    finally:
        capture.terminate()
        capture.wait(60)


def run_bulk(settings: Path, rows: int) -> dict[str, float]:
    begun, got = time.perf_counter(), 0
    with _follow(settings), subscribe("bench", source="orders", settings=settings) as stream:
        for batch in stream:
            got += len(batch.op)
            batch.done()
            if got >= rows:
                break
        seconds = time.perf_counter() - begun
    return {"rows": got, "seconds": seconds}


def run_lag(settings: Path, port: int) -> dict[str, float]:
    committed: dict[int, float] = {}
    came: dict[int, float] = {}
    told: multiprocessing.Queue[dict[int, float]] = multiprocessing.Queue()
    writer = multiprocessing.Process(target=_write, args=(port, told))
    with _follow(settings), subscribe("bench", source="orders", settings=settings) as stream:
        writer.start()
        for batch in stream:
            now = time.monotonic()
            came |= dict.fromkeys(batch.after.field("id").to_pylist(), now)
            batch.done()
            if not committed and not told.empty():
                committed = told.get()
            if committed and committed.keys() <= came.keys():
                break
    writer.join()
    first = min(committed.values()) + UNCOUNTED_SECONDS
    lags = [came[number] - at for number, at in committed.items() if at > first]
    seconds = max(committed.values()) - min(committed.values())
    return {"transactions_s": len(committed) / seconds, "p99_ms": 1000 * statistics.quantiles(lags, n=100)[98]}


def _write(port: int, told: multiprocessing.Queue[dict[int, float]]) -> None:
    """One row a transaction, `A_SECOND` of them, by several connections. When each was committed, by its id."""
    committed: dict[int, float] = {}
    base = time.time_ns() // 1_000_000 % 10**9 * 1_000_000

    def write(number: int) -> None:
        server = MariaDb(Path(), port, {}, None)  # type: ignore[arg-type]
        due = begun = time.monotonic()
        at = base + number
        while due < begun + SECONDS:
            server.run(f"INSERT INTO bench.bulk (id, device, ts, at) VALUES ({at}, 'd', NOW(6), NOW(3))")
            committed[at] = time.monotonic()
            at += WRITERS
            due += WRITERS / A_SECOND
            time.sleep(max(0.0, due - time.monotonic()))

    threads = [Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.put(committed)
    # A consumer looks for this when a batch comes: one more brings it.
    time.sleep(1.0)
    MariaDb(Path(), port, {}, None).run(  # type: ignore[arg-type]
        f"INSERT INTO bench.bulk (id, device, ts, at) VALUES ({base - 1}, 'd', NOW(6), NOW(3))"
    )


if __name__ == "__main__":
    word, place, number = sys.argv[1:]
    print(json.dumps(run_bulk(Path(place), int(number)) if word == "bulk" else run_lag(Path(place), int(number))))
