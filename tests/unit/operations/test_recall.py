"""What a link's manifests say of its files, in sequence: the rows that its ledger had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidemark.formats.landing import (
    Answer,
    InventoryEntry,
    LandedFile,
    LandedSchema,
    Manifest,
    Part,
    Receipt,
    Resend,
    Vanished,
)
from tidemark.operations.rebuild.links import LinkState, find_interrupted, replay_manifests
from tidemark.sync.select.choose import ADOPTED

EXTENT = (("root.d", 1, 9),)


def manifest(sequence: int, run: str = "", part: int = 1, last: bool = True, **papers: Any) -> Manifest:
    run = run or f"2026010{sequence}T000000Z-aaaaaa"
    return Manifest(
        landing=f"{run}-{part}",
        site_id="site",
        site_name="plant1",
        time_unit="ms",
        partition_interval_ms=1,
        data=("data",),
        link="plant1",
        run_id=run,
        part=part,
        last=last,
        sequence=sequence,
        previous=None,
        created=float(sequence),
        deletes="keep",
        **papers,
    )


def file(path: str, generation: int = 1, mods: int = 0, alone: bool = False) -> LandedFile:
    tsfile = None if alone else Part(path, 100, "sha")
    grown = Part(path + ".mods", mods, f"mods{mods}") if mods else None
    return LandedFile(path, generation, 7, tsfile, None, grown, "sha", "source")


def entry(path: str, reason: str = "") -> InventoryEntry:
    return InventoryEntry(path, 100, 7, EXTENT, reason)


def receipt(landing: Manifest, *answers: Answer) -> tuple[Receipt, str]:
    return Receipt(landing.landing, landing.sequence, "digest", 1.0, answers), "as read"


def taken(*manifests: Manifest) -> LinkState:
    return replay_manifests((m, "digest", None, f"landing/site/{m.landing}") for m in manifests)


def test_a_sent_file_is_acknowledged_and_one_left_out_waits() -> None:
    found = taken(manifest(1, added=(entry("a"), entry("b")), files=(file("a"),)))
    assert found.acked["a"][:7] == ("a", 100, 7, 0, 0, 1, "sha")
    assert found.waiting.keys() == {"b"} and found.extents == {"a": EXTENT, "b": EXTENT}


def test_parts_of_a_run_are_told_by_the_first_and_sent_by_any() -> None:
    first = manifest(1, run="r", last=False, added=(entry("a"), entry("b")), files=(file("a"),))
    assert taken(first, manifest(2, run="r", part=2, files=(file("b"),))).waiting == {}


def test_mods_alone_keep_the_size_of_their_file() -> None:
    found = taken(manifest(1, files=(file("a"),)), manifest(2, files=(file("a", 2, mods=30, alone=True),)))
    assert found.acked["a"][1:9] == (100, 7, 0, 30, 2, "sha", "mods30", "20260102T000000Z-aaaaaa-1")


def test_a_changed_file_that_was_left_out_waits_with_what_was_acknowledged() -> None:
    found = taken(manifest(1, files=(file("a"),)), manifest(2, added=(entry("a"),)))
    assert (found.acked["a"].generation, found.waiting["a"].reason) == (1, None)


def test_excluded_and_adopted_files_wait_or_are_known_without_being_sent() -> None:
    found = taken(manifest(1, added=(entry("a", "excluded by the link"), entry("b", ADOPTED))))
    assert (found.waiting["a"].reason, found.adopted.keys()) == ("excluded by the link", {"b"})


def test_only_what_was_told_as_vanished_is_gone() -> None:
    """`removed` names a superseded file at once; whether it was told may wait for what covers it."""
    before = manifest(1, files=(file("a"), file("b"), file("c")), added=(entry("never sent"),))
    after = manifest(2, removed=("a", "b", "never sent"), dropped=(Vanished("a", 1),))
    found = taken(before, after)
    assert found.gone == {"a", "never sent"}
    assert taken(before, after, manifest(3, files=(file("a", 2),))).gone == {"never sent"}


def test_a_held_drop_is_known_until_it_is_decided() -> None:
    before = manifest(1, files=(file("a"), file("b"), file("c")))
    after = manifest(2, removed=("a", "b", "c"), held=(Vanished("a", 1), Vanished("b", 1), Vanished("c", 1)))
    ended = manifest(3, added=(entry("a"), entry("b")), files=(file("b", 2),), removed=("c",), dropped=(Vanished("c", 1),))
    found = taken(before, after)
    assert (found.held, found.gone, found.acked.keys()) == ({"a", "b", "c"}, set(), {"a", "b", "c"})
    found = taken(before, after, ended)
    assert (found.held, found.gone, found.waiting) == (set(), {"c"}, {})
    assert [found.acked[path].generation for path in ("a", "b")] == [1, 2]


def test_a_log_s_position_is_that_of_its_newest_epoch() -> None:
    def log(epoch: int, start: int, size: int) -> LandedSchema:
        return LandedSchema("mlog", epoch, start, Part(f"_schema/mlog.{epoch}-{start}", size, "sha"))

    found = taken(
        manifest(1, schema=(log(1, 0, 50),)), manifest(2, schema=(log(2, 0, 10),)), manifest(3, schema=(log(2, 10, 5),))
    )
    assert (found.logs["mlog"].epoch, found.logs["mlog"].position) == (2, 15)
    assert [piece.path for piece in found.logs["mlog"].pieces] == [
        "landing/site/20260102T000000Z-aaaaaa-1/_schema/mlog.2-0",
        "landing/site/20260103T000000Z-aaaaaa-1/_schema/mlog.2-10",
    ]


def test_a_receipt_is_read_again_only_where_something_may_follow() -> None:
    one, two = manifest(1, files=(file("a"), file("b"))), manifest(2, files=(file("a", 2),))
    old = receipt(one, Answer("a", 1, "quarantined", "torn"), Answer("b", 1, "refused", "theirs"))
    new = receipt(two, Answer("a", 2, "quarantined", "torn"))
    found = replay_manifests([(one, "digest", old, ""), (two, "digest", new, "")])
    assert [(landing.state, landing.receipt) for landing in found.list_answered()] == [
        ("answered", "as read"),
        ("landed", None),
    ]
    assert found.list_reasons() == {"b": "refused: theirs"}


def test_a_receipt_that_asks_for_a_file_is_read_again_until_it_came() -> None:
    one, two = manifest(1, files=(file("a"),)), manifest(2, files=(file("a", 2),))
    asking = (replace(receipt(one)[0], resend=(Resend("a", 1, "it is settled"),)), "as read")
    assert [landing.state for landing in replay_manifests([(one, "digest", asking, "")]).list_answered()] == ["landed"]
    answers = [(one, "digest", asking, ""), (two, "digest", receipt(two), "")]
    assert [landing.state for landing in replay_manifests(answers).list_answered()] == ["answered", "answered"]


def test_one_run_without_a_manifest_is_gone_on_with() -> None:
    landed = taken(manifest(1, run="20260101T000000Z-aaaaaa", last=False)).runs
    assert find_interrupted(landed, ["20260102T000000Z-bbbbbb-1"]) == ("20260102T000000Z-bbbbbb", [])
    assert find_interrupted(landed, ["20260101T000000Z-aaaaaa-2"]) == (None, ["20260101T000000Z-aaaaaa-2"])
    assert find_interrupted(landed, ["20251231T000000Z-cccccc-1", "20260103T000000Z-dddddd-1"]) == (
        "20260103T000000Z-dddddd",
        ["20251231T000000Z-cccccc-1"],
    )
