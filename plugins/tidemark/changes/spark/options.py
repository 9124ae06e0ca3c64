"""The options of `format("tidemark_changes")`, and the store that they mean. Without Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark.changes.delivery.shards import Sharding
from tidemark.changes.spark.places import Place, Served, SharedStore
from tidemark.errors import NotFoundError, UsageError
from tidemark.tsfiles.spark.options import lower_option_names, parse_choice, parse_names, parse_number

_WHERE = ("path", "source", "store", "url", "tokenFile", "ca", "task")
_WHAT = ("tables", "from", "to", "layout", "controls")
OPTIONS = (*_WHERE, *_WHAT, "shards", "rowsPerPartition", "rowsPerBatch")
TYPED, JSON = "typed", "json"
PARTITION_ROWS = 262_144
BATCH_ROWS = 1_000_000
ORDERED_SHARDS = 8
"""Up to so many shards are a partition each. Each reads all blocks, so more would read too much."""


@dataclass(frozen=True)
class Asked:
    """What a reader is asked for. `table`: the one whose columns are typed; "": rows are JSON. `shards`: 0 is no division.
    `batch_rows`: 0 is no limit."""

    place: Place
    source: str
    tables: tuple[str, ...] = ("**",)
    start: str = "earliest"
    end: str = ""
    table: str = ""
    controls: bool = False
    shards: int = 0
    partition_rows: int = PARTITION_ROWS
    batch_rows: int = BATCH_ROWS


def parse_asked(options: Mapping[str, str]) -> Asked:
    """Parse the options of a reader, names in any case. Raises UsageError with the wrong option and what is allowed."""
    given = lower_option_names(options, OPTIONS)
    place = _find_served(given) if given.get("url") else _find_store(given)
    tables = parse_names(given.get("tables", "**"))
    if not tables:
        raise UsageError("tables names none", hint="leave it out: all", subject="tables")
    is_one = len(tables) == 1 and "." in tables[0] and not set("*?[") & set(tables[0])
    layout = parse_choice(given, "layout", ("", TYPED, JSON)) or (TYPED if is_one else JSON)
    if layout == TYPED and not is_one:
        raise UsageError(
            f"layout=typed is for one table, not for {', '.join(tables)}",
            hint='.option("tables", "shop.orders")',
            subject="tables",
        )
    shards = parse_number(given, "shards", 0, 0)
    if shards:
        Sharding(shards)  # or it raises
    controls = parse_choice(given, "controls", ("false", "true")) == "true"
    if controls and (layout == TYPED or shards > ORDERED_SHARDS):
        why = "the columns of one table" if layout == TYPED else f"more than {ORDERED_SHARDS} shards"
        raise UsageError(f"controls=true does not go with {why}", hint='.option("layout", "json")', subject="controls")
    return Asked(
        place,
        place.source,
        tables,
        given.get("from", "earliest"),
        given.get("to", ""),
        tables[0] if layout == TYPED else "",
        controls,
        shards,
        parse_number(given, "rowsPerPartition", PARTITION_ROWS, 1),
        parse_number(given, "rowsPerBatch", BATCH_ROWS, 0),
    )


def _find_served(given: Mapping[str, str]) -> Served:
    """The readers of a source."""
    if clash := next((name for name in ("path", "store") if given.get(name)), None):
        raise UsageError(f"both url and {clash} are given", hint="leave one of them out", subject=clash)
    for name, example in (("source", "orders"), ("task", "lake"), ("tokenFile", "/run/secrets/lake.token")):
        if not given.get(name):
            raise UsageError(f"url needs {name}, too", hint=f'.option("{name}", "{example}")', subject=name)
    urls = tuple(dict.fromkeys(url.rstrip("/") for url in parse_names(given["url"])))
    if not urls:
        raise UsageError("url names no reader", hint='.option("url", "https://HOST:28332")', subject="url")
    return Served(urls, given["source"], given["task"], given["tokenFile"], given.get("ca", ""))


def _find_store(given: Mapping[str, str]) -> SharedStore:
    """The store's folder, by the settings or by its path."""
    if name := next((name for name in ("tokenFile", "ca") if given.get(name)), None):
        raise UsageError(f"{name} is for readers", hint='.option("url", "https://HOST:28332")', subject=name)
    name, task = given.get("source", ""), given.get("task", "")
    if store := given.get("store", ""):
        if given.get("path"):
            raise UsageError("both a store and settings are named", hint="leave one of them out", subject="store")
        folder, settings = Path(store.removeprefix("file://")).absolute(), ""
        name = name or folder.name
    else:
        from tidemark.changes.sources.source import disk_of, settings_of
        from tidemark.settings.load import load_settings

        found = load_settings(given.get("path") or None, os.environ)
        if not name and len(found.sources) != 1:
            names = ", ".join(sorted(found.sources)) or "none"
            raise UsageError(f"which source? the settings have: {names}", hint='.option("source", NAME)')
        one = settings_of(found, name or next(iter(found.sources)))
        name, folder, settings = one.name, disk_of(one).root, str(found.path)
    if not folder.is_dir():
        raise NotFoundError(
            f"there is no store {folder} of source {name}",
            hint=f"./tidemark changes capture {name}; or mount its folder under this path",
            subject=str(folder),
        )
    if task and not settings:
        raise UsageError(
            "a task needs the settings, which name its ledger",
            hint='.option("source", "orders").load("tidemark.toml"), without store',
            subject="task",
        )
    return SharedStore(str(folder), name, settings, task)
