"""A glance from before the run saves time and decides nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.edge import path_of
from tests.crash.explorer import Effects
from tests.crash.sync_world import SyncWorld
from tests.services import sshd
from tidemark.app import App
from tidemark.errors import RetryableError, UsageError
from tidemark.settings.load import load_settings
from tidemark.stores.listing import list_names
from tidemark.stores.local import LocalStore
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Listing, Store, StoreAddress
from tidemark.sync.early_listing.arriving import list_in_child
from tidemark.sync.early_listing.begin import LocalListing, RemoteListing, begin_listing
from tidemark.sync.early_listing.store import PrefetchedStore
from tidemark.sync.plan import plan_sync
from tidemark.tsfiles.names import RESOURCE

DATA = ("data/sequence", "data/unsequence")


@pytest.fixture
def world() -> Iterator[SyncWorld]:
    world = SyncWorld.on_disk()
    for number in (1, 2):
        world.edge.seal(path_of(number), extent={"root.sg.d1": (number * 10, number * 10 + 9)})
    world.sync()
    yield world
    world.close()


def with_glance(world: SyncWorld, found: Listing) -> App:
    """An app whose site was glanced at before."""
    app = world.app(Effects())
    later = app.opener

    def opened(address: StoreAddress) -> Store:
        store = later(address)
        return PrefetchedStore(store, DATA, found) if address.url == app.site_settings("plant1").store else store

    app.opener = opened
    return app


def test_what_was_acknowledged_since_is_not_taken_for_changed(world: SyncWorld) -> None:
    old = list_names(world.site, DATA, RESOURCE)
    world.edge.delete_points(path_of(1))
    world.edge.seal(path_of(3), extent={"root.sg.d1": (30, 39)})
    world.sync()
    assert plan_sync(with_glance(world, old), "plant1").state == "nothing"


def test_a_folder_in_which_something_differs_is_looked_at_again(world: SyncWorld) -> None:
    world.edge.seal(path_of(3), extent={"root.sg.d1": (30, 39)})
    old = list_names(world.site, DATA, RESOURCE)
    world.edge.seal(path_of(4), extent={"root.sg.d1": (40, 49)})
    found = plan_sync(with_glance(world, old), "plant1")
    assert {path for path, _ in found.send} == {path_of(3), path_of(4)}


def test_one_glance_is_handed_out_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1").touch()
    address = StoreAddress(f"file://{tmp_path}")
    opener = RemoteListing(address, ("data",)).make_opener(open_store)
    first, second = opener(address), opener(address)
    (tmp_path / "data" / "2").touch()
    seen = [len(store.list_names(("data",), RESOURCE).entries) for store in (first, first, second)]  # type: ignore[attr-defined]
    assert seen == [1, 2, 2]
    assert isinstance(second, LocalStore)


def test_other_addresses_are_opened_as_ever(tmp_path: Path) -> None:
    opener = RemoteListing(StoreAddress(f"file://{tmp_path}/a"), ("data",)).make_opener(open_store)
    assert opener(StoreAddress(f"file://{tmp_path}/b")).url.endswith("/b")


def test_what_goes_wrong_early_is_told_when_the_store_is_opened() -> None:
    address = StoreAddress("ftp://site/data")
    opener = RemoteListing(address, ("data",)).make_opener(open_store)
    with pytest.raises(UsageError, match="neither file"):
        opener(address)


def test_a_local_site_is_glanced_at_by_a_child(tmp_path: Path) -> None:
    for name in ("a/1", "a/2.tsfile.resource", "b/c/3"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(b"x")
    (tmp_path / "data" / "link").symlink_to("a")
    folders, address = ("data", "gone"), StoreAddress(f"file://{tmp_path}")
    store = LocalListing(address, folders).make_opener(open_store)(address)
    found, whole = store.list_names(folders, RESOURCE), LocalStore(str(tmp_path)).list_names(folders, RESOURCE)  # type: ignore[attr-defined]
    assert (list(found.entries), list(found.missing), list(found.odd)) == (
        list(whole.entries),
        list(whole.missing),
        list(whole.odd),
    )
    assert (len(found.entries), found.entries[-1].path, found.partial) == (3, "data/b/c/3", True)


def test_a_child_that_dies_is_an_error_that_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.stores.python.child_pipe._CHILD", "import sys; print('hello'); sys.exit(3)")
    address = StoreAddress(f"file://{tmp_path}")
    store = LocalListing(address, ("data",)).make_opener(open_store)(address)
    found = store.list_names(("data",), RESOURCE)  # type: ignore[attr-defined]
    with pytest.raises(RetryableError, match="ended"):
        list(found.entries)


@pytest.mark.parametrize(
    ("store", "window", "looks"),
    [("file:///x", "", True), ("file:///x", "closed", False), ("sftp://u@h/x", "closed", False)],
)
def test_no_site_is_looked_at_outside_its_window(tmp_path: Path, store: str, window: str, looks: bool) -> None:
    from datetime import UTC, datetime, timedelta

    at = datetime.now(UTC) + timedelta(hours=3)
    closed = f"{at:%H:%M}-{at + timedelta(hours=1):%H:%M}" if window else ""
    file = tmp_path / "tidemark.toml"
    file.write_text(
        f'[receivers.c]\nstore = "file://{tmp_path}/c"\n[sites.s]\nid = "00000000-0000-4000-8000-000000000001"\n'
        f'store = "{store}"\nhost_key = "SHA256:{"a" * 43}"\n[links.l]\nsite = "s"\nreceiver = "c"\nwindow = "{closed}"\n'
    )
    assert bool(begin_listing(load_settings(file, {**os.environ, "TIDEMARK__LEDGER__URL": "sqlite:///l.db"}), "l")) is looks


def test_a_glance_that_broke_off_is_made_again(world: SyncWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tidemark.stores.python.child_pipe._CHILD", "import sys; print('hello'); sys.exit(3)")
    broken = list_in_child(str(tmp_path), DATA, RESOURCE)
    world.edge.seal(path_of(3), extent={"root.sg.d1": (30, 39)})
    found = plan_sync(with_glance(world, broken), "plant1")
    assert [path for path, _ in found.send] == [path_of(3)]


@pytest.mark.real("sshd")
@pytest.mark.parametrize(("far_end", "sessions"), [("shell", "10"), ("shell", "1"), ("posix", "10"), ("sftp", "1")])
def test_a_remote_site_is_glanced_at_early_whatever_it_can_run(far_end: str, sessions: str) -> None:
    server = sshd.start(sshd.FarEnd(far_end), {"MaxSessions": sessions})
    try:
        root = server.new_folder()
        names = ["1.tsfile", "1.tsfile.resource", "a/2.tsfile", *(f"b/{n // 100}/{n}.tsfile" for n in range(3_000))]
        for name in names:
            (root / "data" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "data" / name).write_bytes(b"x")
        address = StoreAddress(server.url(root), server.host_key, str(server.key))
        store = RemoteListing(address, ("data", "gone")).make_opener(open_store)(address)
        beside = store.list_folder("data")  # while the glance may still be under way
        found = store.list_names(("data", "gone"), RESOURCE)  # type: ignore[attr-defined]
        assert (beside, found.partial, list(found.missing)) == (["1.tsfile", "1.tsfile.resource", "a", "b"], True, ["gone"])
        assert [e.path for e in found.entries] == sorted(f"data/{name}" for name in names)
        store.close()
    finally:
        server.close()
