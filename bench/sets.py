"""The files that transfers are measured with: bytes that do not compress, in folders as IoTDB lays them out.

Each file begins and ends as a TsFile does, so that a whole `./tidemark sync` takes the same files as the engine; nothing
looks further inside. `scale` makes all of them smaller: for trying the benchmark, never for its figures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.crash.edge import resource_bytes

MTIME = 1_600_000_000
PER_FOLDER = 1_000
HEAD, TAIL = b"TsFile\x04", b"\x00\x00\x00\x01TsFile"
ROOM = 14_000_000_000  # bytes free in memory: the largest set three times, and as much again for the machine


@dataclass(frozen=True)
class FileSet:
    name: str
    count: int
    size: int  # bytes

    def scaled(self, scale: float) -> FileSet:
        """Fewer files, or smaller ones where there are few."""
        if self.count >= 1_000:
            return FileSet(self.name, max(10, int(self.count * scale)), self.size)
        return FileSet(self.name, self.count, max(100_000, int(self.size * scale)))


LAN = (FileSet("big", 1, 2_000_000_000), FileSet("mid", 200, 10_000_000), FileSet("small", 20_000, 20_000))
WAN = (FileSet("large", 10, 10_000_000), FileSet("small", 2_000, 20_000))
CUT = FileSet("cut", 1, 100_000_000)  # never scaled: it has to be many blocks


@contextmanager
def folder() -> Iterator[Path]:
    """A folder in memory where the machine has the room: the disk is the same for all and not what is measured."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and shutil.disk_usage(shared).free > ROOM
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-", dir=shared if roomy else None) as place:
        yield Path(place)


@contextmanager
def made(below: Path, files: FileSet) -> Iterator[Path]:
    """The set's folder, for as long as the block runs."""
    place = below / f"{files.name}-{files.count}"
    common = os.urandom(min(files.size, 1 << 20))
    for number in range(files.count):
        partition = number // PER_FOLDER
        file = (
            place / "data" / "sequence" / "root.bench" / "0" / str(partition) / f"{MTIME + number}-{number + 1}-0-0.tsfile"
        )
        if number % PER_FOLDER == 0:
            file.parent.mkdir(parents=True)
        _write(file, files.size, common)
    try:
        yield place
    finally:
        shutil.rmtree(place)


@contextmanager
def sealed(place: Path) -> Iterator[Path]:
    """The same files (hard links) with a `.resource` beside each: what an IoTDB leaves for `./tidemark sync`."""
    site = place.with_name(f"{place.name}-site")
    for file in place.rglob("*.tsfile"):
        twin = site / file.relative_to(place)
        twin.parent.mkdir(parents=True, exist_ok=True)
        twin.hardlink_to(file)
        resource = twin.with_name(f"{twin.name}.resource")
        resource.write_bytes(resource_bytes({f"root.bench.d{file.name.split('-')[1]}": (MTIME, MTIME + 1)}))
        os.utime(resource, (MTIME, MTIME))
    try:
        yield site
    finally:
        shutil.rmtree(site)


def fresh(target: Path) -> None:
    """An empty folder at `target`."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)


def require_same(source: Path, target: Path) -> None:
    """RuntimeError unless every file below the target is what the source has (a site's snapshot folder apart)."""
    compared = subprocess.run(
        ["diff", "-rq", "-x", ".tidemark", source, target], capture_output=True, text=True, check=False
    )
    if compared.returncode:
        raise RuntimeError(f"the target differs: {(compared.stdout or compared.stderr)[:500]}")


def _write(file: Path, size: int, common: bytes) -> None:
    """`size` bytes, each megabyte beginning differently."""
    with file.open("wb") as out:
        out.write(HEAD)
        left = size - len(HEAD) - len(TAIL)
        while left:
            piece = (os.urandom(32) + common)[: min(left, len(common))]
            out.write(piece)
            left -= len(piece)
        out.write(TAIL)
    os.utime(file, (MTIME, MTIME))
