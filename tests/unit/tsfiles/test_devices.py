"""One canonical text for a device, whatever file it comes from (CONTRACT §1)."""

from __future__ import annotations

import re

import pytest

from tidemark.tsfiles.devices import (
    file_device,
    measurement_name,
    pad_null_tags,
    pattern_matches,
    quote_node,
    split_nodes,
    table_device,
    table_segments,
    translate_stars,
    tree_device,
    unquote_node,
)


@pytest.mark.parametrize("name", ["line1", "a_b", "_x", "温度", "1a", "d1e", "S_int32"])
def test_plain_identifiers_stay_as_they_are(name: str) -> None:
    assert quote_node(name) == name


@pytest.mark.parametrize(
    ("name", "quoted"),
    [("a b", "`a b`"), ("a.b", "`a.b`"), ("12", "`12`"), ("1e3", "`1e3`"), ("a`b", "`a``b`"), ("a-b", "`a-b`"), ("", "``")],
)
def test_other_identifiers_are_quoted_and_come_back(name: str, quoted: str) -> None:
    assert quote_node(name) == quoted
    assert unquote_node(quoted) == name


def test_v3_paths_and_v4_segments_name_the_same_device() -> None:
    whole, cut = ["root.plant1.line1.`a.b`"], ["root.plant1.line1", "`a.b`"]
    assert tree_device(whole) == tree_device(cut) == "root.plant1.line1.`a.b`"
    assert tree_device(["root.plant1", "a1"]) == "root.plant1.a1"


def test_quotes_are_only_where_they_are_needed() -> None:
    assert tree_device(["root.`plant1`.x.12"]) == "root.plant1.x.`12`"
    assert tree_device(["root.a.b", "dotted.node"]) == "root.a.b.`dotted.node`"
    assert measurement_name("`temp`") == "temp"
    assert measurement_name("a b") == "`a b`"


def test_table_devices_carry_database_table_and_tags() -> None:
    assert table_device("works", ["sensors", "r0", "l0"]) == "works.sensors.r0.l0"
    assert table_device("works", ["sensors", None, "x"]) == "works.sensors.\\N.x"
    assert table_device("works", ["sensors", "a.b", "c\\d"]) == "works.sensors.a\\.b.c\\\\d"
    assert table_device("works", ["sensors", "", "x"]) == "works.sensors..x"
    assert table_device("works", ["sensors", "\\N", "x"]) == "works.sensors.\\\\N.x"


def test_null_tags_at_the_end_are_left_out_and_shown_to_readers() -> None:
    short = table_device("works", ["sensors", "r0", None])
    assert short == table_device("works", ["sensors", "r0"]) == "works.sensors.r0"
    assert pad_null_tags(short, 2) == "works.sensors.r0.\\N"
    assert pad_null_tags(short, 1) == short
    assert pad_null_tags(table_device("works", ["sensors"]), 2) == "works.sensors.\\N.\\N"
    assert pad_null_tags("works.sensors.a\\.b", 3) == "works.sensors.a\\.b.\\N.\\N"


@pytest.mark.parametrize(
    "tags", [["r0", "l0"], [None, "x"], ["a.b", "c\\d"], ["\\N", "x"], ["", "x"], ["`q`", "*"], ["`a", "b`"], ["", ""]]
)
def test_the_tags_come_back_from_the_name(tags: list[str | None]) -> None:
    assert table_segments(table_device("works", ["sensors", *tags])) == ("sensors", *tags)


def test_the_model_is_told_by_the_first_node() -> None:
    assert file_device(["root.plant1", "d1"], "root.plant1") == "root.plant1.d1"
    assert file_device(["sensors", "r0"], "works") == "works.sensors.r0"
    assert file_device(["rooted", "r0"], "works") == "works.rooted.r0"


def test_nodes_are_split_outside_of_quotes() -> None:
    assert split_nodes("root.`a.b`.c.d.e") == ["root", "`a.b`", "c", "d", "e"]
    assert split_nodes("root.`a``.b`.c") == ["root", "`a``.b`", "c"]


@pytest.mark.parametrize(
    ("pattern", "device", "matched"),
    [
        ("**", "root.plant1.line1", True),
        ("root.**", "root.plant1.line1", True),
        ("root.plant1.**", "root.plant1", False),  # one node at least, as in IoTDB
        ("root.plant1.**", "root.plant10.d1", False),
        ("root.*.d1", "root.plant1.d1", True),
        ("root.*.d1", "root.plant1.line1.d1", False),
        ("root.**.d1", "root.plant1.line1.d1", True),
        ("root.plant1.d*", "root.plant1.d17", True),
        ("root.plant1.d*", "root.plant1.e1", False),
        ("root.plant1.d1", "root.plant1.d1", True),
        ("root.plant1.d1", "root.plant1.D1", False),
        ("root.*.x", "root.`a.b`.x", True),
        ("root.`a.b`.x", "root.`a.b`.x", True),
        ("root.`plant1`.x", "root.plant1.x", True),
        ("root.12.x", "root.`12`.x", True),  # as 0.12 writes it into its deletions
        ("root.`*`.x", "root.y.x", False),
        ("root.p+.x", "root.pp.x", False),  # nothing but stars is special
        ("works.sensors.r0.*", "works.sensors.r0.\\N", True),
        ("works.sensors.*.l0", "works.sensors.a\\.b.l0", True),
        ("works.sensors.\\N.x", "works.sensors.\\N.x", True),
        ("works.sensors.*", "works.sensors.`a.b`", False),  # two tags: a quote in a tag is a character
        ("works.sensors.*.*", "works.sensors.`a.b`", True),
        ("works.sensors.**", "works.sensors.\\N.x", True),
        ("root.**.**", "root.a", False),
        ("root.**.**", "root.a.b", True),
        ("root.**.a.**.b", "root.a.a.b", False),
        ("root.**.a.**.b", "root.x.a.a.b", True),
        ("root.a*b***c*c", "root.abbcbc", True),
        ("root.a*b*c", "root.ab.c", False),
    ],
)
def test_patterns(pattern: str, device: str, matched: bool) -> None:
    assert pattern_matches(pattern, device) is matched


@pytest.mark.full_after(1)
@pytest.mark.timeout(60)  # with a place tried again for each star, the sun goes out first
@pytest.mark.parametrize("device", ["root." + "a" * 60, "works.t." + "a" * 60, "root" + ".a" * 60])
@pytest.mark.parametrize("pattern", ["*" * 5_000, "*a" * 30, "**." * 2_000, "**.a." * 15, "*.**.a*." * 15, "*`a`" * 30])
def test_no_pattern_of_stars_hangs(pattern: str, device: str) -> None:
    assert not pattern_matches(f"{device.partition('.')[0]}.{pattern}b", device)
    assert re.fullmatch(translate_stars(pattern + "b"), device) is None
