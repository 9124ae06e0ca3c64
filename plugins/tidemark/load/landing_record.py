"""What one landing changes in the ledger, in the caller's transaction: the same for a load and for a rebuilt ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from tidemark.ledger import landing_rows
from tidemark.ledger.landing_rows import DropRow, InventoryChange
from tidemark.load import schema
from tidemark.load.admit import Admission, Origin
from tidemark.load.commit import SiteNames, write_admission
from tidemark.load.vanish import replace_settled, take_vanished
from tidemark.stores.landing import Answer, Manifest


@dataclass(frozen=True)
class Recorded:
    """`answers` and `pending` (path, reason) for the receipt; `clashes`: series that got two types, a sentence each."""

    answers: tuple[Answer, ...]
    pending: tuple[tuple[str, str], ...]
    clashes: tuple[str, ...]


def record_landing(
    connection: Connection,
    origin: Origin,
    manifest: Manifest,
    admission: Admission,
    logs: Sequence[schema.KeptLog],
    at: float,
) -> Recorded:
    """Catalog, owners, troubles, schema, inventory and vanished files of one landing. `at` in seconds since 1970."""
    names = SiteNames({s.site_id: s.name for s in landing_rows.sites(connection).values()})
    answers = write_admission(connection, origin, admission, names, at)
    clashes = schema.write_schema(connection, origin, logs, admission.loads)
    landing_rows.take_inventory(connection, origin.receiver, origin.site_id, _inventory(manifest))
    replace_settled(connection, origin, [load.file.path for load in admission.loads], at)
    pending = take_vanished(connection, origin, _drops(manifest, at), manifest.deletes, at)
    return Recorded(answers + schema.answers(logs), pending, clashes)


def _inventory(manifest: Manifest) -> InventoryChange:
    return InventoryChange(
        landing=manifest.landing,
        added=tuple((e.path, e.size, e.mtime, e.extent) for e in manifest.added),
        carried=tuple((f.path, f.tsfile.size if f.tsfile else 0, f.mtime, f.generation) for f in manifest.files),
        removed=manifest.removed,
    )


def _drops(manifest: Manifest, at: float) -> Iterator[DropRow]:
    for kind, vanished in (("superseded", manifest.superseded), ("dropped", manifest.dropped)):
        for v in vanished:
            yield DropRow(v.path, v.generation, kind, v.covered_by, manifest.landing, at)
