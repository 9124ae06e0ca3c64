"""A site with a prefix: its devices stand below it in the catalog, whoever reads them, and its files stay as they came."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.centre import Centre, InlineEngine, d1, run_inline
from tests.expected import SITES
from tests.landing_maker import SITE_A, Sender
from tests.rebuild_world import PLANT1, PLANT2, World
from tests.small_files import deletion, sealed, source
from tidemark.catalog_source import plan_catalog
from tidemark.errors import CorruptionError, OwnershipError, PermanentError
from tidemark.formats.landing import decode_manifest
from tidemark.formats.layout import MANIFEST
from tidemark.operations.decisions import owners_transfer
from tidemark.proof.prove import coverage
from tidemark.receiver.iotdb.plan import Limits, SourceStatus, plan_load
from tidemark.receiver.merge.merge import merge
from tidemark.receiver.view import Asked, find_seen
from tidemark.sync.plan import plan_sync
from tidemark.sync.run import open_run, select_files
from tidemark.tsfiles.devices import put_below
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.spark.scan_plan import shape_of, tasks_of
from tidemark.tsfiles.spark.scan_read import TaskReader

SHIP = "root.`ship-7`"
MINE, BELOW = "root.sg.d1", "root.`ship-7`.sg.d1"


def two_sites(folder: Path, prefix: str = SHIP, **options: Any) -> World:
    """plant1 and plant2, of which plant2 has the prefix."""
    world = World(folder, real=False, **options)
    sites = {**world.settings.sites, "plant2": replace(world.settings.sites["plant2"], prefix=prefix)}
    world.settings = replace(world.settings, sites=sites)
    world.reopen()
    return world


@pytest.fixture(autouse=True)
def _without_children(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Both sites have the same devices, and the second also deletions and a file that wins."""
    world = two_sites(tmp_path)
    world.add("plant1", source(1), d1((1, 10), (2, 20)))
    world.add("plant2", source(1), d1((1, 100), (2, 200), (3, 300), mods=deletion("root.sg.*.s", 3, 3)))
    world.add("plant2", source(2), d1((2, 222)))
    return world


def bring(world: World) -> None:
    for link in ("plant1", "plant2"):
        world.sync(link)


def told(*points: tuple[int, int], device: str = BELOW) -> list[tuple[Any, ...]]:
    return [(device, "s", time, "INT64", str(value)) for time, value in points]


BOTH = told((1, 100), (2, 222)) + told((1, 10), (2, 20), device=MINE)


def test_two_sites_with_the_same_devices_are_both_read(world: World) -> None:
    bring(world)
    assert world.rows() == BOTH
    assert world.sql("SELECT device, name FROM owner JOIN site USING (site_id) ORDER BY device") == [
        (BELOW, "plant2"),
        (MINE, "plant1"),
    ]
    assert world.sql("SELECT DISTINCT database_name FROM catalog_file ORDER BY 1") == [("root.`ship-7`.sg",), ("root.sg",)]
    assert world.sql("SELECT COUNT(*) FROM refusal") == [(0,)]


def test_the_files_are_those_that_came(world: World) -> None:
    bring(world)
    sent = (world.folder / "plant2" / source(2)).read_bytes()
    ((location,),) = world.sql("SELECT location FROM catalog_file WHERE prefix <> '' AND path = :p", p=source(2))
    assert (world.centre / location).read_bytes() == sent


def test_a_merge_changes_no_point_and_its_files_hold_the_catalog_s_names(world: World) -> None:
    bring(world)
    merge(world.app, world.receiver, engine=InlineEngine())
    assert world.rows() == BOTH
    ((location, prefix),) = world.sql("SELECT location, prefix FROM catalog_file WHERE role = 'merged'")
    assert prefix == ""
    with TsFile(world.centre / location) as merged:
        assert merged.list_devices() == [BELOW]


def covered(world: World) -> dict[str, set[str]]:
    """Site → the devices of its coverage, which is whole."""
    found = coverage(world.app, world.receiver)
    assert found.is_complete
    return {site.site: {stretch.device for stretch in site.stretches} for site in found.sites}


def test_every_point_is_proved_by_the_site_and_coverage_has_the_catalog_s_names(world: World) -> None:
    bring(world)
    world.check_proofs()
    assert covered(world) == {"plant1": {MINE}, "plant2": {BELOW}}


def test_what_has_not_come_yet_is_missed_under_the_catalog_s_name(world: World) -> None:
    bring(world)
    world.add("plant2", source(3), d1((9, 9)))
    run_id = open_run(world.app, "plant2")
    select_files(world.app, run_id)
    red = coverage(world.app, world.receiver).as_json()["red"]
    assert {cell["device"] for cell in red} == {BELOW}


def test_a_compaction_at_the_site_leaves_what_the_compacted_file_holds(world: World) -> None:
    bring(world)
    world.add("plant2", source(2, inner=1), d1((1, 100), (2, 222)))
    for version in (1, 2):
        world.remove("plant2", source(version))
    world.sync("plant2")
    assert world.rows() == BOTH
    paths = world.sql("SELECT path FROM catalog_file WHERE state = 'live' AND prefix <> ''")
    assert paths == [(source(2, inner=1),)]
    world.check_proofs()


def test_spark_plans_the_rows_that_read_shows(world: World) -> None:
    bring(world)
    merge(world.app, world.receiver, engine=InlineEngine())
    world.add("plant2", source(3), d1((9, 9)))
    world.sync("plant2")
    given = {"ledger": str(world.app.ledger.engine.url), "receiver": "centre", "store": str(world.centre), "layout": "tall"}
    asked, found = plan_catalog(given)
    shape = shape_of(found, asked.cut)
    reader = TaskReader(shape, asked.unit, asked.lenient)
    rows = [row for task in tasks_of(found, asked.cut, shape) for b in reader.read_task(task) for row in b.to_pylist()]
    assert sorted(tuple(row.values())[:3] for row in rows) == sorted(row[:3] for row in world.rows())
    assert (BELOW, "s", 9) in [tuple(row.values())[:3] for row in rows]


def test_a_rebuilt_ledger_knows_it(world: World) -> None:
    bring(world)
    before = world.facts()
    world.lose_ledger()
    assert world.rebuild().exit_code == 0
    assert world.facts() == before and world.rows() == BOTH
    world.check_proofs()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("now", ["", "root.ship8"])
def test_another_prefix_after_the_first_landing_is_refused_with_the_way(world: World, now: str) -> None:
    bring(world)
    sites = {**world.settings.sites, "plant2": replace(world.settings.sites["plant2"], prefix=now)}
    world.settings = replace(world.settings, sites=sites)
    world.reopen()
    for command in (lambda: world.sync("plant2"), lambda: plan_sync(world.app, "plant2")):
        with pytest.raises(PermanentError, match=f'with prefix "{SHIP}", the settings say "{now}"') as refused:
            command()
        assert f'prefix = "{SHIP}"' in refused.value.hint and "new id" in refused.value.hint
    world.lose_ledger()
    world.rebuild()
    with pytest.raises(PermanentError, match="with prefix"):
        world.sync("plant2")
    assert world.rows() == BOTH


def test_a_plan_tells_what_a_prefix_makes_collide_before_a_byte_is_sent(tmp_path: Path) -> None:
    world = two_sites(tmp_path, prefix="root.sg")
    world.add("plant1", source(1), sealed({"root.sg.sg.d1": {"s": [(1, 1)]}}))
    world.add("plant2", source(1), d1((1, 100)))
    world.sync("plant1")
    (told_of,) = plan_sync(world.app, "plant2").conflicts
    assert told_of == (source(1), "root.sg.sg.d1", PLANT1)
    assert not (world.centre / "landing" / PLANT2).exists()


def same_names(folder: Path, **options: Any) -> World:
    """Two new sites with the same device and no prefix, of which plant2 has another device as well."""
    world = two_sites(folder, prefix="", **options)
    world.add("plant1", source(1), d1((1, 10)))
    world.add("plant2", source(1), d1((1, 100)))
    world.add("plant2", source(2), sealed({"root.sg.d2": {"s": [(1, 1)]}}))
    return world


def refuse_first_sync(world: World, link: str, owner: str) -> OwnershipError:
    """It is refused before a byte is sent, and leaves no link at the site."""
    with pytest.raises(
        OwnershipError, match=rf"{MINE} of site {link} belongs to site {owner} at receiver centre: nothing was sent"
    ) as refused:
        world.sync(link)
    assert not (world.centre / "landing" / world.settings.sites[link].id).exists()
    assert not [place for place in (world.folder / link).rglob("*.tsfile") if ".tidemark" in place.parts]
    assert plan_sync(world.app, link).state == "conflict"
    return refused.value


def test_a_first_sync_of_another_site_s_devices_is_refused_until_it_has_a_prefix(tmp_path: Path) -> None:
    world = same_names(tmp_path)
    world.sync("plant1")
    hint = refuse_first_sync(world, "plant2", "plant1").hint
    assert 'prefix = "root.plant2" in [sites.plant2]' in hint
    sites = {**world.settings.sites, "plant2": replace(world.settings.sites["plant2"], prefix="root.plant2")}
    world.settings = replace(world.settings, sites=sites)
    world.reopen()
    assert world.sync("plant2").loaded == 2
    assert [row[0] for row in world.rows()] == ["root.plant2.sg.d1", "root.plant2.sg.d2", MINE]


def test_or_until_the_devices_are_its_own(tmp_path: Path) -> None:
    world = same_names(tmp_path)
    world.sync("plant1")
    assert "owners transfer PATTERN --to plant2" in refuse_first_sync(world, "plant2", "plant1").hint
    owners_transfer(world.app, world.receiver, MINE, "plant2")
    assert world.sync("plant2").loaded == 2


def test_or_until_the_link_leaves_them_out(tmp_path: Path) -> None:
    world = same_names(tmp_path)
    world.sync("plant1")
    assert "exclude the devices in [links.plant2]" in refuse_first_sync(world, "plant2", "plant1").hint
    links = {**world.settings.links, "plant2": replace(world.settings.links["plant2"], exclude=(MINE,))}
    world.settings = replace(world.settings, links=links)
    world.reopen()
    assert world.sync("plant2").loaded == 1


@pytest.mark.parametrize("far", ["selected", "landed"])
def test_who_has_selected_first_is_first_though_nothing_is_loaded(tmp_path: Path, far: str) -> None:
    world = same_names(tmp_path)
    if far == "selected":
        select_files(world.app, open_run(world.app, "plant1"))
    else:
        world.sync("plant1", no_load=True)
    refuse_first_sync(world, "plant2", "plant1")
    world.settings = replace(world.settings, links={"plant2": world.settings.links["plant2"]})
    world.reopen()
    assert world.sync("plant2", no_load=True).files == 2, "a link that the settings have no more stands in nobody's way"


@pytest.mark.full
def test_the_same_with_a_ledger_in_postgresql(tmp_path: Path, postgres_url: str) -> None:
    world = same_names(tmp_path, url=postgres_url)
    select_files(world.app, open_run(world.app, "plant1"))
    refuse_first_sync(world, "plant2", "plant1")
    world.sync("plant1")
    refuse_first_sync(world, "plant2", "plant1")


def test_a_site_that_has_sent_goes_on_beside_a_device_that_is_another_s(tmp_path: Path) -> None:
    world = same_names(tmp_path)
    world.sync("plant1")
    world.remove("plant2", source(1))
    world.sync("plant2")
    world.add("plant2", source(1), d1((1, 100)))
    assert plan_sync(world.app, "plant2").state == "ready"
    assert world.sync("plant2").refused == 1


def bring_works(world: World, site: str) -> None:
    """The real files of database works, of the table model, with their companions."""
    root = SITES["2.0.1-beta"].root / "data/datanode/data"
    for place in (place for place in root.glob("*/works/*/*/*") if place.is_file()):
        world.add(site, f"data/{place.relative_to(root)}", {"": place.read_bytes()})


@pytest.mark.full
def test_a_database_of_the_table_model_stands_below_the_prefix_too(tmp_path: Path) -> None:
    world = two_sites(tmp_path)
    for site in ("plant1", "plant2"):
        bring_works(world, site)
    bring(world)
    rows = sorted(world.rows())
    first = [row for row in rows if row[0].startswith("works.")]
    assert first and rows == sorted([*first, *(("`ship-7_works`" + row[0][5:], *row[1:]) for row in first)])
    assert world.sql("SELECT COUNT(*) FROM refusal") == [(0,)]
    assert world.sql("SELECT DISTINCT database_name FROM catalog_file ORDER BY 1") == [("ship-7_works",), ("works",)]
    world.check_proofs()
    both = covered(world)
    assert both["plant2"] == {"`ship-7_works`" + device[5:] for device in both["plant1"]}
    merge(world.app, world.receiver, engine=InlineEngine())
    assert sorted(world.rows()) == rows
    before = world.facts()
    world.lose_ledger()
    assert world.rebuild().exit_code == 0
    assert world.facts() == before and sorted(world.rows()) == rows
    world.check_proofs()


def test_the_series_of_a_schema_log_stand_below_the_prefix(tmp_path: Path) -> None:
    site, found = SITES["2.0.1-beta"], []
    log = f"{site.schema}/root.plant1/0/mlog.bin"
    for prefix in ("", "root.ship7"):
        centre = Centre(tmp_path / f"centre{len(prefix)}")
        sender = centre.sender(data=site.data)
        sender.land(schema=[(log, 1, 0, (site.root / log).read_bytes())], prefix=prefix)
        assert centre.load().troubles == ()
        found.append(centre.sql("SELECT series, database_name, state FROM schema_series"))
    plain, below = found
    assert plain and sorted(below) == sorted(
        (put_below("root.ship7", s), put_below("root.ship7", d), x) for s, d, x in plain
    )


def set_prefix(world: World, prefix: str) -> None:
    """In the settings of whoever loads."""
    site = replace(world.settings.sites["plant2"], prefix=prefix)
    world.settings = replace(world.settings, sites={**world.settings.sites, "plant2": site})
    world.reopen()


def test_a_landing_with_another_prefix_than_the_receiver_s_settings_waits_with_the_way(tmp_path: Path) -> None:
    world = two_sites(tmp_path)
    world.add("plant2", source(1), d1((1, 100)))
    world.sync("plant2", no_load=True)
    set_prefix(world, "root.ship8")
    (trouble,) = world.load().troubles
    assert f'sent with prefix "{SHIP}"' in trouble.reason and f'write prefix = "{SHIP}"' in trouble.reason
    assert world.rows() == []
    set_prefix(world, SHIP)
    assert world.load().troubles == () and world.rows() == told((1, 100))


def test_a_landing_with_another_prefix_than_the_one_before_is_refused(tmp_path: Path) -> None:
    centre = Centre(tmp_path)
    sender = centre.sender()
    sender.land({source(1): d1((1, 1))}, prefix=SHIP)
    assert centre.load().troubles == ()
    sender.land({source(2): d1((2, 2))})
    (trouble,) = centre.load().troubles
    assert f'has prefix "{SHIP}" and this came with ""' in trouble.reason and "new id" in trouble.reason
    assert centre.rows() == told((1, 1))


def test_before_the_first_landing_a_prefix_may_change(tmp_path: Path) -> None:
    world = two_sites(tmp_path, prefix="")
    world.sync("plant2")  # nothing to send
    site = replace(world.settings.sites["plant2"], prefix=SHIP)
    world.settings = replace(world.settings, sites={**world.settings.sites, "plant2": site})
    world.reopen()
    world.add("plant2", source(1), d1((1, 1)))
    world.sync("plant2")
    assert world.rows() == told((1, 1))


def test_deletions_that_come_late_and_a_refused_file_that_loads_later_have_the_prefix(tmp_path: Path) -> None:
    world = two_sites(tmp_path, prefix="root.sg")
    world.add("plant1", source(1), sealed({"root.sg.sg.d1": {"s": [(1, 1)]}}))  # is in the way
    world.add("plant2", source(8), sealed({"root.own.d1": {"s": [(1, 1)]}}))  # its first sync meets nobody
    bring(world)
    world.add("plant2", source(1), d1((1, 100), (2, 200)))
    world.sync("plant2")
    assert world.rows() == told((1, 1), device="root.sg.own.d1") + told((1, 1), device="root.sg.sg.d1")
    ((device,),) = world.sql("SELECT device FROM refusal")
    assert device == "root.sg.sg.d1"
    owners_transfer(world.app, world.receiver, device, "plant2")
    assert world.rows()[-2:] == told((1, 100), (2, 200), device=device)
    world.add("plant2", source(1), {".mods": deletion("root.sg.d1.s", 2, 2).encode()})
    world.sync("plant2")
    assert told((2, 200), device=device)[0] not in world.rows()


def test_a_server_gets_the_points_under_the_catalog_s_names_or_none(world: World) -> None:
    bring(world)
    seen = find_seen(world.app, world.receiver, Asked(devices=(BELOW,)))
    standings = [SourceStatus(file, tuple(seen.held[file.file_id]), "new", False) for file in seen.files]
    plan = plan_load(standings, (), Limits(4, True))
    assert [one.file.path for one in plan.points] == [source(1), source(2)] and not plan.batches
    older = [replace(one, file=replace(one.file, format=3)) for one in standings]
    assert all(SHIP in held.reason for held in plan_load(older, (), Limits(3, False)).held)


def test_a_manifest_without_a_prefix_has_the_format_that_older_receivers_read(tmp_path: Path) -> None:
    sender = Sender(tmp_path)
    assert b'{"format":1,' in (sender.land({source(1): d1((1, 1))}) / MANIFEST).read_bytes()
    data = (sender.land({source(2): d1((2, 2))}, prefix=SHIP) / MANIFEST).read_bytes()
    assert b'{"format":2,' in data and decode_manifest(data).prefix == SHIP


@pytest.mark.parametrize(
    "wrong", ["ship7", "root", "root.", "root.*", "root.`ship7`", "root.ship-7", "root.7", "root..a", 7]
)
def test_a_manifest_with_another_spelling_of_a_prefix_is_refused(tmp_path: Path, wrong: Any) -> None:
    data = (Sender(tmp_path, SITE_A).land(change={"prefix": wrong}) / MANIFEST).read_bytes()
    with pytest.raises(CorruptionError):
        decode_manifest(data)
