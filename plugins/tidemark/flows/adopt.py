"""Take over what is there already, so that nothing is sent twice: what an original Sync Tool knows, or files themselves.

`folder` may hold, at any depth:

- `last_local_files.txt`, `current_local_files.txt`, `sync.log` of an original sender: what it had delivered is known from
  now on and not sent. It is not in the catalog either; a later change of such a file sends it whole.
- TsFiles that lie at the receiver: those whose digest is that of the site's file land and load as if they had been
  sent, only their `.resource` and deletions cross the wire. A copy that differs is not taken, and the file is sent.
- `uuid.txt`, `device_owner`, `sync_schema_pos`: owners are claimed for the sites of the settings; the UUID is compared
  with the site's. The schema position is told and not used: the centre has none of the log yet and needs all of it.

Source: seed 000, research/iotdb.md §1.3, §1.5, §1.6.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from tidemark.app import App
from tidemark.errors import NotFoundError, UsageError
from tidemark.flows.sync_link import Options, run_sync
from tidemark.formats.records import ADOPTED, DecidedPaper, decided_place, encode_decided
from tidemark.ledger import journal
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver.refusals import OwnerRow
from tidemark.ledger.sender import links as link_rows
from tidemark.progress import Progress, silent
from tidemark.settings.model import LinkSettings
from tidemark.stores.listing import classify_files
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Range, Store
from tidemark.sync.device_owner import read_owners, site_of
from tidemark.sync.seeding import Copies
from tidemark.sync.sender_recovery import acknowledged, matching
from tidemark.tsfiles.sealed import SealedFile

LIST, REPLACEMENT, LOG = "last_local_files.txt", "current_local_files.txt", "sync.log"
OWNERS = ("device_owner", "device_owner.log")


@dataclass(frozen=True)
class AdoptResult:
    """`listed`: files taken by the sender's list; `copied`: by their copy at the receiver; `differing`: copies whose
    digest is not the site's; `unmatched`: entries of the list that name no file of the site; `schema_position`: told."""

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
    """What lies in the folder."""

    entries: frozenset[str]
    lists: int
    copies: Mapping[str, Sequence[str]]  # file name → paths below the folder
    owners: Mapping[str, str]
    uuid: str
    schema_position: int | None

    @property
    def nothing(self) -> bool:
        return not (self.lists or self.copies or self.owners)


def adopt(app: App, link: str, folder: Path, progress: Progress = silent) -> AdoptResult:
    """Take over `folder` for a link. Raises NotFoundError, UsageError where nothing in it can be taken."""
    settings = app.link(link)
    if not folder.is_dir():
        raise NotFoundError(f"no folder {folder}", subject=str(folder))
    found = look_into(folder)
    if found.nothing:
        raise UsageError(
            f"{folder} holds neither {LIST}, {REPLACEMENT} or {LOG}, nor device_owner, nor TsFiles",
            hint="give the sender's folder (…/sync-sender/<ip>_<port>) or a folder of TsFiles at the receiver",
            subject=str(folder),
        )
    local = app.receiver_root(app.receiver(settings.receiver)) is not None
    site = app.site(settings.site)
    store = LocalStore(str(folder.absolute()))
    with app.site_store(site) as source:
        sealed = classify_files(source, source.list_files(site.data).entries, site.data).sealed
        listed = matching(found.entries, [f.entry.path for f in sealed])
        places, differing = _same_copies(source, store, sealed, found.copies if local else {})
    options = Options(adopted=listed - places.keys() - differing, exactly=frozenset(places))
    result = run_sync(app, link, options, progress, copies=Copies(store, places))
    with app.ledger.read() as connection:
        known = link_rows.adopted_paths(connection, link)
    return AdoptResult(
        listed=len(options.adopted & known),
        copied=result.files,
        owners=_claim(app, settings, found.owners),
        differing=tuple(sorted(differing)),
        unmatched=len(found.entries) - len(listed),
        sent_bytes=result.sent_bytes,
        uuid=found.uuid,
        schema_position=found.schema_position,
        note=_note(found, site.id),
    )


def look_into(folder: Path) -> Found:
    """Read what an original Sync Tool left in `folder`, and find TsFiles."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink()]
    senders = {p.parent for p in files if p.name in (LIST, REPLACEMENT, LOG) and "sync-receiver" not in p.parts}
    entries: set[str] = set()
    for sender in sorted(senders):
        entries |= acknowledged(*(_text(sender / name) for name in (LIST, REPLACEMENT, LOG)))
    copies: dict[str, list[str]] = defaultdict(list)
    owners: dict[str, str] = {}
    for path in files:
        if path.suffix == ".tsfile" and "snapshot" not in path.parts:
            copies[path.name].append(path.relative_to(folder).as_posix())
        elif path.name in OWNERS:
            owners |= read_owners(path.read_bytes())
    uuids = [text for p in files if p.name == "uuid.txt" and (text := (_text(p) or "").strip())]
    positions = [int(text) for p in files if p.name == "sync_schema_pos" and (text := (_text(p) or "").strip()).isdigit()]
    return Found(frozenset(entries), len(senders), copies, owners, uuids[0] if uuids else "", max(positions, default=None))


def _same_copies(
    source: Store, store: Store, sealed: Sequence[SealedFile], copies: Mapping[str, Sequence[str]]
) -> tuple[dict[str, str], frozenset[str]]:
    """({source path: copy} of equal digests, source paths of which only differing copies are there)."""
    named = [f.entry for f in sealed if f.entry.path.rpartition("/")[2] in copies]
    here = [[e for e in store.stat_many(copies[f.path.rpartition("/")[2]]) if e and e.size == f.size] for f in named]
    at_site = source.digests([Range(f.path, 0, f.size) for f in named])
    places: dict[str, str] = {}
    for file, candidates, wanted in zip(named, here, at_site, strict=True):
        digests = store.digests([Range(c.path) for c in candidates])
        same = [c.path for c, digest in zip(candidates, digests, strict=True) if digest is not None and digest == wanted]
        if same:
            places[file.path] = same[0]
    return places, frozenset(f.path for f in named if f.path not in places)


def _claim(app: App, link: LinkSettings, owners: Mapping[str, str]) -> int:
    """Give devices to the sites of the settings that owned them; what somebody owns already stays."""
    known = {site.id for site in app.settings.sites.values()}
    wanted = {device: site for device, owner in owners.items() if (site := site_of(owner)) in known and site}
    at = app.clock()
    with app.ledger.read() as connection:
        taken = refusal_rows.owners_of(connection, link.receiver, wanted)
    rows = [OwnerRow(d, site, at, "adopted") for d, site in sorted(wanted.items()) if d not in taken]
    if not rows:
        return 0
    paper = DecidedPaper(at, journal.who(), ADOPTED, link.name, {"owners": {row.device: row.site_id for row in rows}})
    with app.receiver_store(app.receiver(link.receiver)) as store:
        store.publish(decided_place(paper), encode_decided(paper))
    # CRASH WINDOW: on paper, not recorded: adopting again, or a rebuilt ledger, claims them.
    with app.ledger.write() as connection:
        taken = refusal_rows.owners_of(connection, link.receiver, wanted)
        refusal_rows.put_owners(connection, link.receiver, [row for row in rows if row.device not in taken])
    return len(rows)


def _note(found: Found, site_id: str) -> str:
    try:
        if found.uuid and UUID(found.uuid) != UUID(site_id):
            return f"the original sender's UUID is {UUID(found.uuid)}, the settings give this site {site_id}"
    except ValueError:
        return f"uuid.txt holds no UUID: {found.uuid[:40]!r}"
    return ""


def _text(path: Path) -> str | None:
    return path.read_text("utf-8", "replace") if path.is_file() else None
