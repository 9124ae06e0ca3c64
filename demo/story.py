"""The demo: first sync, late data, deletions, a kill in the middle, data nodes, changes, Airflow, Spark, the proof."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from demo.answers import judge
from demo.changes import Changes
from demo.command import StoryBroke, import_command, kill_in_the_middle, run_beside, tidemark
from demo.nodes import Nodes
from demo.pages import Pages
from demo.stage import SITES, DemoSite, SiteDoor, empty_stage, reveal, reveal_schema, write_settings

SLOW_LINE = "150 KB/s"  # bandwidth of the run that is killed: slow enough to be caught in the middle


@dataclass
class Outcome:
    """The result of a demo, which `./tidemark demo --json` prints (CONTRACT §1). `sites` has the figures of each site."""

    ok: bool = False
    files: int = 0
    bytes: int = 0
    rows: int = 0
    missing: int = 0
    duplicates: int = 0
    foreign: int = 0
    coverage: float = 0.0
    seconds: float = 0.0
    ui: str = ""
    ssh: bool = False
    mariadb: bool = False
    killed: bool = False
    coverage_html: str = ""
    settings: str = ""
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


Tell = Callable[[str, str, float], None]  # (what happened, what came of it, seconds it took)


class Story:
    """One demo in the folder `stage`. `tell` is called after each step."""

    def __init__(self, stage: Path, tell: Tell, with_ui: bool) -> None:
        self.stage = stage
        self.tell = tell
        self.with_ui = with_ui
        self.outcome = Outcome()
        self.door = SiteDoor(stage)
        self.settings = stage / "tidemark.toml"
        self.pages: Pages | None = None

    def run(self) -> Outcome:
        began = time.monotonic()
        empty_stage(self.stage)
        try:
            self.door.open()
            self.settings = write_settings(self.stage, self.door)
            self.outcome.ssh, self.outcome.settings = self.door.is_ssh, str(self.settings)
            if self.with_ui:
                self.pages = Pages(self.settings)
            import_command()
            self._chapters()
        finally:
            if self.pages is not None:
                self.pages.stop()
            self.door.close()
        self.outcome.seconds = round(time.monotonic() - began, 1)
        return self.outcome

    def _chapters(self) -> None:
        wind, factory = SITES
        self._step("the sites seal their first files", self._seal_first)
        self._step("first sync of windfarm", lambda: self._sync(wind))
        self._step("first sync of factory is killed with -9 in the middle", lambda: self._killed(factory))
        self._step("the same command again", lambda: self._sync(factory))
        self._step("late data and deletions appear at the sites", self._seal_rest)
        self._step("second sync of factory", lambda: self._sync(factory))
        self._step("overlapping files of factory are merged", lambda: self._merge(factory))
        nodes = Nodes(self.stage / "nodes", wind, self.door)  # its chapters pass while Airflow starts
        self._step("three data nodes; the disk of one is emptied while they are loaded", nodes.wipe_one)
        self._step("their ledger is deleted", nodes.lose_ledger)
        changes = Changes(self.stage / "changes")
        try:
            if self.pages is not None:
                self._step("Airflow is up, and runs windfarm's DAG", lambda: self._begin_in_airflow(wind))
            self._follow_changes(changes)  # while Airflow syncs, loads and merges
        finally:
            changes.close()
        if self.pages is not None:
            self._step("windfarm has synced as a DAG; Spark loads and merges", lambda: self._end_in_airflow(wind))
        else:
            self._step("second sync of windfarm", lambda: self._sync(wind))
            self._step("overlapping files of windfarm are merged", lambda: self._merge(wind))
        self._step("a file is deleted at windfarm; the centre keeps it", lambda: self._drop_one(wind))
        self._step("every point is compared with the servers' own answers", self._judge)
        self._step("coverage and verify --deep", self._prove)
        self.outcome.ok = not (self.outcome.missing or self.outcome.duplicates or self.outcome.foreign)
        self.outcome.ok = self.outcome.ok and self.outcome.coverage == 1.0

    def _follow_changes(self, changes: Changes) -> None:
        if changes.why_not:
            return
        self.outcome.mariadb = True
        self._step("a table of a MariaDB is read, and changes; its capture is killed with -9", changes.capture)
        self._step("two shards of its changes are read, rewound, read again", changes.read_twice)
        self._step("a Delta table follows it; its writer is killed with -9", changes.deliver)

    def _step(self, title: str, act: Callable[[], str]) -> None:
        began = time.monotonic()
        came = act()
        self.tell(title, came, time.monotonic() - began)

    def _seal_first(self) -> str:
        count = 0
        for site in SITES:
            files = [p for p in site.tsfiles() if "unsequence" not in p.parts]
            count += reveal(site, self.stage, files[: len(files) * 2 // 3], deletions=site.version.startswith("0.12"))
            reveal_schema(site, self.stage)
        reached = "over SSH" if self.door.is_ssh else f"as folders: {self.door.why_not}"
        return f"{count} sealed files at {len(SITES)} sites, reached {reached}"

    def _seal_rest(self) -> str:
        count = sum(reveal(site, self.stage, site.tsfiles(), deletions=True) for site in SITES)
        return f"{count} more files, unsequence ones among them, and the deletions' .mods"

    def _sync(self, site: DemoSite) -> str:
        answer = tidemark(self.settings, "sync", site.name)
        if answer.get("refused") or answer.get("quarantined"):
            raise StoryBroke(f"sync of {site.name} refused or quarantined files: {answer}")
        return f"{answer['files']} files, {answer['bytes']:,} bytes, {answer['loaded']} loaded"

    def _killed(self, site: DemoSite) -> str:
        landing = self.stage / site.receiver / "landing"
        limit = {f"TIDEMARK__LINKS__{site.name.upper()}__BANDWIDTH": SLOW_LINE}
        self.outcome.killed = kill_in_the_middle(
            self.settings, ("sync", site.name), lambda: any(landing.glob("*/*/**/*.tsfile")), **limit
        )
        if list(landing.glob("*/*/manifest.json")):
            return "it ended before the kill"
        return f"{len(list(landing.glob('*/*/**/*.tsfile')))} files had arrived; no landing is whole"

    def _begin_in_airflow(self, site: DemoSite) -> str:
        assert self.pages is not None
        self.pages.wait_until_up()
        self.outcome.ui = self.pages.address
        self.pages.wait_for_dags(f"tidemark_sync__{site.name}", "tidemark_load")
        self.pages.trigger(f"tidemark_sync__{site.name}")
        return self.pages.address

    def _end_in_airflow(self, site: DemoSite) -> str:
        assert self.pages is not None
        self.pages.wait_for_a_run(f"tidemark_sync__{site.name}")
        self.pages.wait_for_a_run("tidemark_load")
        self.pages.begin_stop()
        last = next(link for link in tidemark(self.settings, "status")["links"] if link["name"] == site.name)
        return f"sync success, load success, run {last['last_run']}"

    def _merge(self, site: DemoSite) -> str:
        answer = tidemark(self.settings, "merge", "--receiver", site.receiver)
        return f"{answer['files_in']} files into {answer['files_out']}" if answer["files_in"] else "nothing left to merge"

    def _drop_one(self, site: DemoSite) -> str:
        victim = self.stage / site.name / site.tsfiles()[0]
        for path in victim.parent.glob(victim.name + "*"):
            path.unlink()
        answer = tidemark(self.settings, "sync", site.name)
        return f"{answer['dropped']} drop told, file kept and marked"

    def _count_landed(self) -> None:
        """Count landed files and bytes by the manifests at the receivers, for the syncs of Airflow too."""
        for site in SITES:
            for manifest in (self.stage / site.receiver / "landing").glob("*/*/manifest.json"):
                landed = [f["tsfile"] for f in json.loads(manifest.read_bytes())["files"] if f["tsfile"]]
                self.outcome.files += len(landed)
                self.outcome.bytes += sum(part["size"] for part in landed)

    def _judge(self) -> str:
        self._count_landed()
        pages = {site.name: self.stage / f"{site.name}.csv" for site in SITES}
        reads = (("read", "--receiver", site.receiver, "--tall", "--out", str(pages[site.name])) for site in SITES)
        run_beside(self.settings, *reads)
        verdicts = {site: judge(pages[site.name], site) for site in SITES}
        self.outcome.sites = {site.name: {"version": site.version, **asdict(v)} for site, v in verdicts.items()}
        self.outcome.rows = sum(v.rows for v in verdicts.values())
        self.outcome.missing = sum(v.missing for v in verdicts.values())
        self.outcome.duplicates = sum(v.duplicates for v in verdicts.values())
        self.outcome.foreign = sum(v.foreign for v in verdicts.values())
        return f"{self.outcome.rows:,} points, {self.outcome.missing} missing, {self.outcome.duplicates} twice"

    def _prove(self) -> str:
        pages = [self.stage / f"coverage-{site.name}.html" for site in SITES]
        asked = zip(SITES, pages, strict=True)
        coverage = (("coverage", "--receiver", site.receiver, "--html", str(page)) for site, page in asked)
        shares = run_beside(self.settings, *coverage, allow=(0, 20))
        # live only: one site dropped a file that its receiver keeps, so points of that file alone are not the site's
        deep = (("verify", "--receiver", site.receiver, "--deep", "--live-only") for site in SITES)
        kept = sum(int(proof["kept_files"]) for proof in run_beside(self.settings, *deep))
        for site, share in zip(SITES, shares, strict=True):
            self.outcome.sites[site.name]["coverage"] = float(share["complete"])
        self.outcome.coverage_html = str(pages[-1])
        self.outcome.coverage = min(float(s["complete"]) for s in shares)
        days = sum(s["cells"] for s in shares)
        return f"coverage {self.outcome.coverage:.1%} of {days} device-days; every point right; {kept} dropped file kept"
