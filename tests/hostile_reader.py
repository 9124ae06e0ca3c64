"""A child that reads what a fuzzer makes, by the readers of everything that an edge writes, within 512 MB.

    python -m tests.hostile_reader [cover]

A task is a line of JSON, {"kind", "size"}, and `size` bytes; the answer a line of JSON: `error` is '' for what was read or
refused as Tidemark refuses, else what came instead; `new`: lines of Tidemark that no task before has reached (`cover`).
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tidemark.cluster.nodes import formats as node_papers
from tidemark.cluster.nodes import schema_format as schema_paper
from tidemark.cluster.slots import table as table_paper
from tidemark.errors import TidemarkError
from tidemark.formats.landing import decode_manifest, decode_receipt
from tidemark.formats.records import decode_decision, decode_settlement
from tidemark.receiver.load.landings import Folder, check_sound
from tidemark.settings.load import load_settings
from tidemark.tsfiles.companions.mods import parse_mods
from tidemark.tsfiles.companions.resource import read_extent
from tidemark.tsfiles.companions.schema_log import decode_log
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.statistics import check_and_describe

MEMORY = 512 << 20
PLACE = Path(tempfile.mkdtemp(prefix="tidemark-hostile-")) / "1-1-0-0.tsfile"


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
}


def outcome(kind: str, data: bytes) -> str:
    try:
        READERS[kind](data)
    except TidemarkError as refused:
        return "" if refused.message else "an error without a word"
    except Exception as surprise:
        return "".join(traceback.format_exception(surprise)[-3:])
    return ""


class Covered:
    """Lines of Tidemark that were reached."""

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, event: str, _what: Any) -> Any:
        if "/tidemark/" not in frame.f_code.co_filename:
            return None
        if event in ("call", "line"):
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self


def main(cover: bool) -> None:
    covered = Covered()
    read_settings(b"")  # what is imported late is there before memory is measured
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    while line := sys.stdin.buffer.readline():
        task = json.loads(line)
        data = sys.stdin.buffer.read(task["size"])
        before = len(covered.lines)
        sys.settrace(covered if cover else None)
        error = outcome(task["kind"], data)
        sys.settrace(None)
        sys.stdout.write(json.dumps({"error": error, "new": len(covered.lines) - before}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main("cover" in sys.argv)
