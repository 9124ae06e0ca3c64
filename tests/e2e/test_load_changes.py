"""What sites change after the first time: new generations, deletions, compactions, drops."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.centre import Centre, d1, rows
from tests.landing_maker import SITE_A, SITE_B
from tests.small_files import deletion, sealed, source
from tidemark.errors import NotFoundError
from tidemark.formats.landing import InventoryEntry
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import merges as merge_rows
from tidemark.ledger.receiver.landings import DropRow
from tidemark.operations.decisions import approve_run, owners_transfer, quarantine_list, quarantine_release
from tidemark.proof.prove import why


def states(centre: Centre) -> dict[str, list[str]]:
    """Source path → states of its generations, oldest first."""
    found: dict[str, list[str]] = {}
    query = "SELECT path, state FROM catalog_file WHERE role = 'source' ORDER BY path, generation"
    for path, state in centre.sql(query):
        found.setdefault(path, []).append(state)
    return found


class TestGenerations:
    def test_a_changed_file_replaces_itself(self, centre: Centre) -> None:
        sender = centre.sender()
        sender.land({source(1): d1((1, 10), (2, 20))})
        centre.load()
        sender.land({source(1): d1((1, 11))})
        centre.load()
        assert centre.rows() == rows((1, 11))
        assert states(centre) == {source(1): ["retired", "live"]}

    def test_grown_mods_count_from_then_on_and_only_for_their_file(self, centre: Centre) -> None:
        sender = centre.sender()
        sender.land({source(1): d1((1, 10), (2, 20)), source(2): d1((2, 21))})
        centre.load()
        sender.land({source(1): {".mods": deletion("root.sg.d1.s", 0, 9).encode()}})
        assert centre.load().exit_code == 0
        assert centre.rows() == rows((2, 21))
        location = centre.sql("SELECT DISTINCT location FROM catalog_file WHERE path = :p", p=source(1))
        assert len(location) == 1  # the TsFile itself did not move

    def test_a_higher_version_wins_and_unsequence_wins_over_all(self, centre: Centre) -> None:
        sender = centre.sender()
        sender.land({source(9): d1((1, 9), (2, 9))})
        sender.land({source(3, unsequence=True): d1((2, 3), (3, 3))})
        sender.land({source(1): d1((1, 1), (3, 1), (4, 1))})
        centre.load()
        assert centre.rows() == rows((1, 9), (2, 3), (3, 3), (4, 1))

    def test_new_files_are_seen_at_once_over_merged_ones(self, centre: Centre) -> None:
        """Merged files stand for their sources until a source from below or a deletion comes."""
        sender = centre.sender()
        sender.land({source(1): d1((1, 10), (2, 20)), source(5): d1((2, 25), (6, 60))})
        centre.load()
        assert centre.merge().groups == 1
        assert centre.rows() == rows((1, 10), (2, 25), (6, 60))
        sender.land({source(3): d1((1, 13), (2, 23))})  # between the two: wins over 1, loses to 5
        centre.load()
        assert centre.rows() == rows((1, 13), (2, 25), (6, 60))
        centre.merge()
        sender.land({source(5): {".mods": deletion("root.sg.d1.s", 2, 2).encode()}})
        centre.load()
        assert centre.rows() == rows((1, 13), (2, 23), (6, 60))
        centre.merge()
        assert centre.rows() == rows((1, 13), (2, 23), (6, 60))


class TestVanishedFiles:
    def test_a_compaction_is_swapped_in_one_step(self, centre: Centre) -> None:
        sender = centre.sender()
        sender.land({source(1): d1((1, 10)), source(2): d1((2, 20))})
        centre.load()
        made = source(1, inner=1)
        gone = tuple(sender.drop(source(v), made) for v in (1, 2))
        sender.land({made: d1((1, 10), (2, 20))}, superseded=gone, removed=(source(1), source(2)))
        assert centre.load().pending == ()
        assert centre.rows() == rows((1, 10), (2, 20))
        assert states(centre) == {source(1): ["retired"], source(2): ["retired"], made: ["live"]}
        assert centre.sql("SELECT path FROM inventory WHERE live = 1") == [(made,)]

    @pytest.mark.parametrize(
        ("made", "said"),
        [
            pytest.param(((1, 5), (2, 20)), "root.sg.d1.s has at 2 the value that it has", id="a point"),
            pytest.param(((1, 5), (2, 5)), "each of its 2 times stands, overwritten", id="all times"),
        ],
    )
    @pytest.mark.parametrize("told", ["superseded", "dropped"])
    def test_why_names_what_decided_and_where(
        self, centre: Centre, made: tuple[tuple[int, int], ...], said: str, told: str
    ) -> None:
        """Whatever its site took its going for: the file in which it lives on is named, and no other that was looked in."""
        sender = centre.sender()
        sender.land({source(1): d1((1, 10), (2, 20))})
        centre.load()
        beside, lives_in = source(2, cross=1), source(1, inner=1)
        gone = {told: (sender.drop(source(1), *([beside] if told == "superseded" else [])),), "removed": (source(1),)}
        sender.land({beside: d1((7, 70)), lives_in: d1(*made)}, **gone)
        assert centre.load().pending == ()
        explained = why(centre.app, source(1)).as_json()
        assert (explained["state"], explained["final"]) == ("superseded", True)
        assert f"it lives on: {said}, in {lives_in}" in explained["evidence"]
        assert beside not in str(explained["cause"])

    def test_why_says_that_no_point_was_alive(self, centre: Centre) -> None:
        sender = centre.sender()
        sender.land({source(1): d1((1, 10), mods=deletion("root.sg.d1.s", 0, 9))})
        centre.load()
        sender.land({}, dropped=(sender.drop(source(1)),), removed=(source(1),))
        centre.load()
        explained = why(centre.app, source(1)).as_json()
        assert "no point of it is alive" in explained["cause"]

    def test_superseded_files_stay_until_what_covers_them_is_loaded(self, centre: Centre) -> None:
        """The covering file comes damaged, then whole; meanwhile readers miss nothing and the reason is told."""
        sender = centre.sender()
        sender.land({source(1): d1((1, 10))})
        made = source(1, inner=1)
        sender.land({made: d1((1, 10))}, superseded=(sender.drop(source(1), made),), removed=(source(1),))
        bad = next(p for p in centre.root.rglob(made.rpartition("/")[2]))
        bad.write_bytes(bad.read_bytes()[:-1])
        [(path, reason)] = centre.load().pending
        assert path == source(1) and made in reason and "quarantine" in reason
        assert centre.rows() == rows((1, 10)) and states(centre) == {source(1): ["live"]}
        sender.land({made: d1((1, 10))})
        assert centre.load().pending == ()
        assert states(centre) == {source(1): ["retired"], made: ["live"]}

    @pytest.mark.full_after(1)
    @pytest.mark.parametrize("deletes", ["keep", "apply"])
    def test_a_release_from_quarantine_lets_go_of_what_it_covers_at_once(self, centre: Centre, deletes: str) -> None:
        """So does what nothing of lives on in it, as the newest landing says of drops; it waited for another landing."""
        sender = centre.sender(deletes=deletes)
        sender.land({source(1): d1((1, 10)), source(2): d1((2, 20)), source(3): d1((9, 90))})
        made = source(1, inner=1)
        gone = tuple(sender.drop(source(v), made) for v in (1, 2))
        told = {"removed": (source(1), source(2), source(3)), "dropped": (sender.drop(source(3)),)}
        sender.land({made: d1((1, 10), (2, 20))}, superseded=gone, **told)
        bad = next(p for p in centre.root.rglob(made.rpartition("/")[2]))
        whole = bad.read_bytes()
        bad.write_bytes(whole[:-1])
        assert len(centre.load().pending) == 3, "nothing leaves while a file that may hold it is not loaded"
        held = next(p for p in (centre.root / "quarantine").rglob(made.rpartition("/")[2]))
        held.write_bytes(whole)
        [one] = quarantine_list(centre.app, centre.receiver).as_json()["quarantine"]
        quarantine_release(centre.app, centre.receiver, str(one["id"]))
        kept = deletes == "keep"
        assert centre.rows() == rows((1, 10), (2, 20), *([(9, 90)] if kept else []))
        third = "live" if kept else "retired"
        assert states(centre) == {source(1): ["retired"], source(2): ["retired"], source(3): [third], made: ["live"]}
        assert centre.sql("SELECT path FROM pending_drop WHERE state <> 'done'") == []
        assert centre.sql("SELECT marked FROM catalog_file WHERE path = :p", p=source(3)) == [("dropped" if kept else None,)]

    def test_a_transfer_of_a_device_lets_go_of_what_the_refused_file_covers(self, centre: Centre) -> None:
        theirs, sender = centre.sender(SITE_B, name="plant2"), centre.sender()
        theirs.land({source(1): sealed({"root.sg.d2": {"s": [(1, 1)]}})})
        centre.load()
        sender.land({source(1): d1((1, 10))})
        made = source(1, inner=1)
        both = sealed({"root.sg.d1": {"s": [(1, 10)]}, "root.sg.d2": {"s": [(2, 2)]}})
        sender.land({made: both}, superseded=(sender.drop(source(1), made),), removed=(source(1),))
        assert len(centre.load().pending) == 1
        owners_transfer(centre.app, centre.receiver, "root.sg.d2", "plant1")
        assert states(centre)[made] == ["live"]
        assert centre.sql("SELECT state FROM catalog_file WHERE path = :p AND site_id = :s", p=source(1), s=SITE_A) == [
            ("retired",)
        ]
        assert centre.sql("SELECT path FROM pending_drop WHERE state <> 'done'") == []

    def test_a_chain_of_compactions_is_followed(self, centre: Centre) -> None:
        """The first covering file never came: the one that covers it in turn does as well."""
        sender = centre.sender()
        sender.land({source(1): d1((1, 10))})
        once, twice = source(1, inner=1), source(1, inner=2)
        sender.land({}, superseded=(sender.drop(source(1), once),), left_out=((once, "vanished"),))
        assert len(centre.load().pending) == 1
        sender.generations[once] = 1
        sender.land({twice: d1((1, 10))}, superseded=(sender.drop(once, twice),))
        assert centre.load().pending == ()
        assert states(centre) == {source(1): ["retired"], twice: ["live"]}

    def test_a_dropped_file_is_kept_and_marked(self, centre: Centre) -> None:
        sender = centre.sender()
        sender.land({source(1): d1((1, 10))})
        sender.land({}, dropped=(sender.drop(source(1)),), removed=(source(1),))
        centre.load()
        assert centre.rows() == rows((1, 10))
        assert centre.sql("SELECT state, marked FROM catalog_file") == [("live", "dropped")]

    @pytest.mark.parametrize("merged", [False, True])
    def test_a_kept_file_fills_and_never_wins(self, centre: Centre, merged: bool) -> None:
        """It outranked every sequence file of its site for ever."""
        sender = centre.sender()
        sender.land({source(1): d1((1, 10), (2, 20)), source(7, unsequence=True): d1((2, 27), (3, 37))})
        centre.load()
        if merged:
            centre.merge()
        assert centre.rows() == rows((1, 10), (2, 27), (3, 37))
        gone = source(7, unsequence=True)
        sender.land({}, dropped=(sender.drop(gone),), removed=(gone,))
        centre.load()
        assert centre.rows() == rows((1, 10), (2, 20), (3, 37))
        sender.land({source(9): d1((3, 39))})
        centre.load()
        centre.merge()
        assert centre.rows() == rows((1, 10), (2, 20), (3, 39))

    def test_a_file_that_an_older_release_kept_is_ranked_by_the_first_load(self, centre: Centre) -> None:
        sender = centre.sender()
        gone = source(7, unsequence=True)
        sender.land({source(1): d1((1, 10), (2, 20)), gone: d1((2, 27), (3, 37))})
        centre.load()
        centre.merge()
        with centre.app.ledger.write() as connection:  # what that release left: marked, done, and its rank as it was
            connection.execute(sa.text("UPDATE catalog_file SET marked = 'dropped' WHERE path = :p"), {"p": gone})
            drop = DropRow(gone, 1, "dropped", (), "20260101T000000-000001-1", 1.0, "done")
            landing_rows.put_drops(connection, centre.receiver.name, sender.site_id, [drop])
            connection.execute(
                sa.text((Path(__file__).parents[2] / "sql" / "0013_kept_below.sql").read_text(encoding="utf-8"))
            )
        assert centre.rows() == rows((1, 10), (2, 27), (3, 37))
        sender.land({})
        assert centre.load().pending == ()
        assert centre.rows() == rows((1, 10), (2, 20), (3, 37))

    def test_merges_never_mix_kept_and_live_files(self, centre: Centre) -> None:
        sender = centre.sender()
        paths = [source(1), source(2), source(3), source(4)]
        sender.land({path: d1((place, place), (9, place)) for place, path in enumerate(paths)})
        sender.land({}, dropped=tuple(sender.drop(p) for p in paths[2:]), removed=tuple(paths[2:]))
        centre.load()
        centre.merge()
        assert centre.rows() == rows((0, 0), (1, 1), (2, 2), (3, 3), (9, 1))
        seen = centre.sql(
            "SELECT role, marked, rank_unsequence FROM catalog_file WHERE visible = 1 ORDER BY rank_unsequence"
        )
        assert [(*row[:2], row[2] < 0) for row in seen] == [("merged", "dropped", True), ("merged", None, False)]
        sender.land({source(5): d1((2, 52))})
        centre.load()
        assert centre.rows() == rows((0, 0), (1, 1), (2, 52), (3, 3), (9, 1))

    def test_of_two_kept_files_the_one_that_the_site_had_for_longer_wins(self, centre: Centre) -> None:
        """Whatever their names say: the first had left when the second came."""
        sender = centre.sender()
        first, second = source(9, unsequence=True), source(2)
        sender.land({first: d1((1, 19), (2, 29))})
        sender.land({second: d1((1, 12))}, dropped=(sender.drop(first),), removed=(first,))
        sender.land({}, dropped=(sender.drop(second),), removed=(second,))
        centre.load()
        assert centre.rows() == rows((1, 12), (2, 29))
        centre.merge()
        assert centre.rows() == rows((1, 12), (2, 29))

    def test_kept_files_that_vanish_together_keep_their_order(self, centre: Centre) -> None:
        sender = centre.sender()
        paths = (source(9), source(2, unsequence=True))
        sender.land({paths[0]: d1((1, 19), (2, 29)), paths[1]: d1((1, 12))})
        sender.land({}, dropped=tuple(sender.drop(path) for path in paths), removed=paths)
        centre.load()
        assert centre.rows() == rows((1, 12), (2, 29))

    def test_what_a_sender_holds_back_is_below_until_it_is_told(self, centre: Centre) -> None:
        """The guard of a link that applies drops holds them; the file comes back when its folder is there again."""
        sender = centre.sender(deletes="apply")
        gone = source(7, unsequence=True)
        sender.land({source(1): d1((1, 10)), gone: d1((1, 17), (2, 27))})
        centre.load()
        assert centre.rows() == rows((1, 17), (2, 27))
        sender.land({}, held=(sender.drop(gone),))
        assert centre.load().pending == ()
        assert centre.rows() == rows((1, 10), (2, 27))
        sender.land({}, added=(InventoryEntry(gone, 1, 1, ()),))
        centre.load()
        assert centre.rows() == rows((1, 17), (2, 27))
        sender.land({}, dropped=(sender.drop(gone),), removed=(gone,))
        centre.load()
        assert centre.rows() == rows((1, 10))

    def test_a_file_that_waits_for_what_covers_it_is_below_already(self, centre: Centre) -> None:
        sender = centre.sender()
        gone, made = source(7, unsequence=True), source(1, cross=1)
        sender.land({gone: d1((1, 17), (2, 27))})
        sender.generations[made] = 1
        sender.land({source(3): d1((2, 23))}, superseded=(sender.drop(gone, made),), removed=(gone,))
        assert [path for path, _ in centre.load().pending] == [gone]
        assert centre.rows() == rows((1, 17), (2, 23))

    def test_or_removed_where_the_link_says_so(self, centre: Centre) -> None:
        sender = centre.sender(deletes="apply")
        sender.land({source(1): d1((1, 10)), source(2): d1((1, 11), (2, 20))})
        centre.load()
        centre.merge()
        sender.land({}, dropped=(sender.drop(source(2)),), removed=(source(2),))
        centre.load()
        assert centre.rows() == rows((1, 10))
        assert states(centre) == {source(1): ["live"], source(2): ["retired"]}

    def test_a_file_that_comes_back_is_read_again(self, centre: Centre) -> None:
        sender = centre.sender(deletes="apply")
        sender.land({source(1): d1((1, 10))})
        sender.land({}, dropped=(sender.drop(source(1)),), removed=(source(1),))
        sender.land({source(1): d1((1, 10))})
        centre.load()
        assert centre.rows() == rows((1, 10))
        assert states(centre) == {source(1): ["retired", "live"]}


class TestAfterSettling:
    """Merged files that stand alone: their sources' bytes are gone."""

    @staticmethod
    def settle(centre: Centre) -> None:
        centre.merge()
        with centre.app.ledger.write() as connection:
            due = merge_rows.settle_due(connection, centre.receiver.name, 1e12)
            assert due and merge_rows.mark_settled(connection, due, 1.0)

    def test_a_kept_file_that_its_site_called_compacted_stays_in_it(self, centre: Centre) -> None:
        """Its points are in no other file. The other source is written anew at the site."""
        sender = centre.sender()
        gone, made = (source(1), source(2)), source(1, inner=1)
        sender.land({gone[0]: d1((1, 11), (2, 12)), gone[1]: d1((2, 22), (3, 23))})
        superseded, dropped = (sender.drop(gone[0], made),), (sender.drop(gone[1]),)
        sender.land({made: d1((9, 99))}, superseded=superseded, dropped=dropped, removed=gone)
        centre.load()
        self.settle(centre)
        sender.land({gone[1]: d1((5, 55))})
        assert centre.load().pending == ()
        assert centre.rows() == rows((1, 11), (2, 22), (3, 23), (5, 55), (9, 99))

    def test_a_compaction_of_all_its_sources_replaces_it(self, centre: Centre) -> None:
        sender = centre.sender()
        sender.land({source(1): d1((1, 10), (2, 20)), source(2): d1((2, 21))})
        centre.load()
        self.settle(centre)
        made = source(1, inner=1)
        half = source(1, inner=2)
        sender.land({half: d1((1, 10), (2, 20))}, superseded=(sender.drop(source(1), half),))
        pending = dict(centre.load().pending)
        assert set(pending) == {source(1), half} and source(2) in pending[source(1)]
        gone = (sender.drop(source(2), made), sender.drop(half, made))
        sender.land({made: d1((1, 10), (2, 21))}, superseded=gone)
        assert centre.load().pending == ()
        assert centre.rows() == rows((1, 10), (2, 21))
        assert centre.sql("SELECT path FROM catalog_file WHERE state = 'live'") == [(made,)]

    def test_sources_that_all_come_again_replace_it(self, centre: Centre) -> None:
        sender = centre.sender()
        sender.land({source(1): d1((1, 10)), source(2): d1((1, 11))})
        centre.load()
        self.settle(centre)
        sender.land({source(2): {".mods": deletion("root.sg.d1.s", 1, 1).encode()}})
        loaded = centre.load()
        assert loaded.exit_code == 0 and "come again" in dict(loaded.pending)[source(2)]
        sender.land({source(2): d1((1, 11), mods=deletion("root.sg.d1.s", 1, 1))})
        sender.land({source(1): d1((1, 10))})
        centre.load()
        assert centre.rows() == rows((1, 10))

    def test_a_drop_waits_for_the_operator(self, centre: Centre) -> None:
        sender = centre.sender(deletes="apply")
        sender.land({source(1): d1((1, 10)), source(2): d1((1, 11))})
        centre.load()
        self.settle(centre)
        sender.land({}, dropped=(sender.drop(source(1)),))
        [(path, reason)] = centre.load().pending
        assert path == source(1) and "approve" in reason
        assert centre.rows() == rows((1, 11))
        [(run,)] = centre.sql("SELECT run_id FROM landing WHERE sequence = 2")
        assert approve_run(centre.app, run).as_json()["approved"] == [source(1)]
        assert centre.rows() == rows((1, 11))  # the other source still counts
        sender.land({}, dropped=(sender.drop(source(2)),))
        centre.load()
        [(run,)] = centre.sql("SELECT run_id FROM landing WHERE sequence = 3")
        approve_run(centre.app, run)
        assert centre.rows() == []
        assert [a for (a,) in centre.sql("SELECT action FROM audit")] == ["approve", "approve"]
        with pytest.raises(NotFoundError):
            approve_run(centre.app, "20200101T000000-ffffff")
