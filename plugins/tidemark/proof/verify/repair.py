"""Repair what `verify --repair` found. Each repair is idempotent and is recorded with who asked for it.

The acknowledged bytes are fetched from the site again and put in place only if their digest is the recorded one, so a rotten
source never overwrites a good file. A damaged merged file is withdrawn, so that readers read its sources at once, and made
again. What cannot be restored is marked for the next sync.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.nodes.cluster import open_cluster
from tidemark.cluster.replicas.forward import make_visible
from tidemark.errors import SourceVanishedError
from tidemark.formats.answered import kept_manifest, kept_receipt, read_landed
from tidemark.formats.layout import MANIFEST, RECEIPT, landing_folder
from tidemark.ledger import journal
from tidemark.ledger.leases import Lease, assert_held
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import merges as merge_rows
from tidemark.ledger.receiver import settled as settled_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.settled import SettledSet
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sql import forget_file_checks
from tidemark.proof.verify.differences import SourceChecked
from tidemark.receiver.proved_files import Recorded
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.protocol import Store

_BLOCK = 4 << 20
PART = ".part"


@dataclass(frozen=True)
class Damage:
    """A file at the receiver that may be wrong. `source`: its path at the site, '' if the site lacks the same bytes."""

    record: Recorded
    path: str  # the TsFile's source path, '' for a merged file
    where: str  # catalog | landing
    source: str
    file_id: int = 0
    database: str = ""
    size: int = 0  # bytes of a mods file that were acknowledged, where the record has none
    kept: bool = False  # vanished at its site, so it cannot be fetched there


class Repairs:
    """Repairs at one receiver under its load lease."""

    def __init__(self, app: App, receiver: ReceiverSettings, lease: Lease) -> None:
        self._app = app
        self._receiver = receiver
        self._lease = lease
        self._derive: set[str] = set()

    def restore_file(self, damage: Damage, link: str, store: Store | None, source: SourceChecked | None) -> str:
        """Repair a file and return what was done, or ''. `store`, `source`: the site's, if it can be asked."""
        if damage.file_id and not damage.path:
            return self._withdraw_merged(damage, link, source)
        if store is None or not damage.source or not self._fetch_bytes(store, damage):
            return ""
        with self._app.ledger.write() as connection:
            assert_held(connection, self._lease)
            forget_file_checks(connection, self._receiver.name, [damage.record.location])
            merge_rows.judge_anew(connection, self._receiver.name, [damage.file_id])
            journal.record_decision(connection, "verify repair", damage.path, fetched=damage.record.location)
        return "fetched again from the site"

    def restore_records(self, root: Path, site_id: str, landing: str) -> str:
        """Write a loaded landing's manifest and receipt again from the kept copies. Return '' if one is missing."""
        kept = (kept_manifest(site_id, landing), kept_receipt(site_id, landing))
        records = [read_landed(root, path) for path in kept]
        with self._app.receiver_store(self._receiver) as store:
            for name, data in zip((MANIFEST, RECEIPT), records, strict=True):
                if data is not None:
                    store.publish(f"{landing_folder(site_id, landing)}/{name}", data)
        with self._app.ledger.write() as connection:
            assert_held(connection, self._lease)
            journal.record_decision(
                connection, "verify repair", landing, site=site_id, papers=sum(data is not None for data in records)
            )
        return "" if None in records else "written again as the receiver kept it"

    def send_again(self, link: str, paths: Sequence[str], why: str) -> str:
        """Mark paths, so that the link's next run sends each as a new generation."""
        with self._app.ledger.write() as connection:
            assert_held(connection, self._lease)
            link_rows.mark_resend(connection, link, paths, f"verify: {why}")
            journal.record_many(connection, "file.resend", [{"link": link, "path": path, "why": why} for path in paths])
            for path in paths:
                journal.record_decision(connection, "verify repair", path, link=link, why=why)
        return f"the next run of link {link} sends it again"

    def derive_again(self) -> None:
        """Merge the databases in which a merged file was withdrawn."""
        from tidemark.receiver.merge.merge import merge

        for database in sorted(self._derive):
            merge(self._app, self._receiver, database)

    def _withdraw_merged(self, damage: Damage, link: str, source: SourceChecked | None) -> str:
        def record_rows(connection: Connection) -> tuple[SettledSet, CatalogFile]:
            assert_held(connection, self._lease)
            (stand,) = settled_rows.settled_sets(connection, [damage.file_id])
            merge_rows.unmerge_files(connection, self._receiver.name, [r.file_id for r in stand.roots], self._app.clock())
            (row,) = catalog_rows.files_by_id(connection, [damage.file_id])
            journal.record_decision(connection, "verify repair", damage.record.location, withdrawn=row.state != "live")
            return stand, row

        with open_cluster(self._app, self._receiver) as cluster, self._app.receiver_store(self._receiver) as store:
            stand, row = make_visible(self._app, self._receiver, cluster, store, (), record_rows)
        if row.state != "live":
            self._derive.add(damage.database)
            return "withdrawn: its sources are read, and it is derived again"
        if damage.kept or not link or source is None:
            return ""  # it is settled; what is left of it is gone at the site, or the site cannot be asked
        paths = {root.path for root in stand.roots}
        here, gone = paths & source.sealed, sorted(paths - source.sealed)
        if not here or here & {difference.path for difference in source.differences}:
            return ""
        why = f"the merged file that stands alone for it is damaged: {damage.record.location}"
        lost = f", without {', '.join(gone)}: gone at the site" if gone else ""
        # The others of these changed, or wait for the next run already.
        return self.send_again(link, sorted(here & source.same.keys()), why) + lost

    def _fetch_bytes(self, store: Store, damage: Damage) -> bool:
        """Put the site's bytes in place. False if they are missing or not the recorded ones."""
        record, part = damage.record, damage.record.location + PART
        size = record.size or self._find_size(store, damage)
        digest = hashlib.sha256()

        def hash_pieces() -> Iterator[bytes]:
            for piece in store.read_chunks(damage.source, 0, size, _BLOCK):
                digest.update(piece)
                yield piece

        with self._app.receiver_store(self._receiver) as target:
            # CRASH WINDOW: a `.part` next to the damaged file: the next repair writes it anew, nobody reads it.
            try:
                target.remove([part])
                target.write_part(part, 0, hash_pieces())
            except SourceVanishedError:
                return False
            if digest.hexdigest() != record.sha256:
                target.remove([part])
                return False
            target.seal_parts([(part, record.location)])
        return True

    def _find_size(self, store: Store, damage: Damage) -> int:
        """Return how many bytes of a mods file to read: the acknowledged size, else the size at the site."""
        return damage.size or (entry.size if (entry := store.stat(damage.source)) else 0)
