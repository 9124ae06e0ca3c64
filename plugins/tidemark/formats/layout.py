"""Names and places below a receiver's root. Opens nothing.

    landing/<site id>/<run id>-<part>/…      files under their source path, absolute ones below `_abs/`; then
                                             `manifest.json`, and the answer `receipt.json`
    taken/<site id>/<landing>/…              copies of landed files that are not ours, until they are placed
    data/<database>/<partition>/…            files that readers see: `<site>-<digest>-<name>`, and their mods
    refused/<site id>/<landing>/…            files of devices that another site owns
    quarantine/<site id>/<landing>/…         files that cannot be loaded
    schema/<site id>/<path>.<epoch>          schema logs
    decided/  settled/  answered/            the receiver's records for a lost ledger (`records`, `answered`)

The name of a data file has the content's digest, so another generation has another place, and a grown mods file replaces
nothing. A database's folder is its name, percent-encoded. One longer than 200 bytes is cut, and its digest appended. The
catalog's time partition of a time is floor(time / interval), before 1970 too (`catalog_partition`). Source: CONTRACT §3,
DESIGN §1 and §5.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from tidemark.stores.protocol import LANDING

_LONGEST = 200  # bytes of one folder's name; file systems allow 255
UNITS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
SCHEMA_FOLDER = "schema"
TAKEN = "taken"  # copies of landed files, until they are placed


def data_location(database: str, partition: int, site_id: str, sha256: str, path: str) -> str:
    """Return the place of a source file that readers see; the digest in its name gives another generation another place."""
    return f"data/{folder_name(database)}/{partition}/{site_id[:8]}-{sha256[:12]}-{path.rpartition('/')[2]}"


def mods_location(location: str, mods_sha256: str, mods_path: str) -> str:
    """Return the place next to its TsFile, with the mods' own digest in the name, so that grown mods replace nothing."""
    return f"{location}.{mods_sha256[:12]}.{'mods2' if mods_path.endswith('.mods2') else 'mods'}"


def quarantine_location(site_id: str, landing: str, path: str) -> str:
    return f"quarantine/{site_id}/{landing}/{landed_path(path)}"


def refused_location(site_id: str, landing: str, path: str) -> str:
    return f"refused/{site_id}/{landing}/{landed_path(path)}"


def taken_folder(site_id: str, landing: str) -> str:
    return f"{TAKEN}/{site_id}/{landing}"


def schema_location(site_id: str, path: str, epoch: int) -> str:
    return f"{SCHEMA_FOLDER}/{site_id}/{landed_path(path)}.{epoch}"


def folder_name(database: str) -> str:
    """Return a database's folder: percent-encoded; one too long for a file system is cut, and its digest appended."""
    encoded = quote(database, safe="")
    if encoded in ("", ".", ".."):
        encoded = encoded.replace(".", "%2E") or "%"
    if len(encoded) > _LONGEST:
        encoded = f"{encoded[:_LONGEST]}~{hashlib.sha256(database.encode()).hexdigest()[:8]}"
    return encoded


def catalog_partition(start: int, interval_ms: int, time_unit: str) -> int:
    """Return the catalog's time partition of a time in the site's unit; rounds down before 1970 too (DESIGN §1)."""
    return start // (interval_ms * UNITS_PER_MS[time_unit])


FOLDERS = ("data", "refused", "quarantine", "settled", "decided")
MERGED = "-merged-"  # in the names of merged files

MANIFEST = "manifest.json"
RECEIPT = "receipt.json"


def landing_folder(site_id: str, landing: str) -> str:
    """Return the folder of a landing, relative to the receiver's root."""
    return f"{LANDING}/{site_id}/{landing}"


def landed_path(source_path: str) -> str:
    """Return the place of a source path in its landing: itself, or below `_abs/` if it is absolute."""
    return "_abs" + source_path if source_path.startswith("/") else source_path
