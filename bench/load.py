"""`./tidemark bench load`: from a landing to a readable catalog, beside LOAD of the same files into a real IoTDB 2.0.

200 files of 354 MB, which a real IoTDB 0.12.0 wrote.

    to_iotdb_load           a whole `./tidemark load` of what a sync of the same ledger carried here: every file's SHA-256
                            compared with the manifest's, structure and statistics read, placed, recorded, answered; to one
                            LOAD of the folder by a session that is open, at a server that runs already, until its count is
                            that of all points
    both_to_iotdb_load      the same with the receiver's `iotdb` set: catalog and server, counted
    pushed_to_iotdb_load    as the first, of a landing that somebody else put here: it is copied before it is checked

Every round begins with an empty ledger, an empty receiver and an empty server. The server's JVM has the memory settings it
takes by itself. It comes from Maven Central on first use (Java and Maven needed).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import sync_tool, sync_tool_data
from bench.measure import Contender
from bench.rows import REPOSITORY, Book, leave_nothing, say
from bench.sync_tool_data import EdgeSet
from tests.landing_maker import SITE_A, Sender, companions, tsfiles_below
from tests.services import iotdb
from tests.services.iotdb import IoTDB
from tests.services.processes import PartMissing

SET = EdgeSet("200", 200, 1_829)
DATA = ("data/sequence", "data/unsequence")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tidemark bench load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two rounds instead of five")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    os.environ["PYTHONPATH"] = f"{REPOSITORY / 'plugins'}{os.pathsep}{REPOSITORY}"  # of `bench.load_peer`
    leave_nothing()
    book = Book("load")
    try:
        sync_tool.jars()
        iotdb.fetch()
    except PartMissing as missing:
        parser.exit(6, f"{missing}\n")
    measure(2 if asked.quick else 5, book)
    paper = book.paper()
    print(json.dumps(paper if asked.json else paper["ratios"], indent=None if asked.json else 1))
    return 0


@dataclass
class Stage:
    """Where one round happens. `site`: the files; `landed`: a receiver into which somebody else put them.

    `centre`: settings, ledger and receiver, fresh each round.
    """

    folder: Path
    site: Path
    landed: Path

    @property
    def centre(self) -> Path:
        return self.folder / "centre"

    @property
    def settings(self) -> Path:
        return self.centre / "tidemark.toml"

    def begin(self, target: str, pushed: bool) -> None:
        """A receiver with one landing: of a sync into an empty ledger, or `pushed`, the ledger empty. The latter's files are
        hard links, for nobody writes into a TsFile."""
        shutil.rmtree(self.centre, ignore_errors=True)
        self.centre.mkdir()
        data = json.dumps([folder for folder in DATA if (self.site / folder).is_dir()])
        self.settings.write_text(
            '[ledger]\nurl = "sqlite:///ledger.db"\n\n'
            f'[receivers.centre]\nstore = "file://{self.centre / "store"}"\n{target}\n[spark]\nengine = "pool"\n\n'
            f'[sites.plant1]\nid = "{SITE_A}"\nstore = "file://{self.site}"\ndata = {data}\n\n'
            '[links.plant1]\nsite = "plant1"\n'
        )
        if pushed:
            shutil.copytree(self.landed, self.centre / "store", copy_function=os.link)
        else:
            command = [str(REPOSITORY / "tidemark"), "--config", str(self.settings), "sync", "plant1", "--no-load", "--json"]
            Contender("sync", command).run(REPOSITORY)


def measure(rounds: int, book: Book) -> None:
    """Alternating rounds. Raises PartMissing where a server cannot be had."""
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as place:
        folder = Path(place)
        say(f"a server writes {SET.files:,} files")
        made = folder / "made"
        made.mkdir()
        site = sync_tool_data.make(made, SET)
        stage = Stage(folder, site, _land(site, folder / "landed"))
        peer, ours, both = Contender("LOAD", []), Contender("tidemark load", []), Contender("tidemark load, iotdb too", [])
        pushed = Contender("tidemark load, pushed", [])
        acts: list[Callable[[], None]] = [
            lambda: _run_peer(peer, made / "data" / "data" / "sequence"),
            lambda: _run_ours(ours, stage, ""),
            lambda: _run_both(both, stage),
            lambda: _run_ours(pushed, stage, "", pushed=True),
        ]
        for turn in range(rounds):
            for act in (*acts[turn % len(acts) :], *acts[: turn % len(acts)]):
                act()
    row = "to_iotdb_load"
    book.note(row, [ours, both, pushed], [peer])
    book.ratios |= {
        row: ours.median_seconds / peer.median_seconds,
        f"both_{row}": both.median_seconds / peer.median_seconds,
        f"pushed_{row}": pushed.median_seconds / peer.median_seconds,
    }


def _land(edge: Path, receiver: Path) -> Path:
    """The files as one landing."""
    paths = tsfiles_below(edge, DATA)
    Sender(receiver, data=DATA).land({path: companions(edge, path) for path in paths})
    return receiver


def _run_peer(peer: Contender, sequence: Path) -> None:
    """Its wall is what its session saw: a client that stays does not start anew for every LOAD."""
    server = iotdb.start(heap="")
    try:
        peer.command = [sys.executable, "-m", "bench.load_peer", str(server.ports["rpc"]), str(sequence), str(SET.points)]
        told = json.loads(peer.run(REPOSITORY))
    finally:
        server.close()
    peer.samples[-1] = replace(peer.samples[-1], seconds=told["seconds"])
    _tell(peer)


def _run_both(both: Contender, stage: Stage) -> None:
    server = iotdb.start(heap="")
    try:
        _run_ours(both, stage, _target(server))
    finally:
        server.close()


def _target(server: IoTDB) -> str:
    return f'iotdb = "iotdb://root@127.0.0.1:{server.ports["rpc"]}"\n'


def _run_ours(ours: Contender, stage: Stage, target: str, pushed: bool = False) -> None:
    """RuntimeError unless every file was loaded, a device reads back whole and a server, if any, has every point."""
    stage.begin(target, pushed)
    ours.command = [str(REPOSITORY / "tidemark"), "--config", str(stage.settings), "load", "--json"]
    told = json.loads(ours.run(REPOSITORY).splitlines()[-1])
    _tell(ours)
    if told["loaded"] != SET.files or (target and told["iotdb"]["counted"] != SET.points):
        raise RuntimeError(f"not all of {SET.files} files with {SET.points} points: {json.dumps(told)[:1000]}")
    if len(ours.samples) == 1:
        _require_readable(ours.command, stage)


def _require_readable(command: Sequence[str], stage: Stage) -> None:
    words = [*command[:3], "read", "--device", "root.sg3.d9", "--out", str(stage.centre / "read.csv"), "--json"]
    rows = json.loads(Contender("read", words).run(REPOSITORY).splitlines()[-1])["rows"]
    if rows != SET.rows_of_a_device:
        raise RuntimeError(f"root.sg3.d9 has {rows} rows at the centre, not {SET.rows_of_a_device}")


def _tell(contender: Contender) -> None:
    taken = contender.samples[-1]
    say(f"{contender.name}: {taken.seconds:.2f} s, {taken.cpu_seconds:.1f} CPU s, {taken.peak_mb:.0f} MB")


if __name__ == "__main__":
    sys.exit(main())
