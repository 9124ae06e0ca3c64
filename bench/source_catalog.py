"""A merged catalog that `bench source` reads: a site in a folder, synced, loaded and merged by the command.

What Spark gets of it is compared with what `./tidemark read` answers. The peer reads the same files by the format `tsfile`:
links of those that the catalog's readers see, in a folder of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.source_data import devices
from tests.crash.edge import resource_bytes
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.write.writer import TsFileWriter

PARTS = 8  # files that a site has sealed of each device
OVERLAP = 100  # rows of a late file; every eighth of a sequence file comes again
SITE_ID = "00000000-0000-4000-8000-00000000ca7a"
INTERVAL = 604_800_000
SETTINGS = f"""
[spark]
engine = "pool"
[receivers.centre]
store = "centre"
[sites.plant]
id = "{SITE_ID}"
store = "site"
data = ["data/sequence", "data/unsequence"]
[links.plant]
site = "plant"
"""


@dataclass(frozen=True)
class CatalogFiles:
    """A catalog at `settings`, its files at `files`, and the answer that every reader must give."""

    settings: Path
    files: Path
    answer: str


def make_catalog(folder: Path, number: int, rows: int, environment: Mapping[str, str]) -> CatalogFiles:
    """Make a catalog of `number` devices with `rows` rows each. A part of every file comes late, so that all are merged."""
    settings = folder / "tidemark.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(SETTINGS)
    _write_site(folder / "site" / "data", number, rows)
    _run(settings, environment, "sync", "plant")
    if not _run(settings, environment, "merge")["files_out"]:
        raise RuntimeError("nothing of the catalog was merged")
    return CatalogFiles(settings, _link_files(settings, folder / "files"), _read_answer(settings, environment))


def _write_site(data: Path, number: int, rows: int) -> None:
    """Write every device's rows in PARTS files, and rows of each of these again, in a file that came late."""
    cut = rows // PARTS
    made = list(devices(number, rows))
    for part in range(PARTS):
        _write_file(data / "sequence", part, made, slice(part * cut, (part + 1) * cut))
        _write_file(data / "unsequence", PARTS + part, made, slice(part * cut, part * cut + OVERLAP))


def _write_file(folder: Path, number: int, made: list[tuple[str, dict[str, Column]]], rows: slice) -> None:
    parts = {
        name: {series: Column(column.type, column.times[rows], column.values[rows]) for series, column in columns.items()}
        for name, columns in made
    }
    times = {name: columns["level"].times for name, columns in parts.items()}
    partition = int(min(its[0] for its in times.values())) // INTERVAL
    place = folder / "root.bench" / "0" / str(partition) / f"{1_800_000_000_000 + number}-{number + 1}-0-0.tsfile"
    place.parent.mkdir(parents=True, exist_ok=True)
    with TsFileWriter(place) as writer:
        for name, columns in parts.items():
            writer.write_device(("root.bench.line", name), columns, aligned=True)
    spans = {f"root.bench.line.{name}": (int(its[0]), int(its[-1])) for name, its in times.items()}
    place.with_name(f"{place.name}.resource").write_bytes(resource_bytes(spans))


def _link_files(settings: Path, folder: Path) -> Path:
    from tidemark.catalog_source import plan_catalog

    folder.mkdir()
    for number, file in enumerate(plan_catalog({"path": str(settings)})[1].files):
        (folder / f"{number + 1}-{number + 1}-0-0.tsfile").hardlink_to(str(file.path))
    return folder


def _read_answer(settings: Path, environment: Mapping[str, str]) -> str:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    out = settings.with_name("read.parquet")
    _run(settings, environment, "read", "--out", str(out))
    table = pq.read_table(out, columns=["level", "speed", "total"])
    level, speed, total = (table.column(name) for name in ("level", "speed", "total"))
    return repr((len(level) - level.null_count, pc.max(speed).as_py(), pc.min(level).as_py(), pc.sum(total).as_py()))


def _run(settings: Path, environment: Mapping[str, str], *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tidemark.cli", "--config", str(settings), *words, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
