"""A child that reads what a fuzzer makes, by the readers of everything that an edge writes, within 512 MB.

    python -m tests.hostile_reader

A task is a line of JSON, {"kind", "size"}, and `size` bytes. The answer is a line of JSON: `error` is '' for what was read
or refused as Tidemark refuses, else what came instead.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.small_files import sealed
from tidemark.cluster.nodes import formats as node_papers
from tidemark.cluster.nodes import formats as schema_paper
from tidemark.cluster.slots import table as table_paper
from tidemark.errors import TidemarkError
from tidemark.formats.landing import decode_manifest, decode_receipt
from tidemark.formats.records import decode_decision, decode_settlement
from tidemark.receiver.load.landings import Folder, check_sound
from tidemark.receiver.load.removal.surviving_points import HeldFile, SurvivalTask, find_surviving_points
from tidemark.settings.load import load_settings
from tidemark.tsfiles.companions.mods import parse_mods
from tidemark.tsfiles.companions.resource import read_extent
from tidemark.tsfiles.companions.schema_log import decode_log
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.statistics import check_and_describe

MEMORY = 512 << 20
PLACE = Path(tempfile.mkdtemp(prefix="tidemark-hostile-")) / "1-1-0-0.tsfile"
SOUND = PLACE.with_name("2-2-0-0.tsfile")


def read_manifest(data: bytes) -> None:
    manifest = decode_manifest(data)
    check_sound(manifest, Folder(manifest.site_id, manifest.landing, answered=False, bulky=False))


def read_tsfile(data: bytes) -> None:
    PLACE.write_bytes(data)
    facts = check_and_describe(PLACE, "db")
    with TsFile(PLACE, "db") as file:
        for device in facts.devices:
            for measurement in file.list_measurements(device.device):
                file.read_column(device.device, measurement)


def read_settings(data: bytes) -> None:
    place = PLACE.with_name("tidemark.toml")
    place.write_bytes(data)
    load_settings(place, {})


def read_beside_another(data: bytes) -> None:
    """Compare the points of two files, one of them hostile: as the vanished file, and as the one that came since."""
    PLACE.write_bytes(data)
    SOUND.write_bytes(sealed({"root.sg.d1": {"s": [(t, t) for t in range(50)]}})[""])
    for gone, made in ((PLACE, SOUND), (SOUND, PLACE)):
        find_surviving_points(SurvivalTask(str(PLACE.parent), "root.sg", HeldFile(gone.name), (HeldFile(made.name),)))


READERS: dict[str, Callable[[bytes], Any]] = {
    "manifest": read_manifest,
    "receipt": decode_receipt,
    "decided": decode_decision,
    "settled": decode_settlement,
    "node": lambda data: node_papers.decode_node(data, "node"),
    "node table": table_paper.decode_table,
    "node kept": lambda data: node_papers.decode_kept(data, "table", "kept"),
    "node schema": lambda data: schema_paper.decode_schema(data, "centre", "node"),
    "resource": lambda data: read_extent(data, "root.sg"),
    "mods": lambda data: parse_mods(data, "mods"),
    "mods2": lambda data: parse_mods(data, "mods2"),
    "schema text": lambda data: decode_log(data, "text"),
    "schema binary": lambda data: decode_log(data, "binary"),
    "settings": read_settings,
    "tsfile": read_tsfile,
    "two tsfiles": read_beside_another,
}


def outcome(kind: str, data: bytes) -> str:
    try:
        READERS[kind](data)
    except TidemarkError as refused:
        return "" if refused.message else "an error without a word"
    except Exception as surprise:
        return "".join(traceback.format_exception(surprise)[-3:])
    return ""


def main() -> None:
    read_settings(b"")  # what is imported late is there before memory is measured
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    while line := sys.stdin.buffer.readline():
        task = json.loads(line)
        error = outcome(task["kind"], sys.stdin.buffer.read(task["size"]))
        sys.stdout.write(json.dumps({"error": error}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
