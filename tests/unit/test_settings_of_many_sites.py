"""Settings of many sites: included files, defaults, links made by a pattern, prefixes; and what a mistake in them gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import UsageError
from tidemark.settings import values
from tidemark.settings.load import load_settings
from tidemark.settings.model import Settings
from tidemark.tsfiles.devices import plain_path

CENTRE = '[receivers.centre]\nstore = "centre"\n'
Write = Callable[..., Settings]


def site(name: str, more: str = "") -> str:
    return f'[sites.{name}]\nid = "{uuid4()}"\nstore = "{name}"\n{more}\n'


@pytest.fixture
def load(tmp_path: Path) -> Write:
    """Write the files and load the first."""

    def load_files(main: str, files: dict[str, str] | None = None, **environ: str) -> Settings:
        for name, text in {"tidemark.toml": main, **(files or {})}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        return load_settings(tmp_path / "tidemark.toml", environ)

    return load_files


def refused(tmp_path: Path, load: Write, *files: object) -> str:
    with pytest.raises(UsageError) as caught:
        load(*files)
    return caught.value.message.replace(f"{tmp_path}/", "")


def test_included_files_are_part_of_the_settings(load: Write, tmp_path: Path) -> None:
    files = {
        "sites/b.toml": site("b", 'key = "keys/b"'),
        "sites/a.toml": 'include = ["more/c.toml"]\n' + site("a"),
        "more/c.toml": site("c"),
        "sites/notes.txt": "no settings",
    }
    settings = load('include = ["sites/*.toml"]\n' + CENTRE, files)
    assert set(settings.sites) == {"a", "b", "c"}
    assert settings.sites["b"].key == str(tmp_path / "keys/b"), "below the folder of tidemark.toml, wherever it is written"
    assert settings.sites["c"].store == f"file://{tmp_path}/c"


def test_a_mistake_in_an_included_file_is_told_with_its_file_and_line(load: Write, tmp_path: Path) -> None:
    message = refused(tmp_path, load, 'include = ["sites/*.toml"]\n' + CENTRE, {"sites/a.toml": site("a", "nise = 3")})
    assert message == 'sites/a.toml:4: sites.a.nise: no such key; did you mean "nice"?'


def test_a_loop_of_includes_is_told_with_all_its_files(load: Write, tmp_path: Path) -> None:
    files = {"a.toml": 'include = ["b.toml"]', "b.toml": '\ninclude = ["a.toml"]'}
    message = refused(tmp_path, load, 'include = ["a.toml"]\n' + CENTRE, files)
    assert message == "b.toml:2: include: a loop: a.toml includes b.toml includes a.toml"
    assert "tidemark.toml:1: include: a loop: tidemark.toml includes tidemark.toml" in refused(
        tmp_path, load, 'include = ["tide*.toml"]\n' + CENTRE
    )


def test_a_file_is_included_once(load: Write, tmp_path: Path) -> None:
    (tmp_path / "b.toml").symlink_to("a.toml")
    message = refused(tmp_path, load, 'include = ["a.toml", "b.toml"]\n' + CENTRE, {"a.toml": site("a")})
    assert message == "tidemark.toml:1: include: b.toml is included already: name each file once"


def test_a_name_stands_in_one_file(load: Write, tmp_path: Path) -> None:
    link = '[links.a]\nsite = "a"\n'
    files = {"one.toml": site("a") + link, "two.toml": "\n" + link + '[ledger]\nurl = "sqlite:///x.db"\n'}
    main = 'include = ["one.toml", "two.toml"]\n' + CENTRE + '[ledger]\nurl = "sqlite:///y.db"\n'
    assert refused(tmp_path, load, main, files).splitlines()[1:] == [
        "two.toml:2: [links.a] stands in one.toml:5 too: keep one",
        "two.toml:4: [ledger] stands in tidemark.toml:4 too: keep one",
    ]


@pytest.mark.parametrize(
    ("include", "said"),
    [
        ('["sties/*.toml"]', 'tidemark.toml:1: include: "sties/*.toml" matches no file'),
        ('["folder.toml"]', "folder.toml cannot be read"),
        ('["latin.toml"]', "latin.toml cannot be read"),
        ('["torn.toml"]', "torn.toml: not TOML: "),
        ('"sites/a.toml"', 'tidemark.toml:1: include = "sites/a.toml": must be a list of texts'),
    ],
)
def test_an_include_that_cannot_be_read_is_refused_by_name(load: Write, tmp_path: Path, include: str, said: str) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    message = refused(tmp_path, load, f"include = {include}\n" + CENTRE, {"torn.toml": "[sites"})
    assert said in message


def test_defaults_hold_unless_a_table_or_the_environment_says_otherwise(load: Write) -> None:
    defaults = '[defaults.site]\ndata = ["data/datanode/data"]\nnice = 5\n[defaults.link]\nretries = 9\nconnections = 2\n'
    links = '[links.a]\nsite = "a"\n[links.b]\nsite = "b"\nretries = 1\n'
    text = CENTRE + defaults + site("a") + site("b", "nice = 7") + links
    settings = load(text, TIDEMARK__DEFAULTS__LINK__CONNECTIONS="3", TIDEMARK__SITES__A__NICE="6")
    assert [settings.sites[name].nice for name in "ab"] == [6, 7]
    assert [settings.links[name].retries for name in "ab"] == [9, 1]
    assert settings.sites["a"].data == ("data/datanode/data",)
    assert settings.links["a"].connections == 3


def test_a_mistake_in_the_defaults_is_one_mistake(load: Write, tmp_path: Path) -> None:
    defaults = '[defaults.site]\nnice = 99\nid = "x"\n[defaults.link]\nsite = "a"\n[defaults.node]\n'
    message = refused(tmp_path, load, CENTRE + defaults + site("a") + site("b"))
    assert message.splitlines()[1:] == [
        "tidemark.toml:4: defaults.site.nice = 99: must be a whole number from 0 to 19",
        *[
            line
            for line in message.splitlines()
            if line.startswith('tidemark.toml:5: defaults.site.id = "x": must be a UUID')
        ],
        "tidemark.toml:7: defaults.link.site: is of one of the links alone: write it in [links.NAME]",
        "tidemark.toml:8: defaults.node: no such defaults; there are: link, site",
    ]


def test_a_pattern_makes_a_link_for_each_site_without_one_of_its_own(load: Write) -> None:
    links = '[links."north-*"]\nwindow = "22:00-06:00"\n[links.north-2]\nsite = "north-2"\n'
    text = CENTRE + "[defaults.link]\nretries = 9\n" + links + "".join(map(site, ("north-1", "north-2", "north-3", "south")))
    settings = load(text, TIDEMARK__LINKS__NORTH_3__WINDOW="20:00-21:00")
    windows = {name: link.window for name, link in settings.links.items()}
    assert windows == {"north-1": "22:00-06:00", "north-2": "", "north-3": "20:00-21:00"}
    assert settings.links["north-1"].site == "north-1"
    assert settings.links["north-1"].receiver == "centre"
    assert {link.retries for link in settings.links.values()} == {9}


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ('[links."south-*"]', "tidemark.toml:3: links.south-*: matches no site; there are: north-1, north-2"),
        (
            '[links."north-*"]\nretries = -1',
            "tidemark.toml:4: links.north-*.retries = -1: must be a whole number from 0 to 100",
        ),
        (
            '[links."north-*"]\nreceiver = "centr"',
            'tidemark.toml:4: links.north-*.receiver = "centr": no receiver of that name; did you mean "centre"?',
        ),
        (
            '[links."north-*"]\nsite = "north-1"',
            "tidemark.toml:4: links.north-*.site: is of one of the links alone: write it in [links.NAME]",
        ),
        (
            '[links."north-?"]\n[links."*-1"]',
            'tidemark.toml:4: links.*-1: matches site north-1, as "north-?" does (tidemark.toml:3):'
            " write a [links.north-1] for it",
        ),
        (
            '[links."north-*"]\n[links.mine]\nsite = "north-1"',
            "tidemark.toml:3: links.north-1: sends site north-1 to centre as link mine does (tidemark.toml:4): keep one,"
            " with the patterns of both",
        ),
    ],
)
def test_a_mistake_in_a_pattern_is_told_once(load: Write, tmp_path: Path, links: str, said: str) -> None:
    assert refused(tmp_path, load, CENTRE + links + "\n" + site("north-1") + site("north-2")) == said


@given(
    st.one_of(
        st.text(max_size=12),
        st.lists(st.sampled_from(["a", "7", "e", ".", "`", "``", "-", "ü", "中", "0xF", "*"])).map("".join),
    )
)
def test_a_prefix_is_a_path_in_the_spelling_of_the_catalog(nodes: str) -> None:
    path = f"root.{nodes}"
    try:
        assert values.parse_prefix(path) == path
    except ValueError:
        return
    assert plain_path(path) == path


@pytest.mark.parametrize("path", ["root.ship7", "root.`ship-7`", "root.a.`7`", "root.`a``b`", "root.`a.b`", "root.船"])
def test_what_a_prefix_may_be(path: str) -> None:
    assert values.parse_prefix(path) == plain_path(path) == path
