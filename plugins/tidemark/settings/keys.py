"""Which keys each section of the settings has, how each is read, and everything that is wrong with them.

The dataclasses of `settings.model` hold the defaults and the meaning. `Problems` gathers what is wrong with the
settings, so that one error mends all of it. A problem names its key, its line and what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemark.errors import SettingsError
from tidemark.settings import values
from tidemark.settings.document import Document
from tidemark.settings.model import (
    ClusterSettings,
    LedgerSettings,
    LinkSettings,
    NodeSettings,
    ReceiverSettings,
    SiteSettings,
    SparkSettings,
)
from tidemark.settings.values import Reader
from tidemark.visible import escape_invisible

SECTIONS = {
    "ledger": LedgerSettings,
    "spark": SparkSettings,
    "cluster": ClusterSettings,
    "receivers": ReceiverSettings,
    "sites": SiteSettings,
    "links": LinkSettings,
    "nodes": NodeSettings,
}


def value_readers(root: Path) -> Mapping[str, Mapping[str, Reader]]:
    """For each section its keys, each with what reads it. `root`: the folder that relative paths are below."""
    store = values.store_address(root)
    login: dict[str, Reader] = {
        "host_key": values.parse_host_key,
        "key": values.path_below(root),
        "connection": values.parse_text,
        "tier": values.one_of("auto", "python", "posix", "sftp"),
    }
    count, interval = values.whole_number(0), values.whole_number(1)
    return {
        "ledger": {"url": values.parse_ledger_url},
        "spark": {
            "master": values.parse_spark_master,
            "engine": values.one_of("auto", "spark", "pool"),
            "min_points": count,
            "files": values.parse_remote_files,
            "host_key": values.parse_host_key,
            "key": values.path_below(root),
        },
        "receivers": {
            "store": store,
            **login,
            "iotdb": values.parse_iotdb_address,
            "iotdb_password_file": values.path_below(root),
            "settle_days": count,
            "partition_interval_ms": interval,
            "max_unloaded_landings": values.whole_number(1),
            "verify_days": count,
            "bandwidth": values.parse_bandwidth,
        },
        "sites": {
            "id": values.parse_uuid,
            "store": store,
            **login,
            "data": values.parse_folders,
            "schema": values.parse_optional_folder,
            "time_unit": values.one_of("ms", "us", "ns"),
            "partition_interval_ms": interval,
            "snapshot": values.parse_snapshot_folder,
            "nice": values.whole_number(0, 19),
            "far_memory": values.parse_size,
            "snapshot_bytes": values.parse_size,
        },
        "links": {
            "site": values.parse_text,
            "receiver": values.parse_text,
            "schedule": values.parse_cron,
            "timezone": values.parse_timezone,
            "connections": values.whole_number(1, 64),
            "block_bytes": values.whole_number(1024, 1 << 30),
            "retries": values.whole_number(0, 100),
            "digest": values.one_of("both", "target"),
            "bandwidth": values.parse_bandwidth,
            "slowest": values.parse_bandwidth,
            "window": values.parse_window,
            "include": values.parse_nonempty_texts,
            "exclude": values.parse_texts,
            "deletes": values.one_of("keep", "apply"),
            "delete_limit_files": count,
            "delete_limit_share": values.parse_share,
            "coverage_stale_hours": values.parse_hours,
        },
        "cluster": {
            "receiver": values.parse_text,
            "replicas": interval,
            "quorum": interval,
            "slots": values.whole_number(1, 1_000_000),
            "hash": values.one_of("full", "compat"),
            "balance": values.one_of("slots", "bytes", "writes", "compat"),
            "cache_bytes": values.parse_size,
            "bandwidth": values.parse_bandwidth,
            "grace_hours": count,
        },
        "nodes": {"store": store, **login},
    }


def required_keys(section: str) -> list[str]:
    """Keys without a default. A link's receiver may be left out where there is only one (`references` fills it in)."""
    fields = dataclasses.fields(SECTIONS[section])
    bare = [field.name for field in fields if field.default is dataclasses.MISSING and field.name != "name"]
    return [name for name in bare if (section, name) != ("links", "receiver")]


def suggest_nearest(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean "store"?`, or the whole list where nothing is near."""
    choices = sorted(known)
    near = difflib.get_close_matches(wrong, choices, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{near[0]}"?'
    return f"; there are: {', '.join(choices)}" if choices else "; there are none"


def format_value(value: Any) -> str:
    """The value as the file would write it, a password in an address left out."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(format_value(item) for item in value) + "]"
    return '"' + re.sub(r"(://[^/@:]*:)[^/@]*@", r"\1…@", value) + '"' if isinstance(value, str) else str(value)


_ABSENT = object()


@dataclass
class Problems:
    document: Document
    found: list[tuple[str, str]] = field(default_factory=list)  # (place, text)

    def add_problem(self, message: str, *path: str, value: Any = _ABSENT) -> None:
        """`path` names the key; `value` is what stands there."""
        key = ".".join(path)
        said = "" if value is _ABSENT else f" = {format_value(value)}"
        self.found.append((self.document.locate_key(*path), f"{key}{said}: {message}"))

    def raise_if_any(self) -> None:
        """One UsageError with all problems, in the order of the file."""
        if not self.found:
            return
        lines = [escape_invisible(f"{place}: {text}") for place, text in sorted(self.found, key=_order_of_problem)]
        head = "" if len(lines) == 1 else f"{len(lines)} problems in the settings:\n"
        raise SettingsError(
            head + "\n".join(lines), hint=f"mend {self.document.label}, then ./tidemark doctor", subject=self.document.label
        )


def _order_of_problem(problem: tuple[str, str]) -> tuple[str, int, str]:
    place, text = problem
    match = re.fullmatch(r"(.*):(\d+)", place)
    return (match[1], int(match[2]), text) if match else (place, 0, text)
