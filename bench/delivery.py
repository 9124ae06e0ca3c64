"""`./tidemark bench delivery`: changes out of a store, to consumers.

1,000,000 changes of ten columns in transactions of 1,000 rows: two thirds inserts, a quarter updates. A server
(`changes serve`) and its consumers are processes of their own, on loopback. Rounds in turn; medians.

    arrow_rows_s          rows a second that one consumer of all 8 shards has as Arrow rows, codec ARROW
    arrow_4_x             the same by four consumers together, two shards each, to the one
    protobuf_rows_s       rows a second that one consumer has as values, the original's protobuf; of the first 200,000
    slow_clients_mb       largest memory of a server with 50 clients that take 64 KiB a second
    slow_clients_x        rows a second of a consumer beside them, to the one alone

Each consumer counts its rows, and a wrong number ends the run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.delivery_data import ROWS, make_store
from bench.delivery_run import TOKEN, hold_slowly
from bench.measure import Contender, report
from bench.rows import REPOSITORY, say

RUN = [sys.executable, "-m", "bench.delivery_run"]
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidemark bench delivery", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round instead of five")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-bench-")))
        say(f"{ROWS:,} changes")
        make_store(folder / "store")
        (folder / "tidemark.toml").write_text('[sources.orders]\nstore = "store"\n')
        (folder / "changes.tokens").write_text(f"{TOKEN} bench\n")
        paper = _measure(folder, 1 if asked.quick else 5)
    print(json.dumps(paper if asked.json else paper["ratios"], indent=None if asked.json else 1))
    return 0


def _measure(folder: Path, rounds: int) -> dict[str, object]:
    found: dict[str, list[float]] = {}
    ours: dict[str, Contender] = {}
    with ExitStack() as stack:
        server = Server(folder)
        stack.callback(server.close)
        ours = {
            "arrow": Contender("arrow", [*RUN, server.address, "ARROW", "1", str(ROWS)]),
            "arrow_4": Contender("arrow_4", [*RUN, server.address, "ARROW", "4", str(ROWS)]),
            "protobuf": Contender("protobuf", [*RUN, server.address, "PROTOCOL_BUFFER", "1", str(PROTOBUF_ROWS)]),
        }
        for name in ours:
            say(name)
            for _ in range(rounds):
                found.setdefault(name, []).append(_rows_a_second(ours[name]))
    with ExitStack() as stack:
        server = Server(folder)
        stack.callback(server.close)
        say("slow clients")
        beside = Contender("beside slow clients", [*RUN, server.address, "ARROW", "1", str(ROWS)])
        with _slow_clients(server.address):
            found["beside"] = [_rows_a_second(beside) for _ in range(rounds)]
            peak = server.peak_mb
        ours["beside"] = beside
    rates = {name: statistics.median(rows) for name, rows in found.items()}
    ratios = {
        "arrow_rows_s": rates["arrow"],
        "arrow_4_x": rates["arrow_4"] / rates["arrow"],
        "protobuf_rows_s": rates["protobuf"],
        "slow_clients_mb": peak,
        "slow_clients_x": rates["beside"] / rates["arrow"],
    }
    return report("delivery", ratios, {name: one.as_json() for name, one in ours.items()}, {}, rates=found)


def _rows_a_second(consumer: Contender) -> float:
    told = json.loads(consumer.run(REPOSITORY))
    wanted = PROTOBUF_ROWS if consumer.name == "protobuf" else ROWS
    if not wanted <= told["rows"] <= ROWS:
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
