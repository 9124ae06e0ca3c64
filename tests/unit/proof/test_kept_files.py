"""Files that are gone at their site and kept: told by every proof, left out on demand, and never above a live file."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.small_files import sealed
from tidemark.app import open_app
from tidemark.ledger.migrations import known_migrations
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.settings.load import load_settings

D = "root.sg.d"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    """A site that has the times 1 to 3 of a device, and had 1 to 5 in an older file that it dropped."""
    world = Commanded(tmp_path, monkeypatch)
    older = world.seal(1, points=5, device=D)
    world.seal(2, points=3, device=D)
    world.seal(3)
    assert world.sync().code == 0
    drop(world, older)
    assert world.sync().code == 0
    return world


def drop(world: Commanded, path: str) -> None:
    for end in world.sealed.pop(path):
        (world.site / (path + end)).unlink()


def read(world: Commanded, *words: str) -> tuple[dict[str, object], list[list[str]]]:
    out = world.folder / "out.csv"
    said = world.run("read", "--out", str(out), *words)
    assert said.code == 0, said
    with out.open(newline="") as rows:
        return said.json, list(csv.reader(rows))[1:]


def times(rows: list[list[str]], device: str = D) -> list[int]:
    return [int(time) for name, _, time, _, _ in rows if name == device]


class TestRead:
    def test_it_counts_rows_that_only_such_files_hold(self, world: Commanded) -> None:
        found, rows = read(world, "--tall")
        assert (found["rows"], found["kept_rows"], times(rows)) == (8, 2, [1, 2, 3, 4, 5])
        assert [row[4] for row in rows if row[0] == D] == ["201", "202", "203", "104", "105"]

    def test_it_leaves_them_out_when_asked(self, world: Commanded) -> None:
        found, rows = read(world, "--tall", "--live-only")
        assert (found["rows"], found["kept_rows"], times(rows)) == (6, 0, [1, 2, 3])

    def test_a_wide_row_counts_once(self, world: Commanded) -> None:
        parts = sealed({D: {"u": [(t, t) for t in (5, 6)], "v": [(t, t) for t in (5, 6)]}})
        path = f"data/sequence/root.sg/0/0/{1_600_000_000_009}-9-0-0.tsfile"
        world.put(path, parts)
        assert world.sync().code == 0
        drop(world, path)
        assert world.sync().code == 0
        found, _ = read(world)
        assert (found["rows"], found["kept_rows"]) == (9, 3), "times 4, 5 and 6, of which 5 has three such values"
        assert read(world, "--live-only")[0]["rows"] == 6

    def test_bounds_hold_for_the_count_too(self, world: Commanded) -> None:
        assert read(world, "--tall", "--from", "5")[0]["kept_rows"] == 1
        assert read(world, "--tall", "--to", "4")[0]["kept_rows"] == 0


OLDER = f"data/sequence/root.sg/0/0/{1_600_000_000_001}-1-0-0.tsfile"


def deep(world: Commanded, *words: str) -> tuple[int, list[tuple[str, str]], str]:
    """Exit code, differences as (what, path), the first one's detail."""
    said = world.run("verify", "--deep", *words)
    found = said.json["differences"]
    return said.code, [(d["what"], d["path"]) for d in found], found[0]["detail"] if found else ""


def change_row(world: Commanded, path: str, change: str) -> None:
    """What a wrong decision would have written."""
    with closing(sqlite3.connect(world.folder / "var" / "ledger.db")) as connection:
        assert connection.execute(f"UPDATE catalog_file SET {change} WHERE path = ?", (path,)).rowcount == 1
        connection.commit()


class TestVerifyDeep:
    def test_what_only_a_kept_file_has_is_told_by_file(self, world: Commanded) -> None:
        code, found, detail = deep(world)
        assert (code, found) == (20, [("kept points", OLDER)])
        assert "2 points in 1 series" in detail
        assert world.run("verify", "--deep").json["kept_files"] == 1

    def test_live_only_compares_what_read_shows_then(self, world: Commanded) -> None:
        assert deep(world, "--live-only") == (0, [], "")
        assert world.run("verify", "--deep", "--live-only").json["kept_files"] == 1
        world.run("verify", "--live-only").refused(2, "--live-only")

    def test_a_device_that_only_kept_files_have_is_compared_too(self, world: Commanded) -> None:
        path = next(path for path in world.sealed if path.endswith("-3-0-0.tsfile"))
        drop(world, path)
        assert world.sync().code == 0
        assert deep(world)[:2] == (20, [("kept points", OLDER), ("kept points", path)])

    def test_a_kept_file_above_live_ones_is_red_whatever_the_policy(self, world: Commanded) -> None:
        change_row(world, OLDER, "rank_unsequence = 1")
        code, found, detail = deep(world)
        assert (code, found[0]) == (20, ("points differ", f"{D}.s"))
        assert "3 points differ, the first at 1: 'INT64 201' at the site, 'INT64 101' in the catalog" in detail

    def test_a_live_value_that_lacks_is_red(self, world: Commanded) -> None:
        """Its row says that it is a file of the older rank, hidden by the kept one."""
        newer = next(path for path in world.sealed if path.endswith("-2-0-0.tsfile"))
        change_row(world, newer, "visible = 0")
        code, found, _ = deep(world)
        assert code == 20 and {what for what, _ in found} >= {"missing"}

    def test_what_vanished_since_the_newest_run_is_pending(self, world: Commanded) -> None:
        newer = next(path for path in world.sealed if path.endswith("-2-0-0.tsfile"))
        drop(world, newer)
        code, found, _ = deep(world, "--live-only")
        assert (code, found) == (0, []), "the catalog still shows it; the next sync tells"
        assert world.run("verify", "--deep", "--live-only").json["pending"] == 1
        assert world.sync().code == 0
        assert {path for _, path in deep(world)[1]} == {OLDER, newer}

    def test_what_is_sealed_and_not_sent_is_no_difference(self, world: Commanded) -> None:
        world.seal(7, points=9, device=D)
        code, found, _ = deep(world, "--live-only")
        assert (code, found) == (0, [])
        assert world.run("verify", "--deep", "--live-only").json["unsent_files"] == 1

    def test_a_value_that_a_file_of_the_site_hides_for_now_is_still_compared(self, world: Commanded) -> None:
        """What lies above was changed since the newest run; what lies below is compared all the same."""
        world.seal(8, points=2, device=D)
        assert world.sync().code == 0
        top = next(path for path in world.sealed if path.endswith("-8-0-0.tsfile"))
        world.put(top, sealed({D: {"s": [(1, 0)]}}))
        assert deep(world, "--live-only") == (0, [], "")
        change_row(
            world, next(p for p in world.sealed if p.endswith("-2-0-0.tsfile")), "rank_unsequence = -1, marked = 'dropped'"
        )
        assert deep(world, "--live-only")[0] == 20, "three values of the site are not shown"


def merge_and_settle(world: Commanded, *, settle: bool = True) -> None:
    """Merge; then let time pass until the merged files stand alone and their sources' bytes are gone."""
    assert world.run("merge").code == 0
    if not settle:
        return
    app = open_app(load_settings(world.folder / "tidemark.toml", {}))
    clock = app.clock
    for days in (15, 17):
        app.clock = lambda days=days: clock() + days * DAY  # type: ignore[misc]
        done = housekeep(app, app.receiver_settings())
        assert (done.settled, done.reclaimed) != (0, 0), days
    app.ledger.close()


def told(world: Commanded) -> dict[str, object]:
    """What status, coverage and `why` of the site say of kept files, which must be one thing: {path: is it mixed}."""
    (link,) = world.run("status").json["links"]
    coverage, verified = world.run("coverage").json, world.run("verify").json
    said = {one["path"]: one["mixed"] for one in link["kept"]}
    assert all(said == {one["path"]: one["mixed"] for one in other["kept"]} for other in (coverage, verified))
    assert {link["kept_files"], coverage["kept_files"], coverage["sites"][0]["kept_files"], verified["kept_files"]} == {
        len(said)
    }
    assert {link["kept_mixed"], coverage["kept_mixed"], verified["kept_mixed"]} == {sum(said.values())}
    notes = "\n".join(link["notes"])
    assert all(path in notes for path in said) and set(link["notes"]) <= set(world.run("why", "plant1").json["evidence"])
    assert all(any(note in line for line in coverage["notes"]) for note in link["notes"])
    return said


OLDEST = f"data/unsequence/root.sg/0/0/{1_600_000_000_000}-0-0-0.tsfile"
NEWER = f"data/sequence/root.sg/0/0/{1_600_000_000_002}-2-0-0.tsfile"


class TestAfterMerges:
    @pytest.mark.full_after(1)
    @pytest.mark.parametrize("settle", [False, True])
    def test_merged_kept_files_are_told_as_before(self, world: Commanded, settle: bool) -> None:
        world.put(OLDEST, sealed({D: {"s": [(t, t) for t in (5, 6)]}}))
        assert world.sync().code == 0
        drop(world, OLDEST)
        assert world.sync().code == 0
        before = world.rows()
        assert told(world) == {OLDER: False, OLDEST: False}
        merge_and_settle(world, settle=settle)
        assert (world.rows(), read(world, "--tall")[0]["kept_rows"]) == (before, 3)
        assert told(world) == {OLDER: False, OLDEST: False}, "named as long as readers see them"
        assert deep(world)[:2] == (20, [("kept points", OLDER), ("kept points", OLDEST)])
        assert deep(world, "--live-only") == (0, [], "")
        for path in (OLDER, OLDEST):
            why = world.run("why", path).json
            assert (why["state"], why["final"]) == ("kept after a drop", True)
            assert "never wins" in why["cause"] and any("--live-only" in line for line in why["evidence"])

    @pytest.fixture
    def settled(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
        """OLDER and NEWER, both at the site, in a merged file that stands alone."""
        world = Commanded(tmp_path, monkeypatch)
        assert (world.seal(1, points=5, device=D), world.seal(2, points=3, device=D)) == (OLDER, NEWER)
        world.seal(3)
        assert world.sync().code == 0
        merge_and_settle(world)
        assert told(world) == {}
        return world

    @pytest.mark.full
    def test_one_that_shares_a_settled_file_with_live_ones_is_told_as_such(self, settled: Commanded) -> None:
        drop(settled, OLDER)
        assert settled.sync().code == 0
        assert told(settled) == {OLDER: True}
        assert deep(settled) == deep(settled, "--live-only")
        code, found, detail = deep(settled)
        assert (code, found) == (20, [("kept points", OLDER)]) and "2 points" in detail
        for words in ((), ("--live-only",)):
            found, rows = read(settled, "--tall", *words)
            assert (found["kept_rows"], found["kept_mixed"], times(rows)) == (0, 1, [1, 2, 3, 4, 5])
        assert read(settled, "--device", "root.sg.d3")[0]["kept_mixed"] == 0
        assert read(settled, "--tall", "--from", "6")[0]["kept_mixed"] == 0
        why = settled.run("why", OLDER).json
        assert why["state"] == "kept after a drop" and "count as live" in why["cause"]
        assert settled.run("why", NEWER).json["state"] == "settled"

    @pytest.mark.full
    def test_a_ledger_from_before_the_note_of_gone_sources_tells_the_same(self, settled: Commanded) -> None:
        drop(settled, OLDER)
        assert settled.sync().code == 0
        (fill,) = [m.sql for m in known_migrations() if m.name == "0015_gone_sources.sql"]
        update = "UPDATE" + fill.partition("UPDATE")[2].partition(";")[0]
        for sql, kept in (("UPDATE merge_account SET gone = 0", {}), (update, {OLDER: True})):
            with closing(sqlite3.connect(settled.folder / "var" / "ledger.db")) as connection:
                assert connection.execute(sql).rowcount == 1
                connection.commit()
            assert told(settled) == kept

    @pytest.mark.full
    def test_once_all_of_a_settled_file_are_gone_its_rows_are_counted(self, settled: Commanded) -> None:
        for path in (OLDER, NEWER):
            drop(settled, path)
            assert settled.sync().code == 0
        assert told(settled) == {OLDER: False, NEWER: False}
        found, rows = read(settled, "--tall")
        assert (found["kept_rows"], found["kept_mixed"], times(rows)) == (5, 0, [1, 2, 3, 4, 5])
        assert times(read(settled, "--tall", "--live-only")[1]) == []
        assert "never wins" in settled.run("why", NEWER).json["cause"]

    @pytest.mark.full
    def test_it_is_told_while_its_drop_waits_and_no_more_once_it_left(self, settled: Commanded) -> None:
        settled.link_keys = {"deletes": "apply", "delete_limit_files": 9, "delete_limit_share": 1.0}
        settled.write_settings()
        drop(settled, OLDER)
        settled.sync()
        assert told(settled) == {OLDER: True}
        why = settled.run("why", OLDER).json
        assert why["state"] == "waiting for approval"
        assert settled.run("approve", why["next"].split()[-1], "--yes").code == 0
        for _ in range(2):  # the first brings the other file again
            settled.sync()
        assert (told(settled), deep(settled)) == ({}, (0, [], ""))
        assert read(settled, "--tall")[0]["kept_mixed"] == 0


class TestReports:
    def test_status_counts_and_names_them(self, world: Commanded) -> None:
        (link,) = world.run("status").json["links"]
        assert (link["state"], link["kept_files"]) == ("idle", 1)
        assert link["kept"] == [{"path": OLDER, "points": 5, "mixed": False}]
        assert any("1 file is gone at the site and kept" in note and OLDER in note for note in link["notes"])

    def test_coverage_neither_expects_nor_reddens_them(self, world: Commanded) -> None:
        page = world.folder / "coverage.html"
        found = world.run("coverage", "--html", str(page)).json
        assert (found["complete"], found["red"], found["kept_files"]) == (True, [], 1)
        assert found["kept"] == [{"site": "plant1", "path": OLDER, "points": 5, "mixed": False}]
        assert found["sites"][0]["kept_files"] == 1
        assert any(OLDER in note for note in found["notes"]) and OLDER in page.read_text()

    def test_a_kept_file_stands_for_nothing_that_is_expected(self, world: Commanded) -> None:
        newer = next(path for path in world.sealed if path.endswith("-2-0-0.tsfile"))
        change_row(world, newer, "state = 'retired', visible = 0")
        found = world.run("coverage").json
        assert not found["complete"] and newer in found["red"][0]["why"]

    @pytest.mark.parametrize("subject", ["plant1", OLDER])
    def test_why_says_what_they_are(self, world: Commanded, subject: str) -> None:
        found = world.run("why", subject).json
        assert found["final"], found
        if subject == OLDER:
            assert found["state"] == "kept after a drop"
            assert all(words in found["cause"] for words in ("gone at the site", 'deletes = "keep"', "never wins"))
            assert 'deletes = "apply"' in found["next"]
        else:
            assert any("1 file is gone at the site and kept" in line for line in found["evidence"])

    def test_nothing_is_said_without_them(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "other").mkdir()
        world = Commanded(tmp_path / "other", monkeypatch)
        world.seal(1)
        assert world.sync().code == 0
        (link,) = world.run("status").json["links"]
        assert (link["kept_files"], link["kept"], link["notes"]) == (0, [], [])
        found = world.run("coverage").json
        assert (found["kept_files"], found["kept"], found["notes"]) == (0, [], [])
        assert world.run("verify", "--deep").json["kept_files"] == 0
