"""`./tidemark bench transfer`: files over SSH, against rsync, tar, scp and sftp on the same data in the same run.

Pulls and pushes of three sets over the loopback: 1 × 2 GB, 200 × 10 MB, 20,000 × 20 KB; then pulls of 10 × 10 MB and
2,000 × 20 KB over a line of 50 ms and 200 Mbit/s, without loss and with 0.1 %, and a pull of 100 MB that goes on from 60 %.
Ours is the engine as a process of its own (`bench.engine`), start-up included. "verified": SHA-256 at both ends, against
rsync with its best flags; "any": SHA-256 at the target alone, against the best of all, which verify nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Contender, report
from bench.wan import SITE, Conditions, Wan, missing, wan
from tests.services import sshd
from tests.services.sshd import Sshd

REPOSITORY = Path(__file__).resolve().parents[1]
GCM = ("-c", "aes128-gcm@openssh.com")
MTIME = 1_600_000_000
SETS = {"big": (1, 2_000_000_000), "mid": (200, 10_000_000), "small": (20_000, 20_000)}
WAN_SETS = {"wan_large": (10, 10_000_000), "wan_small": (2_000, 20_000)}
PER_FOLDER = 1_000
VERIFYING = ("rsync", "rsync gcm -W")


@dataclass(frozen=True)
class Way:
    """From where to where: `host` is the remote end, `push` the direction. `prefix` goes before every command."""

    server: Sshd
    source: Path
    target: Path
    host: str = "127.0.0.1"
    known_hosts: Path | None = None
    prefix: tuple[str, ...] = ()
    push: bool = False

    @property
    def ssh(self) -> list[str]:
        known = self.known_hosts or self.server.folder / "known_hosts"
        return ["-F", "none", "-i", str(self.server.key), "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={known}"]

    def ends(self, scheme: str) -> tuple[str, str]:
        """Source and target as `scheme` and the plain path say them, in the direction of the way."""
        source, target = f"{self.source}", f"{self.target}"
        return (source, scheme.format(target)) if self.push else (scheme.format(source), target)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidemark bench transfer", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round instead of five (three on the long line)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--only", default="", help="parts, with commas: big, mid, small, push, wan, wan_loss, wan_bbr, resume"
    )
    asked = parser.parse_args(arguments)
    wanted = set(filter(None, asked.only.split(","))) or {*SETS, "push", "wan", "wan_loss", "wan_bbr", "resume"}
    os.environ["PYTHONPATH"] = f"{REPOSITORY / 'plugins'}{os.pathsep}{REPOSITORY}"  # of `bench.engine`
    rounds, far_rounds = (1, 1) if asked.quick else (5, 3)
    ours: dict[str, Contender] = {}
    peers: dict[str, Contender] = {}
    ratios: dict[str, float] = {}
    with _folder() as folder:
        server = sshd.start()
        try:
            for name in SETS.keys() & wanted:
                _loopback(server, folder, name, rounds, (ours, peers, ratios))
            if "push" in wanted:
                for name in SETS:
                    _push(server, folder, name, rounds, (ours, peers, ratios))
            _long_lines(server, folder, wanted, far_rounds, (ours, peers, ratios))
        finally:
            server.close()
    if ours:
        ratios["peak_mb"] = max(contender.peak_mb for contender in ours.values())
    paper = report("transfer", ratios, _papers(ours), _papers(peers))
    print(json.dumps(paper if asked.json else paper["ratios"], indent=None if asked.json else 1))
    return 0


Books = tuple[dict[str, Contender], dict[str, Contender], dict[str, float]]


def _loopback(server: Sshd, folder: Path, name: str, rounds: int, books: Books) -> None:
    way = Way(server, _make(folder, name, *SETS[name]), folder / "target")
    mine = {"verified": _engine(way), "any": _engine(way, "--target-only")}
    others = _peers(way)
    _alternate([*mine.values(), *others.values()], way, rounds)
    ours, peers, ratios = books
    ours.update({f"{name} {key}": contender for key, contender in mine.items()})
    peers.update({f"{name} {key}": contender for key, contender in others.items()})
    verifying = [others[key] for key in VERIFYING]
    ratios[f"{name}_to_verified"] = mine["verified"].median_seconds / _best(verifying)
    ratios[f"{name}_to_any"] = mine["any"].median_seconds / _best(others.values())


def _push(server: Sshd, folder: Path, name: str, rounds: int, books: Books) -> None:
    way = Way(server, _make(folder, name, *SETS[name]), folder / "target", push=True)
    mine, rsync, tar = _engine(way), _rsync(way, True), _tar(way, True)
    _alternate([mine, rsync, tar], way, rounds)
    ours, peers, ratios = books
    ours[f"{name} push"] = mine
    peers.update({f"{name} push {one.name}": one for one in (rsync, tar)})
    ratios[f"{name}_push_to_verified"] = mine.median_seconds / rsync.median_seconds
    pull = ours.get(f"{name} verified")
    if pull is not None:
        ratios[f"{name}_push_to_pull"] = mine.median_seconds / pull.median_seconds


def _long_lines(server: Sshd, folder: Path, wanted: set[str], rounds: int, books: Books) -> None:
    lines = {
        "wan": Conditions(),
        "wan_loss": Conditions(loss_percent=0.1),
        "wan_bbr": Conditions("bbr", loss_percent=0.1),
    }
    if wanted.isdisjoint({*lines, "resume"}):
        return
    why_not = missing()
    if why_not:
        print(f"no long line here: {why_not}", file=sys.stderr)
        return
    for key, conditions in lines.items():
        if key in wanted:
            with wan(server, conditions) as line:
                for name in WAN_SETS:
                    _far(server, folder, (key, name), line, rounds, books)
    if "resume" in wanted:
        with wan(server, Conditions()) as line:
            books[2]["resume_wan"] = _resume(server, folder, line, rounds, books)


def _far(server: Sshd, folder: Path, names: tuple[str, str], line: Wan, rounds: int, books: Books) -> None:
    key, name = names[0], names[1].removeprefix("wan_")
    way = Way(server, _make(folder, names[1], *WAN_SETS[names[1]]), folder / "target", SITE, line.known_hosts, line.prefix)
    mine = _engine(way)
    others = [_rsync(way, True), _tar(way, True), _scp(way, True)]
    if names[1] == "wan_small":
        others.pop()  # scp takes a round trip and more a file
    _alternate([mine, *others], way, rounds)
    ours, peers, ratios = books
    ours[f"{key} {name}"] = mine
    peers.update({f"{key} {name} {one.name}": one for one in others})
    ratios[f"{key}_{name}"] = mine.median_seconds / _best(others)


def _resume(server: Sshd, folder: Path, line: Wan, rounds: int, books: Books) -> float:
    """A whole transfer of 100 MB, and one that finds 60 % of it there, left by a run that was cut."""
    source = _make(folder, "wan_resume", 1, 100_000_000)
    way = Way(server, source, folder / "target", SITE, line.known_hosts, line.prefix)
    whole, cut, rest = _engine(way), _engine(way, "--stop-after", "60000000"), _engine(way)
    for _ in range(rounds):
        _fresh(way)
        whole.run(REPOSITORY)
        _fresh(way)
        cut.run(REPOSITORY)
        rest.run(REPOSITORY)
        _check(way)
    books[0].update({"resume whole": whole, "resume cut": cut, "resume rest": rest})
    return rest.median_seconds / whole.median_seconds


def _engine(way: Way, *more: str) -> Contender:
    url = f"sftp://{way.server.user}@{way.host}:{way.server.port}" + "{}"
    source, target = way.ends(url)
    ends = [end if end.startswith("sftp:") else f"file://{end}" for end in (source, target)]
    login = ["--host-key", way.server.host_key, "--key", str(way.server.key)]
    command = [*way.prefix, sys.executable, "-m", "bench.engine", *ends, *login, *more]
    return Contender(" ".join(("engine", *more)), command, way.server.pid)


def _peers(way: Way) -> dict[str, Contender]:
    all_of_them = [make(way, fast) for make in (_rsync, _tar, _scp, _sftp) for fast in (True, False)]
    return {one.name: one for one in all_of_them}


def _rsync(way: Way, fast: bool) -> Contender:
    shell = " ".join(["ssh", *way.ssh, "-p", str(way.server.port), *(GCM if fast else ())])
    source, target = way.ends(f"{way.server.user}@{way.host}:" + "{}")
    flags = ["-aW", "--inplace"] if fast else ["-a"]
    return Contender(
        "rsync gcm -W" if fast else "rsync", [*way.prefix, "rsync", *flags, "-e", shell, f"{source}/", f"{target}/"]
    )


def _tar(way: Way, fast: bool) -> Contender:
    shell = " ".join(["ssh", *way.ssh, "-p", str(way.server.port), *(GCM if fast else ()), f"{way.server.user}@{way.host}"])
    blocks = "-b 512 " if fast else ""
    pack, unpack = f"tar {blocks}-C {way.source} -cf - .", f"tar {blocks}-C {way.target} -xf -"
    script = f"{pack} | {shell} '{unpack}'" if way.push else f"{shell} '{pack}' | {unpack}"
    return Contender("tar gcm" if fast else "tar", [*way.prefix, "sh", "-c", script])


def _scp(way: Way, fast: bool) -> Contender:
    source, target = way.ends(f"{way.server.user}@{way.host}:" + "{}")
    options = [*way.ssh, "-P", str(way.server.port), *(GCM if fast else ())]
    return Contender("scp gcm" if fast else "scp", [*way.prefix, "scp", "-q", "-r", *options, f"{source}/.", target])


def _sftp(way: Way, fast: bool) -> Contender:
    options = " ".join([*way.ssh, "-P", str(way.server.port), *((*GCM, "-B", "255000", "-R", "128") if fast else ())])
    script = f"echo 'get -r {way.source}/. {way.target}' | sftp -q -b - {options} {way.server.user}@{way.host}"
    return Contender("sftp gcm -B 255000" if fast else "sftp", [*way.prefix, "sh", "-c", script])


def _alternate(contenders: Sequence[Contender], way: Way, rounds: int) -> None:
    """As `measure.alternate`, each into an empty target; slow ones that cannot decide a ratio run in the first two alone."""
    for turn in range(rounds):
        shift = turn % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            if turn >= 2 and contender.samples and contender.median_seconds > 3 * _best(contenders):
                continue
            _fresh(way)
            contender.run(REPOSITORY)
            print(f"{way.source.name} {contender.name}: {contender.samples[-1].seconds:.2f} s", file=sys.stderr)
            if turn == 0 and contender.name.startswith("engine"):
                _check(way)


def _fresh(way: Way) -> None:
    shutil.rmtree(way.target, ignore_errors=True)
    way.target.mkdir(parents=True)


def _check(way: Way) -> None:
    """RuntimeError unless the target is what the source is."""
    said = subprocess.run(
        ["diff", "-rq", str(way.source), str(way.target)], capture_output=True, text=True, check=False
    ).stdout
    if said:
        raise RuntimeError(f"the target differs: {said[:500]}")


def _best(contenders: Iterable[Contender]) -> float:
    return min(contender.median_seconds for contender in contenders if contender.samples)


def _papers(contenders: dict[str, Contender]) -> dict[str, object]:
    return {name: contender.as_json() for name, contender in contenders.items() if contender.samples}


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder in memory where the machine has the room: the disk is the same for all and not what is measured."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and shutil.disk_usage(shared).free > 12e9
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-", dir=shared if roomy else None) as folder:
        yield Path(folder)


def _make(folder: Path, name: str, count: int, size: int) -> Path:
    """Files of bytes that do not compress, each beginning differently."""
    place = folder / name
    if place.exists():
        return place
    common = os.urandom(min(size, 1 << 20))
    for number in range(count):
        file = place / f"p{number // PER_FOLDER}" / f"{number}.tsfile"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as out:
            left = size
            while left:
                piece = (os.urandom(32) + common)[: min(left, len(common))]
                out.write(piece)
                left -= len(piece)
        os.utime(file, (MTIME, MTIME))
    return place


if __name__ == "__main__":
    sys.exit(main())
