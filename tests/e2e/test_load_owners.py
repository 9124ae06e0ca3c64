"""Devices belong to the site that sent them first: refusals, transfers, and what they replay."""

from __future__ import annotations

import pytest

from tests.centre import Centre, d1, rows
from tests.landing_maker import SITE_A, SITE_B
from tests.small_files import deletion, sealed, source
from tidemark.errors import NotFoundError, OwnershipError
from tidemark.formats.landing import decode_receipt
from tidemark.operations.decisions import owners_list, owners_transfer, quarantine_list, quarantine_release
from tidemark.receiver.read import Query


class TestOwners:
    def two_sites(self, centre: Centre) -> None:
        centre.sender().land({source(1): d1((1, 10))})
        centre.load()
        other = centre.sender(SITE_B, name="plant2")
        other.land({source(1): d1((1, 99), (2, 99)), source(2): sealed({"root.sg.d2": {"s": [(1, 2)]}})})

    def test_a_foreign_device_refuses_its_file_alone(self, centre: Centre) -> None:
        self.two_sites(centre)
        result = centre.load()
        assert (result.loaded, result.refused, result.exit_code) == (1, 1, OwnershipError.kind)
        [trouble] = result.troubles
        assert trouble.path == source(1)
        assert "root.sg.d1 belongs to site plant1" in trouble.reason and " since 20" in trouble.reason
        assert "./tidemark owners transfer root.sg.d1 --to plant2 --receiver centre" in trouble.reason
        assert centre.rows() == [*rows((1, 10)), ("root.sg.d2", "s", 1, "INT64", "2")]
        receipts = [decode_receipt(p.read_bytes()) for p in centre.root.rglob(f"{SITE_B}/*/receipt.json")]
        assert {a.path: (a.outcome, a.device, a.owner) for a in receipts[0].answers} == {
            source(1): ("refused", "root.sg.d1", SITE_A),
            source(2): ("loaded", "", ""),
        }

    def test_a_transfer_replays_what_was_refused(self, centre: Centre) -> None:
        self.two_sites(centre)
        centre.load()
        told = owners_transfer(centre.app, centre.receiver, "root.sg.d1", "plant2").as_json()
        assert (told["from"], told["to"], told["replayed"]) == (SITE_A, SITE_B, [source(1)])
        assert centre.rows()[:2] == rows((1, 99), (2, 99))  # the present owner's points win
        assert centre.rows(Query(site="plant1", tall=True)) == rows((1, 10))  # what was loaded stays
        assert centre.files("refused") == []
        owners = {o["device"]: o["site"] for o in owners_list(centre.app, centre.receiver).as_json()["owners"]}
        assert owners == {"root.sg.d1": "plant2", "root.sg.d2": "plant2"}
        # From now on the former owner is the one who is refused.
        first = centre.sender(sequence=1, previous="20260101T000000-000001-1")
        first.land({source(7): d1((7, 70))})
        assert centre.load().refused == 1
        assert [a for (a,) in centre.sql("SELECT action FROM audit")] == ["owners transfer"]

    def test_a_file_of_two_foreign_devices_needs_both(self, centre: Centre) -> None:
        centre.sender().land({source(1): sealed({"root.sg.d1": {"s": [(1, 1)]}, "root.sg.d2": {"s": [(1, 1)]}})})
        other = centre.sender(SITE_B, name="plant2")
        other.land({source(1): sealed({"root.sg.d1": {"s": [(2, 2)]}, "root.sg.d2": {"s": [(2, 2)]}})})
        centre.load()
        told = owners_transfer(centre.app, centre.receiver, "root.sg.d1", SITE_B).as_json()
        assert (told["replayed"], told["still_refused"]) == ([], [{"path": source(1), "device": "root.sg.d2"}])
        assert owners_transfer(centre.app, centre.receiver, "root.sg.d2", SITE_B).as_json()["replayed"] == [source(1)]
        assert [row[:3] for row in centre.rows()] == [(f"root.sg.d{d}", "s", t) for d in (1, 2) for t in (1, 2)]

    def test_a_pattern_gives_all_that_it_matches(self, centre: Centre) -> None:
        many = {f"root.sg.d{n}": {"s": [(1, n)]} for n in (1, 2)} | {"root.other.d1": {"s": [(1, 1)]}}
        centre.sender().land({source(1): sealed(many)})
        other = centre.sender(SITE_B, name="plant2")
        other.land({source(1): sealed({"root.sg.d1": {"s": [(2, 2)]}, "root.sg.d2": {"s": [(2, 2)]}})})
        other.land({source(2): sealed({"root.other.d1": {"s": [(2, 2)]}})})
        centre.load()
        told = owners_transfer(centre.app, centre.receiver, "root.sg.*", SITE_B).as_json()
        assert (told["device"], told["from"], told["transferred"]) == ("root.sg.*", SITE_A, ["root.sg.d1", "root.sg.d2"])
        assert told["replayed"] == [source(1)]
        assert told["still_refused"] == [{"path": source(2), "device": "root.other.d1"}]
        owners = {o["device"]: o["site"] for o in owners_list(centre.app, centre.receiver).as_json()["owners"]}
        assert owners == {"root.other.d1": "plant1", "root.sg.d1": "plant2", "root.sg.d2": "plant2"}
        again = owners_transfer(centre.app, centre.receiver, "root.sg.*", SITE_B).as_json()
        assert (again["from"], again["transferred"], again["replayed"]) == (SITE_B, [], [])
        assert centre.sql("SELECT subject FROM audit ORDER BY subject") == [("root.sg.d1",), ("root.sg.d2",)]

    def test_a_node_in_quotes_has_no_wildcard(self, centre: Centre) -> None:
        centre.sender().land({source(1): sealed({d: {"s": [(1, 1)]} for d in ("root.sg.`d*`", "root.sg.d1")})})
        centre.sender(SITE_B, name="plant2").land({source(1): d1((1, 99))})
        centre.load()
        told = owners_transfer(centre.app, centre.receiver, "root.sg.`d*`", SITE_B).as_json()
        assert told["transferred"] == ["root.sg.`d*`"]

    def test_grown_mods_join_a_refused_file(self, centre: Centre) -> None:
        centre.sender().land({source(1): d1((1, 10))})
        other = centre.sender(SITE_B, name="plant2")
        other.land({source(1): d1((1, 98), (2, 99))})
        centre.load()
        other.land({source(1): {".mods": deletion("root.sg.d1.s", 1, 1).encode()}})
        assert centre.load().refused == 1
        assert [s for (s,) in centre.sql("SELECT state FROM refusal ORDER BY generation")] == ["superseded", "refused"]
        owners_transfer(centre.app, centre.receiver, "root.sg.d1", "plant2")
        assert centre.rows() == rows((1, 10), (2, 99))
        assert centre.files("refused") == []

    def test_an_unowned_device_cannot_be_transferred(self, centre: Centre) -> None:
        self.two_sites(centre)
        centre.load()
        with pytest.raises(NotFoundError, match=r"nobody owns a device named 'root\.sg\.d9'"):
            owners_transfer(centre.app, centre.receiver, "root.sg.d9", "plant2")
        with pytest.raises(NotFoundError, match=r"nobody owns a device that matches 'root\.x\.\*\*'"):
            owners_transfer(centre.app, centre.receiver, "root.x.**", "plant2")

    @pytest.mark.full
    def test_a_released_file_may_be_refused(self, centre: Centre) -> None:
        """Quarantined first, foreign second: it waits as refused then."""
        centre.sender().land({source(1): d1((1, 10))})
        other = centre.sender(SITE_B, name="plant2")
        place = other.land({source(1): d1((1, 99))}) / source(1)
        whole = place.read_bytes()
        place.write_bytes(whole[:-1])
        centre.load()
        [held] = quarantine_list(centre.app, centre.receiver).as_json()["quarantine"]
        (centre.root / held["location"]).unlink()
        (centre.root / held["location"]).write_bytes(whole)
        with pytest.raises(OwnershipError, match="belongs to site plant1"):
            quarantine_release(centre.app, centre.receiver, str(held["id"]))
        assert quarantine_list(centre.app, centre.receiver).as_json()["quarantine"] == []
        assert owners_transfer(centre.app, centre.receiver, "root.sg.d1", "plant2").as_json()["replayed"] == [source(1)]
        assert centre.rows() == rows((1, 99))
