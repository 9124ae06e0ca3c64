"""What a receiver answered is kept where no edge writes (`formats.answered`): by each load for its landings, and at the
first load of a receiver of before that for all that its ledger knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.errors import CorruptionError, PermanentError
from tidemark.formats.answered import (
    BEGUN,
    answered_landings,
    encode_begun,
    has_begun,
    kept_manifest,
    kept_receipt,
    read_landed,
)
from tidemark.formats.landing import Receipt, decode_receipt, encode
from tidemark.formats.layout import MANIFEST, data_location, folder_name, landing_folder
from tidemark.ledger.leases import Lease, check_in
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver.landings import LandingRow
from tidemark.load.manifests import Folder, landing_folders, read_paper
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.protocol import Store
from tidemark.tsfiles.names import parse_source_path

_BUNDLE = 256  # landings of before whose answers become durable together
PART = ".part"


def keep_manifest(root: Path, store: Store, folder: Folder, sha256: str) -> None:
    """Keep a landing's manifest, before anything of it is recorded. CorruptionError where it is another than was read."""
    data = read_landed(root, f"{folder.path}/{MANIFEST}")
    if data is None or _digest(data) != sha256:
        changed = f"landing {folder.landing}: its manifest changed while it was loaded"
        raise CorruptionError(changed, hint="./tidemark load", subject=folder.path)
    store.publish(kept_manifest(folder.site_id, folder.landing), data)


def keep_receipt(store: Store, site_id: str, landing: str, text: str) -> None:
    """Keep the answer that the ledger has recorded."""
    store.publish(kept_receipt(site_id, landing), text.encode())


def catch_up_answers(app: App, receiver: ReceiverSettings, root: Path, store: Store, lease: Lease) -> None:
    """Keep what loads recorded and died before they kept it; at a receiver of before all that the ledger knows.

    Raises PermanentError for a ledger that is older than the receiver: it does not know of an answer that is kept, or, at a
    receiver of before, of data files.
    """
    begun, kept = has_begun(root), answered_landings(root)
    with app.ledger.read() as connection:
        rows = landing_rows.landings(connection, receiver.name, open_only=begun)
        finished = landing_rows.finished_landings(connection, receiver.name) if begun else {}
    loaded = {key: row for key, row in rows.items() if row.state == "loaded"}
    if unknown := kept - loaded.keys() - finished.keys():
        site_id, landing = min(unknown)
        raise _older_than(receiver, landing, f"landing {landing} of site {site_id} was answered")
    if not begun:
        _require_known(app, receiver, root, loaded.keys())
    due = [row for key, row in loaded.items() if key not in kept]
    for start in range(0, len(due), _BUNDLE):
        _keep(app, root, store, lease, due[start : start + _BUNDLE])
    if not begun:
        # CRASH WINDOW: kept, and not said so: the next load keeps what is still missing and says it.
        store.publish(BEGUN, encode_begun())


def _keep(app: App, root: Path, store: Store, lease: Lease, rows: Sequence[LandingRow]) -> None:
    papers: list[tuple[str, bytes]] = []
    with app.ledger.write() as connection:
        check_in(connection, lease)
        for row in rows:
            text = _told(connection, row)
            papers.append((kept_receipt(row.site_id, row.landing), text.encode()))
            landing_rows.put_receipt(connection, row.receiver, row.site_id, row.landing, text)
    for row in rows:
        manifest = read_landed(root, f"{landing_folder(row.site_id, row.landing)}/{MANIFEST}")
        if manifest is not None and _digest(manifest) == row.manifest_sha256:
            papers.append((kept_manifest(row.site_id, row.landing), manifest))
    store.write_parts([(path + PART, data) for path, data in papers])
    store.seal_parts([(path + PART, path) for path, _ in papers])


def _told(connection: Connection, row: LandingRow) -> str:
    """The receipt with the devices that the landing brought, which those of before do not tell."""
    _, text = landing_rows.receipt_of(connection, row.receiver, row.site_id, row.landing)
    receipt = Receipt(row.landing, row.sequence, row.manifest_sha256, row.loaded or row.found)
    if text:
        receipt = decode_receipt(text.encode())
    if receipt.claimed is not None:
        return text
    claimed = refusal_rows.claimed_with(connection, row.receiver, row.site_id, row.landing)
    return encode(replace(receipt, claimed=tuple(claimed))).decode()


def _require_known(app: App, receiver: ReceiverSettings, root: Path, loaded: Collection[tuple[str, str]]) -> None:
    """A receipt in a landing says nothing by itself, but files of its manifest that lie among the data files do: nobody but
    the receiver writes there."""
    for folder in landing_folders(root):
        if not folder.answered or (folder.site_id, folder.landing) in loaded:
            continue
        places = set(_data_files(root, folder))
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
    """Data files that the landing's manifest names."""
    manifest = read_paper(root, folder).manifest
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


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
