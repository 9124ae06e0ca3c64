"""A link between a made-up site and a receiver, on disks or in memory, with what must be true of it at any time."""

from __future__ import annotations

import copy
import hashlib
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.crash.edge import DATA, DiskGround, Edge
from tests.crash.explorer import CrashingLedger, CrashingStore, Effects, identity
from tests.memory_store import MemoryStore
from tidemark.app import App
from tidemark.formats.landing import Manifest, Part, decode_manifest
from tidemark.formats.layout import MANIFEST, RECEIPT, landed_path
from tidemark.ledger.migrations import migrate_ledger
from tidemark.settings.model import LedgerSettings, LinkSettings, ReceiverSettings, Settings, SiteSettings
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Store, StoreAddress
from tidemark.sync import steps as progress_notes
from tidemark.sync.run import Options, SyncResult, run_sync
from tidemark.sync.session import PartLimits

SITE_ID = "00000000-0000-4000-8000-000000000001"
SITE = SiteSettings("plant1", SITE_ID, "memory://site", data=DATA, schema="system/schema")
LINK = LinkSettings("plant1", "plant1", "centre", retries=0)
RECEIVER = ReceiverSettings("centre", "memory://centre", max_unloaded_landings=1_000)
SMALL_PARTS = PartLimits(batch_bytes=1, batch_files=1, part_bytes=1)  # a landing a partition


# What is noted by the clock is no effect of a run's: on a slow machine it would count among those an explorer dies at.
progress_notes.NOTE_SECONDS = 3600.0


@dataclass(frozen=True)
class MemoryGround:
    """A site's files in a MemoryStore, safe against power loss: the site loses none."""

    store: MemoryStore

    def put(self, path: str, data: bytes, mtime: int) -> None:
        self.store.put(path, data, mtime)

    def remove(self, path: str) -> None:
        self.store.take_away(path)

    def read(self, path: str) -> bytes:
        return self.store.read(path)

    def exists(self, path: str) -> bool:
        return self.store.stat(path) is not None


class SiteInMemory(MemoryStore):
    def take_away(self, path: str) -> None:
        """The site's own IoTDB removes a file: that is no effect of ours and no power loss brings it back."""
        self._names.pop(path, None)
        self._safe_names.pop(path, None)


@dataclass
class SyncWorld:
    """One link between `edge`, whose files are in `site`, and `centre`."""

    folder: Path
    edge: Edge
    site: Store
    centre: Store
    link: LinkSettings = LINK
    site_settings: SiteSettings = SITE
    limits: PartLimits = field(default_factory=PartLimits)
    power: random.Random | None = None  # memory only: what a death takes with it
    power_losses: int = 0
    results: list[SyncResult] = field(default_factory=list)

    @classmethod
    def on_disk(cls, link: LinkSettings = LINK, limits: PartLimits | None = None) -> SyncWorld:
        folder = Path(tempfile.mkdtemp(prefix="tidemark-world-", dir=memory_disk()))
        (folder / "site").mkdir()
        edge = Edge(DiskGround(folder / "site"))
        site, centre = LocalStore(f"{folder}/site"), LocalStore(f"{folder}/centre")
        return cls(folder, edge, site, centre, link, limits=limits or PartLimits())

    @classmethod
    def in_memory(cls, link: LinkSettings = LINK, limits: PartLimits | None = None) -> SyncWorld:
        site = SiteInMemory("site")
        site.make_folders(SITE.data)
        edge = Edge(MemoryGround(site))
        folder = Path(tempfile.mkdtemp(prefix="tidemark-world-", dir=memory_disk()))
        return cls(folder, edge, site, MemoryStore("centre"), link, limits=limits or PartLimits())

    def clone(self) -> SyncWorld:
        """A world of its own in the same state. In memory only."""
        assert isinstance(self.site, SiteInMemory)
        folder = Path(tempfile.mkdtemp(prefix="tidemark-world-", dir=memory_disk()))
        for file in self.folder.glob("ledger.db*"):
            shutil.copy(file, folder)
        site, centre = copy.deepcopy((self.site, self.centre))
        edge = replace(copy.deepcopy(replace(self.edge, ground=MemoryGround(SiteInMemory()))), ground=MemoryGround(site))
        return replace(self, folder=folder, edge=edge, site=site, centre=centre, results=list(self.results))

    def neighbour(self) -> SyncWorld:
        """Another site with a link of its own to the same receiver, in the same ledger. In memory only."""
        site = SiteInMemory("site2")
        settings = replace(SITE, name="plant2", id=SITE_ID[:-1] + "2", store="memory://site2")
        return replace(
            self,
            edge=Edge(MemoryGround(site)),
            site=site,
            site_settings=settings,
            link=replace(self.link, name="plant2", site="plant2"),
            results=[],
        )

    @property
    def landings(self) -> str:
        return f"landing/{self.site_settings.id}"

    # lives

    def app(self, effects: Effects) -> App:
        settings = Settings(
            path=self.folder / "tidemark.toml",
            ledger=LedgerSettings("sqlite:///ledger.db"),
            receivers={"centre": RECEIVER},
            sites={self.site_settings.name: self.site_settings},
            links={self.link.name: self.link},
        )
        ledger = CrashingLedger(settings.ledger.url, Effects(), self.folder)
        migrate_ledger(ledger)
        ledger.effects = effects
        return App(settings, ledger, identity(), clock=lambda: float(self.edge.clock), opener=self._opener(effects))

    def sync(self, options: Options | None = None, effects: Effects | None = None) -> SyncResult:
        app = self.app(effects or Effects())
        try:
            result = run_sync(app, self.link.name, options or Options(no_load=True), limits=self.limits)
        finally:
            app.ledger.close()
        self.results.append(result)
        return result

    def live(self, effects: Effects) -> None:
        self.sync(effects=effects)

    def lose_power(self) -> None:
        self.power_losses += self.power is not None
        for store in (self.site, self.centre):
            if isinstance(store, MemoryStore):
                store.on_effect = lambda _effect, _path: None
                if self.power is not None:
                    store.crash(self.power)
        self.check_final_names()

    def close(self) -> None:
        shutil.rmtree(self.folder)

    def _opener(self, effects: Effects) -> Callable[[StoreAddress], Store]:
        def opened(address: StoreAddress) -> Store:
            name = "site" if address.url == self.site_settings.store else "centre"
            store = self.site if name == "site" else self.centre
            if isinstance(store, MemoryStore):
                store.on_effect = lambda effect, path: effects.point(f"before {name}.{effect} {path}")
                return store
            return CrashingStore(store, effects, name)

        return opened

    # what must be true

    def check(self) -> None:
        """At rest: the receiver's papers tell exactly the site, once, in one chain, and nothing is left over."""
        again = self.sync()
        assert again.state == "nothing", f"not at rest: {again}"
        self.check_final_names()
        papers = self.manifests()
        assert [m.sequence for m in papers] == list(range(1, len(papers) + 1))
        assert [m.previous for m in papers] == [None, *(m.landing for m in papers)][: len(papers)]
        seen = [(file.path, file.generation) for m in papers for file in m.files]
        assert len(seen) == len(set(seen)), "a generation was published twice"
        assert self.told() == {path: (data, self.edge.mods.get(path, b"")) for path, data in self.edge.contents.items()}
        assert self.inventory() == {path: len(data) for path, data in self.edge.contents.items()}
        assert papers[-1].inventory_count == len(self.edge.contents) if papers else not self.edge.contents
        if self.power_losses < 2:  # a second power loss may bring back what the life after the first had removed
            self.check_left_over(papers)

    def check_final_names(self) -> None:
        """No file bears a final name at the receiver that is not whole."""
        for entry in self.centre.list_files([self.landings]).entries:
            if entry.path.endswith((".part", ".part.blocks", ".tmp")):
                continue
            data = self.centre.read(entry.path)
            name = entry.path.rpartition("/")[2]
            if name == MANIFEST:
                self.check_manifest(decode_manifest(data))
            elif name != RECEIPT and "/_schema/" not in entry.path:
                assert data in self.truth(entry.path), f"{entry.path} holds what the site never had: {data[:60]!r}"

    def check_manifest(self, manifest: Manifest) -> None:
        for file in manifest.files:
            for part in (file.tsfile, file.resource, file.mods):
                if part is not None:
                    self.part(manifest, part)
        for log in manifest.schema:
            self.part(manifest, log.part)

    def check_left_over(self, papers: list[Manifest]) -> None:
        named = {f"{folder}/{MANIFEST}" for folder in map(self.landing_folder, papers)}
        for manifest in papers:
            parts = [p for f in manifest.files for p in (f.tsfile, f.resource, f.mods) if p]
            parts += [log.part for log in manifest.schema]
            named |= {f"{self.landing_folder(manifest)}/{landed_path(p.path)}" for p in parts}
        there = {e.path for e in self.centre.list_files([self.landings]).entries}
        assert there <= named, f"left over at the receiver: {sorted(there - named)}"
        links = [e.path for e in self.site.list_files([f"data/.tidemark/{self.link.name}"]).entries]
        assert not links, f"left over at the site: {links}"

    def part(self, manifest: Manifest, part: Part) -> bytes:
        data = self.centre.read(f"{self.landing_folder(manifest)}/{landed_path(part.path)}")
        assert (len(data), hashlib.sha256(data).hexdigest()) == (part.size, part.sha256), part.path
        return data

    def manifests(self) -> list[Manifest]:
        found = [e.path for e in self.centre.list_files([self.landings]).entries if e.path.endswith("/" + MANIFEST)]
        return sorted((decode_manifest(self.centre.read(path)) for path in found), key=lambda m: m.sequence)

    def landing_folder(self, manifest: Manifest) -> str:
        return f"{self.landings}/{manifest.landing}"

    def told(self) -> Mapping[str, tuple[bytes, bytes]]:
        """What a receiver holds that does what the manifests say, drops obeyed: path → (TsFile, mods)."""
        files: dict[str, tuple[bytes, bytes]] = {}
        for manifest in self.manifests():
            for file in manifest.files:
                mods = self.part(manifest, file.mods) if file.mods else b""
                if file.tsfile is None:
                    assert hashlib.sha256(files[file.path][0]).hexdigest() == file.sha256
                    files[file.path] = (files[file.path][0], mods)
                else:
                    files[file.path] = (self.part(manifest, file.tsfile), mods)
            for gone in (*manifest.superseded, *manifest.dropped):
                assert set(gone.covered_by) <= files.keys(), f"{gone} is told before what covers it"
            for gone in (*manifest.superseded, *manifest.dropped):
                del files[gone.path]
        return files

    def inventory(self) -> Mapping[str, int]:
        known: dict[str, int] = {}
        for manifest in self.manifests():
            known.update({e.path: e.size for e in manifest.added})
            for path in manifest.removed:
                known.pop(path, None)
        return known

    def schema(self) -> Mapping[str, bytes]:
        """Schema logs as a receiver puts them together, the newest epoch of each."""
        logs: dict[str, tuple[int, bytes]] = {}
        for manifest in self.manifests():
            for piece in manifest.schema:
                epoch, data = logs.get(piece.path, (0, b""))
                data = data if epoch == piece.epoch else b""
                assert len(data) == piece.start, f"{piece.path}: bytes {len(data)} to {piece.start} never came"
                logs[piece.path] = (piece.epoch, data + self.part(manifest, piece.part))
        return {path: data for path, (_, data) in logs.items()}

    def truth(self, landed: str) -> set[bytes]:
        """Every content the site's file under this name ever had, companions too."""
        path = landed.split("/", 3)[3]
        history = self.edge.history.get(path, [])
        if path.endswith(".mods"):
            return {whole[:end] for whole in history for end in range(len(whole) + 1)}
        return set(history)


def memory_disk() -> str | None:
    """A folder in memory, or None: no power is lost here, so nobody needs to wait for a disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
