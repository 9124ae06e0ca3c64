"""`./tidemark bench plan`: what it costs to find out that there is nothing to do.

`unchanged_100k`: a whole `./tidemark sync` over SSH of a site with 100,000 unchanged TsFiles and their `.resource`, to
`rsync -an --delete` of the same folder over the same SSH. `known_1m_seconds`, `known_1m_mb`: a whole `./tidemark plan`
of a local site with 1,000,000 files that the ledger knows. `growth_1m_250k`: its time to that of a quarter of them.
Before a round counts, one file is touched: a plan that does not name exactly that file is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import idle_site
from bench.idle_site import LINK, IdleSite
from bench.measure import Contender, alternate, report, warm
from tests.services import sshd

REPOSITORY = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidemark bench plan", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of seven")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    rounds = 3 if asked.quick else 7
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        ours, rsync, find = _unchanged_over_ssh(Path(folder) / "remote", 100_000, rounds)
        quarter = _known_locally(Path(folder) / "quarter", 250_000, rounds)
        million = _known_locally(Path(folder) / "million", 1_000_000, rounds)
    ratios = {
        "unchanged_100k": ours.median_seconds / rsync.median_seconds,
        "unchanged_100k_to_find": ours.median_seconds / find.median_seconds,
        "unchanged_100k_mb": ours.peak_mb,
        "known_1m_seconds": million.median_seconds,
        "known_1m_mb": million.peak_mb,
        "growth_1m_250k": million.median_seconds / quarter.median_seconds,
    }
    mine = {c.name: c.as_json() for c in (ours, million, quarter)}
    paper = report("plan", ratios, mine, {c.name: c.as_json() for c in (rsync, find)})
    print(json.dumps(paper if asked.json else paper["ratios"], indent=None if asked.json else 1))
    return 0


def _unchanged_over_ssh(folder: Path, files: int, rounds: int) -> tuple[Contender, Contender, Contender]:
    """A site behind a real sshd whose files the ledger knows; a copy at the centre for rsync to compare."""
    _say(f"making {files:,} files, twice")
    root = idle_site.make(folder, files)
    copy = idle_site.make(folder / "copy", files)
    server = sshd.start()
    try:
        login = f'store = "{server.url(root)}"\nhost_key = "{server.host_key}"\nkey = "{server.key}"'
        site = idle_site.settle(folder, root, login)
        ours = Contender("tidemark sync", [*_tidemark(site), "sync", LINK, "--json"], server.pid)
        shell = ["ssh", *server.ssh_options(), "-l", server.user]
        far = f"127.0.0.1:{root}/"
        rsync = Contender("rsync", ["rsync", "-an", "--delete", "-e", " ".join(shell), far, f"{copy}/"], server.pid)
        find = Contender("find", [*shell, "127.0.0.1", f"find {root} -type f -printf '%s %T@ %i %p\\n'"], server.pid)
        _check(site)
        warm((ours, rsync, find), REPOSITORY)
        _say(f"{rounds} rounds of tidemark sync, rsync, find")
        alternate((ours, rsync, find), rounds, REPOSITORY)
    finally:
        server.close()
        shutil.rmtree(folder)
    return ours, rsync, find


def _known_locally(folder: Path, files: int, rounds: int) -> Contender:
    _say(f"making {files:,} files")
    root = idle_site.make(folder, files)
    site = idle_site.settle(folder, root, f'store = "file://{root}"')
    plan = Contender(f"tidemark plan, {files:,} files", [*_tidemark(site), "plan", LINK, "--json"])
    _check(site)
    warm((plan,), REPOSITORY)
    _say(f"{rounds} rounds of tidemark plan")
    alternate((plan,), rounds, REPOSITORY)
    shutil.rmtree(folder)
    return plan


def _check(site: IdleSite) -> None:
    """RuntimeError unless a plan says "nothing", and names a touched file alone while one is touched."""
    quiet = _plan(site)
    if (quiet["state"], quiet["skipped"]) != ("nothing", []):
        raise RuntimeError(f"the ledger does not know the site: {json.dumps(quiet)[:2000]}")
    touched = sorted(site.root.rglob("*.tsfile"))[site.files // 2]
    before = touched.stat().st_mtime
    with touched.open("r+b") as file:
        file.write(b"changed")
    os.utime(touched, (before + 1, before + 1))
    found = _plan(site)
    if [item["path"] for item in found["send"]] != [str(touched.relative_to(site.root))]:
        raise RuntimeError(f"a changed file was not found: {json.dumps(found)[:2000]}")
    with touched.open("r+b") as file:
        file.write(bytes(7))
    os.utime(touched, (before, before))


def _plan(site: IdleSite) -> dict[str, object]:
    told = Contender("plan", [*_tidemark(site), "plan", LINK, "--json"]).run(REPOSITORY)
    return json.loads(told.splitlines()[-1])


def _tidemark(site: IdleSite) -> list[str]:
    return [str(REPOSITORY / "tidemark"), "--config", str(site.settings)]


def _say(words: str) -> None:
    print(f"bench plan: {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
