"""`init --site` writes settings that work with what it finds, and `doctor` says what it finds where they are wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.centre import run_inline
from tests.commanded import Said, run_here
from tidemark.settings.load import load_settings
from tidemark.settings.model import SiteSettings

REAL = Path(__file__).resolve().parents[2] / "data" / "iotdb"
STATE = "iotdb_version=2.0.1-beta\ncommit_id=5f31648\n"
CLUSTER = "time_partition_interval=86400000\ntimestamp_precision=us\nconfig_node_list=0,127.0.0.1\\:30230\n"


def modern(home: Path) -> Path:
    """A home of 2.0.1-beta: the files of a real one, and what its two servers wrote about themselves."""
    shutil.copytree(REAL / "2.0.1-beta" / "data", home / "data")
    put(home / "data/datanode/system/system.properties", STATE)
    put(home / "data/confignode/system/confignode-system.properties", CLUSTER)
    return home


def put(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def init(folder: Path, *words: str) -> Said:
    return run_here(folder / "none.toml", "init", str(folder), *words)


def site_of(folder: Path, name: str) -> SiteSettings:
    return load_settings(folder / "tidemark.toml", {}).sites[name]


@pytest.mark.full
def test_settings_of_two_versions_are_written_and_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch)
    old, new = REAL / "0.12.0", modern(tmp_path / "new")
    shutil.copytree(old, tmp_path / "old")
    said = init(tmp_path, "--site", str(tmp_path / "old"), "--site", f"north={new}")
    assert said.code == 0, said
    assert [(site["name"], site["version"], site["schema"]) for site in said.json["sites"]] == [
        ("old", "0.12.0", "data/system/schema"),
        ("north", "2.0.1-beta", "data/datanode/system/schema"),
    ]
    assert site_of(tmp_path, "old").data == ("data/data/sequence", "data/data/unsequence")
    assert (site_of(tmp_path, "old").time_unit, site_of(tmp_path, "old").partition_interval_ms) == ("ms", 604_800_000)
    north = site_of(tmp_path, "north")
    assert north.data == ("data/datanode/data/sequence", "data/datanode/data/unsequence")
    assert (north.time_unit, north.partition_interval_ms) == ("us", 86_400_000)
    config = tmp_path / "tidemark.toml"
    doctor = run_here(config, "doctor")
    assert doctor.code == 21 and 'prefix = "root.north"' in doctor.json["hint"], "both have the same devices"
    config.write_text(config.read_text().replace("[sites.north]", '[sites.north]\nprefix = "root.north"'))
    doctor = run_here(config, "doctor")
    assert doctor.code == 0, doctor
    synced = run_here(tmp_path / "tidemark.toml", "sync", "old")
    assert (synced.code, synced.json["state"]) == (0, "loaded"), synced


@pytest.mark.parametrize("below", ["", "data", "data/datanode", "data/datanode/data"])
def test_any_folder_around_the_data_will_do(tmp_path: Path, below: str) -> None:
    home = modern(tmp_path / "iotdb")
    said = init(tmp_path, "--site", f"a={home / below}")
    assert said.code == 0, said
    site = site_of(tmp_path, "a")
    root = Path(site.store.removeprefix("file://"))
    assert [root / folder for folder in site.data] == [
        home / "data/datanode/data" / half for half in ("sequence", "unsequence")
    ]
    assert bool(site.schema) is (below != "data/datanode/data")


def test_the_configuration_names_several_disks_and_a_system_folder(tmp_path: Path) -> None:
    home = tmp_path / "iotdb"
    for folder in (
        "disk1/sequence",
        "disk1/unsequence",
        "iotdb/own/sequence",
        "iotdb/sys/schema",
        "iotdb/data/data/sequence",
    ):
        (tmp_path / folder).mkdir(parents=True)
    conf = f"dn_data_dirs=own,{tmp_path}/disk1;{tmp_path}/unmounted\n# dn_system_dir=no\ndn_system_dir={home}/sys\n"
    put(home / "conf/iotdb-system.properties", conf + "timestamp_precision=ns\n")
    assert init(tmp_path, "--site", f"a={home}").code == 0
    site = site_of(tmp_path, "a")
    assert site.data == ("own/sequence", f"{tmp_path}/disk1/sequence", f"{tmp_path}/disk1/unsequence")
    assert (site.schema, site.time_unit) == ("sys/schema", "ns")


@pytest.mark.parametrize(
    "told",
    [
        "timestamp_precision=minutes\ntime_partition_interval=0\niotdb_version=2\x1b[31m\n",
        "timestamp_precision=\ntime_partition_interval=99999999999999999999\ndn_data_dirs=../../etc,\x07\n",
        "enable_partition=false\npartition_interval=60\n",
        "\\u0000=\n=\n===\n" + "x" * 10_000,
    ],
)
def test_what_makes_no_sense_is_not_said(tmp_path: Path, told: str) -> None:
    (tmp_path / "a/data/sequence").mkdir(parents=True)
    put(tmp_path / "a/conf/iotdb-system.properties", told)
    said = init(tmp_path, "--site", str(tmp_path / "a"))
    assert said.code == 0, said
    assert said.json["sites"][0]["version"] == ""
    site = site_of(tmp_path, "a")
    assert (site.data, site.time_unit, site.partition_interval_ms) == (("data/sequence",), "ms", 604_800_000)


@pytest.mark.parametrize("below", ["sequence", "unsequence/", "sequence/root.sg", "sequence/root.sg/0/1"])
def test_a_folder_in_the_data_folder_is_told_with_the_one_to_name(tmp_path: Path, below: str) -> None:
    data = tmp_path / "a plant/data"
    put(data / "sequence/root.sg/0/1/1-1-0-0.tsfile", "")
    (data / "unsequence").mkdir()
    said = init(tmp_path, "--site", f"low={data}/{below}")
    said.refused(3, "site low: no data folder of an IoTDB")
    assert f"say --site '{data}' in its place" in said.json["hint"], said
    assert not (tmp_path / "tidemark.toml").exists()
    assert init(tmp_path, "--site", f"low={data}").code == 0


def test_where_no_iotdb_is_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "a/logs").mkdir(parents=True)
    init(tmp_path, "--site", str(tmp_path / "a")).refused(3, "site a: no data folder of an IoTDB", "there is: logs")
    init(tmp_path, "--site", str(tmp_path / "a/logs")).refused(3, "site logs: no data folder", "logs; it is empty")
    init(tmp_path, "--site", str(tmp_path / "b")).refused(3, "site b: no data folder", "b; that folder is not there")
    init(tmp_path, "--site", "ftp://x").refused(2, "--site ftp://x: must be")
    init(tmp_path, "--site", "sftp://u:secret@h/x").refused(2, "must not hold a password")
    assert "secret" not in init(tmp_path, "--site", "sftp://u:secret@h/x").out
    assert not (tmp_path / "tidemark.toml").exists()


def test_settings_that_are_there_stay_and_the_tables_are_shown(tmp_path: Path) -> None:
    home = modern(tmp_path / "iotdb")
    put(tmp_path / "tidemark.toml", '[receivers.centre]\nstore = "centre"\n')
    said = init(tmp_path, "--site", str(home), "--site", str(home))
    assert (said.code, said.json["written"]) == (0, False)
    assert [site["name"] for site in said.json["sites"]] == ["iotdb", "iotdb-2"]
    with (tmp_path / "tidemark.toml").open("a") as file:
        file.write(said.json["tables"])
    assert set(load_settings(tmp_path / "tidemark.toml", {}).links) == {"iotdb", "iotdb-2"}


def test_doctor_says_what_to_write_where_a_folder_is_wrong(tmp_path: Path) -> None:
    home = modern(tmp_path / "iotdb")
    site = f'[sites.a]\nid = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"\nstore = "{home}"\nschema = "system/schema"\n'
    put(tmp_path / "tidemark.toml", site)
    checks = {check["name"]: check for check in run_here(tmp_path / "tidemark.toml", "doctor").json["checks"]}
    assert checks["site a: data"]["hint"] == (
        'found data/datanode/data/sequence; write data = ["data/datanode/data/sequence", "data/datanode/data/unsequence"]'
        " in [sites.a]"
    )
    assert checks["site a: schema"]["hint"] == (
        'found data/datanode/system/schema; write schema = "data/datanode/system/schema" in [sites.a]'
    )


def test_doctor_compares_the_unit_and_the_interval(tmp_path: Path) -> None:
    assert init(tmp_path, "--site", f"a={modern(tmp_path / 'iotdb')}").code == 0
    sound = run_here(tmp_path / "tidemark.toml", "doctor")
    (said,) = [check for check in sound.json["checks"] if check["name"] == "site a: IoTDB"]
    assert (said["ok"], said["detail"]) == (True, '2.0.1-beta; time_unit = "us", partition_interval_ms = 86400000')
    text = (tmp_path / "tidemark.toml").read_text()
    (tmp_path / "tidemark.toml").write_text(text.replace('time_unit = "us"', 'time_unit = "ms"'))
    wrong = run_here(tmp_path / "tidemark.toml", "doctor")
    assert wrong.code == 6
    (said,) = [check for check in wrong.json["checks"] if check["name"] == "site a: IoTDB"]
    assert said["detail"] == '2.0.1-beta: its files say time_unit = "us", the settings "ms"'
