"""`./tidemark bench delivery`: changes out of a store, to consumers.

1,000,000 changes of ten columns in transactions of 1,000 rows: two thirds inserts, a quarter updates. A server
(`changes serve`) and its consumers are processes of their own, on loopback. Rounds in turn; medians.

    arrow_rows_s          rows a second that one consumer of all 8 shards has as Arrow rows, codec ARROW
    arrow_4_x             the same by four consumers together, two shards each, to the one
    protobuf_rows_s       rows a second that one consumer has as values, the original's protobuf; of the first 200,000
    slow_clients_mb       largest memory of a server with 50 clients that take 64 KiB a second
    slow_clients_x        rows a second of a consumer beside them, to the one alone
    spark_to_parquet      `spark.read` of 4 shards, an aggregate of three columns, to Spark on the same rows in Parquet
    spark_11_to_4         every row of 11 shards taken in order in Python, to the same of 4; local[2], a warm session
    end_to_end_x          changes a second from a running MariaDB to a consumer's Arrow rows, the 600,000 of `bench changes`,
                          start of the command included; to those of Debezium's engine with JSON
    lag_p99_ms            from a COMMIT to its row at a consumer, 99th percentile, 1,000 transactions a second
    delta_to_duckdb       `changes deliver` of 1,000,000 changes onto 5,000,000 rows, to DuckDB with the same on Parquet
    rewind_preview_ms     preview of a rewind over 10,000,000 changes, the whole command

Each consumer counts its rows, and a wrong number ends the run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.debezium import best_rate
from bench.delivery_data import ROWS, make_store
from bench.delivery_live import measure_bulk, measure_lag
from bench.delivery_run import TOKEN, hold_slowly
from bench.delivery_sinks import measure_rewind, measure_sink
from bench.measure import Contender, report
from bench.rows import REPOSITORY, say

RUN = [sys.executable, "-m", "bench.delivery_run"]
PARTS = ("serve", "spark", "live", "sink", "rewind")
SLOW = 50
PROTOBUF_ROWS = 200_000


class Server:
    """`changes serve`, as its operator starts it."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tidemark.cli", "--config", str(folder / "tidemark.toml"), "changes", "serve"]
        self.process = subprocess.Popen([*command, "--port", "0", "--json"], cwd=REPOSITORY, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.address: str = json.loads(self.process.stdout.readline())["address"]

    @property
    def peak_mb(self) -> float:
        """The largest resident memory so far, as the kernel noted it."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@dataclass
class Found:
    """What was measured: ratios, who ran, rows a second of each round, seconds of each round."""

    ratios: dict[str, float] = field(default_factory=dict)
    ours: dict[str, Contender] = field(default_factory=dict)
    peers: dict[str, Contender] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidemark bench delivery", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round instead of five")
    parser.add_argument("--only", default="", help=f"parts, with commas: {', '.join(PARTS)}")
    parser.add_argument("--rows", type=int, default=ROWS, help="changes in the store; `serve` takes all")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    parts = asked.only.split(",") if asked.only else PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-bench-")))
        say(f"{asked.rows:,} changes")
        if {"serve", "spark"} & set(parts):
            make_store(folder / "store", asked.rows)
        (folder / "tidemark.toml").write_text('[sources.orders]\nstore = "store"\n')
        (folder / "changes.tokens").write_text(f"{TOKEN} bench\n")
        found, rounds = Found(), 1 if asked.quick else 5
        if "serve" in parts:
            _measure_server(found, folder, rounds, asked.rows)
        if "spark" in parts:
            _measure_spark(found, folder, rounds, asked.rows)
        if "live" in parts:
            _measure_live(stack, found, folder, rounds)
        if "sink" in parts:
            _measure_sink(found, folder, rounds, asked.rows / ROWS)
        if "rewind" in parts:
            found.ours["rewind"] = measure_rewind(folder / "rewind", rounds, asked.rows / ROWS)
            found.ratios["rewind_preview_ms"] = 1000 * found.ours["rewind"].median_seconds
        papers = {name: one.as_json() for name, one in found.ours.items()}
        peers = {name: one.as_json() for name, one in found.peers.items()}
        more = {"absent": found.absent, "rates": found.rates, "seconds": found.seconds}
        paper = report("delivery", found.ratios, papers, peers, **more)
    print(json.dumps(paper if asked.json else paper["ratios"], indent=None if asked.json else 1))
    return 0


def _measure_server(found: Found, folder: Path, rounds: int, rows: int) -> None:
    some = min(rows, PROTOBUF_ROWS)
    with ExitStack() as stack:
        server = Server(folder)
        stack.callback(server.close)
        ours = {
            "arrow": Contender("arrow", [*RUN, server.address, "ARROW", "1", str(rows)]),
            "arrow_4": Contender("arrow_4", [*RUN, server.address, "ARROW", "4", str(rows)]),
            "protobuf": Contender("protobuf", [*RUN, server.address, "PROTOCOL_BUFFER", "1", str(some)]),
        }
        for name, one in ours.items():
            say(name)
            wanted = some if name == "protobuf" else rows
            found.rates[name] = [_rows_a_second(one, wanted, rows) for _ in range(rounds)]
    with ExitStack() as stack:
        server = Server(folder)
        stack.callback(server.close)
        say("slow clients")
        beside = Contender("beside slow clients", [*RUN, server.address, "ARROW", "1", str(rows)])
        with _slow_clients(server.address):
            found.rates["beside"] = [_rows_a_second(beside, rows, rows) for _ in range(rounds)]
            peak = server.peak_mb
    found.ours |= {**ours, "beside": beside}
    rates = {name: statistics.median(one) for name, one in found.rates.items()}
    found.ratios |= {
        "arrow_rows_s": rates["arrow"],
        "arrow_4_x": rates["arrow_4"] / rates["arrow"],
        "protobuf_rows_s": rates["protobuf"],
        "slow_clients_mb": peak,
        "slow_clients_x": rates["beside"] / rates["arrow"],
    }


def _measure_spark(found: Found, folder: Path, rounds: int, rows: int) -> None:
    """All of it in one session, in turn. The store and Parquet must give the same sums, and a pass all rows in order."""
    from tidemark.engines.java import ensure_java

    say("Spark")
    os.environ |= {"JAVA_HOME": str(ensure_java()), "PYSPARK_PYTHON": sys.executable}
    scratch = folder / "spark"
    scratch.mkdir()
    command = [sys.executable, "-m", "bench.delivery_spark", str(folder / "store"), str(scratch), str(rounds), str(rows)]
    found.ours["spark"] = Contender("spark", command)
    took: dict[str, list[float]] = json.loads(found.ours["spark"].run(REPOSITORY).splitlines()[-1])
    found.seconds |= took
    median = {name: statistics.median(one) for name, one in took.items()}
    say(", ".join(f"{name}: {seconds:.2f} s" for name, seconds in median.items()))
    found.ratios |= {
        "spark_to_parquet": median["shards_4"] / median["parquet"],
        "spark_11_to_4": median["pass_11"] / median["pass_4"],
    }


def _measure_live(stack: ExitStack, found: Found, folder: Path, rounds: int) -> None:
    ours, debezium = measure_bulk(stack, folder / "live", rounds, found.absent)
    found.ours["live"] = ours
    found.rates["live"] = ours.rates[-rounds:]
    if debezium is not None:
        found.peers["debezium json"] = debezium
        found.rates["debezium json"] = debezium.rates[-rounds:]
        found.ratios["end_to_end_x"] = best_rate([ours]) / best_rate([debezium])
    found.ratios["lag_transactions_s"], found.ratios["lag_p99_ms"] = measure_lag(stack, folder / "lag", rounds)


def _measure_sink(found: Found, folder: Path, rounds: int, scale: float) -> None:
    found.ours["deliver"], duckdb = measure_sink(folder / "sink", rounds, scale)
    if duckdb is None:
        found.absent["duckdb"] = "./tidemark bench merge --install"
        return
    found.peers["duckdb"] = duckdb
    found.ratios["delta_to_duckdb"] = found.ours["deliver"].median_seconds / duckdb.median_seconds


def _rows_a_second(consumer: Contender, wanted: int, most: int) -> float:
    told = json.loads(consumer.run(REPOSITORY))
    if not wanted <= told["rows"] <= most:
        raise RuntimeError(f"{consumer.name} has {told['rows']} rows of {wanted}")
    rate = float(told["rows"] / told["seconds"])
    say(f"{consumer.name}: {rate:,.0f} rows a second")
    return rate


@contextmanager
def _slow_clients(address: str) -> Iterator[None]:
    """Clients that each hold a reply, and take it slowly."""
    ended, ready = threading.Event(), threading.Barrier(SLOW + 1)
    threads = [threading.Thread(target=hold_slowly, args=(address, ready, ended), daemon=True) for _ in range(SLOW)]
    for thread in threads:
        thread.start()
    ready.wait(120)
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    sys.exit(main())
