"""Transfers over the loopback: pulls and pushes of the three sets, the lower tiers, a whole sync, memory by size."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench import sets
from bench.measure import Contender
from bench.peers import VERIFYING, Way, on_a_lan
from bench.rows import REPOSITORY, Book, alternate, best, engine, run
from tests.services.sshd import Sshd

SITE_ID = "00000000-0000-4000-8000-00000000be7d"
GROWTH = (1_000_000_000, 8_000_000_000)  # bytes


def pull(server: Sshd, files: str, source: Path, rounds: int, book: Book) -> None:
    """Ours on the three tiers and with a digest at the target alone, beside all peers."""
    way = Way(server, source, source.with_name("target"), server.pid)
    both, target = engine(way), engine(way, "engine, digest at the target", "--target-only")
    posix = engine(way, "engine, POSIX tools", "--tier", "posix")
    plain = engine(way, "engine, SFTP only", "--tier", "sftp", "--target-only")
    peers = on_a_lan(way)
    alternate(files, [both, target, posix, plain], peers, way, rounds, book)
    verifying, everyone = best(one for one in peers if one.name in VERIFYING), best(peers)
    book.ratios |= {
        f"{files}_to_verified": both.median_seconds / verifying,
        f"{files}_to_any": target.median_seconds / everyone,
        f"{files}_posix_to_verified": posix.median_seconds / verifying,
        f"{files}_sftp_to_any": plain.median_seconds / everyone,
    }


def push(server: Sshd, files: str, source: Path, rounds: int, book: Book) -> None:
    """Beside the pull of the same minutes."""
    target = source.with_name("target")
    there, here = Way(server, source, target, server.pid, push=True), Way(server, source, target, server.pid)
    mine, pulled = engine(there), engine(here, "engine, pull beside it")
    peers = on_a_lan(there)
    alternate(f"{files} push", [mine, pulled], peers, there, rounds, book)
    book.ratios |= {
        f"{files}_push_to_pull": mine.median_seconds / pulled.median_seconds,
        f"{files}_push_to_verified": mine.median_seconds / best(one for one in peers if one.name in VERIFYING),
    }


def whole_sync(server: Sshd, files: str, source: Path, rounds: int, book: Book) -> None:
    """`./tidemark sync --no-load` of a site with these files, beside the engine on the same folder."""
    with sets.sealed(source) as site:
        way = Way(server, site, source.with_name("target"), server.pid)
        alone, sync = engine(way), _sync(way)
        for turn in range(rounds):
            for contender in (alone, sync) if turn % 2 else (sync, alone):
                if contender is alone:
                    run(f"{files} sync", contender, way, check=turn == 0)
                else:
                    _run_sync(f"{files} sync", contender, way)
    book.note(f"{files} sync", [alone, sync], [])
    book.ratios[f"{files}_sync_to_engine"] = sync.median_seconds / alone.median_seconds


def _sync(way: Way) -> Contender:
    settings = way.target.with_name("deployment") / "tidemark.toml"
    words = [str(REPOSITORY / "tidemark"), "--config", str(settings), "sync", "bench", "--no-load", "--json"]
    return way.contender("tidemark sync", words)


def _run_sync(row: str, contender: Contender, way: Way) -> None:
    """A first sync: new ledger, new receiver, no snapshot left from before. RuntimeError unless it sent everything."""
    place = way.target.with_name("deployment")
    for snapshot in list(way.source.rglob(".tidemark")):
        shutil.rmtree(snapshot)
    shutil.rmtree(place, ignore_errors=True)
    (place / "centre").mkdir(parents=True)
    (place / "tidemark.toml").write_text(
        f'[ledger]\nurl = "sqlite:///ledger.db"\n\n[receivers.centre]\nstore = "file://{place / "centre"}"\n\n'
        f'[sites.bench]\nid = "{SITE_ID}"\nstore = "{way.server.url(way.source)}"\n'
        f'host_key = "{way.server.host_key}"\nkey = "{way.server.key}"\ndata = ["data/sequence"]\n\n'
        f'[links.bench]\nsite = "bench"\nreceiver = "centre"\n'
    )
    run(row, contender, way, check=False)
    landed = sum(1 for _ in (place / "centre" / "landing").rglob("*.tsfile"))
    expected = sum(1 for _ in way.source.glob("data/**/*.tsfile"))
    shutil.rmtree(place)
    if landed != expected:
        raise RuntimeError(f"{landed} of {expected} files are in the landing")


def memory(server: Sshd, below: Path, scale: float, book: Book) -> None:
    """Peak memory with a file of 1 GB and one of 8 GB, on disk: sparse at the source, written whole at the target."""
    peaks = []
    for size in GROWTH:
        source = below / "growth"
        sets.fresh(source)
        with (source / f"{size}.tsfile").open("wb") as file:
            file.truncate(int(size * scale))
        way = Way(server, source, below / "target", server.pid)
        mine = engine(way, f"engine, {size // 10**9} GB")
        run("memory", mine, way, check=True)
        book.note("memory", [mine], [])
        peaks.append(mine.peak_mb)
        shutil.rmtree(source)
        shutil.rmtree(way.target)
    book.ratios["memory_growth"] = peaks[1] / peaks[0]
