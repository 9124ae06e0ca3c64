"""`./tidemark bench plan`: what it costs to find out that there is nothing to do.

`unchanged_100k`: a whole `./tidemark sync` over SSH of a site with 100,000 unchanged TsFiles and their `.resource`, to
`rsync -an --delete` of the same folder over the same SSH. `known_1m_seconds`, `known_1m_mb`: a whole `./tidemark plan`
of a local site with 1,000,000 files that the ledger knows. `growth_1m_250k`: its time to that of a quarter of them.
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

import sqlalchemy as sa

from bench.measure import Contender, alternate, report
from tests.services import sshd
from tidemark.ledger.database import Ledger
from tidemark.ledger.migrations import migrate

SITE_ID = "00000000-0000-4000-8000-00000000be7c"
MTIME = 1_700_000_000
PER_FOLDER = 1_000
REPOSITORY = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidemark bench plan", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of seven")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    rounds = 3 if asked.quick else 7
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        remote = _unchanged_over_ssh(Path(folder) / "remote", 100_000, rounds)
        quarter = _known_locally(Path(folder) / "quarter", 250_000, max(1, rounds // 2))
        million = _known_locally(Path(folder) / "million", 1_000_000, max(1, rounds // 2))
    ours, rsync, find = remote
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
    """A site behind a real sshd with `files` TsFiles that the ledger knows; a copy at the centre for rsync to compare."""
    site, copy = folder / "site", folder / "copy"
    _make_site(site, files)
    _make_site(copy, files)
    server = sshd.start()
    try:
        store = f'store = "{server.url(site)}"\nhost_key = "{server.host_key}"\nkey = "{server.key}"'
        settings = _settle(folder, site, store)
        ours = Contender("tidemark sync", [*_tidemark(settings), "sync", "bench", "--json"])
        shell = " ".join(["ssh", *server.ssh_options(), "-l", server.user])
        rsync = Contender("rsync -an --delete", ["rsync", "-an", "--delete", "-e", shell, f"127.0.0.1:{site}/", f"{copy}/"])
        far = ["ssh", *server.ssh_options(), "-l", server.user, "127.0.0.1"]
        find = Contender("find", [*far, f"find {site} -type f -printf '%s %T@ %i %p\\n'"])
        for contender in (ours, rsync, find):  # one round to warm the caches, not counted
            contender.run(REPOSITORY)
            contender.samples.clear()
        alternate((ours, rsync, find), rounds, REPOSITORY)
    finally:
        server.close()
    return ours, rsync, find


def _known_locally(folder: Path, files: int, rounds: int) -> Contender:
    site = folder / "site"
    _make_site(site, files)
    settings = _settle(folder, site, f'store = "file://{site}"')
    plan = Contender(f"tidemark plan, {files:,} files", [*_tidemark(settings), "plan", "bench", "--json"])
    plan.run(REPOSITORY)
    plan.samples.clear()
    alternate((plan,), rounds, REPOSITORY)
    shutil.rmtree(folder)
    return plan


def _tidemark(settings: Path) -> list[str]:
    return [str(REPOSITORY / "tidemark"), "--config", str(settings)]


def _names(files: int) -> list[str]:
    """Source paths of `files` TsFiles, `PER_FOLDER` a time partition."""
    return [
        f"data/sequence/root.bench/{number % 4}/{number // PER_FOLDER}/{MTIME}000-{number}-0-0.tsfile"
        for number in range(files)
    ]


def _make_site(site: Path, files: int) -> None:
    for folder in {str(Path(name).parent) for name in _names(files)}:
        (site / folder).mkdir(parents=True)
    (site / "data" / "unsequence").mkdir()
    for name in _names(files):
        for path in (f"{site}/{name}", f"{site}/{name}.resource"):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
            os.truncate(path, 64)
            os.utime(path, (MTIME, MTIME))


def _settle(folder: Path, site: Path, store: str) -> Path:
    """Write the settings and a ledger in which every file of the site is acknowledged."""
    settings = folder / "tidemark.toml"
    settings.write_text(
        f'[ledger]\nurl = "sqlite:///ledger.db"\n\n[receivers.centre]\nstore = "file://{folder / "centre"}"\n\n'
        f'[sites.bench]\nid = "{SITE_ID}"\n{store}\ndata = ["data/sequence", "data/unsequence"]\n\n'
        '[links.bench]\nsite = "bench"\nreceiver = "centre"\n'
    )
    (folder / "centre").mkdir()
    ledger = Ledger("sqlite:///ledger.db", folder)
    migrate(ledger)
    rows = sa.text(
        "INSERT INTO file (link, path, size, mtime, inode, mods_size, state, generation, sha256, mods_sha256, landing,"
        " first_seen, changed) VALUES ('bench', :path, 64, :mtime, 0, 0, 'acked', 1, :digest, '', 'x-1', 0, 0)"
    )
    names = sorted(p.relative_to(site).as_posix() for p in site.rglob("*.tsfile"))
    with ledger.write() as connection:
        for start in range(0, len(names), 50_000):
            batch = names[start : start + 50_000]
            connection.execute(rows, [{"path": n, "mtime": MTIME, "digest": "0" * 64} for n in batch])
    ledger.close()
    return settings


if __name__ == "__main__":
    sys.exit(main())
