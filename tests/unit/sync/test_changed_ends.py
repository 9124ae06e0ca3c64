"""A link whose site or receiver was changed in the settings: what it acknowledged was acknowledged between other ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.crash.edge import path_of
from tests.crash.sync_world import LINK, RECEIVER, SITE, SyncWorld
from tests.unit.sync.link_runs import opened, seal
from tidemark.app import App
from tidemark.errors import PermanentError
from tidemark.settings.model import Settings
from tidemark.sync import run as sync_link
from tidemark.sync.plan import plan_sync
from tidemark.sync.select.diff import OUTSIDE

OTHER = replace(RECEIVER, name="dr", store="memory://dr")


@contextmanager
def changed(world: SyncWorld, **sections: object) -> Iterator[App]:
    """The world under other settings."""
    with opened(world) as app:
        settings: Settings = replace(app.settings, **sections)  # type: ignore[arg-type]
        yield replace(app, settings=settings)


def refusals(app: App) -> list[PermanentError]:
    """What `plan_sync` and `sync` say."""
    found = []
    for command in (plan_sync, sync_link.run_sync):
        with pytest.raises(PermanentError) as refused:
            command(app, LINK.name)
        found.append(refused.value)
    return found


def test_another_receiver_is_told_with_the_way_to_send_it_everything(world: SyncWorld) -> None:
    seal(world, 1)
    world.sync()
    links = {LINK.name: replace(LINK, receiver="dr")}
    with changed(world, receivers={"centre": RECEIVER, "dr": OTHER}, links=links) as app:
        planned, synced = refusals(app)
        assert planned.as_json() == synced.as_json()
        assert planned.kind == 6
        assert "has sent its files to receiver centre, the settings say dr" in planned.message
        assert 'receiver = "dr"' in planned.hint and 'keeps receiver = "centre"' in planned.hint
    world.check()


def test_another_receiver_in_the_middle_of_a_run_gets_none_of_its_steps(world: SyncWorld) -> None:
    seal(world, 1)
    with opened(world) as app:
        run_id = sync_link.open_run(app, LINK.name)
        sync_link.select_files(app, run_id)
    with changed(world, receivers={"centre": RECEIVER, "dr": OTHER}, links={LINK.name: replace(LINK, receiver="dr")}) as app:
        with pytest.raises(PermanentError, match="has sent its files to receiver centre"):
            sync_link.transfer_files(app, run_id)
    world.sync()
    world.check()


def test_another_site_id_is_told_by_plan_as_by_sync(world: SyncWorld) -> None:
    seal(world, 1)
    world.sync()
    renewed = replace(SITE, id="99999999-0000-4000-8000-000000000001")
    with changed(world, sites={SITE.name: renewed}) as app:
        planned, synced = refusals(app)
        assert planned.as_json() == synced.as_json()
        assert f"belongs to site {SITE.id}, the settings say {renewed.id}" in planned.message
        assert f'set id = "{SITE.id}" again' in planned.hint and f'site = "{SITE.name}"' in planned.hint
    world.check()


@pytest.mark.parametrize("gone", [False, True])
def test_a_data_folder_taken_out_of_the_settings_is_named_and_drops_nothing(world: SyncWorld, gone: bool) -> None:
    (path,) = seal(world, 1)
    late = world.edge.seal(path_of(2, unsequence=True), extent={"root.sg.d1": (0, 5)})
    world.sync()
    if gone:
        world.edge.drop(path)
    world.site_settings = replace(SITE, data=("data/unsequence",))
    with opened(world) as app:
        planned = plan_sync(app, LINK.name)
        assert (planned.send, planned.drop) == ((), ())
        assert planned.skipped == ((path, OUTSIDE),)
    result = world.sync()
    assert (result.state, result.dropped, result.exit_code) == ("nothing", 0, 0)
    assert result.notes == (f"1 file is passed over, reason: {OUTSIDE}; ./tidemark plan {LINK.name} lists it",)
    world.edge.drop(late)
    world.edge.seal(path_of(3, unsequence=True), extent={"root.sg.d1": (0, 5)})
    assert world.sync().dropped == 1, "the folders that are left are judged as ever"
    seal(world, 4)
    world.site_settings = SITE
    result = world.sync()
    assert (result.dropped, result.notes) == (int(gone), ())
    world.check()


def test_the_new_link_that_the_hint_asks_for_sends_everything(world: SyncWorld) -> None:
    seal(world, 1)
    world.sync()
    second = replace(LINK, name="plant1-dr", receiver="dr")
    sections = {"receivers": {"centre": RECEIVER, "dr": OTHER}, "links": {LINK.name: LINK, "plant1-dr": second}}
    with changed(world, **sections) as app:
        assert len(plan_sync(app, "plant1-dr").send) == 1
