"""Find a receiver's landings, read their manifests, put them in sequence, keep their answers, clean them up.

A folder is a landing once `manifest.json` is in it. Before that it is still arriving and is not touched. Manifests are
untrusted. A manifest that cannot be accepted is reported with the reason (`check_sound`, `find_site_conflict`). Source:
DESIGN §5, docs/formats/manifest.md.

`order_arrivals` decides the order in which a site's landings load, and which may not; pure. A manifest carries its place in
the site's sequence and the id of the landing before it (DESIGN §3 "Each end has its own ledger"). Landings load in sequence
without a gap, in whatever order they arrived.

`keep_manifest` and `keep_receipt` keep a landing's manifest and its answer where no edge can write (`formats.answered`).
`catch_up_answers` adds missing ones from the ledger and refuses a ledger that is older than the receiver.

`clean_landing` and `sweep_waiting` remove bytes that nobody needs: a landing's bytes once it is answered, refused and held
bytes once they are settled. The ledger records this first. The next load completes an interrupted removal.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.errors import CorruptionError, PermanentError, PermissionDeniedError
from tidemark.formats.answered import (
    BEGUN,
    answered_landings,
    encode_begun,
    folder_names,
    has_begun,
    kept_manifest,
    kept_receipt,
    landing_sign,
    read_landed,
    readable_name,
)
from tidemark.formats.landing import (
    LandedFile,
    Manifest,
    Receipt,
    check_place,
    decode_entry,
    decode_manifest,
    decode_receipt,
    encode_document,
    named_paths,
)
from tidemark.formats.layout import MANIFEST, RECEIPT, data_location, folder_name, landed_path, landing_folder
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Lease, assert_held
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver.landings import LandingRow, SiteRow
from tidemark.ledger.receiver.refusals import QuarantineRow, RefusalRow
from tidemark.receiver.faults import message_of, require_theirs
from tidemark.receiver.load.check import parts_of_file
from tidemark.settings.model import ReceiverSettings, SiteSettings
from tidemark.stores.listing import folders_of, list_names
from tidemark.stores.protocol import RAISED, Store
from tidemark.tsfiles.names import RESOURCE, parse_source_path
from tidemark.tsfiles.sealed import was_mods_of
from tidemark.untrusted_files import MOST_DOCUMENT, UntrustedFile

_MOST_BYTES = 1 << 60
_LONGEST_NAME = 200  # bytes of a landing's name: the names of its kept files add a suffix


@dataclass(frozen=True)
class Folder:
    """A landing folder with its manifest. `answered`: it has a receipt.json of any origin. `bulky`: it has other files
    too."""

    site_id: str
    landing: str
    answered: bool
    bulky: bool

    @property
    def path(self) -> str:
        """Relative to the receiver's root."""
        return landing_folder(self.site_id, self.landing)


@dataclass(frozen=True)
class FoundManifest:
    """A manifest as found: the digest of its bytes, and either the manifest or what is wrong with it."""

    folder: Folder
    sha256: str
    manifest: Manifest | None
    trouble: str = ""


def landing_folders(
    root: Path, site_id: str | None = None, finished: Mapping[tuple[str, str], int] = MappingProxyType({})
) -> Iterator[Folder]:
    """Yield the landings below a receiver's root, of one site or of all, by name. Symlinks and arriving folders are skipped.

    A landing that cannot be listed is yielded, a site that cannot be listed is not (`odd_landings`). `finished`: (site,
    landing) → its sign (`formats.answered.landing_sign`). A landing with an unchanged sign is skipped without being opened.
    """
    for site in folder_names(root / "landing")[0]:
        if site_id is not None and site != site_id:
            continue
        for landing in _list_landings(root, site)[0]:
            if _is_untouched(root, site, landing, finished.get((site, landing), 0)):
                continue
            names = _list_names(root / "landing" / site / landing)
            if names is None:
                yield Folder(site, landing, answered=False, bulky=False)
            elif MANIFEST in names:
                yield Folder(site, landing, RECEIPT in names, bool(names - {MANIFEST, RECEIPT}))


def odd_landings(root: Path, site_id: str | None = None) -> list[tuple[str, str]]:
    """List (path relative to the root, reason) of folders below `landing/` with names that are not UTF-8 or that cannot be
    listed."""
    sites, odd = folder_names(root / "landing")
    found = [(f"landing/{name}", _NOT_TEXT) for name in odd if site_id is None]
    for site in sites if site_id is None else [site_id]:
        _, odd, closed = _list_landings(root, site)
        found += [(f"landing/{site}/{name}", _NOT_TEXT) for name in odd]
        found += [(f"landing/{site}", closed)] if closed else []
    return found


_NOT_TEXT = "its name is not UTF-8: it is passed over; rename or remove it"


def _list_landings(root: Path, site: str) -> tuple[list[str], list[str], str]:
    """Return a site's landings, its names that are not UTF-8, and why it cannot be listed ('': it can)."""
    try:
        return *folder_names(root / "landing" / site), ""
    except PermanentError as closed:
        return [], [], closed.message
    except Exception as surprise:
        return [], [], f"it cannot be listed: {message_of(require_theirs(surprise))}"


def _is_untouched(root: Path, site: str, landing: str, sign: int) -> bool:
    """Whether a finished landing still has its `sign`. One that cannot be looked at is opened, and reported then."""
    try:
        return sign != 0 and sign == landing_sign(root, site, landing)
    except Exception as error:
        require_theirs(error)
        return False


def read_found_manifest(root: Path, folder: Folder, path: str = "") -> FoundManifest:
    """Read and check one manifest, or its kept copy at `path` below the root. Errors are returned in `trouble`."""
    sha256 = ""
    try:
        data = UntrustedFile(str(root), path or f"{folder.path}/{MANIFEST}").read(MOST_DOCUMENT)
        sha256 = hashlib.sha256(data).hexdigest()
        return FoundManifest(folder, sha256, check_sound(decode_manifest(data), folder))
    except FileNotFoundError:
        return FoundManifest(folder, sha256, None, "manifest.json went away while it was read")
    except (CorruptionError, PermissionDeniedError) as broken:
        return FoundManifest(folder, sha256, None, broken.message)


def check_sound(manifest: Manifest, folder: Folder) -> Manifest:
    """Return the manifest if it fits its folder and its own rules. CorruptionError names the first broken rule."""
    if manifest.site_id != folder.site_id or manifest.landing != folder.landing:
        raise CorruptionError(
            f"the manifest is that of landing {manifest.landing} of site {manifest.site_id}, it lies in the folder of "
            f"landing {folder.landing} of site {folder.site_id}"
        )
    if len(manifest.landing.encode()) > _LONGEST_NAME:
        raise CorruptionError(f"landing {manifest.landing[:40]}…: its name is longer than {_LONGEST_NAME} bytes")
    if manifest.sequence < 1:
        raise CorruptionError(f"sequence {manifest.sequence}: landings count from 1")
    if manifest.time_unit not in ("ms", "us", "ns"):
        raise CorruptionError(f"time unit {manifest.time_unit!r}: it is one of ms, us, ns")
    if manifest.deletes not in ("keep", "apply"):
        raise CorruptionError(f"deletes {manifest.deletes!r}: it is keep or apply")
    if manifest.partition_interval_ms < 1:
        raise CorruptionError(f"partition interval {manifest.partition_interval_ms} ms: it is at least 1")
    _check_numbers(manifest)
    for path in named_paths(manifest):
        check_place(path)
    twice = [path for path, times in Counter(f.path for f in manifest.files).items() if times > 1]
    if twice:
        raise CorruptionError(f"{twice[0]} stands in the manifest twice")
    for file in manifest.files:
        _check_file(manifest, file.path)
        if file.generation < 1:
            raise CorruptionError(f"{file.path}: generation {file.generation}: they count from 1")
        if file.tsfile is None and file.mods is None:
            raise CorruptionError(f"{file.path}: neither a TsFile nor mods travelled")
        if file.tsfile is not None and (file.tsfile.path != file.path or file.tsfile.sha256 != file.sha256):
            raise CorruptionError(f"{file.path}: the TsFile's path or digest is told in two ways")
        for part in (file.resource, file.mods):
            renamed = part is file.mods and part is not None and was_mods_of(part.path, file.path)
            if part is not None and not renamed and not part.path.startswith(file.path + "."):
                raise CorruptionError(f"{file.path}: {part.path} is no companion of it")
    return manifest


def find_site_conflict(record: FoundManifest, sites: Mapping[str, SiteRow], own: SiteSettings | None = None) -> str:
    """Return why a landing contradicts what is known of its site and of `sites` (by id); '' if it does not.

    A site's time unit may not change: its times would be misread. Nor may its prefix: its devices would have two names.
    `own`: the site in this receiver's settings, None if they lack it. Names of data files begin with the first characters of
    the site's id. A second site with the same characters would overwrite them.
    """
    manifest, site = record.manifest, sites.get(record.folder.site_id)
    if manifest is not None and site is not None and site.time_unit != manifest.time_unit:
        return f"the site's time unit was {site.time_unit} and is {manifest.time_unit} now; set time_unit back at the sender"
    if manifest is not None and (trouble := _find_prefix_conflict(manifest.prefix, site, own)):
        return trouble
    start = record.folder.site_id[:8]
    other = next((s for s in sites.values() if s.site_id[:8] == start and site is None), None)
    if other is not None:
        return f"the site's id begins with {start} as that of site {other.name} ({other.site_id}) does: give it another id"
    return ""


def _find_prefix_conflict(sent: str, site: SiteRow | None, own: SiteSettings | None) -> str:
    anew = "at the sender give the site a new id, a new name and a link of its own, and that prefix"
    if site is not None and site.prefix != sent:
        two = f'the site has prefix "{site.prefix}" and this came with "{sent}": its devices would have two names'
        return f"{two}; to rename them {anew}"
    if own is not None and own.prefix != sent:
        apart = f'it was sent with prefix "{sent}", the settings here say "{own.prefix}" in [sites.{own.name}]'
        return f'{apart}: if the sender is right, write prefix = "{sent}" there; else {anew}'
    return ""


def in_batches(records: Sequence[FoundManifest], most: int) -> Iterator[list[FoundManifest]]:
    """Group consecutive landings until a group has `most` files."""
    batch: list[FoundManifest] = []
    files = 0
    for record in records:
        batch.append(record)
        files += len(record.manifest.files) if record.manifest else 0
        if files >= most:
            yield batch
            batch, files = [], 0
    if batch:
        yield batch


def _check_numbers(manifest: Manifest) -> None:
    """Check sizes and positions. Their sum must fit on a disk, too."""
    sizes = [part.size for file in manifest.files for part in (file.tsfile, file.resource, file.mods) if part]
    sizes += [log.part.size for log in manifest.schema] + [entry.size for entry in manifest.added]
    if min(sizes, default=0) < 0 or sum(sizes) >= _MOST_BYTES:
        raise CorruptionError(f"sizes from {min(sizes)} to {max(sizes)} bytes: no disk has them")
    starts = [end for log in manifest.schema for end in (log.start, log.epoch)]
    if min(starts, default=0) < 0 or max(starts, default=0) >= _MOST_BYTES:
        raise CorruptionError("a schema log that begins nowhere on a disk")


def _check_file(manifest: Manifest, path: str) -> None:
    if path in (MANIFEST, RECEIPT):
        raise CorruptionError(f"landing {manifest.landing}: a source path may not be {path}")


def _list_names(place: Path) -> set[str] | None:
    """Return the names in a landing folder; None where it cannot be listed."""
    try:
        with os.scandir(place) as entries:
            return {entry.name for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError:
        return None


@dataclass(frozen=True)
class Arrival:
    """A complete landing that is not loaded yet, as its manifest describes it."""

    landing: str
    sequence: int
    previous: str | None


@dataclass(frozen=True)
class Verdict:
    """`state`: next (may load), waiting (an earlier landing is missing), rejected (cannot load in its present state)."""

    arrival: Arrival
    state: str
    reason: str = ""


def order_arrivals(arrivals: Iterable[Arrival], last_sequence: int, last_landing: str | None) -> list[Verdict]:
    """Return one verdict per arrival of one site, in loading order. `last_…`: its newest loaded landing (0, None: none).

    Of two landings with one sequence number, the one with the smaller id (made earlier) goes on. The other is rejected and
    its bytes stay: nothing shows which of them the site means.
    """
    verdicts: list[Verdict] = []
    sequence, landing, gap = last_sequence, last_landing, 0
    for arrival in sorted(arrivals, key=lambda a: (a.sequence, a.landing)):
        if arrival.sequence <= sequence:
            verdicts.append(Verdict(arrival, "rejected", _reason_taken(arrival, landing, sequence)))
        elif arrival.sequence > sequence + 1 or gap:
            gap = gap or sequence + 1
            verdicts.append(Verdict(arrival, "waiting", _reason_gap(arrival, sequence)))
        elif sequence and arrival.previous != landing:
            verdicts.append(Verdict(arrival, "rejected", _reason_broken_chain(arrival, landing)))
        else:
            verdicts.append(Verdict(arrival, "next"))
            sequence, landing = arrival.sequence, arrival.landing
    return verdicts


def _reason_taken(arrival: Arrival, landing: str | None, sequence: int) -> str:
    taken = f"landing {landing}" if arrival.sequence == sequence else "an earlier landing"
    return (
        f"sequence {arrival.sequence} belongs to {taken} already: two different landings of one site cannot have the same "
        "number; if this folder is a stray copy, remove it"
    )


def _reason_gap(arrival: Arrival, sequence: int) -> str:
    before = f" ({arrival.previous})" if arrival.previous and arrival.sequence == sequence + 2 else ""
    missing = f"{sequence + 1}" if arrival.sequence == sequence + 2 else f"{sequence + 1} to {arrival.sequence - 1}"
    return f"landing {missing}{before} of the site's sequence has not come; the newest loaded is {sequence}"


def _reason_broken_chain(arrival: Arrival, landing: str | None) -> str:
    return (
        f"it follows landing {arrival.previous or 'none'}, but number {arrival.sequence - 1} loaded here is {landing}: the "
        "site's ledger and this one tell different histories; rebuild the sender's ledger (./tidemark ledger rebuild)"
    )


_LEFTOVER = (".part", ".part.blocks", ".tmp")  # of files left out of the landing, and of files not yet renamed


def clean_landing(store: Store, folder: Folder, manifest: Manifest) -> None:
    """Remove the files that the manifest names, and leftovers of transfers. Other files stay."""
    named = _named_files(manifest)
    found = list_names(store, [folder.path], RESOURCE)
    start = len(folder.path) + 1
    paths = [files.prefix + name for files in folders_of(found.entries) for name in files.names]
    doomed = {path for path in paths if path[start:] in named or _is_leftover(path[start:])}
    kept = [path for path in paths if path not in doomed] + [path for path, _ in found.odd]
    for name in store.list_folder(folder.path):
        place = f"{folder.path}/{name}"
        if any(path == place or path.startswith(place + "/") for path in kept):
            store.remove(sorted(path for path in doomed if path == place or path.startswith(place + "/")))
        elif name not in (MANIFEST, RECEIPT):
            store.remove_tree(place)


def unnamed_files(root: Path, folder: Folder, manifest: Manifest) -> list[str]:
    """List files in the landing that its manifest does not name, relative to it. They are not removed."""
    named = _named_files(manifest) | {MANIFEST, RECEIPT}
    found = _files_below(str(root / folder.path))
    return sorted(n for n in found if n not in named and not _is_leftover(n))


def _is_leftover(path: str) -> bool:
    """Whether a path is left from a transfer, or from an interrupted removal, which renames files first."""
    return path.endswith(_LEFTOVER) or any(name.startswith(RAISED) for name in path.split("/"))


def _files_below(place: str) -> Iterator[str]:
    """Yield files and symlinks, relative to `place`; symlinks are not followed."""
    waiting = [""]
    while waiting:
        above = waiting.pop()
        with os.scandir(f"{place}/{above}") as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{above}{entry.name}/")
                elif entry.is_symlink() or entry.is_file():
                    yield readable_name(above + entry.name)


def sweep_waiting(ledger: Ledger, store: Store, receiver: str, lease: Lease) -> list[tuple[str, str]]:
    """Remove the bytes of refused files that were replayed or dismissed, and of held files that were released, dropped or
    superseded.

    Return (path, why) for each site of which they cannot be removed. They stay, and the next load tries again.
    """
    with ledger.read() as connection:
        rows: list[RefusalRow | QuarantineRow] = [*refusal_rows.refusals_to_sweep(connection, receiver)]
        rows += refusal_rows.quarantine_to_sweep(connection, receiver)
    by_site: dict[str, list[RefusalRow | QuarantineRow]] = {}
    for row in rows:
        by_site.setdefault(row.site_id, []).append(row)
    failed: list[tuple[str, str]] = []
    for of_site in by_site.values():
        try:
            store.remove([path for row in of_site for path in waiting_files(row.location, row.entry)])
        except Exception as error:
            why = f"it waits no longer, and its bytes cannot be removed: {message_of(require_theirs(error))}"
            failed.append((of_site[0].path, why))
            continue
        # CRASH WINDOW: bytes removed, the row still names them: the next load removes nothing and clears the row.
        with ledger.write() as connection:
            assert_held(connection, lease)
            refused = [row.refusal_id for row in of_site if isinstance(row, RefusalRow)]
            refusal_rows.forget_refused_bytes(connection, refused)
            held = [row.quarantine_id for row in of_site if isinstance(row, QuarantineRow)]
            refusal_rows.forget_held_bytes(connection, held)
    return failed


def waiting_files(location: str, entry: str) -> list[str]:
    """List all files that belong to one refused or held TsFile, relative to the receiver's root."""
    file, _ = decode_entry(entry)
    folder = waiting_folder(location, file)
    return [f"{folder}/{landed_path(part.path)}" for part in parts_of_file(file)]


def waiting_folder(location: str, file: LandedFile) -> str:
    """Return the folder that holds a refused or held file under its source path."""
    return location.removesuffix("/" + landed_path(file.path))


def _named_files(manifest: Manifest) -> set[str]:
    files = {landed_path(part.path) for file in manifest.files for part in parts_of_file(file)}
    return files | {landed_path(log.part.path) for log in manifest.schema}


_BUNDLE = 256  # landings whose missing answers become durable together
PART = ".part"


def keep_manifest(root: Path, store: Store, folder: Folder, sha256: str) -> None:
    """Keep a landing's manifest, before the landing is recorded. CorruptionError if it changed since it was read."""
    data = read_landed(root, f"{folder.path}/{MANIFEST}")
    if data is None or _sha256_of(data) != sha256:
        changed = f"landing {folder.landing}: its manifest changed while it was loaded"
        raise CorruptionError(changed, hint="./tidemark load", subject=folder.path)
    store.publish(kept_manifest(folder.site_id, folder.landing), data)


def keep_receipt(store: Store, site_id: str, landing: str, text: str) -> None:
    """Keep the answer that the ledger has recorded."""
    store.publish(kept_receipt(site_id, landing), text.encode())


def catch_up_answers(app: App, receiver: ReceiverSettings, root: Path, store: Store, lease: Lease) -> None:
    """Keep the answers that earlier loads recorded and did not keep. Without a format file in `answered/`: those of all
    landings.

    Raises PermanentError for a ledger that is older than the receiver: it lacks an answer that is kept or, without a format
    file, a data file.
    """
    begun, kept = has_begun(root), answered_landings(root)
    with app.ledger.read() as connection:
        rows = landing_rows.read_landings(connection, receiver.name, open_only=begun)
        finished = landing_rows.finished_landings(connection, receiver.name) if begun else {}
    loaded = {key: row for key, row in rows.items() if row.state == "loaded"}
    if unknown := kept - loaded.keys() - finished.keys():
        site_id, landing = min(unknown)
        raise _older_than(receiver, landing, f"landing {landing} of site {site_id} was answered")
    if not begun:
        _require_known(app, receiver, root, loaded.keys())
    due = [row for key, row in loaded.items() if key not in kept]
    for start in range(0, len(due), _BUNDLE):
        _keep_answers(app, root, store, lease, due[start : start + _BUNDLE])
    if not begun:
        # CRASH WINDOW: kept, no format file: the next load keeps what is still missing and writes the format file.
        store.publish(BEGUN, encode_begun())


def _keep_answers(app: App, root: Path, store: Store, lease: Lease, rows: Sequence[LandingRow]) -> None:
    records: list[tuple[str, bytes]] = []
    with app.ledger.write() as connection:
        assert_held(connection, lease)
        for row in rows:
            text = _complete_receipt(connection, row)
            records.append((kept_receipt(row.site_id, row.landing), text.encode()))
            landing_rows.put_receipt(connection, row.receiver, row.site_id, row.landing, text)
    for row in rows:
        try:
            manifest = read_landed(root, f"{landing_folder(row.site_id, row.landing)}/{MANIFEST}")
        except Exception as error:
            require_theirs(error)
            continue  # as if the sender had removed it
        if manifest is not None and _sha256_of(manifest) == row.manifest_sha256:
            records.append((kept_manifest(row.site_id, row.landing), manifest))
    store.write_parts([(path + PART, data) for path, data in records])
    store.seal_parts([(path + PART, path) for path, _ in records])


def _complete_receipt(connection: Connection, row: LandingRow) -> str:
    """Return the receipt with the devices that the landing claimed; a receipt of an older version lacks them."""
    _, text = landing_rows.receipt_of(connection, row.receiver, row.site_id, row.landing)
    receipt = Receipt(row.landing, row.sequence, row.manifest_sha256, row.loaded or row.found)
    if text:
        receipt = decode_receipt(text.encode())
    if receipt.claimed is not None:
        return text
    claimed = refusal_rows.claimed_with(connection, row.receiver, row.site_id, row.landing)
    return encode_document(replace(receipt, claimed=tuple(claimed))).decode()


def _require_known(app: App, receiver: ReceiverSettings, root: Path, loaded: Collection[tuple[str, str]]) -> None:
    """Raise PermanentError if the ledger lacks data files of an answered landing. A receipt in a landing proves nothing, for
    others may write it. Only the receiver writes among the data files."""
    for folder in landing_folders(root):
        if not folder.answered or (folder.site_id, folder.landing) in loaded:
            continue
        try:
            places = set(_data_files(root, folder))
        except Exception as error:
            require_theirs(error)
            continue  # a manifest that cannot be read names no data file; this load reports it
        with app.ledger.read() as connection:
            unknown = places - catalog_rows.known_places(connection, receiver.name, places)
        if unknown:
            raise _older_than(receiver, folder.landing, f"{min(unknown)} was loaded with landing {folder.landing}")


def _older_than(receiver: ReceiverSettings, landing: str, what: str) -> PermanentError:
    return PermanentError(
        f"{what}, and the ledger does not know of it: the ledger is older than receiver {receiver.name}",
        hint="./tidemark ledger rebuild --replace (docs/runbooks/ledger-lost.md)",
        subject=landing,
    )


def _data_files(root: Path, folder: Folder) -> Iterator[str]:
    """Yield existing data files that the landing's manifest names."""
    manifest = read_found_manifest(root, folder).manifest
    for file in manifest.files if manifest else ():
        name = parse_source_path(file.path, manifest.data) if manifest else None
        if name is None or file.tsfile is None:
            continue
        below = root / "data" / folder_name(name.database)
        wanted = data_location(name.database, 0, folder.site_id, file.sha256, file.path).rpartition("/")[2]
        for partition in below.iterdir() if below.is_dir() else ():
            place = partition / wanted
            if place.is_file():
                yield place.relative_to(root).as_posix()


def _sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
