"""`./tidemark bench sync`: from an edge folder to readable at the centre, beside the original Sync Tool 0.12.0.

Both carry the same folder, which a real IoTDB 0.12.0 wrote: 200 files of 354 MB, then 2,000 files of 74 MB.

    to_sync_tool_200, to_sync_tool_2000     a whole `./tidemark sync` over SSH, load included, from an empty ledger, to the
                                            original: from the start of its client until the receiving server, which runs
                                            already, answers with every point
    to_sync_tool_200_pool, …_2000_pool      the same with `[spark] engine = "pool"`: without Spark, which "auto" takes for
                                            5 million points and more where there is a Java
    to_pipe_200, to_pipe_2000               a whole sync beside the Pipe between two IoTDB 2.0.1-beta (`bench.pipe`)

On disk, since how data gets there is part of it: the original does not wait until they are, Tidemark does. The tool and
its server come from Maven Central on first use (Java and Maven needed).
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

from bench import pipe, sync_tool, sync_tool_data
from bench.measure import Contender, Sample
from bench.rows import REPOSITORY, Book, leave_nothing, say
from bench.sync_tool_data import EdgeSet
from tests.services import sshd
from tests.services.processes import PartMissing
from tests.services.sshd import Sshd

SETS = (EdgeSet("200", 200, 1_829), EdgeSet("2000", 2_000, 25))
OF_0_12 = 'data = ["data/sequence", "data/unsequence"]\nschema = "system/schema"\n'
SITE_ID = "00000000-0000-4000-8000-00000000be7e"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tidemark bench sync", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round instead of five")
    parser.add_argument("--json", action="store_true")
    names = [edge.name for edge in SETS] + [f"pipe_{edge.name}" for edge in SETS]
    parser.add_argument("--only", default="", help=f"sets, with commas: {', '.join(names)}")
    asked = parser.parse_args(arguments)
    wanted = set(filter(None, asked.only.split(","))) or set(names)
    os.environ["PYTHONPATH"] = f"{REPOSITORY / 'plugins'}{os.pathsep}{REPOSITORY}"  # of `bench.sync_tool_run`
    leave_nothing()
    book = Book("sync")
    rounds = 1 if asked.quick else 5
    try:
        for edge in SETS:
            if edge.name in wanted:
                sync_tool.jars()
                measure(edge, rounds, book)
            if f"pipe_{edge.name}" in wanted:
                measure_pipe(edge, rounds, book)
    except PartMissing as missing:
        parser.exit(6, f"{missing}\n")
    paper = book.paper()
    print(json.dumps(paper if asked.json else paper["ratios"], indent=None if asked.json else 1))
    return 0


@dataclass
class Stage:
    """Where one run happens. `base`: the data folder as the server left it; `edge`: its links, fresh for each run."""

    edge_set: EdgeSet
    folder: Path
    base: Path
    server: Sshd
    runs: int = 0

    @property
    def edge(self) -> Path:
        return self.folder / f"{self.runs}" / "edge"

    @property
    def centre(self) -> Path:
        return self.folder / f"{self.runs}" / "centre"

    def begin(self) -> None:
        """Folders of its own for the next run; the files are hard links, for neither side writes into a TsFile.

        Nothing is removed before all is over: ext4 passes over every inode that was deleted in the last minutes, one by one,
        for each file it makes, so that a run would pay for what was cleared away behind the one before.
        """
        self.runs += 1
        for place in (self.edge, self.centre):
            place.mkdir(parents=True)
        shutil.copytree(self.base / "system", self.edge / "data" / "system")
        shutil.copytree(self.base / "data", self.edge / "data" / "data", copy_function=os.link)


def measure(edge_set: EdgeSet, rounds: int, book: Book) -> None:
    """One set in alternating rounds. Raises PartMissing where the original cannot be had."""
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as place:
        folder = Path(place)
        say(f"a server writes {edge_set.files:,} files")
        made = folder / "made"
        made.mkdir()
        server = sshd.start()
        try:
            stage = Stage(edge_set, folder, sync_tool_data.make(made, edge_set), server)
            original = Contender("Sync Tool", [])
            ours, pool = (Contender(name, [], server.pid) for name in ("tidemark sync", "tidemark sync, pool"))
            acts: list[Callable[[], None]] = [
                lambda: _run_original(original, stage),
                lambda: _run_ours(ours, stage, "auto", stage.edge / "data", OF_0_12),
                lambda: _run_ours(pool, stage, "pool", stage.edge / "data", OF_0_12),
            ]
            for turn in range(rounds):
                for act in (*acts[turn % 3 :], *acts[: turn % 3]):
                    stage.begin()
                    act()
        finally:
            server.close()
    row = f"to_sync_tool_{edge_set.name}"
    book.note(row, [ours, pool], [original])
    book.ratios |= {
        row: ours.median_seconds / original.median_seconds,
        f"{row}_pool": pool.median_seconds / original.median_seconds,
    }
    book.paper()


def measure_pipe(edge_set: EdgeSet, rounds: int, book: Book) -> None:
    """One set beside the Pipe, in alternating rounds. Raises PartMissing where the servers cannot be had."""
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as place, pipe.start_site(edge_set) as site:
        server = sshd.start()
        try:
            ours, peer = Contender("tidemark sync", [], server.pid), Contender("Pipe", [])
            for turn in range(rounds):
                stage = Stage(edge_set, Path(place), site.data, server, turn)
                stage.centre.mkdir(parents=True)
                if turn % 2:
                    _run_pipe(peer, site, stage)
                _run_ours(ours, stage, "auto", site.data.parent, 'data = ["data"]\n')
                if not turn % 2:
                    _run_pipe(peer, site, stage)
        finally:
            server.close()
    row = f"to_pipe_{edge_set.name}"
    book.note(row, [ours], [peer])
    book.ratios[row] = ours.median_seconds / peer.median_seconds
    book.paper()


def _run_pipe(peer: Contender, site: pipe.PipeSite, stage: Stage) -> None:
    peer.command = [pipe.PIPE]
    peer.samples.append(Sample(site.pipe(), 0, 0, 0, 0, 0))  # the servers' CPU and memory are not counted
    _tell(peer, stage)


def _run_original(original: Contender, stage: Stage) -> None:
    """Its wall is what its run says: from its client's start; the watching process around it is not the tool's."""
    centre = sync_tool.start(stage.centre)
    try:
        numbers = (centre.process.pid, centre.port, centre.sync_port, stage.edge_set.files, stage.edge_set.points)
        folders = (str(stage.edge), str(stage.centre))
        original.command = [sys.executable, "-m", "bench.sync_tool_run", *folders, *map(str, numbers)]
        told = json.loads(original.run(REPOSITORY))
    finally:
        centre.close()
    taken = replace(original.samples[-1], seconds=told["seconds"], far_cpu_seconds=told["receiver_cpu_seconds"])
    original.samples[-1] = taken
    _tell(original, stage)


def _run_ours(ours: Contender, stage: Stage, engine: str, store: Path, folders: str) -> None:
    """A first sync with an empty ledger. RuntimeError unless every file was loaded and a device reads back whole.

    `folders`: the site's keys that say where the files lie below `store`.
    """
    (stage.centre / "tidemark.toml").write_text(
        f'[ledger]\nurl = "sqlite:///ledger.db"\n\n[receivers.centre]\nstore = "file://{stage.centre / "store"}"\n\n'
        f'[spark]\nengine = "{engine}"\n\n'
        f'[sites.edge]\nid = "{SITE_ID}"\nstore = "{stage.server.url(store)}"\n'
        f'host_key = "{stage.server.host_key}"\nkey = "{stage.server.key}"\n'
        f"{folders}\n"
        f'[links.edge]\nsite = "edge"\nreceiver = "centre"\n'
    )
    (stage.centre / "store").mkdir()
    settings = str(stage.centre / "tidemark.toml")
    ours.command = [str(REPOSITORY / "tidemark"), "--config", settings, "sync", "edge", "--json"]
    told = json.loads(ours.run(REPOSITORY).splitlines()[-1])
    _tell(ours, stage)
    if told["loaded"] != stage.edge_set.files:
        raise RuntimeError(f"{told['loaded']} of {stage.edge_set.files} files were loaded: {json.dumps(told)[:1000]}")
    if len(ours.samples) == 1:
        _require_readable(ours.command, stage)


def _require_readable(command: Sequence[str], stage: Stage) -> None:
    words = [*command[:3], "read", "--device", "root.sg3.d9", "--out", str(stage.centre / "read.csv"), "--json"]
    rows = json.loads(Contender("read", words).run(REPOSITORY).splitlines()[-1])["rows"]
    if rows != stage.edge_set.rows_of_a_device:
        raise RuntimeError(f"root.sg3.d9 has {rows} rows at the centre, not {stage.edge_set.rows_of_a_device}")


def _tell(contender: Contender, stage: Stage) -> None:
    taken = contender.samples[-1]
    say(f"{stage.edge_set.name} {contender.name}: {taken.seconds:.2f} s, {taken.cpu_seconds:.1f} CPU s")


if __name__ == "__main__":
    sys.exit(main())
