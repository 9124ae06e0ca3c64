"""The chapter of the data nodes: three with a copy of everything each, one wiped while loading; then the ledger is gone.

A deployment of its own beside the demo's: its receiver gets the first site's files a second time.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from demo.command import StoryBroke, strike_in_the_middle, tidemark
from demo.stage import DemoSite, SiteDoor

NODES = ("n1", "n2", "n3")
WIPED = "n2"


class Nodes:
    """`folder`: of the deployment, its receiver and its nodes."""

    def __init__(self, folder: Path, site: DemoSite, door: SiteDoor) -> None:
        self.folder = folder
        self.settings = folder / "tidemark.toml"
        data = ", ".join(f'"{d}"' for d in site.data)
        nodes = "".join(f"\n[nodes.{name}]\n{door.lines(folder / name)}\n" for name in NODES)
        for name in NODES:
            (folder / name).mkdir(parents=True)
        self.settings.write_text(
            f'[ledger]\nurl = "sqlite:///ledger.db"\n\n[receivers.mirror]\nstore = "file://{folder / "mirror"}"\n\n'
            f'[sites.{site.name}]\nid = "{site.site_id}"\n{door.lines(folder.parent / site.name)}\n'
            f'data = [{data}]\nschema = "{site.schema}"\n\n[links.{site.name}]\nsite = "{site.name}"\n\n'
            f"[cluster]\nreplicas = {len(NODES)}\nquorum = 2\nslots = 100\n{nodes}"
        )
        self.site = site
        self.lost = 0  # files that the node lost

    def wipe_one(self) -> str:
        """Load the site's files into the nodes, and empty the folder of one meanwhile; it comes back with everything."""
        tidemark(self.settings, "cluster", "init", "--yes")
        tidemark(self.settings, "sync", self.site.name, "--no-load")
        struck = strike_in_the_middle(
            self.settings, ("load",), lambda: any((self.folder / WIPED).rglob("*.tsfile")), lambda _: self._wipe()
        )
        if not struck:
            self._wipe()
        self._put_empty_disk()  # the load may have written to the old one until its end
        tidemark(self.settings, "cluster", "check", "--repair", "--lost", WIPED, "--yes", allow=(0, 20))
        tidemark(self.settings, "replica", "watch")  # Airflow does it every minute: it finds that the log is gone too
        tidemark(self.settings, "load")  # the one that was hit may have left something
        roles = {
            member["role"]
            for group in tidemark(self.settings, "replica", "show")["groups"]
            for member in group["members"]
            if member["node"] == WIPED
        }
        verified = tidemark(self.settings, "replica", "verify")["groups"]
        roots = [{group["root"], *(member["root"] for member in group["members"])} for group in verified]
        if any(len(found) > 1 for found in roots) or not roles <= {"master", "slave"}:
            raise StoryBroke(f"node {WIPED} is {roles}, the digest trees are {roots}")
        now = " and ".join(sorted(roles))
        return f"{WIPED} lost {self.lost} files, and is {now} again; {len(roots)} groups with equal digest trees"

    def lose_ledger(self) -> str:
        """Delete the ledger, read by the nodes alone, rebuild it from them."""
        before = self._read("before")
        for path in self.folder.glob("ledger.db*"):
            path.unlink()
        shutil.rmtree(self.folder / "mirror" / "data", ignore_errors=True)
        alone = self._read("alone", "--from-nodes")
        tidemark(self.settings, "ledger", "rebuild")
        rebuilt = self._read("rebuilt")
        if not before == alone == rebuilt:
            raise StoryBroke("without the ledger, or with a rebuilt one, the nodes give other points")
        points = len(before.splitlines()) - 1
        return f"{points:,} points: equal by the nodes alone, and equal by a ledger rebuilt from them"

    def _wipe(self) -> None:
        self.lost = len(list((self.folder / WIPED).rglob("*.tsfile")))
        self._put_empty_disk()

    def _put_empty_disk(self) -> None:
        while any((self.folder / WIPED).iterdir()):  # a load that is at work makes folders while they are removed
            shutil.rmtree(self.folder / WIPED, ignore_errors=True)
            (self.folder / WIPED).mkdir(exist_ok=True)

    def _read(self, name: str, *words: str) -> bytes:
        out = self.folder / f"{name}.csv"
        tidemark(self.settings, "read", "--tall", "--out", str(out), *words)
        return out.read_bytes()
