"""Drops that wait, approved by a person in Airflow: what is shown, what is approved."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from tests.dags.conftest import Centre
from tests.dags.test_runs import Dag
from tidemark.errors import GuardError
from tidemark.orchestration.tasks import approval

pytestmark = pytest.mark.usefixtures("airflow_database")


@pytest.mark.full
def test_a_person_sees_numbers_and_paths_and_the_next_run_drops_them(centre: Centre) -> None:
    Dag("manual__1").whole()
    with pytest.raises(AirflowSkipException, match="no drops of link plant1 wait"):
        approval.find({"link": "plant1"})
    gone = centre.sealed()
    for path in gone[2:]:
        (centre.site / path).unlink()
        (centre.site / f"{path}.resource").unlink()
    centre.write(deletes='"apply"')
    for name in ("manual__2", "manual__3"):
        with pytest.raises(GuardError):
            Dag(name).whole()
        if name == "manual__2":
            early = approval.find({"link": "plant1"})
    with pytest.raises(GuardError, match="looked again since"):
        approval.approve(early)
    found = approval.find({"link": "plant1"})
    assert found["files"] == len(gone) - 2
    assert f"{len(gone) - 2} files are gone at the site. Approved, they leave the catalog" in found["said"]
    assert f"`{gone[2]}`" in found["said"] and f"`{gone[0]}`" not in found["said"]
    approval.approve(found)
    Dag("manual__4").whole()
    with pytest.raises(AirflowSkipException):
        approval.find({"link": "plant1"})


def test_what_a_person_reads_is_bounded_and_cannot_pretend() -> None:
    said = approval.describe_drops("too many", [f"a`{n}\n# fine" for n in range(101)], "keep")
    assert "101 files are gone at the site. Approved, they stay in the catalog, marked as dropped" in said
    assert said.endswith("… and 1 more: see the log of find.") and "\n# fine" not in said and "`a'0" in said
