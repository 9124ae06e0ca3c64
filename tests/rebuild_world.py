"""Real data folders synced, loaded and merged into a centre whose ledger is then lost: a world for tests of rebuilds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import sqlalchemy as sa

from tests.expected import SITES
from tidemark.app import App, open_app
from tidemark.operations.rebuild import rebuild as ledger_care
from tidemark.operations.rebuild.result import RebuildResult
from tidemark.proof.prove import coverage
from tidemark.proof.verify.verify import verify
from tidemark.receiver.load.load import load
from tidemark.receiver.read import Query, read
from tidemark.settings.model import LedgerSettings, LinkSettings, ReceiverSettings, Settings, SiteSettings
from tidemark.sync.plan import plan_sync
from tidemark.sync.run import Options, SyncResult, run_sync

PLANT1, PLANT2 = "0f8e1c52-7d1b-4a5e-9c1e-aaaaaaaaaaaa", "1b2c3d4e-7d1b-4a5e-9c1e-bbbbbbbbbbbb"
VERSIONS = {"plant1": "2.0.1-beta", "plant2": "0.12.0"}

# What must be the same in a rebuilt ledger. Left out: keys that grow, times of this ledger's own, runs that told nothing,
# and whether a receipt was read: the next run reads those again from which something may follow.
TABLES = {
    "link": "link, site_id, receiver, next_sequence, last_landing",
    "file": "link, path, size, mtime, mods_size, state, generation, sha256, mods_sha256, landing, reason",
    "file_extent": "link, path, extent",
    "sent_landing": "landing, run_id, link, part, sequence, previous, last, created, manifest_sha256, files, bytes",
    "schema_position": "link, path, position, prefix_sha256, epoch",
    "landing": "receiver, landing, site_id, sequence, previous, run_id, part, state, manifest_sha256, files, bytes, receipt",
    "inventory": "receiver, site_id, path, size, mtime, extent, live, generation, landing",
    "pending_drop": "receiver, site_id, path, generation, kind, covered_by, landing, at, state, reason",
    "owner": "receiver, device, site_id, since, landing",
    "refusal": "receiver, site_id, path, generation, landing, device, owner_site, location, entry, state",
    "quarantine": "receiver, site_id, path, generation, landing, reason, location, entry, state",
    "schema_series": "receiver, site_id, series, database_name, type, encoding, compression, aligned, state, clash, source",
    "schema_received": "receiver, site_id, path, epoch, position, decoded",
    "table_width": "receiver, site_id, database_name, table_name, tags",
    "site": "site_id, name, time_unit, partition_interval_ms, prefix",
}
CATALOG = (
    "SELECT receiver, site_id, path, generation, database_name, model, format, partition_from, partition_to, location,"
    " sha256, size, mods_location, mods_sha256, points, rank_unsequence, rank_version, rank_inner, rank_cross, rank_created,"
    " state, marked, undecodable, landing, prefix FROM catalog_file WHERE role = 'source' AND state = 'live'"
)


@dataclass
class World:
    """Two sites, each with the folder of a real server (or, not `real`, with nothing yet), one receiver."""

    folder: Path
    url: str = "sqlite:///var/ledger.db"
    deletes: str = "keep"
    settle_days: int = 14
    real: bool = True
    centre_store: str = ""  # where the receiver is reached, when not as a folder
    far: Mapping[str, str] = field(default_factory=dict)  # host_key and key of that
    clock: float = 1_790_000_000.0
    app: App = field(init=False)

    def __post_init__(self) -> None:
        store = self.centre_store or f"file://{self.centre}"
        self.receiver = ReceiverSettings("centre", store, settle_days=self.settle_days, **self.far)
        sites = {}
        for (name, version), uuid in zip(VERSIONS.items(), (PLANT1, PLANT2), strict=True):
            place = self.folder / name
            sites[name] = SiteSettings(name, uuid, f"file://{place}", schema="system/schema")
            if self.real:
                shutil.copytree(SITES[version].root, place)
                sites[name] = replace(sites[name], data=SITES[version].data, schema=SITES[version].schema)
            else:
                for folder in (*sites[name].data, sites[name].schema):
                    (place / folder).mkdir(parents=True)
        links = {name: LinkSettings(name, name, "centre", deletes=self.deletes) for name in sites}
        self.settings = Settings(
            self.folder / "tidemark.toml",
            LedgerSettings(self.url),
            receivers={"centre": self.receiver},
            sites=sites,
            links=links,
        )
        self.reopen()

    @property
    def centre(self) -> Path:
        return self.folder / "centre"

    def reopen(self, whose_ever: bool = False) -> None:
        self.app = open_app(self.settings, whose_ever)
        self.app.clock = self.now

    def now(self) -> float:
        """A clock that goes on a little with every look."""
        self.clock += 0.25
        return self.clock

    def sync(self, link: str = "plant1", **options: Any) -> SyncResult:
        return run_sync(self.app, link, Options(**options))

    def load(self) -> Any:
        return load(self.app, self.receiver)

    def rows(self) -> list[tuple[Any, ...]]:
        out = self.folder / "read.parquet"
        read(self.app, self.receiver, Query(tall=True), out)
        return [tuple(row.values()) for row in pq.read_table(out).to_pylist()]

    def sql(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        with self.app.ledger.read() as connection:
            return [tuple(row) for row in connection.execute(sa.text(query), values)]

    def facts(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything of the ledger that a rebuilt one must have too."""
        found = {table: self.sql(f"SELECT {columns} FROM {table}") for table, columns in TABLES.items()}
        found["catalog"] = self.sql(CATALOG)
        found["devices"] = self.sql(
            "SELECT f.location, d.device, d.start_time, d.end_time, d.points FROM catalog_device d JOIN catalog_file f"
            " ON f.file_id = d.file_id WHERE f.state = 'live' AND f.role = 'source'"
        )
        return {table: sorted(rows, key=repr) for table, rows in found.items()}

    def lose_ledger(self) -> None:
        """The database is gone: the file removed, or PostgreSQL's tables dropped as with their database."""
        if self.app.ledger.is_sqlite:
            self.app.ledger.close()
            for path in (self.folder / "var").glob("ledger.db*"):
                path.unlink()
            return
        with self.app.ledger.write() as connection:
            connection.execute(sa.text("DROP SCHEMA public CASCADE"))
            connection.execute(sa.text("CREATE SCHEMA public"))
        self.app.ledger.close()

    def rebuild(self, **options: Any) -> RebuildResult:
        result = ledger_care.rebuild_ledger(self.settings, clock=self.now, **options)
        self.reopen()
        return result

    def add(self, link: str, path: str, parts: Mapping[str, bytes]) -> None:
        """A sealed file at the site: its parts by the end of their names."""
        for end, data in parts.items():
            place = self.folder / link / (path + end)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)

    def tsfiles(self, link: str) -> list[str]:
        """The site's TsFiles, below its store."""
        site = self.settings.sites[link]
        root = self.folder / link
        return sorted(p.relative_to(root).as_posix() for d in site.data for p in (root / d).rglob("*.tsfile"))

    def remove(self, link: str, path: str) -> None:
        for end in ("", ".resource", ".mods", ".mods2"):
            (self.folder / link / (path + end)).unlink(missing_ok=True)

    def hide(self, link: str, wanted: Callable[[int], bool]) -> Callable[[], None]:
        """Take TsFiles (by their number) aside; returns what puts them back."""
        aside = self.folder / "aside"
        moved = []
        for number, path in enumerate(self.tsfiles(link)):
            if wanted(number):
                for end in ("", ".resource", ".mods", ".mods2"):
                    place = self.folder / link / (path + end)
                    if place.exists():
                        (aside / link / path).parent.mkdir(parents=True, exist_ok=True)
                        place.rename(aside / link / (path + end))
                        moved.append((aside / link / (path + end), place))

        def back() -> None:
            for place, was in moved:
                place.rename(was)

        return back

    def coverage(self) -> dict[str, Any]:
        return coverage(self.app, self.receiver).as_json()

    def check_proofs(self) -> None:
        """Nothing to send, nothing to load, every point where it belongs."""
        for (link,) in self.sql("SELECT link FROM link"):
            report = plan_sync(self.app, link).as_json()
            assert (report["send"], report["drop"], report["superseded"], report["schema"]) == ([], [], [], []), link
            result = self.sync(link)
            assert (result.files, result.sent_bytes, result.dropped) == (0, 0, 0)
        loaded = self.load()
        assert (loaded.landings, loaded.loaded, loaded.waiting, loaded.rejected) == (0, 0, 0, 0)
        found = verify(self.app, self.receiver, deep=True, live_only=True)
        assert found.differences == () and found.unreachable == ()
