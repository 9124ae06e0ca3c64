"""What an IoTDB left in a folder, as far as its files say: version, data and schema folders, time unit, partition interval.

`survey_site` looks at a store, at the places below it where IoTDB 0.12 to 2.x keep their files, and at those that its
configuration names. It reads what the server wrote about itself (`system.properties`), then what it is told (`conf/`).
The values are the site's words: they are bounded and checked here, and those that make no sense count as not said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from tidemark.settings.values import parse_folder
from tidemark.stores.protocol import Store

BASES = ("data/datanode", "datanode", "data", "")  # where `data` and `system` lie side by side, of new versions first
HALVES = ("sequence", "unsequence")
MOST_BYTES = 1 << 20  # of a file of properties
STATE = (  # what a server wrote about itself, the newest version first
    *(f"{base}/system/system.properties" for base in BASES if base),
    "system/system.properties",
    "data/confignode/system/confignode-system.properties",
    "confignode/system/confignode-system.properties",
    "data/system/schema/system.properties",
    "system/schema/system.properties",
)
CONFIGURATION = (
    "conf/iotdb-system.properties",
    "conf/iotdb-common.properties",
    "conf/iotdb-datanode.properties",
    "conf/iotdb-engine.properties",
)
_VERSION = re.compile(r"[\w.+-]{1,40}")


@dataclass(frozen=True)
class Survey:
    """What was found. What the files do not say is "" or 0."""

    version: str = ""
    data: tuple[str, ...] = ()
    schema: str = ""
    time_unit: str = ""
    partition_interval_ms: int = 0

    def as_settings(self) -> dict[str, Any]:
        """The keys of `[sites.NAME]` that the files tell."""
        keys = ("data", "schema", "time_unit", "partition_interval_ms")
        return {key: getattr(self, key) for key in keys if getattr(self, key)}


def survey_site(store: Store) -> Survey:
    """Look at the store. Raises the errors of the store; a folder without an IoTDB is an empty survey."""
    told = _read_properties(store)
    data = tuple(_configured_folders(store, told)) or _usual_folders(store)
    schema = next((folder for folder in _schema_places(store, told, data) if has_folder(store, folder)), "")
    return Survey(_read_version(told), data, schema, _read_unit(told), _read_interval(told))


def _read_properties(store: Store) -> Mapping[str, str]:
    """Return the keys of all files of properties that are there. What the server wrote itself comes first."""
    found: dict[str, str] = {}
    places = (*STATE, *CONFIGURATION)
    for place, entry in zip(places, store.stat_many(places), strict=True):
        if entry is not None:
            found = dict(parse_properties(store.read(place, 0, MOST_BYTES))) | found
    return found


def parse_properties(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of Java properties, one a line. Pure."""
    for line in data.decode("utf-8", "replace").splitlines():
        key, sign, value = line.strip().partition("=")
        if sign and not key.startswith(("#", "!")):
            yield key.strip(), value.strip().replace("\\:", ":").replace("\\=", "=")


def _read_version(told: Mapping[str, str]) -> str:
    version = told.get("iotdb_version", "")
    return version if _VERSION.fullmatch(version) else ""


def _read_unit(told: Mapping[str, str]) -> str:
    unit = told.get("timestamp_precision", "")
    return unit if unit in ("ms", "us", "ns") else ""


def _read_interval(told: Mapping[str, str]) -> int:
    """Return milliseconds. Versions before 1.0 say seconds; without partitions the interval means nothing."""
    if told.get("enable_partition", "true").lower() == "false":
        return 0
    for key, unit in (("time_partition_interval", 1), ("partition_interval", 1000)):
        if re.fullmatch(r"[1-9]\d{0,15}", told.get(key, "")):
            return int(told[key]) * unit
    return 0


def _configured_folders(store: Store, told: Mapping[str, str]) -> Iterator[str]:
    """Yield the halves of each data folder that the configuration names: several disks."""
    written = told.get("dn_data_dirs") or told.get("data_dirs") or ""
    for named in re.split("[,;]", written):
        if folder := _below_store(store, named.strip()):
            yield from _halves_in(store, folder)


def _usual_folders(store: Store) -> tuple[str, ...]:
    places = [f"{base}/data" if base else "data" for base in BASES]
    return next((found for place in [*places, ""] if (found := tuple(_halves_in(store, place)))), ())


def _halves_in(store: Store, folder: str) -> Iterator[str]:
    names = store.list_folder(folder)
    return (f"{folder}/{half}" if folder else half for half in HALVES if half in names)


def _schema_places(store: Store, told: Mapping[str, str], data: Sequence[str]) -> Iterator[str]:
    system = _below_store(store, told.get("dn_system_dir") or told.get("system_dir") or "")
    if system:
        yield f"{system}/schema"
    for folder in data[:1]:
        beside = PurePosixPath(folder).parent.parent
        yield str(beside / "system" / "schema")


def _below_store(store: Store, named: str) -> str:
    """Return a folder of the configuration as the settings write it: relative where it lies in the store. "" for none."""
    root = "/" + store.url.partition("://")[2].partition("/")[2].rstrip("/")
    try:
        folder = parse_folder(named)
    except ValueError:
        return ""
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in folder):
        return ""
    return folder.removeprefix(f"{root}/") if folder != root else ""


def has_folder(store: Store, folder: str) -> bool:
    """Return whether the folder exists, even if it is empty."""
    parent, _, name = folder.rstrip("/").rpartition("/")
    return not name or name in store.list_folder(parent or ("/" if folder.startswith("/") else ""))
