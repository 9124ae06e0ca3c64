"""`./tidemark bench transfer`: files over SSH, beside the tools that people use for it, on the same data in the same run.

Pulls and pushes of three sets over the loopback: 1 × 2 GB, 200 × 10 MB, 20,000 × 20 KB; pulls of 10 × 10 MB and
2,000 × 20 KB over a line of 50 ms and 200 Mbit/s, without loss and with 0.1 %; a pull of 100 MB that goes on from 60 %.
Ours is the engine as a process of its own (`bench.engine`), start-up included. Ratios of median wall times:

    SET_to_verified     SHA-256 at both ends, to the best peer that verifies (rsync with its best flags)
    SET_to_any          SHA-256 at the target alone, to the best of all peers, which verify nothing
    SET_posix_to_verified, SET_sftp_to_any      the same on the lower tiers
    SET_push_to_pull, SET_push_to_verified      the push; SET_sync_to_engine: a whole `./tidemark sync --no-load`
    wan_*, wan_loss_*, wan_bbr_*                to the best of rsync, tar and scp (bbr where the kernel has it)
    resume_wan          going on from 60 %, to a whole transfer
    memory_growth       peak memory with 8 GB to that with 1 GB; peak_mb: the largest of all, a process tree
    to_sync_tool_*      as `./tidemark bench sync`
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import far, near, sets, sync
from bench.peers import absent
from bench.rows import REPOSITORY, Book, leave_nothing, say
from tests.services import sshd
from tests.services.processes import PartMissing
from tests.services.sshd import Sshd

NEAR = {"pull": near.pull, "push": near.push, "sync": near.whole_sync}
SETS = [files.name for files in sets.LAN]
PARTS = (*SETS, *NEAR, *far.PARTS, "memory", "sync_tool")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tidemark bench transfer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round instead of five (three on the long line)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help=f"parts, with commas: {', '.join(PARTS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sets' sizes, to try the benchmark itself")
    asked = parser.parse_args(arguments)
    leave_nothing()
    wanted = _wanted(parser, asked.only)
    os.environ["PYTHONPATH"] = f"{REPOSITORY / 'plugins'}{os.pathsep}{REPOSITORY}"  # of `bench.engine`
    book = Book("transfer", absent=absent())
    for reason in book.absent.values():
        say(reason)
    began = time.monotonic()
    with sets.folder() as below:
        server = sshd.start()
        try:
            _near(server, below, wanted, 1 if asked.quick else 5, asked.scale, book)
            far.measure(server, below, wanted, 1 if asked.quick else 3, asked.scale, book)
            if "memory" in wanted:
                with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as on_disk:
                    near.memory(server, Path(on_disk), asked.scale, book)
        finally:
            server.close()
    if "sync_tool" in wanted:
        _sync_tool(asked.quick, book)
    say(f"{time.monotonic() - began:.0f} s in all")
    paper = book.paper()
    print(json.dumps(paper if asked.json else paper["ratios"], indent=None if asked.json else 1))
    return 0


def _wanted(parser: argparse.ArgumentParser, only: str) -> set[str]:
    """The parts that were asked for. A set alone is its pull; `push` or `sync` alone is that of all sets."""
    wanted = set(filter(None, only.split(",")))
    if unknown := wanted - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    if not wanted:
        return set(PARTS)
    if wanted.intersection(SETS) and wanted.isdisjoint(NEAR):
        wanted.add("pull")
    elif wanted.intersection(NEAR) and wanted.isdisjoint(SETS):
        wanted.update(SETS)
    return wanted


def _near(server: Sshd, below: Path, wanted: set[str], rounds: int, scale: float, book: Book) -> None:
    for files in sets.LAN:
        if files.name in wanted:
            with sets.made(below, files.scaled(scale)) as source:
                for part, measure in NEAR.items():
                    if part in wanted:
                        measure(server, files.name, source, rounds, book)
                        book.paper()  # what was measured stays, whatever comes


def _sync_tool(quick: bool, book: Book) -> None:
    """The rows of `bench.sync`; where the original tool cannot be had, it is named."""
    for edge in sync.SETS:
        try:
            sync.measure(edge, 1 if quick else 5, book)
        except PartMissing as missing:
            book.absent[f"to_sync_tool_{edge.name}"] = str(missing)


if __name__ == "__main__":
    sys.exit(main())
