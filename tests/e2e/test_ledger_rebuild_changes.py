"""What changed before the ledger was lost: files, deletions, vanished files, owners, quarantine, runs cut off half-way.

Each test loses the ledger and compares the rebuilt one with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.centre import run_inline
from tests.rebuild_world import PLANT2, World
from tests.services.sshd import Sshd
from tests.small_files import deletion, sealed, source
from tidemark.ledger.leases import Leases
from tidemark.operations.decisions import (
    approve_run,
    owners_dismiss,
    owners_transfer,
    quarantine_drop,
    quarantine_list,
    quarantine_release,
)
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.progress import Tick
from tidemark.receiver.merge.merge import merge
from tidemark.sync.adopt import adopt
from tidemark.sync.run import open_run, recover, run_sync, select_files, sync_schema, transfer_files
from tidemark.sync.session import PartLimits


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, real=False, deletes="apply")
    yield made
    made.app.ledger.close()


def points(device: str, *values: tuple[int, int], mods: str = "") -> dict[str, bytes]:
    return sealed({f"root.sg.{device}": {"s": values}}, mods)


def same_after_loss(world: World, but: Collection[str] = ()) -> None:
    rows, facts, covered = world.rows(), world.facts(), world.coverage()
    world.lose_ledger()
    result = world.rebuild()
    assert (result.findings.troubles, result.findings.lost, result.findings.unknown) == ([], [], [])
    found = world.facts()
    for table in facts.keys() - but:
        assert found[table] == facts[table], table
    assert world.rows() == rows
    again = world.coverage()
    for before, after in zip(covered["sites"], again["sites"], strict=True):
        proved, proved_now = before.pop("as_of"), after.pop("as_of")
        assert proved_now == proved or (proved_now or "") < (proved or ""), "a run without a landing stands in no manifest"
    assert again == covered
    world.check_proofs()


class TestFiles:
    def test_other_content_and_grown_deletions_are_generations(self, world: World) -> None:
        world.add("plant1", source(1), points("d1", (1, 10), (2, 20)))
        world.add("plant1", source(2), points("d2", (1, 1), (2, 2)))
        world.sync()
        world.add("plant1", source(1), points("d1", (1, 11), (2, 21), (3, 31)))
        world.add("plant1", source(2), {".mods": deletion("root.sg.d2.s", 1, 1).encode()})
        world.sync()
        world.add("plant1", source(2), {".mods": deletion("root.sg.d2.s", 1, 2).encode() * 2})
        world.sync()
        assert world.sql("SELECT MAX(generation) FROM file") == [(3,)]
        same_after_loss(world)

    @pytest.mark.full
    def test_superseded_and_dropped_files(self, world: World) -> None:
        for version in range(1, 9):
            world.add("plant1", source(version), points(f"d{version}", (version, version)))
        world.sync()
        for version in (1, 2):
            world.remove("plant1", source(version))
        both = {"root.sg.d1": {"s": [(1, 1)]}, "root.sg.d2": {"s": [(2, 2)]}}
        world.add("plant1", source(1, inner=1), sealed(both))
        world.sync()
        world.remove("plant1", source(8))
        assert world.sync().dropped == 1
        assert len(world.rows()) == 7
        same_after_loss(world)

    @pytest.mark.full
    @pytest.mark.parametrize("deletes", ["keep"])
    def test_dropped_files_that_are_kept_stay_marked(self, tmp_path: Path, deletes: str) -> None:
        world = World(tmp_path, real=False, deletes=deletes)
        for version in range(1, 9):
            world.add("plant1", source(version), points(f"d{version}", (version, version)))
        world.sync()
        world.remove("plant1", source(8))
        world.sync()
        assert world.sql("SELECT path FROM catalog_file WHERE marked = 'dropped'") == [(source(8),)]
        same_after_loss(world)

    @pytest.mark.full_after(1)
    @pytest.mark.parametrize("deletes", ["keep", "apply"])
    def test_vanished_files_whose_bytes_were_removed(self, tmp_path: Path, deletes: str) -> None:
        """Compacted, compacted again, dropped, or merged and settled as kept files: nothing of them is lost or waits."""
        world = World(tmp_path, real=False, deletes=deletes, settle_days=0)
        for version in range(1, 9):
            world.add("plant1", source(version), points(f"d{(version + 1) // 2}", (version, version), (9, version)))
        world.sync()
        for inner, gone in ((1, (source(1), source(2))), (2, (source(1, inner=1),))):
            for path in gone:
                world.remove("plant1", path)
            world.add("plant1", source(1, inner=inner), points("d1", (1, 1), (2, 2), (9, 2)))
            world.sync()
        for version in (3, 4):
            world.remove("plant1", source(version))
        assert world.sync().dropped == 2
        merge(world.app, world.receiver)
        for _ in range(2):
            world.clock += 2 * DAY
            housekeep(world.app, world.receiver)
        assert not any(world.sql("SELECT 1 FROM catalog_file WHERE state = 'retired'"))
        judged = "SELECT path, kind, covered_by, state FROM pending_drop ORDER BY path"
        merged = (
            "SELECT location, rank_unsequence, marked FROM catalog_file WHERE role = 'merged' AND state = 'live' ORDER BY 1"
        )
        before = world.rows(), world.facts()["catalog"], world.sql(judged), world.sql(merged)
        assert [row[3] for row in before[2]] == ["done"] * 5 and len(before[3]) == (3 if deletes == "keep" else 2)
        world.lose_ledger()
        assert world.rebuild().exit_code == 0
        assert (world.rows(), world.facts()["catalog"], world.sql(judged), world.sql(merged)) == before
        world.check_proofs()

    @pytest.mark.full
    def test_drops_that_wait_for_approval_wait_again(self, world: World) -> None:
        """Approval was never given: the guard trips again, and approving then works."""
        for version in range(1, 31):
            world.add("plant1", source(version), points(f"d{version}", (version, version)))
        world.sync()
        for version in range(1, 21):
            world.remove("plant1", source(version))
        assert world.sync().exit_code == 22
        world.lose_ledger()
        world.rebuild()
        again = world.sync()
        assert (again.exit_code, again.dropped) == (22, 0)
        approve_run(world.app, again.run)
        assert world.sync().dropped == 20
        assert len(world.rows()) == 10
        same_after_loss(world)

    def test_files_that_were_adopted_are_not_sent(self, world: World, tmp_path: Path) -> None:
        world.add("plant1", source(1), points("d1", (1, 10), mods=deletion("root.sg.d1.s", 9, 9)))
        world.add("plant1", source(2), points("d2", (1, 1)))
        old = tmp_path / "sync-sender"
        old.mkdir()
        (old / "last_local_files.txt").write_text(f"/old/{source(1)}\n")
        (old / "device_owner").write_text("")
        assert adopt(world.app, "plant1", old).listed == 1
        world.sync()
        assert world.sql("SELECT path FROM file WHERE generation = 0") == [(source(1),)]
        facts = world.facts()["file"]
        world.lose_ledger()
        world.rebuild()
        assert world.facts()["file"] == facts
        assert world.sync().files == 0


def known_site(world: World) -> None:
    """plant2 has sent before, so that files of plant1's devices are sent and refused, not held back at the first sync."""
    world.add("plant2", source(8), points("own", (1, 1)))
    world.sync("plant2")


class TestDecisions:
    @pytest.mark.full
    def test_a_device_that_was_handed_over(self, world: World) -> None:
        world.add("plant1", source(1), points("d1", (1, 10)))
        world.sync("plant1")
        known_site(world)
        world.add("plant2", source(1), points("d1", (1, 99), (2, 99)))
        world.sync("plant2")
        owners_transfer(world.app, world.receiver, "root.sg.d1", "plant2")
        assert world.rows()[0][4] == "99"
        world.add("plant1", source(2), points("d1", (3, 30)))
        world.sync("plant1")
        assert world.sql("SELECT path FROM refusal WHERE state = 'refused'") == [(source(2),)]
        same_after_loss(world)
        assert world.sql("SELECT action, subject FROM audit WHERE action = 'owners transfer'") == [
            ("owners transfer", "root.sg.d1")
        ]

    @pytest.mark.full
    def test_devices_that_were_handed_over_by_a_pattern(self, world: World) -> None:
        """A record each: the ledger that is made again has the same owners, and the file that needed both."""
        both = {f"root.sg.d{n}": {"s": [(1, n)]} for n in (1, 2)}
        world.add("plant1", source(1), sealed(both))
        world.sync("plant1")
        known_site(world)
        world.add("plant2", source(1), sealed(both))
        world.sync("plant2")
        assert owners_transfer(world.app, world.receiver, "root.**", "plant2").as_json()["replayed"] == [source(1)]
        same_after_loss(world)
        decided = "SELECT subject FROM audit WHERE action = 'owners transfer' ORDER BY subject"
        assert world.sql(decided) == [("root.sg.d1",), ("root.sg.d2",)]

    def test_refused_files_that_were_dismissed(self, world: World) -> None:
        world.add("plant1", source(1), points("d1", (1, 10)))
        world.sync("plant1")
        known_site(world)
        world.add("plant2", source(1), points("d1", (1, 99), (2, 99)))
        world.sync("plant2")
        assert owners_dismiss(world.app, world.receiver, "plant2").as_json()["dismissed"] == [source(1)]
        same_after_loss(world)
        assert world.sql("SELECT path, state, location FROM refusal") == [(source(1), "dismissed", "")]
        assert world.sql("SELECT subject FROM audit WHERE action = 'owners dismiss'") == [(PLANT2,)]

    @pytest.mark.full
    def test_a_refused_file_whose_deletions_grew_before_its_device_was_handed_over(self, world: World) -> None:
        """The deletions came alone and joined the refused file; both were loaded by the decision."""
        world.add("plant1", source(1), points("d1", (1, 10)))
        world.sync("plant1")
        known_site(world)
        world.add("plant2", source(1), points("d1", (1, 99), (2, 99)))
        world.sync("plant2")
        world.add("plant2", source(1), {".mods": deletion("root.sg.d1.s", 1, 1).encode()})
        world.sync("plant2")
        same_after_loss(world)
        owners_transfer(world.app, world.receiver, "root.sg.d1", "plant2")
        assert [(row[2], row[4]) for row in world.rows() if row[0] == "root.sg.d1"] == [(1, "10"), (2, "99")]
        same_after_loss(world)

    def test_quarantine_held_given_up_and_released(self, world: World) -> None:
        good = points("d1", (1, 10))
        bad = {**good, "": b"TsFile\x04 and then nothing that is one"}
        for version in (1, 2, 3):
            world.add("plant1", source(version), bad)
        world.sync()
        held = {one["path"]: str(one["id"]) for one in quarantine_list(world.app, world.receiver).as_json()["quarantine"]}
        quarantine_drop(world.app, world.receiver, held[source(2)])
        assert sorted(world.sql("SELECT path, state FROM quarantine")) == [
            (source(1), "held"),
            (source(2), "dropped"),
            (source(3), "held"),
        ]
        reasons = world.sql("SELECT path, reason FROM file ORDER BY path")
        same_after_loss(world, but=("file",))
        assert world.sql("SELECT path, reason FROM file ORDER BY path") == reasons  # the first run compared with the site
        with pytest.raises(Exception, match="still cannot be loaded"):
            quarantine_release(world.app, world.receiver, "1")

    @pytest.mark.parametrize("damaged", [False, True])
    @pytest.mark.full
    def test_a_held_file_and_deletions_that_came_alone(self, world: World, damaged: bool) -> None:
        """Sound ones join it. Damaged ones are held beside it: its bytes stay for whoever releases it."""
        world.add("plant1", source(1), {**points("d1", (1, 10)), "": b"TsFile\x04 and then nothing that is one"})
        world.sync()
        world.add("plant1", source(1), {".mods": deletion("root.sg.d1.s", 1, 1).encode()})
        world.sync(no_load=True)
        if damaged:
            (mods,) = (world.centre / "landing").rglob("*.mods")
            mods.write_bytes(mods.read_bytes()[:-1] + b"x")
        for _ in range(2):  # the second one sweeps what waits no longer
            world.load()
        held = [("held",), ("held",)] if damaged else [("superseded",), ("held",)]
        assert world.sql("SELECT state FROM quarantine ORDER BY generation") == held
        facts, bytes_held = world.facts()["quarantine"], sorted((world.centre / "quarantine").rglob("*"))
        world.lose_ledger()
        assert world.rebuild().exit_code == 0
        assert world.facts()["quarantine"] == facts
        world.load()
        assert sorted((world.centre / "quarantine").rglob("*")) == bytes_held

    @pytest.mark.full
    def test_a_drop_that_was_approved_at_the_receiver(self, world: World) -> None:
        """Superseded by a file that the site dropped before it ever came: only the operator can say what that means."""
        world.add("plant1", source(1), points("d1", (1, 10)))
        for version in range(2, 9):
            world.add("plant1", source(version), points(f"d{version}", (1, version)))
        world.sync()
        world.remove("plant1", source(1))
        world.add("plant1", source(1, inner=1), {**points("d1", (1, 10)), "": b"not a TsFile at all"})
        world.sync()
        world.remove("plant1", source(1, inner=1))
        last = world.sync().run
        waiting = world.sql("SELECT landing FROM pending_drop WHERE state = 'waiting'")
        assert waiting, "nothing waits for the operator"
        runs = {landing.rpartition("-")[0] for (landing,) in waiting}
        for run in runs | {last}:
            approve_run(world.app, run)
        assert world.sql("SELECT * FROM pending_drop WHERE state <> 'done'") == []
        same_after_loss(world)


class TestCutOff:
    @pytest.mark.full
    def test_a_run_without_a_landing_goes_on_where_it_was(self, world: World) -> None:
        """All its bytes lie at the receiver, no manifest does: they count."""
        for version in range(1, 6):
            world.add("plant1", source(version), points(f"d{version}", (version, version)))
        run = open_run(world.app, "plant1")
        for step in (recover, select_files, sync_schema, transfer_files):
            step(world.app, run)
        world.lose_ledger()
        result = world.rebuild()
        assert result.findings.continued == [run]
        synced = world.sync()
        assert (synced.files, synced.loaded, synced.sent_bytes) == (5, 5, 0)
        assert len(world.rows()) == 5
        same_after_loss(world)

    @pytest.mark.full
    def test_a_run_with_landings_is_over_and_its_rest_is_sent_by_the_next(self, world: World) -> None:
        for number in range(1, 4):
            world.add(
                "plant1", source(number, database=f"root.sg{number}"), sealed({f"root.sg{number}.d": {"s": [(1, number)]}})
            )

        def die_at_the_end(tick: Tick) -> None:
            if tick.phase == "finish":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            limits = PartLimits(batch_bytes=1, batch_files=1, part_bytes=1)
            run_sync(world.app, "plant1", progress=die_at_the_end, limits=limits)
        world.lose_ledger()
        result = world.rebuild()
        assert [folder[-2:] for folder in result.findings.removed] == ["-3"]
        assert world.sync().files == 1
        assert [row[4] for row in world.rows()] == ["1", "2", "3"]
        assert world.sql("SELECT COUNT(*) FROM landing WHERE state <> 'loaded'") == [(0,)]
        same_after_loss(world)

    @pytest.mark.full
    def test_landings_that_were_not_loaded_are_loaded(self, world: World) -> None:
        world.add("plant1", source(1), points("d1", (1, 10)))
        world.sync()
        world.add("plant1", source(2), points("d2", (1, 20)))
        world.sync(no_load=True)
        world.lose_ledger()
        assert world.rebuild().exit_code == 0
        assert (world.load().loaded, len(world.rows())) == (1, 2)
        same_after_loss(world)

    def test_fences_never_go_back(self, world: World) -> None:
        world.add("plant1", source(1), points("d1", (1, 10)))
        for _ in range(5):
            world.sync()
        old = Leases(world.app.ledger, world.app.identity).acquire_lease("link:plant1", "a run that outlives its ledger")
        before = dict(world.sql("SELECT name, fence FROM lease"))
        world.lose_ledger()
        world.rebuild()
        after = dict(world.sql("SELECT name, fence FROM lease"))
        assert before.keys() <= after.keys()
        assert all(after[name] > fence for name, fence in before.items())
        assert Leases(world.app.ledger, world.app.identity).acquire_lease("link:plant1", "the next run").fence > old.fence


class TestFarReceiver:
    @pytest.mark.full
    def test_the_link_is_rebuilt_over_ssh(self, tmp_path: Path, sshd: Sshd) -> None:
        """Site here, receiver there: this ledger has the link's side alone."""
        centre = sshd.files / "far-centre"
        far = {"host_key": sshd.host_key, "key": str(sshd.key)}
        world = World(tmp_path, real=False, centre_store=sshd.url(centre), far=far)
        world.add("plant1", source(1), points("d1", (1, 10)))
        (tmp_path / "plant1/system/schema/mlog.txt").write_bytes(b"2,root.sg.d1.s,2,0,1,,,\n" * 3)
        world.sync()
        world.add("plant1", source(1), points("d1", (1, 11), (2, 12)))
        world.sync()
        facts = world.facts()
        world.lose_ledger()
        assert world.rebuild().exit_code == 0
        found = world.facts()
        for table in facts:
            assert found[table] == facts[table], table
        again = world.sync()
        assert (again.files, again.sent_bytes, world.sql("SELECT MAX(schema_bytes) FROM run")) == (0, 0, [(72,)])
        world.add("plant1", source(2), points("d2", (1, 1)))
        assert world.sync().files == 1
        assert world.sql("SELECT sequence FROM sent_landing ORDER BY sequence") == [(1,), (2,), (3,)]
        assert PLANT2 not in {path.name for path in (centre / "landing").iterdir()}
