"""What `tidemark.toml` may say, and what a wrong line gets (CONTRACT §2)."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.make.settings_page import describe_limits
from tidemark.errors import UsageError
from tidemark.settings import template, values
from tidemark.settings.document import iterate_keys
from tidemark.settings.load import load_settings
from tidemark.settings.model import (
    REQUIRED,
    SECTIONS,
    ClusterSettings,
    LinkSettings,
    NodeSettings,
    ReceiverSettings,
    Setting,
    Settings,
    SiteSettings,
    SparkSettings,
    list_settings,
)
from tidemark.settings.values import format_read

ID = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
OTHER_ID = "6fa459ea-ee8a-4ca4-894e-db77e160355e"
HOST_KEY = "SHA256:" + "a" * 43
SOUND = f"""
[receivers.centre]
store = "file:///srv/tidemark"

[sites.plant1]
id = "{ID}"
store = "sftp://edge@10.0.0.5:22/data/iotdb"
host_key = "{HOST_KEY}"
key = "keys/id"

[links.plant1]
site = "plant1"

[airflow]
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "tidemark.toml"


def load_text(path: Path, text: str, **environ: str) -> Settings:
    path.write_text(text, encoding="utf-8")
    return load_settings(path, environ)


def problems(path: Path, text: str, **environ: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        load_text(path, text, **environ)
    lines = caught.value.message.splitlines()
    return [line.replace(str(path), "tidemark.toml") for line in lines if not line.endswith("in the settings:")]


def test_a_short_file_gets_every_default(written: Path) -> None:
    settings = load_text(written, SOUND)
    link = settings.links["plant1"]
    assert link == LinkSettings(name="plant1", site="plant1", receiver="centre")
    assert settings.sites["plant1"].key == str(written.parent / "keys" / "id")
    assert settings.path == written
    assert settings.root == written.parent
    assert settings.cluster is None


def test_settings_are_frozen(written: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_text(written, SOUND).links["plant1"].retries = 3  # type: ignore[misc]


def test_what_init_writes_loads_and_has_a_site_id_of_its_own(written: Path) -> None:
    first = load_text(written, template.render_template())
    second = load_text(written, template.render_template())
    assert first.links["plant1"].schedule == "*/15 * * * *"
    assert first.sites["plant1"].id != second.sites["plant1"].id


EVERY_SETTING = [(section, key, found) for section in SECTIONS for key, found in list_settings(section).items()]


@pytest.mark.parametrize(("section", "key", "found"), EVERY_SETTING, ids=lambda part: part if isinstance(part, str) else "")
def test_a_declaration_says_what_is_allowed_and_what_it_means(section: str, key: str, found: Setting) -> None:
    assert found.meaning.strip()
    assert describe_limits(found.read)
    if found.default is not REQUIRED:
        assert found.read(tomllib.loads(f"v = {format_read(found.default, found.read)}")["v"]) == found.default


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_is_a_setting(section: str) -> None:
    assert {one.name for one in dataclasses.fields(SECTIONS[section])} - {"name"} == set(list_settings(section))
    assert {one.name for one in dataclasses.fields(Settings)} - {"path"} == set(SECTIONS)


@pytest.mark.full_after(1)
@pytest.mark.parametrize(("section", "key", "found"), EVERY_SETTING, ids=lambda part: part if isinstance(part, str) else "")
def test_the_template_has_a_line_for_every_setting(section: str, key: str, found: Setting) -> None:
    tables = re.split(r"^(?:# )?\[", template.render_template(), flags=re.MULTILINE)
    (table,) = (table for table in tables if re.match(rf"{section}[.\]]", table))
    (line,) = re.findall(rf"^(?:# )?{key} = .*", table, flags=re.MULTILINE)
    assert line.endswith(f"  # {found.meaning}")


def test_the_template_shows_the_defaults_as_they_are(written: Path) -> None:
    text = "\n".join(line for line in template.render_template().splitlines() if not line.startswith("schedule"))
    settings = load_text(written, text)
    site, store = settings.sites["plant1"].id, settings.receivers["centre"].store
    assert settings.links == {"plant1": LinkSettings(name="plant1", site="plant1", receiver="centre")}
    assert settings.sites == {"plant1": SiteSettings(name="plant1", id=site, store="file:///data/iotdb")}
    assert settings.receivers == {"centre": ReceiverSettings(name="centre", store=store)}
    assert settings.spark == SparkSettings()


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        ("file:///srv/a/", "file:///srv/a"),
        ("/srv/a", "file:///srv/a"),
        ("var/centre", "file://{root}/var/centre"),
        ("../beside", "file://{parent}/beside"),
        ("~/data", "file://{home}/data"),
        ("file://~/data", "file://{home}/data"),
    ],
)
def test_a_local_store_is_made_absolute(written: Path, store: str, expected: str) -> None:
    settings = load_text(written, f'[receivers.c]\nstore = "{store}"\n')
    places = {"root": written.parent, "parent": written.parent.parent, "home": Path.home()}
    assert settings.receivers["c"].store == expected.format(**places)


def test_the_environment_goes_over_the_file(written: Path) -> None:
    settings = load_text(
        written,
        SOUND,
        TIDEMARK__LEDGER__URL="postgresql://t@db/tidemark",
        TIDEMARK__LINKS__PLANT1__RETRIES="7",
        TIDEMARK__LINKS__PLANT1__BANDWIDTH="20 MB/s",
        TIDEMARK__RECEIVERS__CENTRE__BANDWIDTH="100 MB/s",
        TIDEMARK__LINKS__PLANT1__INCLUDE="root.a.**, root.b.**",
        TIDEMARK__SITES__PLANT1__STORE="sftp://edge@10.0.0.6/data",
        TIDEMARK__SITES__PLANT1__FAR_MEMORY="64 MB",
        TIDEMARK_CONFIG="not a key",
    )
    assert settings.ledger.url == "postgresql+psycopg://t@db/tidemark"
    assert settings.links["plant1"].retries == 7
    assert settings.sites["plant1"].far_memory == 64_000_000
    assert settings.links["plant1"].bandwidth == 20e6
    assert settings.receivers["centre"].bandwidth == 100e6
    assert settings.links["plant1"].include == ("root.a.**", "root.b.**")
    assert settings.sites["plant1"].store == "sftp://edge@10.0.0.6/data"


def test_the_environment_finds_names_with_hyphens_and_makes_new_tables(written: Path) -> None:
    settings = load_text(
        written,
        SOUND.replace("plant1", "Plant-1"),
        TIDEMARK__SITES__PLANT_1__TIME_UNIT="us",
        TIDEMARK__SITES__NORTH__ID=OTHER_ID,
        TIDEMARK__SITES__NORTH__STORE="/data",
    )
    assert settings.sites["Plant-1"].time_unit == "us"
    assert settings.sites["north"].store == "file:///data"


def test_a_wrong_environment_variable_is_named(written: Path) -> None:
    found = problems(written, SOUND, TIDEMARK__LINKS__PLANT1__RETRIES="many", TIDEMARK__LEDGER__ULR="x")
    assert found == [
        'TIDEMARK__LEDGER__ULR: ledger.ulr: no such key; did you mean "url"?',
        'TIDEMARK__LINKS__PLANT1__RETRIES: links.plant1.retries = "many": must be a whole number from 0 to 100',
    ]


@pytest.mark.parametrize(
    ("section", "line", "says"),
    [
        ("links.plant1", "retires = 3", 'links.plant1.retires: no such key; did you mean "retries"?'),
        ("links.plant1", "retries = -1", "must be a whole number from 0 to 100"),
        ("links.plant1", "retries = true", "links.plant1.retries = true: must be a whole number"),
        ("links.plant1", "retries = 3.5", "must be a whole number"),
        ("links.plant1", 'connections = "16 or so"', "must be a whole number from 1 to 64"),
        ("links.plant1", 'bandwidth = "20 Mb/s"', 'must be like "20 MB/s" (bytes), "20 MiB/s" or "160 Mbit/s" (bits)'),
        ("receivers.centre", 'bandwidth = "fast"', 'receivers.centre.bandwidth = "fast": must be like "20 MB/s"'),
        ("sites.plant1", "far_memory = 64", 'must be like "20 GB" or "512 MiB"; "" for no limit'),
        ("sites.plant1", 'prefix = "ship7"', 'must be a path like "root.ship7", or "" for none'),
        ("sites.plant1", 'prefix = "root"', 'must be a path like "root.ship7"'),
        ("sites.plant1", 'prefix = "root.a."', 'must be a path like "root.ship7"'),
        ("sites.plant1", 'prefix = "root.*"', 'must be a path like "root.ship7"'),
        ("sites.plant1", 'prefix = "root.ship-7"', "a node like ship-7 in back-quotes"),
        ("sites.plant1", 'prefix = "root.`ship-7"', 'must be a path like "root.ship7"'),
        ("sites.plant1", 'prefix = "root.`ship7`"', "write ship7 without back-quotes"),
        ("sites.plant1", 'prefix = "root.7"', "write `7` in back-quotes: it is a number"),
        ("links.plant1", 'window = "22-6"', 'must be like "22:00-06:00"'),
        ("links.plant1", 'window = "22:00-22:00"', "both ends are the same"),
        ("links.plant1", 'schedule = "61 * * * *"', '"61" is no minute'),
        ("links.plant1", 'schedule = "hourly"', "must have five cron fields"),
        ("links.plant1", 'timezone = "Middle/Earth"', 'must be a time zone like "UTC" or "Europe/Berlin"'),
        ("links.plant1", 'deletes = "maybe"', 'must be one of "keep", "apply"'),
        ("links.plant1", "delete_limit_share = 20", "must be a share from 0.0 to 1.0"),
        ("links.plant1", "coverage_stale_hours = -1", "must be hours from 0 to 87600"),
        ("links.plant1", 'coverage_stale_hours = "soon"', "must be hours from 0 to 87600"),
        ("links.plant1", "include = []", "must not be an empty list"),
        ("links.plant1", "include = [1]", "must be a list of texts"),
        ("links.plant1", 'receiver = "centra"', 'no receiver of that name; did you mean "centre"?'),
        ("airflow", 'verify_schedule = "nightly"', "must have five cron fields"),
        ("airflow", 'at_creation = "yes"', 'must be one of "airflow", "paused", "running"'),
        ("airflow", "default_args = {retrys = 3}", "must be a table with some of retries, retry_delay"),
        ("airflow", 'default_args = {retry_delay = "1 min"}', "retry_delay must be a whole number of at least 0"),
        ("airflow", 'notify = ["ops"]', 'must be a list of tables like {call = "package.module.Name"}'),
        ("airflow", 'notify = [{call = "mail ops"}]', 'needs call = "package.module.Name" in each table'),
        ("airflow", 'notify = [{call = "a.B", on = "red"}]', 'on must be one of "failure", "retry"'),
        ("sites.plant1", 'data = ["."]', 'must be a folder below the store, for example "sequence"'),
        ("sites.plant1", 'schema = "./"', 'must be a folder below the store, for example "sequence"'),
        ("sites.plant1", 'data = ["../x"]', "must be a folder relative to the store or absolute, without .."),
        ("sites.plant1", 'data = ["a", "a/b"]', '"a/b" lies inside "a"'),
        ("sites.plant1", 'data = ["a", "a/"]', '"a" lies inside "a"'),
        ("sites.plant1", 'schema = "a/../../b"', "without .."),
        ("sites.plant1", 'snapshot = "/tmp/x"', "must be relative"),
        ("sites.plant1", 'time_unit = "s"', 'must be one of "ms", "us", "ns"'),
        ("sites.plant1", 'connection = "ssh"', "key and connection exclude each other"),
        ("sites.plant1", 'login = "agent"', "log in by the agent, or by key: give one"),
        ("sites.plant1", 'login = "password"', 'must be one of "keys", "agent"'),
        ("receivers.centre", "settle_days = -2", "must be a whole number of at least 0"),
        ("receivers.centre", 'iotdb = "http://x"', 'must be "iotdb://user@host:port"'),
        ("receivers.centre", 'iotdb = "iotdb://me:secret@h:6667"', "must not hold a password: log in with `iotdb_password"),
    ],
)
def test_a_bad_value_is_named_with_its_line_and_what_is_allowed(written: Path, section: str, line: str, says: str) -> None:
    text = SOUND.replace(f"[{section}]", f"[{section}]\n{line}")
    number = text.splitlines().index(line) + 1
    (found,) = problems(written, text)
    assert found.startswith(f"tidemark.toml:{number}: {section}")
    assert says in found


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("ftp://x/y", 'must be "sftp://user@host:port/folder"'),
        ("sftp://edge@host:port/x", 'must be "sftp://user@host:port/folder", its port a number from 1 to 65535'),
        ("sftp://edge@host:0/x", "its port a number from 1 to 65535"),
        ("sftp://edge@host:70000/x", "its port a number from 1 to 65535"),
        ("sftp://edge@host", "needs an absolute folder"),
        ("sftp://edge@host/a/../b", "without .."),
        ("file://srv/x", "file:/// with three slashes"),
        ("sftp://edge@host/disk#1", "write %23"),
        ("sftp://edge@[::1/x", 'must be "sftp://user@host:port/folder"'),
        ("", 'must be "file:///folder" or "sftp://user@host:port/folder"'),
    ],
)
def test_a_store_that_cannot_be_is_refused(written: Path, store: str, says: str) -> None:
    (found,) = problems(written, f'[receivers.c]\nstore = "{store}"\n')
    assert found.startswith("tidemark.toml:2: receivers.c.store")
    assert says in found


def test_a_password_in_an_address_is_refused_and_not_repeated(written: Path) -> None:
    (found,) = problems(written, '[receivers.c]\nstore = "sftp://edge:secret@host/x"\n')
    assert "must not hold a password" in found
    assert "secret" not in found


def test_a_tier_may_be_forced_where_there_is_one(written: Path) -> None:
    found = load_text(written, SOUND.replace(f'host_key = "{HOST_KEY}"', f'host_key = "{HOST_KEY}"\ntier = "posix"'))
    assert found.sites["plant1"].tier == "posix" and found.receivers["centre"].tier == "auto"
    (wrong,) = problems(written, SOUND.replace(f'host_key = "{HOST_KEY}"', f'host_key = "{HOST_KEY}"\ntier = "python3"'))
    assert 'must be one of "auto", "python", "posix", "sftp"' in wrong
    (useless,) = problems(written, SOUND.replace("[receivers.centre]", '[receivers.centre]\ntier = "sftp"'))
    assert "receivers.centre.tier" in useless and "for sftp:// stores" in useless


def test_sftp_needs_a_host_key(written: Path) -> None:
    (found,) = problems(written, SOUND.replace(f'host_key = "{HOST_KEY}"\n', ""))
    assert found.startswith('tidemark.toml:7: sites.plant1.store: needs host_key = "SHA256:…"')


def test_two_sites_with_one_id_name_both_lines(written: Path) -> None:
    (found,) = problems(written, SOUND + f'\n[sites.twin]\nid = "{ID.upper()}"\nstore = "/data"\n')
    assert "sites.twin.id" in found
    assert "is the id of site plant1 too (tidemark.toml:6)" in found


def test_a_second_link_of_the_same_site_and_receiver_is_refused(written: Path) -> None:
    (found,) = problems(written, SOUND + '\n[links.again]\nsite = "plant1"\ninclude = ["root.a.**"]\n')
    assert "links.again: sends site plant1 to centre as link plant1 does (tidemark.toml:11)" in found


@pytest.mark.parametrize("store", ["/srv/tidemark", "/srv/tidemark/b/", "/srv"])
def test_receivers_that_share_a_folder_are_refused(written: Path, store: str) -> None:
    text = SOUND.replace('site = "plant1"', 'site = "plant1"\nreceiver = "centre"')
    (found,) = problems(written, f'{text}\n[receivers.two]\nstore = "{store}"\n')
    assert "receivers.two.store" in found
    assert "shares folders with the store of receiver centre (tidemark.toml:3)" in found
    load_text(written, f'{text}\n[receivers.two]\nstore = "/srv/tidemark2"\n')


def here(store: str, data: str) -> str:
    return f'\n[sites.here]\nid = "0f8e0000-0000-4000-8000-000000000009"\nstore = "{store}"\ndata = ["{data}"]\n'


@pytest.mark.parametrize(
    ("store", "data"),
    [
        ("/srv/tidemark", "data/sequence"),
        ("/srv/tidemark/landing/", "data/sequence"),
        ("/srv", "tidemark/data"),
        ("/iotdb", "/srv/tidemark/data/more"),
        ("/", "srv"),
    ],
)
def test_a_site_whose_data_lies_among_a_receivers_own_folders_is_refused(written: Path, store: str, data: str) -> None:
    (found,) = problems(written, SOUND + here(store, data))
    assert "sites.here.store" in found
    assert "shares folders with the store of receiver centre (tidemark.toml:3)" in found


@pytest.mark.parametrize(
    ("store", "data"), [("/srv", "iotdb/data"), ("/srv/tidemark", "iotdb/data"), ("/srv/tidemark2", "data")]
)
def test_a_site_beside_a_receiver_is_welcome(written: Path, store: str, data: str) -> None:
    load_text(written, SOUND + here(store, data))


@pytest.mark.parametrize("store", ["/data/iotdb", "/srv/tidemark-edge", "/"])
def test_a_machine_may_be_site_and_receiver_in_folders_of_their_own(written: Path, store: str) -> None:
    site = f'\n[sites.here]\nid = "0f8e0000-0000-4000-8000-000000000009"\nstore = "{store}"\n'
    assert load_text(written, SOUND + site).sites["here"].store.startswith("file:///")


@pytest.mark.parametrize(("section", "line"), [("sites.plant1", 'data = "data"'), ("links.plant1", 'retries = "5"')])
def test_a_text_in_the_file_is_no_list_and_no_number(written: Path, section: str, line: str) -> None:
    (found,) = problems(written, SOUND.replace(f"[{section}]", f"[{section}]\n{line}"))
    assert f"{section}.{line.split(maxsplit=1)[0]}" in found


def test_an_unknown_site_names_the_nearest(written: Path) -> None:
    (found,) = problems(written, SOUND.replace('site = "plant1"', 'site = "plant2"'))
    assert found == 'tidemark.toml:12: links.plant1.site = "plant2": no site of that name; did you mean "plant1"?'


def test_a_link_must_choose_among_several_receivers(written: Path) -> None:
    (found,) = problems(written, SOUND + '\n[receivers.two]\nstore = "/srv/two"\n')
    assert found == 'tidemark.toml:11: links.plant1: needs receiver = "…"; there are: centre, two'


def test_missing_keys_and_unknown_sections_are_named(written: Path) -> None:
    found = problems(written, "[sits.a]\n[sites.b]\n[links.c]\n")
    found[1], fresh = found[1].split("; here is a fresh one: ")
    assert UUID(fresh.strip('"'))
    assert found == [
        'tidemark.toml:1: sits: no such section; did you mean "sites"?',
        "tidemark.toml:2: sites.b: needs the key id",
        "tidemark.toml:2: sites.b: needs the key store",
        "tidemark.toml:3: links.c: needs the key site",
        "tidemark.toml:3: links.c: there is no [receivers.NAME] to send to",
    ]


def test_all_problems_come_at_once_in_the_order_of_the_file(written: Path) -> None:
    text = SOUND.replace("[links.plant1]", '[links.plant1]\nwindow = "x"\nretries = "y"')
    text = '[ledger]\nurl = "mysql://x"\n' + text
    found = problems(written, text)
    assert [line.split(":")[1] for line in found] == ["2", "14", "15"]


def test_a_file_that_is_not_toml_says_where(written: Path) -> None:
    (found,) = problems(written, "[links\n")
    assert "tidemark.toml: not TOML" in found and "line 1" in found


def test_a_file_that_an_editor_of_windows_saved_is_read(written: Path) -> None:
    written.write_bytes(b"\xef\xbb\xbf" + SOUND.replace("\n", "\r\n").encode())
    assert load_settings(written, {}).sites["plant1"].id == ID
    written.write_text(SOUND, encoding="utf-16")
    with pytest.raises(UsageError, match="cannot be read") as caught:
        load_settings(written, {})
    assert caught.value.hint == f"save {written} as UTF-8"


def test_a_missing_file_names_init(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(tmp_path / "none.toml", {})
    assert "does not exist" in caught.value.message
    assert "./tidemark init" in caught.value.hint


def test_the_file_is_the_named_one_then_the_environments_then_the_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tidemark.toml", "env.toml", "named.toml"):
        Path(name).write_text(SOUND)
    assert load_settings(None, {}).path.name == "tidemark.toml"
    assert load_settings(None, {"TIDEMARK_CONFIG": "env.toml"}).path.name == "env.toml"
    assert load_settings("named.toml", {"TIDEMARK_CONFIG": "env.toml"}).path.name == "named.toml"


def test_tables_in_one_line_and_quoted_names_have_lines_too(written: Path) -> None:
    text = '[receivers]\n"centre" = { store = "file:///srv", settle_days = "x" }\n'
    (found,) = problems(written, text)
    assert found.startswith("tidemark.toml:2: receivers.centre.settle_days")


def test_cluster_sections_are_read(written: Path) -> None:
    cluster = '\n[cluster]\nreceiver = "centre"\nreplicas = 1\nquorum = 1\n[nodes.n1]\nstore = "/srv/n1"\n'
    settings = load_text(written, SOUND + cluster)
    assert settings.cluster is not None
    assert settings.cluster.slots == 10_000
    assert settings.nodes["n1"].store == "file:///srv/n1"
    (found,) = problems(written, SOUND + cluster.replace("quorum = 1", "quorum = 2"))
    assert "cluster.quorum = 2: cannot be more than replicas (1)" in found


def test_the_template_shows_the_clusters_defaults_as_they_are(written: Path) -> None:
    text = template.render_template()
    commented = text[text.index("# [cluster]") : text.index(template.SOURCES_HEAD)]
    more = "".join(f'\n[nodes.n{number}]\nstore = "nodes/{number}"\n' for number in (2, 3))
    settings = load_text(written, text + "\n".join(line.removeprefix("# ") for line in commented.splitlines()) + more)

    assert settings.cluster == ClusterSettings(receiver="centre")
    assert (settings.cluster.cache_bytes, settings.cluster.grace_hours) == (20_000_000_000, 24)
    assert settings.nodes["n1"] == NodeSettings(name="n1", store=settings.nodes["n1"].store)


NODES = '\n[cluster]\nreplicas = 1\nquorum = 1\n[nodes.n1]\nstore = "/srv/n1"\n[nodes.n2]\nstore = "{}"\n'


def test_a_cluster_of_several_receivers_says_whose_it_is(written: Path) -> None:
    another = '\n[receivers.other]\nstore = "/srv/other"\n'
    text = SOUND.replace('site = "plant1"', 'site = "plant1"\nreceiver = "centre"') + another + NODES.format("/srv/n2")
    (found,) = problems(written, text)
    assert 'cluster: needs receiver = "…"; there are: centre, other' in found


@pytest.mark.parametrize("place", ["/srv/n1", "/srv/n1/", "/srv/n1/below", "/srv", "/srv/tidemark", "/srv/tidemark/data/n"])
def test_a_node_has_a_folder_of_its_own(written: Path, place: str) -> None:
    (found,) = problems(written, SOUND + NODES.format(place))
    assert "nodes.n2.store" in found and "shares folders with the store of " in found


@pytest.mark.parametrize("place", ["/srv/n10", "/srv/n2", "/srv/tidemark/nodes/n2", "sftp://a@b:22/srv/n1"])
def test_nodes_may_lie_side_by_side(written: Path, place: str) -> None:
    text = SOUND + NODES.format(place)
    if place.startswith("sftp"):
        text += f'host_key = "SHA256:{"a" * 43}"\nkey = "/k"\n'
    assert load_text(written, text).nodes["n2"].store == (place if "://" in place else f"file://{place}")


def test_lines_are_found_past_comments_and_long_texts() -> None:
    text = '# [no.table]\n[a]\nx = """\n[b]\ny = 1\n"""\nz.w = 2 # [c]\n[ d . "e f" ] # x\nk=1\n'
    assert dict(iterate_keys(text)) == {("a",): 2, ("a", "x"): 3, ("a", "z", "w"): 7, ("d", "e f"): 8, ("d", "e f", "k"): 9}


@given(st.integers(1, 10**6), st.sampled_from(sorted(values._UNITS)))
def test_bandwidth_in_any_unit_is_bytes_a_second(number: int, unit: str) -> None:
    assert values.parse_bandwidth(f"{number} {unit}/s") == number * values._UNITS[unit]
    assert values.parse_bandwidth(f"{number}{unit}/s") == values.parse_bandwidth(f" {number} {unit}/s ")


@pytest.mark.parametrize(
    "line", ["* * * * *", "*/15 0-6,22 1,15 JAN-mar mon-fri", "0 0 * * 7", "@daily", "5/10 * * * *", ""]
)
def test_good_cron_lines(line: str) -> None:
    assert values.parse_cron(line) == line


@pytest.mark.parametrize(
    "line", ["* * * *", "* 24 * * *", "*/0 * * * *", "5-1 * * * *", "* * 0 * *", "* * * 13 *", "a * * * *", "1- * * * *"]
)
def test_bad_cron_lines(line: str) -> None:
    with pytest.raises(ValueError):
        values.parse_cron(line)


@pytest.mark.parametrize(
    ("text", "size"), [("", 0), ("20 GB", 20_000_000_000), ("1.5GiB", 3 << 29), ("512 MiB", 1 << 29), ("7 B", 7)]
)
def test_a_size_in_any_unit_is_bytes(text: str, size: int) -> None:
    assert values.parse_size(text) == size


@pytest.mark.parametrize("text", ["20", 20, "0 GB", "-1 GB", "20 GB/s", "20 Gbit", "all"])
def test_what_is_no_size_is_told_with_one(text: object) -> None:
    with pytest.raises(ValueError, match="20 GB"):
        values.parse_size(text)
