"""First come, first served, a file at a time."""

from __future__ import annotations

from tidemark.receiver.load.admit import Claimed, Owner, Refused, claim_devices, refusal_reason

MINE, THEIRS = Owner("site-a", 1.0), Owner("site-b", 1767225600.0)


def test_what_nobody_owns_is_claimed() -> None:
    assert claim_devices(["d2", "d1", "d1", "d3"], {"d3": MINE}, "site-a") == Claimed(("d1", "d2"))
    assert claim_devices([], {}, "site-a") == Claimed(())


def test_the_first_foreign_device_by_name_refuses_the_file() -> None:
    owners = {"d2": THEIRS, "d4": THEIRS}
    assert claim_devices(["d4", "d2", "d1"], owners, "site-a") == Refused("d2", THEIRS)


def test_the_reason_names_owner_time_and_command() -> None:
    reason = refusal_reason(Refused("works.s.`it's`", THEIRS), "plant1", "plant2", "centre")
    assert "belongs to site plant2 (site-b) since 2026-01-01 00:00:00 UTC" in reason
    assert reason.endswith("./tidemark owners transfer 'works.s.`it'\\''s`' --to plant1 --receiver centre")
