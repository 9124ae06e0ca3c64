"""The layout of a receiver and the two papers that travel: the manifest that ends a landing, the receipt that answers it.

`landing/<site id>/<run id>-<part>/…` holds files under their source path (absolute ones below `_abs/`), then
`manifest.json` by rename: without it the landing is not whole. `receipt.json` is the receiver's answer. Both are JSON
with `format`; a newer format is refused by name, unknown keys are ignored. Source: seed 000 ("sync.end"), DESIGN §3 and
§5; the fields stand in docs/formats/manifest.md and docs/formats/receipt.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tidemark.errors import CorruptionError

MANIFEST = "manifest.json"
RECEIPT = "receipt.json"
LANDING = "landing"
"""The folder at a receiver below which senders write."""


def landing_folder(site_id: str, landing: str) -> str:
    """Where a landing lies, relative to the receiver's root."""
    return f"{LANDING}/{site_id}/{landing}"


def landed_path(source_path: str) -> str:
    """Where a source path lies below its landing: itself, or below `_abs/` when it is absolute."""
    return "_abs" + source_path if source_path.startswith("/") else source_path


@dataclass(frozen=True)
class Part:
    """One companion's bytes as they landed: path at the source, length in bytes, SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class LandedFile:
    """A generation of a source path. `tsfile` is None when a grown mods file ships alone."""

    path: str  # the TsFile's source path
    generation: int
    mtime: int
    tsfile: Part | None
    resource: Part | None
    mods: Part | None
    sha256: str  # digest of the TsFile of this generation, also when it does not travel again
    verified: str  # "source": digest made at the source; "target": only at the target ("not verified at the source")


@dataclass(frozen=True)
class LandedSchema:
    """Bytes `start`..`start + part.size` of a schema log; `epoch` rises when the log began anew at the site."""

    path: str
    epoch: int
    start: int
    part: Part  # part.path is the file below the landing


@dataclass(frozen=True)
class Vanished:
    """A path the site has no more. `covered_by` is empty for a drop, else the paths that cover it."""

    path: str
    generation: int
    covered_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class InventoryEntry:
    """A sealed file at the site, sent or not. `extent`: (device, start, end) from its .resource, site's time unit.

    `reason`: why the link does not send it (excluded by pattern), '' where it does.
    """

    path: str
    size: int
    mtime: int
    extent: tuple[tuple[str, int, int], ...]
    reason: str = ""


@dataclass(frozen=True)
class Manifest:
    """What closes a landing: all it holds, in the order of its site (docs/formats)."""

    landing: str
    site_id: str
    site_name: str
    time_unit: str
    partition_interval_ms: int
    data: tuple[str, ...]  # the site's data folders, to read names below them
    link: str
    run_id: str
    part: int
    last: bool  # the run's last part
    sequence: int  # 1, 2, 3 … per link
    previous: str | None
    created: float
    deletes: str  # keep | apply: what the link does with drops
    files: tuple[LandedFile, ...] = ()
    schema: tuple[LandedSchema, ...] = ()
    superseded: tuple[Vanished, ...] = ()
    dropped: tuple[Vanished, ...] = ()
    held: tuple[Vanished, ...] = ()  # dropped too, and held by the sender's limits: kept until `dropped` tells it
    added: tuple[InventoryEntry, ...] = ()  # inventory change since the manifest before
    removed: tuple[str, ...] = ()
    inventory_count: int = 0  # sealed files the site has after this change
    left_out: tuple[tuple[str, str], ...] = ()  # (path, reason) of selected files that did not make it
    listed: float | None = None  # when the whole listing began that the inventory is by, None where it was not whole


@dataclass(frozen=True)
class Answer:
    """What became of one landed file: loaded, refused (another site owns `device`), quarantined, awaited (deletions of a
    settled file, which the receipt asks for again).

    `schema` answers name a schema log (`path`, epoch as `generation`) whose bytes did not come whole. `resend`: the
    receiver does not have the bytes that the manifest promised, so sending the whole file again would help.
    """

    path: str
    generation: int
    outcome: str
    reason: str = ""
    device: str = ""
    owner: str = ""
    resend: bool = False


@dataclass(frozen=True)
class Resend:
    """A file the receiver needs again, whole, to replace a settled file. It is sent if the site still has it and
    `generation` is the newest that was sent; a newer one is on its way."""

    path: str
    generation: int
    reason: str


@dataclass(frozen=True)
class Receipt:
    """The receiver's answer to a landing, one verdict a file. `claimed`: devices that became the site's with it; None in
    receipts of before they were told."""

    landing: str
    sequence: int
    manifest_sha256: str
    loaded: float
    answers: tuple[Answer, ...] = ()
    pending: tuple[tuple[str, str], ...] = field(default=())  # (path, reason) of what readers do not see yet: drops, changes
    resend: tuple[Resend, ...] = ()  # older receipts have no such key: none
    claimed: tuple[str, ...] | None = None


# Most paths there are, those in `.tidemark` too, found good at one look: no component is of dots alone.
_PLAIN = re.compile(r"/?\.?[\w-][\w.=+@-]*(?:/\.?[\w-][\w.=+@-]*)*", re.ASCII)


def check_path(path: str) -> str:
    """Return `path` when it stays below its folder; CorruptionError when empty, with `.` or `..` components or a NUL."""
    if _PLAIN.fullmatch(path):
        return path
    parts = path.lstrip("/").split("/")
    if not path or "\0" in path or any(p in ("", ".", "..") for p in parts) or not is_utf8(path):
        raise CorruptionError(f"path leaves its folder or is not a path: {path!r}", subject=path)
    return path


def is_utf8(path: str) -> bool:
    """Half a surrogate pair, as JSON can smuggle in, is no name on a disk."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
