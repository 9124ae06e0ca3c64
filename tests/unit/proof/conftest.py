"""A small deployment on local folders: one real site, one receiver, a ledger, all through the real flows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.centre import run_inline
from tidemark.app import App
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import this_process
from tidemark.ledger.migrations import migrate_ledger
from tidemark.receiver.load.load import load
from tidemark.settings.model import LedgerSettings, LinkSettings, ReceiverSettings, Settings, SiteSettings
from tidemark.sync.run import Options, run_sync

REAL = Path(__file__).parents[2] / "data" / "iotdb" / "2.0.1-beta"
SITE_ID = "11111111-2222-4333-8444-555555555555"
DATA = ("data/datanode/data/sequence", "data/datanode/data/unsequence")


@dataclass
class Deployment:
    """`site`: the site's folder, a copy of a real server's; `centre`: the receiver's."""

    app: App
    site: Path
    centre: Path

    @property
    def receiver(self) -> ReceiverSettings:
        return self.app.settings.receivers["centre"]

    def sync(self, **options: object) -> None:
        """One run, then a load where the receiver is here."""
        run_sync(self.app, "plant1", Options(**options))  # type: ignore[arg-type]

    def load(self) -> None:
        load(self.app, self.receiver)

    def files(self) -> list[Path]:
        """The site's TsFiles with a .resource."""
        return [p for p in sorted(self.site.rglob("*.tsfile")) if p.with_name(p.name + ".resource").exists()]

    def path(self, file: Path) -> str:
        return file.relative_to(self.site).as_posix()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.full, pytest.mark.real("postgresql")])])
def deploy(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int | None], Deployment]]:
    """Make a deployment whose site has the first `files` real TsFiles (all: None). Its ledger on either database.

    Files are checked and merged in this process."""
    run_inline(monkeypatch)
    opened: list[Ledger] = []
    sqlite = f"sqlite:///{tmp_path / 'ledger.db'}"
    url = sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_ledger_url")

    def make(files: int | None = 6) -> Deployment:
        site, centre = tmp_path / "site", tmp_path / "centre"
        real = sorted((REAL / "data").rglob("*.tsfile"))
        for source in real[:files]:
            target = site / source.relative_to(REAL)
            target.parent.mkdir(parents=True, exist_ok=True)
            for companion in source.parent.glob(source.name + "*"):
                shutil.copy2(companion, target.parent)
        (site / DATA[1]).mkdir(parents=True, exist_ok=True)
        centre.mkdir()
        settings = Settings(
            path=tmp_path / "tidemark.toml",
            ledger=LedgerSettings(url),
            receivers={"centre": ReceiverSettings("centre", f"file://{centre}")},
            sites={"plant1": SiteSettings("plant1", SITE_ID, f"file://{site}", data=DATA)},
            links={"plant1": LinkSettings("plant1", "plant1", "centre")},
        )
        ledger = Ledger(settings.ledger.url)
        opened.append(ledger)
        migrate_ledger(ledger)
        return Deployment(App(settings, ledger, this_process()), site, centre)

    yield make
    for ledger in opened:
        ledger.close()
