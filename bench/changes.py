"""`./tidemark bench changes`: changes of a MariaDB into the store, beside the decoders that others have.

600,000 changes in statements of 1,000 rows (`bulk`, 104 MB of log) and 60,000 in transactions of one row (`oltp`, 25 MB), on
a table of ten columns; two thirds are inserts, a quarter updates. Whole processes, rounds in turn. Ratios of median times:

    decode_bulk, decode_oltp              every value of a log as Arrow, to `mariadb-binlog -v`; `…_pure`: without a compiler
    decode_mysql                          the same of the bulk in the log of a MySQL that compresses it, to `mysqlbinlog -v`
    capture_to_decode_bulk, …_oltp        server to durable store by the command, to the decoding alone
    capture_bulk_rows_s, …_oltp_rows_s    changes a second, server to durable store
    capture_bulk_x, capture_oltp_x        times the changes a second of Debezium's engine, in its faster form
    capture_library_x                     how many times faster than mysql-replication reads the bulk from the server
    store_to_binlog                       bytes of the store to those of the log, bulk
    bootstrap_to_dump                     2,000,000 rows into a new store, to `mariadb-dump --single-transaction` to a file,
                                          both under 300 transactions a second
    lag_p99_ms                            from a COMMIT to its row at a consumer that reads the store, 99th percentile, with
                                          `--follow` and 1,000 transactions a second: so durable before that
    find_ms, find_blocks                  `changes find` in a store of 1,000 buckets, a process each, without imports: the
                                          slowest kind of point, and the most blocks that one reads
    idle_seconds                          the command where nothing is new
    peak_mb                               largest memory of a capture

`cpu_…`: the same of CPU seconds, which hardly depend on what else the machine does. Each contender counts its changes, and a
wrong number ends the run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.changes_data import ROWS, TABLE_ROWS, make_load, make_table, write_to
from bench.debezium import FORMATS, Debezium, best_rate, compile_engine
from bench.delivery_data import BEGIN, STATEMENT, UUID, range_of, write_steps
from bench.delivery_live import measure_lag
from bench.measure import Contender, alternate, report, warm
from bench.merge import PEERS
from bench.rows import REPOSITORY, say
from tests.services import mysql
from tests.services.mariadb import PASSWORD, USER, MariaDb, start
from tests.services.processes import PartMissing
from tidemark.changes.sources.source import BOOTSTRAP
from tidemark.changes.store.model import Op

RUN = [sys.executable, "-m", "bench.changes_run"]
BUCKETS, HOUR = 1_000, 3_600_000_000


@dataclass
class Load:
    """A server with one load in its log, and the source of it in our settings. `debezium`: None where it is not there."""

    name: str
    server: MariaDb
    log: Path
    folder: Path
    start: str = "earliest"
    debezium: Debezium | None = None

    @property
    def config(self) -> Path:
        return self.folder / "tidemark.toml"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def rows(self) -> int:
        return ROWS[self.name]

    def write_settings(self) -> None:
        self.folder.mkdir()
        (self.folder / "password").write_text(PASSWORD, encoding="utf-8")
        self.config.write_text(
            f'[sources.{self.name}]\nstore = "store"\nurl = "mysql://{USER}@127.0.0.1:{self.server.port}"\n'
            f'password_file = "password"\ntls = "off"\nstart = "{self.start}"\n'
        )

    def capture(self, *, anew: bool) -> list[str]:
        command = [sys.executable, "-m", "tidemark.cli", "--config", str(self.config), "changes", "capture", self.name]
        return [*RUN, "capture", str(self.store) if anew else "", *command, "--json"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidemark bench changes", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round instead of five")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-bench-")))
        absent: dict[str, str] = {}
        classpath = _compile_debezium(folder, absent)
        loads = []
        for name in ROWS:
            say(f"{name}: {ROWS[name]:,} changes")
            server = start({"max_binlog_size": "1073741824", "binlog_annotate_row_events": "0"})
            stack.callback(server.close)
            engine = Debezium(classpath, folder / f"debezium-{name}", server, f"bench.{name}") if classpath else None
            log = make_load(server, name, engine.begin) if engine else make_load(server, name)
            loads.append(Load(name, server, log, folder / name, debezium=engine))
            loads[-1].write_settings()
        rounds = 1 if asked.quick else 5
        compressed = _measure_compressed(stack, rounds, absent)
        both = _measure_bootstrap(stack, folder, rounds)
        more = _measure_find(folder / "buckets", rounds)
        more["lag_transactions_s"], more["lag_p99_ms"] = measure_lag(stack, folder / "lag", rounds)
        paper = _measure(loads, rounds, both, compressed, absent, more)
    print(json.dumps(paper if asked.json else paper["ratios"], indent=None if asked.json else 1))
    return 0


def _measure_bootstrap(stack: ExitStack, folder: Path, rounds: int) -> tuple[Contender, Contender | None]:
    """The bootstrap of a table under load, and mariadb-dump in turns with it, if it is there."""
    say(f"a table of {TABLE_ROWS:,} rows")
    server = start({"innodb_buffer_pool_size": "1G", "innodb_log_file_size": "512M"})
    stack.callback(server.close)
    make_table(server)
    load = Load("whole", server, server.logs[-1], folder / "whole", BOOTSTRAP)
    load.write_settings()
    ours = Contender("bootstrap", load.capture(anew=True))
    dump = None
    if tool := shutil.which("mariadb-dump"):
        login = load.folder / "login"
        quoted = PASSWORD.replace('"', '\\"')
        login.write_text(f'[client]\nuser="{USER}"\npassword="{quoted}"\nhost=127.0.0.1\nport={server.port}\n')
        login.chmod(0o600)
        words = ["--single-transaction", f"--result-file={load.folder / 'dump'}", "bench", "whole"]
        dump = Contender("mariadb-dump", [tool, f"--defaults-file={login}", *words])
    with write_to(server):
        both = [one for one in (ours, dump) if one]
        warm(both, REPOSITORY)
        alternate(both, rounds, REPOSITORY)
        captured = json.loads(ours.run(REPOSITORY))
    if captured["bootstrapped"] != ["bench.whole"] or captured["rows"] < TABLE_ROWS:
        raise RuntimeError(f"a bootstrap did not read all there is: {captured}")
    return ours, dump


def _measure_compressed(stack: ExitStack, rounds: int, absent: dict[str, str]) -> tuple[Contender, Contender] | None:
    """Decoding the log of a MySQL that compresses it, in turns with mysqlbinlog; None: with the reason in `absent`."""
    say("bulk, compressed by MySQL")
    try:
        server = mysql.start({"binlog_transaction_compression": "ON", "max_binlog_size": "1073741824"})
        tool = mysql.command("usr/bin/mysqlbinlog", "--no-defaults", "-v", "--base64-output=decode-rows")
    except PartMissing as missing:
        absent["mysqlbinlog"] = str(missing)
        return None
    stack.callback(server.close)
    log = str(make_load(server, "bulk"))
    ours = Contender("decode compressed", [*RUN, "decode", log, str(ROWS["bulk"])])
    peer = Contender("mysqlbinlog", [*tool, log])
    warm([ours, peer], REPOSITORY)
    alternate([ours, peer], rounds, REPOSITORY)
    return ours, peer


def _measure_find(folder: Path, rounds: int) -> dict[str, float]:
    """A point of each kind in the middle of a store with a transaction an hour, and so with a bucket for each."""
    say(f"{BUCKETS:,} buckets")
    folder.mkdir()
    write_steps(folder / "store", ((Op.INSERT, range_of(0, STATEMENT)) for _ in range(BUCKETS)), apart_micros=HOUR)
    settings = folder / "tidemark.toml"
    settings.write_text('[sources.orders]\nstore = "store"\n')
    middle = BUCKETS // 2
    when = datetime.fromtimestamp((BEGIN + middle * HOUR) / 1e6, UTC).isoformat()
    slowest, most = 0.0, 0
    for point in ("earliest", "latest", f"seq:{middle}", f"{UUID}:{middle}", f"{UUID}:1-{middle - 1}", when):
        words = ["--config", str(settings), "changes", "find", "orders", point, "--json"]
        command = [sys.executable, "-m", "tidemark.cli", *words]
        one = Contender(f"find {point}", command)
        told = [json.loads(one.run(REPOSITORY)) for _ in range(rounds)]
        if point not in ("earliest", "latest") and {found["point"] for found in told} != {f"seq:{middle}"}:
            raise RuntimeError(f"{point} was found at {told}")
        slowest = max(slowest, statistics.median(found["ms"] for found in told))
        most = max(most, *(found["blocks_read"] for found in told))
    return {"find_ms": slowest, "find_blocks": most}


def _compile_debezium(folder: Path, absent: dict[str, str]) -> str:
    """The class path of Debezium's engine, or "" with the reason in `absent`."""
    (folder / "debezium").mkdir()
    try:
        return compile_engine(folder / "debezium")
    except PartMissing as missing:
        absent["debezium"] = str(missing)
        return ""


def _measure(
    loads: Sequence[Load],
    rounds: int,
    bootstrap: tuple[Contender, Contender | None],
    compressed: tuple[Contender, Contender] | None,
    absent: dict[str, str],
    more: dict[str, float],
) -> dict[str, object]:
    ours: dict[str, Contender] = {}
    peers: dict[str, Contender] = {}
    for load in loads:
        if load.debezium:
            peers |= {f"debezium {load.name} {form}": load.debezium.contend(load.rows, form) for form in FORMATS}
        log, count = str(load.log), str(load.rows)
        rows = {
            f"decode {load.name}": [*RUN, "decode", log, count],
            f"decode {load.name} pure": ["env", "TIDEMARK_PURE=1", *RUN, "decode", log, count],
            f"capture {load.name}": load.capture(anew=True),
            f"idle {load.name}": load.capture(anew=False),
        }
        ours |= {name: Contender(name, command) for name, command in rows.items()}
        if tool := shutil.which("mariadb-binlog"):
            words = [tool, "--no-defaults", "-v", "--base64-output=decode-rows", log]
            peers[f"mariadb-binlog {load.name}"] = Contender("mariadb-binlog", words)
        else:
            absent["mariadb-binlog"] = "apt-get install mariadb-client"
    if (PEERS / "pymysqlreplication").is_dir():
        words = [*RUN, "library", str(loads[0].server.port), loads[0].log.name, str(loads[0].rows)]
        peers["mysql-replication bulk"] = Contender("mysql-replication", words)
    else:
        absent["mysql-replication"] = "./tidemark bench changes --install"
    everyone = [*ours.values(), *peers.values()]
    warm(everyone, REPOSITORY)
    alternate(everyone, rounds, REPOSITORY)
    for load in loads:
        captured = json.loads(ours[f"capture {load.name}"].run(REPOSITORY))
        again = json.loads(ours[f"idle {load.name}"].run(REPOSITORY))
        if captured["rows"] != load.rows or again["state"] != "nothing new":
            raise RuntimeError(f"a capture of {load.name} did not take all there is: {captured}, {again}")
    ratios = _compare(loads, ours, peers) | more
    ours["bootstrap"], dump = bootstrap
    if dump is not None:
        peers["mariadb-dump"] = dump
        ratios["bootstrap_to_dump"] = ours["bootstrap"].median_seconds / dump.median_seconds
    if compressed is not None:
        ours["decode compressed"], peers["mysqlbinlog"] = compressed
        ratios["decode_mysql"] = compressed[0].median_seconds / compressed[1].median_seconds
        ratios["cpu_decode_mysql"] = _cpu_seconds(compressed[0]) / _cpu_seconds(compressed[1])
    sides = [{name: one.as_json() for name, one in side.items()} for side in (ours, peers)]
    return report("changes", ratios, *sides, absent=absent)


def _compare(loads: Sequence[Load], ours: dict[str, Contender], peers: dict[str, Contender]) -> dict[str, float]:
    ratios: dict[str, float] = {}

    def note(name: str, one: Contender, other: Contender | None) -> None:
        if other is not None:
            ratios[name] = one.median_seconds / other.median_seconds
            ratios[f"cpu_{name}"] = _cpu_seconds(one) / _cpu_seconds(other)

    for load in loads:
        decode, capture = ours[f"decode {load.name}"], ours[f"capture {load.name}"]
        tool = peers.get(f"mariadb-binlog {load.name}")
        note(f"decode_{load.name}", decode, tool)
        note(f"decode_{load.name}_pure", ours[f"decode {load.name} pure"], tool)
        note(f"capture_to_decode_{load.name}", capture, decode)
        if engines := [peers[name] for form in FORMATS if (name := f"debezium {load.name} {form}") in peers]:
            ratios[f"capture_{load.name}_x"] = load.rows / capture.median_seconds / best_rate(engines)
        ratios[f"capture_{load.name}_rows_s"] = load.rows / capture.median_seconds
        ratios[f"cpu_capture_{load.name}_rows_s"] = load.rows / _cpu_seconds(capture)
    if library := peers.get("mysql-replication bulk"):
        ratios["capture_library_x"] = library.median_seconds / ours["capture bulk"].median_seconds
    stored = sum(path.stat().st_size for path in loads[0].store.rglob("*") if path.is_file())
    ratios["store_to_binlog"] = stored / loads[0].log.stat().st_size
    ratios["idle_seconds"] = ours["idle bulk"].median_seconds
    ratios["peak_mb"] = max(ours[f"capture {load.name}"].peak_mb for load in loads)
    return ratios


def _cpu_seconds(contender: Contender) -> float:
    return statistics.median(sample.cpu_seconds for sample in contender.samples)


if __name__ == "__main__":
    sys.exit(main())
