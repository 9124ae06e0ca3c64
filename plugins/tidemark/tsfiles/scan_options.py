"""The words with which a scan is asked for: options of `spark.read.format("tsfile")` (docs/spark.md), without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.errors import UsageError
from tidemark.tsfiles.limited import CPU_SECONDS, WALL_SECONDS, TimeLimit
from tidemark.tsfiles.moments import PER_SECOND, moment
from tidemark.tsfiles.scan_plan import ROWS_OF_A_TASK, Cut
from tidemark.tsfiles.survey import Wanted

OPTIONS = (
    "path",
    "paths",
    "model",
    "database",
    "table",
    "columns",
    "devices",
    "start",
    "end",
    "timeUnit",
    "layout",
    "undecodable",
    "rowsPerTask",
    "cpuSeconds",
    "wallSeconds",
)


@dataclass(frozen=True)
class ScanOptions:
    """What is asked for. `unit`: of the times, empty leaves them numbers; `limit`: what a device may take."""

    paths: tuple[str, ...]
    wanted: Wanted
    cut: Cut
    unit: str = ""
    lenient: bool = False
    limit: TimeLimit = field(default_factory=TimeLimit)


def scan_options(options: Mapping[str, str]) -> ScanOptions:
    """The options of a reader, names in any case. UsageError names the one that is wrong and what is allowed."""
    given = lowered(options, OPTIONS)
    paths = (*names(given.get("path", ""), single=True), *names(given.get("paths", "")))
    if not paths:
        raise UsageError(
            "no path", hint='spark.read.format("tsfile").load("/data/iotdb/data/datanode/data")', subject="path"
        )
    unit = choice(given, "timeUnit", ("", *PER_SECOND))
    cut = Cut(
        columns=names(given.get("columns", "")),
        devices=names(given.get("devices", "")),
        start=moment(given.get("start", ""), unit or "ms"),
        end=moment(given.get("end", ""), unit or "ms"),
        tall=choice(given, "layout", ("wide", "tall")) == "tall",
        rows=number(given, "rowsPerTask", ROWS_OF_A_TASK, 1),
    )
    if len(set(cut.columns)) < len(cut.columns):
        raise UsageError(f"columns names one twice: {', '.join(cut.columns)}", subject="columns")
    if cut.tall and cut.columns:
        raise UsageError("layout=tall has its own columns: leave `columns` out", subject="columns")
    wanted = Wanted(choice(given, "model", ("", "tree", "table")), given.get("database", ""), given.get("table", ""))
    lenient = choice(given, "undecodable", ("fail", "null")) == "null"
    limit = TimeLimit(number(given, "cpuSeconds", CPU_SECONDS, 0), number(given, "wallSeconds", WALL_SECONDS, 0))
    return ScanOptions(paths, wanted, cut, unit, lenient, limit)


def lowered(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """The options by their lower-case names. UsageError for one that nobody reads: a typing error must not pass."""
    names_of = {name.lower(): name for name in known}
    for name in options:
        if name.lower() not in names_of:
            raise UsageError(f"no option {name!r}; there are {', '.join(known)}", hint="docs/spark.md", subject=name)
    return {name.lower(): value for name, value in options.items()} | {
        names_of[name.lower()]: value for name, value in options.items()
    }


def names(text: str, single: bool = False) -> tuple[str, ...]:
    """A list of names: a JSON list, else separated by commas; `single`: one name that may hold commas."""
    if text.startswith("["):
        try:
            found = json.loads(text)
        except ValueError as broken:
            raise UsageError(f"{text!r} is not a JSON list: {broken}", subject=text) from broken
        return tuple(str(item) for item in found)
    if single:
        return (text,) if text else ()
    return tuple(name.strip() for name in text.split(",") if name.strip())


def choice(given: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """The value of an option with few values; the first is the default."""
    value = given.get(name, allowed[0]).lower()
    if value not in allowed:
        wanted = ", ".join(word for word in allowed if word)
        raise UsageError(f"{name} = {value!r}; allowed are {wanted}", hint="docs/spark.md", subject=name)
    return value


def number(given: Mapping[str, str], name: str, default: int, least: int) -> int:
    """The value of an option that is a whole number of at least `least`."""
    text = given.get(name, str(default))
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise UsageError(f"{name} = {text!r}: a whole number from {least} on is wanted", hint="docs/spark.md", subject=name)
    return value
