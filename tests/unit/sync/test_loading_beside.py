"""A sync whose receiver is here loads while it ends its run at the site; neither waits for the other to go well."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidemark.app import App
from tidemark.engines import spark as spark_engine
from tidemark.errors import PermanentError, UnreachableError
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import this_process
from tidemark.ledger.migrations import migrate_ledger
from tidemark.ledger.sender import runs as run_rows
from tidemark.receiver.load.load import load
from tidemark.settings.model import LedgerSettings, LinkSettings, ReceiverSettings, Settings, SiteSettings, SparkSettings
from tidemark.stores.local import LocalStore
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress
from tidemark.sync import run as sync_loading
from tidemark.sync.run import Options, open_run, run_sync
from tidemark.sync.steps import STEPS, one_step

REAL = Path(__file__).parents[2] / "data" / "iotdb" / "2.0.1-beta"
SITE_ID = "11111111-2222-4333-8444-555555555555"
SEQUENCE = "data/datanode/data/sequence"
FILES = 3


class Away(LocalStore):
    """A site that is gone when its links are to be removed: a disk of this machine never is."""

    def remove_tree(self, folder: str) -> None:
        raise UnreachableError("the site does not answer")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """A site with three sealed files of a real server, and a receiver, both on this disk."""
    site, centre = tmp_path / "site", tmp_path / "centre"
    for source in sorted((REAL / SEQUENCE).rglob("*.tsfile"))[:FILES]:
        target = site / source.relative_to(REAL)
        target.parent.mkdir(parents=True, exist_ok=True)
        for companion in source.parent.glob(source.name + "*"):
            shutil.copy2(companion, target.parent)
    centre.mkdir()
    settings = Settings(
        path=tmp_path / "tidemark.toml",
        ledger=LedgerSettings(f"sqlite:///{tmp_path / 'ledger.db'}"),
        receivers={"centre": ReceiverSettings("centre", f"file://{centre}")},
        sites={"plant1": SiteSettings("plant1", SITE_ID, f"file://{site}", data=(SEQUENCE,))},
        links={"plant1": LinkSettings("plant1", "plant1", "centre")},
    )
    ledger = Ledger(settings.ledger.url)
    migrate_ledger(ledger)
    yield App(settings, ledger, this_process())
    ledger.close()


def state_of(app: App) -> tuple[str, str]:
    """Of the link's only run and its only landing."""
    with app.ledger.read() as connection:
        (landing,) = run_rows.sent_landings(connection, "plant1")
        run = run_rows.get_run(connection, landing.run_id)
    assert run is not None
    return run.state, landing.state


def links_of(app: App) -> list[Path]:
    site = Path(app.settings.sites["plant1"].store.removeprefix("file://"))
    return [path for path in site.rglob("*") if ".tidemark" in path.parts and path.is_file()]


def test_a_sync_comes_back_with_its_run_ended_and_its_files_loaded(app: App) -> None:
    result = run_sync(app, "plant1", Options())
    assert (result.state, result.files, result.loaded, result.pending) == ("loaded", FILES, FILES, 0)
    assert links_of(app) == []
    assert state_of(app) == ("finished", "answered")


@pytest.mark.full
def test_what_landed_is_loaded_though_the_site_went_away_at_the_end(app: App) -> None:
    def opener(address: StoreAddress) -> Store:
        return Away(address.url.removeprefix("file://")) if address.url.endswith("/site") else open_store(address)

    whole, app.opener = app.opener, opener
    with pytest.raises(UnreachableError, match="does not answer"):
        run_sync(app, "plant1", Options())
    with app.ledger.read() as connection:
        assert run_rows.unfinished_run(connection, "plant1") is not None
    assert links_of(app)
    app.opener = whole
    again = run_sync(app, "plant1", Options())
    assert (again.state, again.loaded) == ("landed", 0), "they were loaded already, and are answered now"
    assert links_of(app) == []


def test_what_was_sent_lands_on_a_machine_where_spark_is_wanted_and_no_java_is(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> Path:
        raise PermanentError("no Java here")

    monkeypatch.setattr(spark_engine, "ensure_java", absent)
    app.settings = replace(app.settings, spark=SparkSettings(engine="spark"))
    with pytest.raises(PermanentError, match="no Java here"):
        run_sync(app, "plant1", Options())
    assert state_of(app) == ("finished", "landed")


@pytest.mark.full
def test_a_run_of_very_many_files_is_ended_before_it_is_loaded(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_loading, "BESIDE_FILES", 0)
    assert run_sync(app, "plant1", Options()).state == "loaded"
    assert state_of(app) == ("finished", "answered")


@pytest.mark.full
def test_a_landing_holds_what_its_manifest_names_and_after_the_load_its_papers_alone(app: App) -> None:
    """A try that broke off left whole files of an item that is not in this part; another, a paper that got no name."""
    run = open_run(app, "plant1")
    for step in STEPS[: STEPS.index("finish")]:
        one_step(app, run, step)
    landing = Path(app.settings.receivers["centre"].store.removeprefix("file://")) / "landing" / SITE_ID / f"{run}-1"
    left = landing / SEQUENCE / "root.sg/0/0/9-9-0-0.tsfile.resource"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"whole, and nobody's")
    one_step(app, run, "finish")
    assert not left.exists() and (landing / "manifest.json").exists()
    (landing / "manifest.json.1a2b.tmp").write_bytes(b"{")
    assert load(app, app.receiver_settings("centre")).loaded == FILES
    assert sorted(path.name for path in landing.rglob("*")) == ["manifest.json", "receipt.json"]
