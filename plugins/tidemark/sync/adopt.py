"""Take over files that an original Sync Tool delivered, or that are at the receiver, so that nothing is sent twice.

`folder` may hold, at any depth:

- `last_local_files.txt`, `current_local_files.txt`, `sync.log` of an original sender. The files that it delivered are
  known from now on and not sent. They are not in the catalog; a later change of such a file sends it whole.
- TsFiles at the receiver. Those with the digest of the site's file land and load as if they had been sent: only their
  `.resource` and mods cross the wire. A copy that differs is not used, and the file is sent.
- `uuid.txt`, `device_owner`, `sync_schema_pos`. Owners are claimed for the sites of the settings. A UUID that is not
  the site's is refused. The schema position is reported and not used: the centre needs the whole log.

`parse_acknowledged` reads an original sender's state after any crash (the seed's recovery steps 1 to 9).
`last_local_files.txt` is the acknowledged set, `sync.log` its redo log, `current_local_files.txt` the atomic replacement.
Two differences from the original are intended. Log entries are applied in order (the original collects two sets and loses
"sent, then deleted", R5). A torn last line is dropped (the original keeps a garbage path and later tells the receiver to
delete it, R6).

`device_owner` is a Java-serialised map from device to owner, or the seed's text log (`read_owners`). Only a map of strings
can be read: class descriptions are skipped, and repeated strings are references to earlier ones. An owner is a folder
name `<sender's IP>_<UUID, 32 hex digits>`. From 0.12 on it may be a storage group; such an owner has no UUID and
`site_of` returns None (B13).

Source: seed 000 ("Recovery module", "Others"), research/iotdb.md §1.3, §1.5, §1.6.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from tidemark.app import App
from tidemark.errors import CorruptionError, NotFoundError, UsageError
from tidemark.formats.records import ADOPTED, Decision, decided_place, encode_decision
from tidemark.ledger import journal
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver.refusals import OwnerRow
from tidemark.ledger.sender import links as link_rows
from tidemark.progress import Progress, ignore_progress
from tidemark.settings.model import LinkSettings, SiteSettings
from tidemark.stores.listing import classify_files
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Range, Store
from tidemark.sync.run import Options, run_sync
from tidemark.sync.session import KnownCopies
from tidemark.tsfiles.sealed import SealedFile

LIST, REPLACEMENT, LOG = "last_local_files.txt", "current_local_files.txt", "sync.log"
OWNERS = ("device_owner", "device_owner.log")


@dataclass(frozen=True)
class AdoptResult:
    """What was taken over. `listed`: files by the sender's list. `copied`: files by their copy at the receiver. `differing`:
    files whose copies differ. `unmatched`: entries of the list without a file of the site. `schema_position`: as found."""

    listed: int
    copied: int
    owners: int
    differing: tuple[str, ...] = ()
    unmatched: int = 0
    sent_bytes: int = 0
    uuid: str = ""
    schema_position: int | None = None
    note: str = ""

    @property
    def files(self) -> int:
        return self.listed + self.copied

    def as_json(self) -> dict[str, Any]:
        return {"ok": True, "files": self.files, **{k: v for k, v in vars(self).items() if k != "differing"}} | {
            "differing": list(self.differing)
        }


@dataclass(frozen=True)
class Found:
    """The contents of the folder."""

    entries: frozenset[str]
    lists: int
    copies: Mapping[str, Sequence[str]]  # file name → paths below the folder
    owners: Mapping[str, str]
    uuid: str
    schema_position: int | None

    @property
    def is_empty(self) -> bool:
        return not (self.lists or self.copies or self.owners)


def adopt(app: App, link: str, folder: Path, progress: Progress = ignore_progress, other_uuid: bool = False) -> AdoptResult:
    """Take over `folder` for a link. Raises NotFoundError if it does not exist, UsageError if it holds nothing usable, or
    what another sender delivered; `other_uuid` says that the site had another UUID then."""
    settings = app.link_settings(link)
    if not folder.is_dir():
        raise NotFoundError(f"no folder {folder}", subject=str(folder))
    found = inspect_folder(folder)
    if found.is_empty:
        raise UsageError(
            f"{folder} holds neither {LIST}, {REPLACEMENT} or {LOG}, nor device_owner, nor TsFiles",
            hint="give the sender's folder (…/sync-sender/<ip>_<port>) or a folder of TsFiles at the receiver",
            subject=str(folder),
        )
    if not other_uuid:
        _require_uuid(found, folder, app.site_settings(settings.site))
    local = app.receiver_root(app.receiver_settings(settings.receiver)) is not None
    site = app.site_settings(settings.site)
    store = LocalStore(str(folder.absolute()))
    with app.site_store(site) as source:
        sealed = classify_files(source, source.list_files(site.data).entries, site.data).sealed
        listed = match_site_files(found.entries, [f.entry.path for f in sealed])
        places, differing = _same_copies(source, store, sealed, found.copies if local else {})
    options = Options(adopted=listed - places.keys() - differing, exactly=frozenset(places))
    result = run_sync(app, link, options, progress, copies=KnownCopies(store, places))
    with app.ledger.read() as connection:
        known = link_rows.adopted_paths(connection, link)
    return AdoptResult(
        listed=len(options.adopted & known),
        copied=result.files,
        owners=_claim_devices(app, settings, found.owners),
        differing=tuple(sorted(differing)),
        unmatched=len(found.entries) - len(listed),
        sent_bytes=result.sent_bytes,
        uuid=found.uuid,
        schema_position=found.schema_position,
        note="" if listed or places or found.owners else f"nothing in {folder} names a TsFile that the site has",
    )


def inspect_folder(folder: Path) -> Found:
    """Read the files of an original Sync Tool in `folder`, and find TsFiles."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink()]
    senders = {p.parent for p in files if p.name in (LIST, REPLACEMENT, LOG) and "sync-receiver" not in p.parts}
    entries: set[str] = set()
    for sender in sorted(senders):
        entries |= parse_acknowledged(*(_file_text(sender / name) for name in (LIST, REPLACEMENT, LOG)))
    copies: dict[str, list[str]] = defaultdict(list)
    owners: dict[str, str] = {}
    for path in files:
        if path.suffix == ".tsfile" and "snapshot" not in path.parts:
            copies[path.name].append(path.relative_to(folder).as_posix())
        elif path.name in OWNERS:
            owners |= read_owners(path.read_bytes())
    uuids = [text for p in files if p.name == "uuid.txt" and (text := (_file_text(p) or "").strip())]
    positions = [
        int(text) for p in files if p.name == "sync_schema_pos" and (text := (_file_text(p) or "").strip()).isdigit()
    ]
    return Found(frozenset(entries), len(senders), copies, owners, uuids[0] if uuids else "", max(positions, default=None))


def _same_copies(
    source: Store, store: Store, sealed: Sequence[SealedFile], copies: Mapping[str, Sequence[str]]
) -> tuple[dict[str, str], frozenset[str]]:
    """Return ({source path: copy} with equal digests, source paths that have differing copies only)."""
    named = [f.entry for f in sealed if f.entry.path.rpartition("/")[2] in copies]
    here = [[e for e in store.stat_many(copies[f.path.rpartition("/")[2]]) if e and e.size == f.size] for f in named]
    at_site = source.digest_ranges([Range(f.path, 0, f.size) for f in named])
    places: dict[str, str] = {}
    for file, candidates, wanted in zip(named, here, at_site, strict=True):
        digests = store.digest_ranges([Range(c.path) for c in candidates])
        same = [c.path for c, digest in zip(candidates, digests, strict=True) if digest is not None and digest == wanted]
        if same:
            places[file.path] = same[0]
    return places, frozenset(f.path for f in named if f.path not in places)


def _claim_devices(app: App, link: LinkSettings, owners: Mapping[str, str]) -> int:
    """Record the owners of devices without an owner, for sites of the settings. Returns how many devices."""
    known = {site.id for site in app.settings.sites.values()}
    wanted = {device: site for device, owner in owners.items() if (site := site_of(owner)) in known and site}
    at = app.clock()
    with app.ledger.read() as connection:
        taken = refusal_rows.owners_of(connection, link.receiver, wanted)
    rows = [OwnerRow(d, site, at, "adopted") for d, site in sorted(wanted.items()) if d not in taken]
    if not rows:
        return 0
    record = Decision(at, journal.user_at_host(), ADOPTED, link.name, {"owners": {row.device: row.site_id for row in rows}})
    with app.receiver_store(app.receiver_settings(link.receiver)) as store:
        store.publish(decided_place(record), encode_decision(record))
    # CRASH WINDOW: published, not in the ledger: adopting again, or a rebuilt ledger, claims them.
    with app.ledger.write() as connection:
        taken = refusal_rows.owners_of(connection, link.receiver, wanted)
        refusal_rows.put_owners(connection, link.receiver, [row for row in rows if row.device not in taken])
    return len(rows)


def _require_uuid(found: Found, folder: Path, site: SiteSettings) -> None:
    """Raise UsageError if the folder is of a sender with another UUID than the site's."""
    try:
        same = not found.uuid or UUID(found.uuid) == UUID(site.id)
    except ValueError:
        same = False
    if not same:
        raise UsageError(
            f"{folder} is of the sender {found.uuid[:40]!r}, and site {site.name} is {site.id}",
            hint="give the folder of this site's own sender; --other-uuid if this site had that UUID then",
            subject=str(folder),
        )


def _file_text(path: Path) -> str | None:
    return path.read_text("utf-8", "replace") if path.is_file() else None


_MAGIC = b"\xac\xed\x00\x05"
_NULL, _REFERENCE, _CLASS, _OBJECT, _STRING, _LONG_STRING, _BLOCK, _END = 0x70, 0x71, 0x72, 0x73, 0x74, 0x7C, 0x77, 0x78
_FIRST_HANDLE = 0x7E0000
_LINE = re.compile(r"(.+?)\s*[,=\t ]\s*(\S+)")
_UUID = re.compile(r"(?:^|_)([0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12})$")


def read_owners(data: bytes) -> Mapping[str, str]:
    """Return {device: owner as written}. Raises CorruptionError if the bytes have neither form. Pure."""
    return _java_map(data) if data.startswith(_MAGIC) else _parse_text_log(data)


def site_of(owner: str) -> str | None:
    """Return the UUID in an owner's name, with dashes; None if it has none."""
    found = _UUID.search(owner)
    return str(UUID(found[1])) if found else None


def _parse_text_log(data: bytes) -> Mapping[str, str]:
    owners = {}
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        if line.strip():
            found = _LINE.fullmatch(line.strip())
            if found is None:
                raise CorruptionError(f'device_owner: line {number} is not "device,owner": {line[:80]!r}')
            owners[found[1]] = found[2]
    return owners


def _java_map(data: bytes) -> Mapping[str, str]:
    reader = _Stream(data)
    try:
        if reader.read_byte() != _OBJECT:
            raise CorruptionError("device_owner: not a serialised map")
        fields = reader.read_class_fields()
        reader.handles.append(None)  # the map itself
        for type_code in fields:
            reader.skip_bytes(_FIELD_SIZES[type_code])
        if reader.read_byte() != _BLOCK:
            raise CorruptionError("device_owner: not a serialised java.util.HashMap")
        size = struct.unpack(">i", reader.read_exactly(reader.read_byte())[4:8])[0]
        return {reader.read_string(): reader.read_string() for _ in range(size)}
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as broken:
        raise CorruptionError(f"device_owner: the serialised map ends early or is damaged: {broken}") from broken


_FIELD_SIZES = {"B": 1, "C": 2, "D": 8, "F": 4, "I": 4, "J": 8, "S": 2, "Z": 1}


class _Stream:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = len(_MAGIC)
        self.handles: list[str | None] = []

    def read_exactly(self, size: int) -> bytes:
        piece = self.data[self.at : self.at + size]
        if len(piece) < size:
            raise IndexError(f"{size} bytes wanted at {self.at}")
        self.at += size
        return piece

    def skip_bytes(self, size: int) -> None:
        self.read_exactly(size)

    def read_byte(self) -> int:
        return self.read_exactly(1)[0]

    def read_utf(self) -> str:
        return self.read_exactly(int.from_bytes(self.read_exactly(2), "big")).decode()

    def read_class_fields(self) -> list[str]:
        """Return the type codes of the class's primitive fields. Its superclasses have none worth reading."""
        mark = self.read_byte()
        if mark == _NULL:
            return []
        if mark != _CLASS:
            raise KeyError(f"class description expected, found {mark:#x}")
        self.read_utf()
        self.handles.append(None)
        self.skip_bytes(8 + 1)  # serialVersionUID, flags
        fields = []
        for _ in range(int.from_bytes(self.read_exactly(2), "big")):
            fields.append(chr(self.read_byte()))
            self.read_utf()
        if self.read_byte() != _END:
            raise KeyError("annotations in a class description")
        self.read_class_fields()
        return fields

    def read_string(self) -> str:
        mark = self.read_byte()
        if mark == _REFERENCE:
            found = self.handles[int.from_bytes(self.read_exactly(4), "big") - _FIRST_HANDLE]
            if found is None:
                raise KeyError("a reference to something else than a string")
            return found
        if mark not in (_STRING, _LONG_STRING):
            raise KeyError(f"string expected, found {mark:#x}")
        size = int.from_bytes(self.read_exactly(2 if mark == _STRING else 8), "big")
        text = self.read_exactly(size).decode()
        self.handles.append(text)
        return text


DELETED = "sync deleted file names start"
ADDED = "sync tsfile start"
_OTHER_MARKERS = frozenset({"sync start", "sync end", "sync deleted file names end", "sync tsfile end"})


def parse_acknowledged(last: str | None, current: str | None, log: str | None) -> frozenset[str]:
    """Return the files that the receiver has, from the contents of the three files (None: absent). Pure. Log entries may be
    absolute paths, bare file names or names without suffix. The last two mean the file of that name in the list."""
    if last is None and current is not None:
        return frozenset(_list_paths(current))  # crashed between "delete last" and "rename current"
    known = dict.fromkeys(_list_paths(last or ""))
    deleting: bool | None = None
    for line in _whole_lines(log or ""):
        if line in (DELETED, ADDED):
            deleting = line == DELETED
        elif line in _OTHER_MARKERS:
            deleting = None
        elif deleting is not None:
            _apply_log_entry(line, deleting, known)
    return frozenset(known)


def _apply_log_entry(entry: str, deleting: bool, known: dict[str, None]) -> None:
    if not deleting:
        known[entry] = None
        return
    for path in [p for p in known if same_file(p, entry)]:
        del known[path]


def same_file(path: str, entry: str) -> bool:
    """Whether a log entry names `path`: by the path, its file name, or that name without ".tsfile"."""
    if path == entry:
        return True
    name = path.rpartition("/")[2]
    return "/" not in entry and entry in (name, name.removesuffix(".tsfile"))


def _list_paths(text: str) -> Sequence[str]:
    """Return the paths of a list. Lists are renamed into place, so the last line counts even without a newline."""
    return _whole_lines(text + "\n")


def _whole_lines(text: str) -> Sequence[str]:
    """Return the lines that end with a newline: the rest was being written when the sender died."""
    return [line.strip("\r") for line in text.split("\n")[:-1] if line.strip()]


def match_site_files(entries: Iterable[str], site_paths: Sequence[str]) -> frozenset[str]:
    """Return the site's files that the sender's list names. An ambiguous entry names none, so that its files are sent again.
    Entries are bare names, or absolute paths of the sender's machine, where the folders may be under another root."""
    by_tail: dict[str, list[str]] = defaultdict(list)
    for path in site_paths:
        for tail in {path, _below_kind(path), path.rpartition("/")[2]}:
            by_tail[tail].append(path)
    found = set()
    for entry in entries:
        name = entry if entry.endswith(".tsfile") else entry + ".tsfile"
        tails = (name, _below_kind(name)) if "/" in name else (name,)
        meant = next((by_tail[t] for t in tails if t in by_tail), [])
        if len(meant) == 1:
            found.add(meant[0])
    return frozenset(found)


def _below_kind(path: str) -> str:
    """Return the path from `sequence/` or `unsequence/` on, which is the same on every machine; the path if it has none."""
    parts = path.split("/")
    for at in range(len(parts) - 1, -1, -1):
        if parts[at] in ("sequence", "unsequence"):
            return "/".join(parts[at:])
    return path
