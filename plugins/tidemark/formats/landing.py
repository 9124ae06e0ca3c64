"""The two files of a landing as values and bytes: the manifest that ends it, the receipt that answers it.

`landing/<site id>/<run id>-<part>/…` holds files under their source path (absolute ones below `_abs/`), then `manifest.json`
by rename. Without it the landing is not whole. `receipt.json` is the receiver's answer. Both are JSON with `format`. A newer
format is refused by name; unknown keys are ignored.

Equal values have equal bytes (`encode_document`), so equal manifests have equal digests. A manifest or receipt from any
writer must be whole, of a known format and name nothing outside its landing. Otherwise reading it (`decode_manifest`,
`decode_receipt`) raises CorruptionError with the reason. `encode_entry` and `decode_entry` convert one file's entry for the
ledger.

Source: seed 000 ("sync.end"), DESIGN §3 and §5. Fields: docs/formats/manifest.md and docs/formats/receipt.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tidemark.errors import CorruptionError
from tidemark.formats.json_stream import read_fields
from tidemark.stores.protocol import Store, check_path, is_utf8, read_records
from tidemark.tsfiles.devices import plain_path, put_below
from tidemark.untrusted_files import MOST_DOCUMENT


@dataclass(frozen=True)
class Part:
    """One companion's bytes as they landed: path at the source, length in bytes, SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class LandedFile:
    """A generation of a source path. `tsfile` is None if a grown mods file is sent alone."""

    path: str  # the TsFile's source path
    generation: int
    mtime: int
    tsfile: Part | None
    resource: Part | None
    mods: Part | None
    sha256: str  # digest of the TsFile of this generation, also if it is not sent again
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
    """A path that vanished at the site. `covered_by` is empty for a drop, else the paths that cover it."""

    path: str
    generation: int
    covered_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class InventoryEntry:
    """A sealed file at the site, sent or not. `extent`: (device, start, end) from its .resource, site's time unit.

    `reason`: why the link does not send it (excluded by pattern), '' if it does.
    """

    path: str
    size: int
    mtime: int
    extent: tuple[tuple[str, int, int], ...]
    reason: str = ""


@dataclass(frozen=True)
class Manifest:
    """The manifest that closes a landing: everything in it, in the order of its site (docs/formats)."""

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
    held: tuple[Vanished, ...] = ()  # dropped, but held by the sender's limits: kept until `dropped` lists it
    added: tuple[InventoryEntry, ...] = ()  # inventory change since the previous manifest
    removed: tuple[str, ...] = ()
    inventory_count: int = 0  # sealed files the site has after this change
    left_out: tuple[tuple[str, str], ...] = ()  # (path, reason) of selected files that are not in it
    listed: float | None = None  # the begin of the whole listing behind the inventory; None if there was none
    prefix: str = ""  # what the catalog puts before the site's devices of the tree model

    @property
    def named_added(self) -> tuple[InventoryEntry, ...]:
        """`added`, with the devices as the catalog names them."""
        if not self.prefix:
            return self.added
        return tuple(
            replace(
                entry, extent=tuple((put_below(self.prefix, device), first, last) for device, first, last in entry.extent)
            )
            for entry in self.added
        )


@dataclass(frozen=True)
class Answer:
    """The answer for one landed file: loaded, refused (another site owns `device`), quarantined, awaited (deletions of a
    settled file, which the receipt requests again).

    `schema` answers name a schema log (`path`, epoch as `generation`) whose bytes did not come whole. `resend`: the receiver
    lacks bytes that the manifest promised, so sending the whole file again would help.
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
    """A file that the receiver needs again, whole, to replace a settled file. It is sent if the site still has it and
    `generation` is the newest that was sent; a newer one comes anyway."""

    path: str
    generation: int
    reason: str


@dataclass(frozen=True)
class Receipt:
    """The receiver's answer to a landing, one for each file. `claimed`: devices that became the site's with it; None in
    older receipts."""

    landing: str
    sequence: int
    manifest_sha256: str
    loaded: float
    answers: tuple[Answer, ...] = ()
    pending: tuple[tuple[str, str], ...] = field(default=())  # (path, reason) of drops and changes that are not visible yet
    resend: tuple[Resend, ...] = ()  # none in older receipts
    claimed: tuple[str, ...] | None = None


MANIFEST_FORMAT = 2
"""Written as 1 where nothing in it is new: of a site without prefix."""

RECEIPT_FORMAT = 1
_WITHOUT_PREFIX = 1
_BAD = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
)  # raised for documents of another shape


_LATER = ("listed", "held", "prefix")
"""Left out where they say nothing, so that records without them are what they always were."""


def encode_document(document: Manifest | Receipt) -> bytes:
    """Encode a document: JSON without spaces, keys in their order here, so that equal documents have equal digests."""
    number = RECEIPT_FORMAT
    if isinstance(document, Manifest):
        number = MANIFEST_FORMAT if document.prefix else _WITHOUT_PREFIX
    # `vars` of each part: `asdict` would first copy every extent of every file
    said = {name: value for name, value in vars(document).items() if name not in _LATER or value not in (None, (), "")}
    return json.dumps({"format": number, **said}, ensure_ascii=False, separators=(",", ":"), default=vars).encode()


def read_documents(store: Store, paths: Sequence[str]) -> list[bytes | None]:
    """Read manifests or receipts, which an edge can write: None where there is none; b"", which is no record, for one
    of more than MOST_DOCUMENT bytes."""
    return [b"" if isinstance(data, CorruptionError) else data for data in read_records(store, paths, MOST_DOCUMENT)]


def decode_manifest(data: bytes) -> Manifest:
    """Decode a manifest. CorruptionError for torn JSON, a missing field, a newer format or a path outside its landing."""
    try:
        raw = _parse_object(data, "manifest", MANIFEST_FORMAT, _MANIFEST_LISTS)
        manifest = Manifest(
            landing=_require_text(raw["landing"]),
            site_id=_require_text(raw["site_id"]),
            site_name=_require_text(raw["site_name"]),
            time_unit=_require_text(raw["time_unit"]),
            partition_interval_ms=_parse_integer(raw["partition_interval_ms"]),
            link=_require_text(raw["link"]),
            run_id=_require_text(raw["run_id"]),
            part=_parse_integer(raw["part"]),
            sequence=_parse_integer(raw["sequence"]),
            previous=None if raw["previous"] is None else _require_text(raw["previous"]),
            deletes=_require_text(raw["deletes"]),
            inventory_count=_parse_integer(raw["inventory_count"]),
            last=bool(raw["last"]),
            created=_parse_time(raw["created"]),
            data=_require_list(raw["data"]),
            files=_require_list(raw["files"]),
            schema=_require_list(raw["schema"]),
            superseded=_require_list(raw["superseded"]),
            dropped=_require_list(raw["dropped"]),
            held=_require_list(raw.get("held", ())),
            added=_require_list(raw["added"]),
            removed=_require_list(raw["removed"]),
            left_out=_require_list(raw["left_out"]),
            listed=None if raw.get("listed") is None else _parse_time(raw["listed"]),
            prefix=_parse_prefix(raw.get("prefix", "")),
        )
    except _BAD as broken:
        raise CorruptionError(f"manifest is not readable: {type(broken).__name__} {broken}") from broken
    for path in named_paths(manifest):
        check_path(path)
    return manifest


MOST_DEEP = 64
LONGEST_PATH = 2_048
LONGEST_FILE = 200
"""Folders of a path, its bytes, those of a file's own name: file systems allow 255, and the catalog puts digests to it."""


def check_place(path: str) -> None:
    """Raise CorruptionError for a path that is too deep or too long for a disk or the catalog."""
    *folders, name = path.split("/")
    if len(folders) > MOST_DEEP:
        raise CorruptionError(f"{path:.80}… is {len(folders)} folders deep; at most {MOST_DEEP} are taken", subject=path)
    if len(path.encode()) > LONGEST_PATH or len(name.encode()) > LONGEST_FILE:
        raise CorruptionError(f"{path:.80}… is too long: {LONGEST_FILE} bytes a name, {LONGEST_PATH} a path", subject=path)
    if any(len(folder.encode()) > 255 for folder in folders):
        raise CorruptionError(f"{path:.80}… has a folder's name of more than 255 bytes", subject=path)


def encode_entry(file: LandedFile, data: tuple[str, ...]) -> str:
    """Encode one file's entry for the ledger: all that is needed to load a refused or quarantined file later."""
    return json.dumps({"file": asdict(file), "data": data}, ensure_ascii=False, separators=(",", ":"))


def decode_entry(text: str) -> tuple[LandedFile, tuple[str, ...]]:
    """Decode the entry and its site's data folders; CorruptionError for any other text."""
    try:
        raw = json.loads(text)
        return _landed_file(raw["file"]), tuple(raw["data"])
    except (KeyError, TypeError, ValueError) as broken:
        raise CorruptionError(f"the ledger's entry of a file is not readable: {broken}") from broken


def decode_receipt(data: bytes) -> Receipt:
    """Decode a receipt. CorruptionError for bytes that are no receipt."""
    try:
        raw = _parse_object(data, "receipt", RECEIPT_FORMAT, _RECEIPT_LISTS)
        return Receipt(
            landing=_require_text(raw["landing"]),
            sequence=_parse_integer(raw["sequence"]),
            manifest_sha256=_require_text(raw["manifest_sha256"]),
            loaded=_parse_time(raw["loaded"]),
            answers=_require_list(raw["answers"]),
            pending=_require_list(raw["pending"]),
            resend=_require_list(raw.get("resend", ())),
            claimed=None if raw.get("claimed") is None else _require_list(raw["claimed"]),
        )
    except _BAD as broken:
        raise CorruptionError(f"receipt is not readable: {type(broken).__name__} {broken}") from broken


def _parse_object(data: bytes, what: str, newest: int, lists: Mapping[str, Callable[[Any], Any]]) -> Mapping[str, Any]:
    """Return the fields of a document. Raises CorruptionError and the errors of converting an entry."""

    def storable(value: Any) -> Any:
        if not _is_storable(value):
            raise CorruptionError(f"{what} holds text that no database takes: a NUL, or half a surrogate pair")
        return value

    def one(name: str, value: Any) -> Any:
        if name == "format" and isinstance(value, int) and value > newest:
            raise CorruptionError(f"{what} has format {value}, this Tidemark knows {newest}", hint="upgrade Tidemark here")
        return storable(value)

    def checked(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda entry: make(storable(entry))

    makers = {name: checked(make) for name, make in lists.items()} if b"\\u" in data else lists
    try:
        raw = read_fields(data, makers, one)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise CorruptionError(f"{what} is not JSON: {broken}") from broken
    if not isinstance(raw.get("format"), int):
        raise CorruptionError(f"{what} carries no format number")
    return raw


def _require_list(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise TypeError(f"{value!r:.60} is no list")
    return value


def _is_storable(raw: Any) -> bool:
    if isinstance(raw, str):
        return "\0" not in raw and is_utf8(raw)
    if isinstance(raw, dict):
        return all(_is_storable(key) and _is_storable(value) for key, value in raw.items())
    return all(map(_is_storable, raw)) if isinstance(raw, list) else True


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is no text")
    return value


def _parse_integer(value: Any) -> int:
    """Return a number that the ledger can hold."""
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{number} is beyond 64 bits")
    return number


def _parse_time(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is no time")
    return seconds


def _parse_prefix(value: Any) -> str:
    """Return a prefix that is canonical: any other would make second names of devices."""
    prefix = _require_text(value)
    if prefix and not (prefix.startswith("root.") and plain_path(prefix) == prefix):
        raise ValueError(f"{prefix!r:.60} is no prefix of devices")
    return prefix


def _parse_part(raw: Mapping[str, Any] | None) -> Part | None:
    return None if raw is None else _part_of(raw)


def _part_of(raw: Mapping[str, Any]) -> Part:
    return Part(_require_text(raw["path"]), _parse_integer(raw["size"]), _require_text(raw["sha256"]))


def _landed_file(raw: Mapping[str, Any]) -> LandedFile:
    return LandedFile(
        path=_require_text(raw["path"]),
        generation=_parse_integer(raw["generation"]),
        mtime=_parse_integer(raw["mtime"]),
        tsfile=_parse_part(raw["tsfile"]),
        resource=_parse_part(raw["resource"]),
        mods=_parse_part(raw["mods"]),
        sha256=_require_text(raw["sha256"]),
        verified=_require_text(raw["verified"]),
    )


def _parse_vanished(raw: Mapping[str, Any]) -> Vanished:
    return Vanished(
        _require_text(raw["path"]), _parse_integer(raw["generation"]), tuple(map(_require_text, raw["covered_by"]))
    )


def _parse_held(raw: Mapping[str, Any]) -> Vanished:
    return Vanished(_require_text(raw["path"]), _parse_integer(raw["generation"]), ())


def _parse_answer(raw: Mapping[str, Any]) -> Answer:
    told = {name: _require_text(raw.get(name, "")) for name in ("reason", "device", "owner")}
    return Answer(
        _require_text(raw["path"]),
        _parse_integer(raw["generation"]),
        _require_text(raw["outcome"]),
        **told,
        resend=bool(raw.get("resend", False)),
    )


def named_paths(manifest: Manifest) -> list[str]:
    """Return every path at the site or in the landing by which a manifest names a file."""
    parts = [p for f in manifest.files for p in (f.tsfile, f.resource, f.mods) if p] + [s.part for s in manifest.schema]
    vanished = [v.path for v in (*manifest.superseded, *manifest.dropped, *manifest.held)]
    logs = [log.path for log in manifest.schema]
    return [p.path for p in parts] + [f.path for f in manifest.files] + vanished + [e.path for e in manifest.added] + logs


def _parse_pair(raw: Any) -> tuple[str, str]:
    first, second = raw
    return _require_text(first), _require_text(second)


def _parse_added(raw: Any) -> InventoryEntry:
    return InventoryEntry(
        path=_require_text(raw["path"]),
        size=_parse_integer(raw["size"]),
        mtime=_parse_integer(raw["mtime"]),
        extent=tuple((_require_text(d), _parse_integer(a), _parse_integer(b)) for d, a, b in raw["extent"]),
        reason=_require_text(raw.get("reason", "")),
    )


def _parse_schema(raw: Any) -> LandedSchema:
    return LandedSchema(
        _require_text(raw["path"]), _parse_integer(raw["epoch"]), _parse_integer(raw["start"]), _part_of(raw["part"])
    )


def _parse_resend(raw: Any) -> Resend:
    return Resend(_require_text(raw["path"]), _parse_integer(raw["generation"]), _require_text(raw.get("reason", "")))


_MANIFEST_LISTS: Mapping[str, Callable[[Any], Any]] = {
    "data": _require_text,
    "files": _landed_file,
    "schema": _parse_schema,
    "superseded": _parse_vanished,
    "dropped": _parse_vanished,
    "held": _parse_held,
    "added": _parse_added,
    "removed": _require_text,
    "left_out": _parse_pair,
}
_RECEIPT_LISTS: Mapping[str, Callable[[Any], Any]] = {
    "answers": _parse_answer,
    "pending": _parse_pair,
    "resend": _parse_resend,
    "claimed": _require_text,
}
