"""`doctor` finds each trouble before a run does, and says what to do (CONTRACT §1)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.crash.edge import resource_bytes
from tests.services.processes import free_port
from tidemark.app import open_app
from tidemark.errors import HostKeyError, PermissionDeniedError, UnreachableError
from tidemark.ledger.database import Ledger
from tidemark.ledger.migrations import migrate_ledger
from tidemark.ledger.sender import links as link_rows
from tidemark.operations.doctor.doctor import DoctorReport, doctor
from tidemark.operations.doctor.stores import Check
from tidemark.settings.load import load_settings
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress

ID = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
SETTINGS = f"""
[receivers.centre]
store = "centre"
[sites.plant1]
id = "{ID}"
store = "site"
[links.plant1]
site = "plant1"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "tidemark.toml").write_text(SETTINGS)
    for kind in ("sequence", "unsequence"):
        (tmp_path / "site" / "data" / kind / "root.a").mkdir(parents=True)
    (tmp_path / "site" / "data" / "sequence" / "root.a" / "1-1-0-0.tsfile").write_bytes(b"TsFile")
    return tmp_path


def examine(place: Path, **environ: str) -> DoctorReport:
    return doctor(str(place / "tidemark.toml"), environ)


def found(report: DoctorReport, name: str) -> Check:
    (check,) = [check for check in report.checks if check.name == name]
    return check


def test_a_sound_deployment_passes_and_nothing_is_left_behind(place: Path) -> None:
    report = examine(place)
    assert report.exit_code == 0, [check for check in report.checks if not check.ok]
    names = {check.name for check in report.checks}
    assert {
        "versions",
        "settings",
        "ledger",
        "disk",
        "java",
        "decoders",
        "receiver centre: write",
        "receiver centre: clock",
    } <= names
    assert found(report, "site plant1: hard links for data/sequence").detail == "data/.tidemark is on the same disk"
    assert "no file in data/unsequence yet" in found(report, "site plant1: hard links for data/unsequence").detail
    assert [path.name for path in place.rglob("*") if path.is_file()] == ["tidemark.toml", "1-1-0-0.tsfile"]
    assert not (place / "var").exists()


def test_what_a_killed_doctor_left_goes_with_one_of_an_hour_later(place: Path) -> None:
    """Its hard link would keep the bytes of a file that the server has removed."""
    sealed = place / "site" / "data" / "sequence" / "root.a" / "1-1-0-0.tsfile"
    beside = place / "site" / "data" / ".tidemark"

    def leave(seconds: int, token: str) -> list[Path]:
        began = f"{time.time() - seconds:.0f}"
        link = beside / f"doctor-{began}-{token}" / "link"
        link.parent.mkdir(parents=True)
        link.hardlink_to(sealed)
        file = place / "centre" / f".tidemark-doctor-{began}-{token}"
        temp = file.with_name(f"{file.name}.0a1b2c3d.tmp")
        file.parent.mkdir(exist_ok=True)
        for one in (file, temp):
            one.write_bytes(b"tidemark doctor\n")
        return [link.parent, file, temp]

    old, fresh = leave(7200, "00000000"), leave(60, "11111111")
    others = [beside / "plant1" / "run", place / "centre" / ".tidemark-doctor-mine"]
    others[0].mkdir(parents=True)
    others[1].write_bytes(b"")
    assert examine(place).exit_code == 0
    assert [one for one in old if one.exists()] == []
    assert all(one.exists() for one in (*fresh, *others, sealed)), "somebody may be at work"


def test_its_json_has_the_keys_of_the_contract(place: Path) -> None:
    answer = examine(place).as_json()
    assert answer["ok"] is True
    assert all(set(check) == {"name", "ok", "detail", "hint"} for check in answer["checks"])


def test_broken_settings_are_a_check_like_others(place: Path) -> None:
    (place / "tidemark.toml").write_text(SETTINGS + 'window = "soon"\n')
    report = examine(place)
    assert report.exit_code == 2
    assert "links.plant1.window" in found(report, "settings").detail


def test_a_folder_that_is_not_there_is_named(place: Path) -> None:
    report = examine(
        place, TIDEMARK__SITES__PLANT1__DATA="data/sequence,data/other", TIDEMARK__SITES__PLANT1__SCHEMA="system/schema"
    )
    missing = [check for check in report.checks if not check.ok]
    assert [check.detail for check in missing] == ["data/other is not there", "system/schema is not there"]
    assert "is the disk mounted?" in missing[0].hint
    assert report.exit_code == 3


def test_half_of_what_the_server_keeps_is_not_forgotten_unsaid(place: Path) -> None:
    report = examine(place, TIDEMARK__SITES__PLANT1__DATA="data/sequence")
    told = "data/sequence; data/unsequence beside it is not in data: its files are not sent"
    assert (found(report, "site plant1: data").detail, report.exit_code) == (told, 0)
    both = [check.detail for check in examine(place).checks if check.name == "site plant1: data"]
    assert both == ["data/sequence", "data/unsequence"]


def test_a_disk_that_was_added_at_the_site_is_told(place: Path) -> None:
    """The server's configuration names it, the settings do not: `sync` and `coverage` cannot know."""
    site = place / "site"
    for folder in ("conf", "disk2/sequence", "disk2/unsequence"):
        (site / folder).mkdir(parents=True)
    (site / "conf" / "iotdb-system.properties").write_text(f"dn_data_dirs=data;{site}/disk2\n")
    report = examine(place)
    check = found(report, "site plant1: data folders")
    assert "names disk2/sequence, disk2/unsequence too, not in data" in check.detail and report.exit_code == 0
    for data in (f"data,{site}/disk2", "data/sequence,data/unsequence,disk2/sequence,disk2/unsequence"):
        checks = examine(place, TIDEMARK__SITES__PLANT1__DATA=data).checks
        assert "site plant1: data folders" not in {check.name for check in checks}


def test_an_empty_data_folder_is_there(place: Path) -> None:
    (place / "site" / "empty").mkdir()
    assert examine(place, TIDEMARK__SITES__PLANT1__DATA="empty").exit_code == 0


def test_a_ledger_that_does_not_answer_is_named_without_its_password(place: Path) -> None:
    url = f"postgresql+psycopg://tidemark:secret@127.0.0.1:{free_port()}/tidemark"
    report = examine(place, TIDEMARK__LEDGER__URL=url)
    check = found(report, "ledger")
    assert (check.ok, report.exit_code) == (False, 5)
    assert "secret" not in check.detail
    assert found(report, "receiver centre").ok, "the rest is looked at all the same"


def test_a_newer_ledger_is_refused(place: Path) -> None:
    ledger = Ledger("sqlite:///var/ledger.db", place)
    migrate_ledger(ledger)
    with ledger.write() as connection:
        connection.execute(sa.text("INSERT INTO tidemark_schema VALUES (9999, 'later.sql', '', 0)"))
    ledger.close()
    check = found(examine(place), "ledger")
    assert not check.ok
    assert "schema 9999" in check.detail
    assert "upgrade Tidemark" in check.hint


def test_a_store_in_trouble_does_not_hide_the_others(place: Path) -> None:
    def opener(address: StoreAddress) -> Store:
        if address.url.endswith("/centre"):
            raise HostKeyError("the host key of x differs", hint="see docs/runbooks/host-key-changed.md")
        return open_store(address)

    report = doctor(str(place / "tidemark.toml"), {}, opener)
    check = found(report, "receiver centre")
    assert (check.ok, check.kind, check.hint) == (False, 6, "see docs/runbooks/host-key-changed.md")
    assert found(report, "site plant1").ok
    assert report.exit_code == 6


@pytest.mark.parametrize("error", [UnreachableError("no answer"), PermissionDeniedError("no login")])
def test_the_first_trouble_gives_the_exit_code(place: Path, error: Exception) -> None:
    def opener(_address: StoreAddress) -> Store:
        raise error

    report = doctor(str(place / "tidemark.toml"), {}, opener)
    assert report.exit_code == error.kind  # type: ignore[attr-defined]
    assert sum(not check.ok for check in report.checks) == 2


def test_a_clock_that_is_off_is_told(place: Path) -> None:
    report = doctor(str(place / "tidemark.toml"), {}, clock=lambda: 1_000_000_000.0)
    check = found(report, "receiver centre: clock")
    assert not check.ok
    assert "ahead of ours" in check.detail


def test_a_site_read_in_place_is_not_written_to(place: Path) -> None:
    report = examine(place, TIDEMARK__SITES__PLANT1__SNAPSHOT="")
    assert report.exit_code == 0
    assert "read in place" in found(report, "site plant1: snapshot").detail
    assert not (place / "site" / "data" / ".tidemark").exists()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("moved", ["data", "data/root.a", "data/root.a/7", "schema"])
def test_a_folder_of_the_receiver_that_became_a_symlink(place: Path, moved: str) -> None:
    """As when a disk is full and `data/` is moved to a larger one: nothing behind the link is read."""
    folder = place / "centre" / moved
    (place / "larger").mkdir()
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(place / "larger")
    report = examine(place)
    assert report.exit_code == 6
    check = found(report, f"receiver centre: {moved}")
    assert not check.ok and "symlink" in check.detail and "mount" in check.hint


OTHER = """
[sites.ship-7]
id = "2b4e28ba-2fa1-41d2-883f-0016d3cca427"
store = "other"
{prefix}
[links.ship-7]
site = "ship-7"
"""


def add_copied_site(place: Path, prefix: str = "") -> None:
    """A second site with the devices of the first, as copies of one edge image have."""
    (place / "tidemark.toml").write_text(SETTINGS + OTHER.format(prefix=prefix))
    for site in ("site", "other"):
        for version, devices in ((1, ["root.a.old"]), (2, ["root.a.d1", "root.a.d2"])):
            tsfile = place / site / f"data/sequence/root.a/0/0/{version}-{version}-0-0.tsfile"
            tsfile.parent.mkdir(parents=True, exist_ok=True)
            tsfile.write_bytes(b"TsFile")
            Path(f"{tsfile}.resource").write_bytes(resource_bytes(dict.fromkeys(devices, (1, 9))))
        (place / site / "data/unsequence").mkdir(parents=True, exist_ok=True)


def test_sites_with_the_same_devices_are_told_before_a_byte_is_sent(place: Path) -> None:
    add_copied_site(place)
    report = examine(place)
    check = found(report, "receiver centre: names")
    assert report.exit_code == 21 and "plant1 and ship-7 both have root.a.d1 and 1 more device:" in check.detail
    assert 'write prefix = "root.`ship-7`" in [sites.ship-7]' in check.hint
    add_copied_site(place, "prefix = 'root.`ship-7`'")
    assert found(examine(place), "receiver centre: names").ok


def test_sites_that_have_sent_the_same_devices_are_a_warning(place: Path) -> None:
    add_copied_site(place)
    app = open_app(load_settings(str(place / "tidemark.toml"), {}))
    for site in app.settings.sites.values():
        with app.ledger.write() as connection:
            link_rows.put_site(connection, site.id, site.name, site.time_unit, site.partition_interval_ms)
            link_rows.add_link(connection, site.name, site.id, "centre")
            connection.execute(sa.text("UPDATE link SET next_sequence = 2"))
    check = found(examine(place), "receiver centre: names")
    assert check.ok and check.detail.startswith("warning: sites plant1 and ship-7") and "owners list" in check.detail


def test_a_prefix_that_changed_after_the_first_landing_is_told(place: Path) -> None:
    test_sites_that_have_sent_the_same_devices_are_a_warning(place)
    add_copied_site(place, "prefix = 'root.`ship-7`'")
    check = found(examine(place), "site ship-7: prefix")
    assert not check.ok and 'the settings say "root.`ship-7`"' in check.detail and "again" in check.hint


def test_a_link_that_got_another_site_or_receiver_after_it_ran_is_told(place: Path) -> None:
    test_sites_that_have_sent_the_same_devices_are_a_warning(place)
    config = place / "tidemark.toml"
    before, renewed = config.read_text(), "3b4e28ba-2fa1-41d2-883f-0016d3cca427"
    config.write_text(before.replace(ID, renewed))
    check = found(examine(place), "link plant1")
    assert not check.ok and f"belongs to site {ID}, the settings say {renewed} (plant1)" in check.detail
    assert f'set id = "{ID}" again in [sites.plant1]' in check.hint
    config.write_text(before.replace("[receivers.centre]", "[receivers.dr]"))
    report = examine(place)
    assert report.exit_code == 6 and "has sent its files to receiver centre" in found(report, "link plant1").detail
