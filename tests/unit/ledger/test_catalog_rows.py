"""Many files enter the catalog at once; refusals and quarantine that they settle."""

from __future__ import annotations

import pytest

from tests.unit.ledger.test_merge_rows import SITE, a_file, devices
from tidemark.ledger.database import Ledger
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import refusals as owner_rows
from tidemark.ledger.receiver import refusals as trouble_rows
from tidemark.ledger.receiver.catalog import FileWithDevices
from tidemark.ledger.receiver.refusals import QuarantineRow, RefusalRow


@pytest.mark.full_after(1)
def test_each_of_many_files_gets_its_own_number_and_its_own_devices(ledger: Ledger) -> None:
    many = [FileWithDevices(a_file(f"{n}", n), devices(n, n + 1, f"root.a.d{n}")) for n in range(2_500)]
    with ledger.write() as connection:
        file_ids = catalog_rows.add_files(connection, many)
    with ledger.read() as connection:
        files = {file.file_id: file for file in catalog_rows.files_by_id(connection, file_ids)}
        extents = catalog_rows.devices_of_files(connection, file_ids)
    assert [files[file_id].path for file_id in file_ids] == [one.file.path for one in many]
    assert [extents[file_id] for file_id in file_ids] == [one.devices for one in many]


def test_no_files_are_no_work(ledger: Ledger) -> None:
    with ledger.write() as connection:
        assert catalog_rows.add_files(connection, []) == []


def test_a_loaded_generation_settles_older_refusals_of_its_path_alone(ledger: Ledger) -> None:
    with ledger.write() as connection:
        for path, generation in (("a", 1), ("a", 2), ("a", 3), ("b", 1)):
            refusal = RefusalRow(
                "centre", SITE, path, generation, "l-1", "root.d", "other", 1.0, f"refused/{path}{generation}", "{}", 1.0
            )
            owner_rows.add_refusal(connection, refusal)
        owner_rows.supersede_refusals(connection, "centre", SITE, [("a", 1), ("a", 2), ("c", 9)])
    with ledger.read() as connection:
        left = owner_rows.read_refusals(connection, "centre")
    assert [(row.path, row.generation) for row in left] == [("a", 3), ("b", 1)]


def test_a_loaded_generation_settles_what_of_its_path_was_held(ledger: Ledger) -> None:
    with ledger.write() as connection:
        for path, generation, state in (("a", 1, "held"), ("a", 2, "awaiting"), ("a", 3, "held"), ("b", 1, "held")):
            place = f"quarantine/{path}{generation}"
            held = QuarantineRow("centre", SITE, path, generation, "l-1", "torn", 8, place, "{}", 1.0, state)
            trouble_rows.add_quarantine(connection, held)
        trouble_rows.supersede_quarantine(connection, "centre", SITE, [("a", 2)])
        trouble_rows.supersede_quarantine(connection, "centre", "another site", [("b", 1)])
    with ledger.read() as connection:
        left = trouble_rows.read_quarantine(connection)
        assert trouble_rows.read_quarantine(connection, state="awaiting") == []
    assert [(row.path, row.generation) for row in left] == [("a", 3), ("b", 1)]
