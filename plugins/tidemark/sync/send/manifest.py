"""Make the manifest of one landing from the ledger's rows (docs/formats/manifest.md). The same rows give the same bytes.
So after a crash between reserving a sequence number and renaming the manifest, it is made again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sqlalchemy.engine import Connection

from tidemark.formats.landing import InventoryEntry, LandedFile, LandedSchema, Manifest, Part, Vanished, encode_document
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.runs import (
    DROP,
    FAILED,
    LANDED,
    MODS,
    SEND,
    SENT,
    SUPERSEDE,
    VANISHED,
    RunItem,
    RunSchema,
    SentLanding,
    item_bytes,
)
from tidemark.settings.model import LinkSettings, SiteSettings


@dataclass(frozen=True)
class Inventory:
    """The run's inventory change as recorded at selection. `held`: path and generation of drops that wait from now on.
    `approved`: it releases drops that the operator approved. `listed`: when its listing began, None if that was not whole.
    """

    added: tuple[InventoryEntry, ...] = ()
    removed: tuple[str, ...] = ()
    held: tuple[tuple[str, int], ...] = ()
    count: int = 0
    approved: bool = False
    listed: float | None = None

    @property
    def has_changes(self) -> bool:
        return bool(self.added or self.removed)


def read_inventory(text: str) -> Inventory:
    """Decode the column `run.inventory`."""
    raw = json.loads(text)
    added = tuple(
        InventoryEntry(e["path"], e["size"], e["mtime"], tuple((d, a, b) for d, a, b in e["extent"]), e["reason"])
        for e in raw["added"]
    )
    held = tuple((path, generation) for path, generation in raw.get("held", ()))
    return Inventory(added, tuple(raw["removed"]), held, raw["count"], raw["approved"], raw.get("listed"))


@dataclass(frozen=True)
class Contents:
    """The contents of one landing: items of its part, schema pieces (first part), inventory (first part), and all failed
    items (last part)."""

    items: Sequence[RunItem] = ()
    schema: Sequence[RunSchema] = ()
    inventory: Inventory = Inventory()
    failed: Sequence[RunItem] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.items or self.schema or self.inventory.has_changes or self.failed)

    @cached_property
    def files(self) -> list[RunItem]:
        return sorted((i for i in self.items if i.action in (SEND, MODS)), key=lambda i: i.path)

    @property
    def bytes(self) -> int:
        return sum(item_bytes(i) for i in self.files)


def compose_manifest(landing: SentLanding, contents: Contents, link: LinkSettings, site: SiteSettings) -> Manifest:
    """Make the manifest of a part from its contents."""
    gone = sorted((i for i in contents.items if i.action in (DROP, SUPERSEDE)), key=lambda i: i.path)
    return Manifest(
        landing=landing.landing,
        site_id=site.id,
        site_name=site.name,
        time_unit=site.time_unit,
        partition_interval_ms=site.partition_interval_ms,
        data=site.data,
        link=link.name,
        run_id=landing.run_id,
        part=landing.part,
        last=landing.last,
        sequence=landing.sequence,
        previous=landing.previous,
        created=landing.created,
        deletes=link.deletes,
        files=tuple(landed_file(i) for i in contents.files),
        schema=tuple(LandedSchema(p.path, p.epoch, p.start, Part(p.landed_path, p.size, p.sha256)) for p in contents.schema),
        superseded=tuple(Vanished(i.path, i.generation, i.covered_by) for i in gone if i.action == SUPERSEDE),
        dropped=tuple(Vanished(i.path, i.generation) for i in gone if i.action == DROP),
        held=tuple(Vanished(path, generation) for path, generation in contents.inventory.held),
        added=contents.inventory.added,
        removed=contents.inventory.removed,
        inventory_count=contents.inventory.count,
        left_out=tuple(sorted((i.path, i.reason or "") for i in contents.failed if i.state in (FAILED, VANISHED))),
        listed=contents.inventory.listed,
        prefix=site.prefix,
    )


def landed_file(item: RunItem) -> LandedFile:
    """Make the manifest's entry of a file that was sent."""
    alone = item.action == MODS
    mods = Part(item.mods_path, item.mods_size, item.mods_sha256 or "") if item.mods_path else None
    resource = None
    if item.resource_size and not alone:
        resource = Part(item.path + ".resource", item.resource_size, item.resource_sha256 or "")
    return LandedFile(
        path=item.path,
        generation=item.generation,
        mtime=item.mtime,
        tsfile=None if alone else Part(item.path, item.size, item.sha256 or ""),
        resource=resource,
        mods=mods,
        sha256=item.sha256 or "",
        verified=item.verified or "target",  # no record that its digest was made at the source
    )


class LandingManifest(NamedTuple):
    """The contents of a landing, and its manifest's bytes."""

    contents: Contents
    data: bytes


def manifest_of(connection: Connection, link: LinkSettings, site: SiteSettings, landing: SentLanding) -> LandingManifest:
    """Read a landing's contents from the ledger and encode its manifest. The same rows and settings give the same bytes."""
    contents = _read_contents(connection, landing)
    return LandingManifest(contents, encode_document(compose_manifest(landing, contents, link, site)))


def _read_contents(connection: Connection, landing: SentLanding) -> Contents:
    run = run_rows.get_run(connection, landing.run_id)
    first = landing.part == 1
    return Contents(
        items=tuple(run_rows.read_items(connection, landing.run_id, SENT, LANDED, part=landing.part)),
        schema=run_rows.schema_pieces(connection, landing.run_id) if first else (),
        inventory=_inventory_of_part(run.inventory if run else None, first),
        failed=tuple(run_rows.read_items(connection, landing.run_id, FAILED, VANISHED)) if landing.last else (),
    )


def _inventory_of_part(text: str | None, first: bool) -> Inventory:
    """Return the part's inventory: the change for the first part, the count alone for others."""
    inventory = read_inventory(text) if text else Inventory()
    return inventory if first else Inventory(count=inventory.count)
