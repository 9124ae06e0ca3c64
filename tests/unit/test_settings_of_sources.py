"""Settings of sources of changes and of sinks: what they may say, and what a mistake in them gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.errors import UsageError
from tidemark.settings import model, template
from tidemark.settings.load import load_settings
from tidemark.settings.model import Settings
from tidemark.settings.values import TableColumns


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "tidemark.toml"


def load_text(path: Path, text: str) -> Settings:
    path.write_text(text, encoding="utf-8")
    return load_settings(path, {})


def problems(path: Path, text: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        load_text(path, text)
    lines = caught.value.message.splitlines()
    return [line.replace(str(path), "tidemark.toml") for line in lines if not line.endswith("in the settings:")]


def test_the_template_shows_a_source_that_loads(written: Path) -> None:
    text = template.render_template().partition(template.SOURCES_HEAD)[2]
    settings = load_text(written, "\n".join(line.removeprefix("# ") for line in text.splitlines()))
    assert settings.sources["orders"] == model.SourceSettings("orders", f"file://{written.parent}/var/changes/orders")


def test_what_a_source_may_be(written: Path) -> None:
    source = '[sources.a]\nstore = "changes/a"\n'
    assert load_text(written, f'{source}url = "mysql://me@db2,[::1]:3307"\n').sources["a"].url == "mysql://me@db2,[::1]:3307"
    for line, says in {
        'url = "mysql://me:secret@db2"': "must not hold a password",
        'url = "postgres://me@db2"': 'must be "mysql://user@host:port"',
        'url = "mysql://me@db2:0"': 'must be "mysql://user@host:port"',
        'tables = ["shop"]': 'write "shop.*"',
        'unsafe = "ignore"': '"stop", "mark"',
    }.items():
        [problem] = problems(written, f"{source}{line}\n")
        assert says in problem
        assert problem.startswith("tidemark.toml:3"), problem
    [problem] = problems(written, f'{source}[sources.b]\nstore = "changes/a/b"\n[sources.c]\nstore = "sftp://u@h/x"\n')[-1:]
    assert "must be a folder of this machine" in problem
    assert "shares folders with the store of source a" in "".join(
        problems(written, f'{source}[sources.b]\nstore = "changes/a/b"\n')
    )


def test_a_source_may_lie_in_changes_below_a_receiver_and_nowhere_else_in_it(written: Path) -> None:
    receiver = '[receivers.centre]\nstore = "{0}"\n[sources.a]\nstore = "{0}/{1}"\n'
    assert load_text(written, receiver.format("centre", "changes/a")).sources["a"].store.endswith("centre/changes/a")
    for folder in ("data/a", "landing", "changes.of/a", "../centre"):
        [problem] = problems(written, receiver.format("centre", folder))
        assert "shares folders with the store of receiver centre" in problem


def test_what_a_sink_may_be(written: Path) -> None:
    source = '[sources.a]\nstore = "changes/a"\n'
    sink = f'{source}[sinks.lake]\nsource = "a"\nkind = "delta"\ntarget = "lake"\n'
    found = load_text(written, f'{sink}[sinks.lake.columns."shop.orders"]\nshard = ["customer_id"]\n').sinks["lake"]
    assert found.columns == (("shop.orders", TableColumns(("customer_id",))),)
    told = '[sinks.lake.columns."shop.orders"]\ntime = "seen"\ntags = ["site", "name"]\n'
    assert load_text(written, sink + told).sinks["lake"].columns == (
        ("shop.orders", TableColumns(time="seen", tags=("site", "name"))),
    )
    assert (found.target, found.shards, found.tables) == (f"file://{written.parent}/lake", 8, ("**",))
    for line, says in {
        'source = "b"\nkind = "delta"\ntarget = "x"': "no source of that name",
        'source = "a"\nkind = "deltas"\ntarget = "x"': '"delta", "history"',
        'source = "a"\nkind = "delta"\ntarget = "s3://x/y"': "must be a folder of this machine",
        'source = "a"\nkind = "delta"\ntarget = "lake/b"': "shares folders with the target of sink lake",
        'source = "a"\nkind = "delta"\ntarget = "changes"': "shares folders with the store of source a",
        'source = "a"\nkind = "delta"\ntarget = "x"\ncolumns = {"shop.orders" = ["id"]}': "must be tables",
        'source = "a"\nkind = "delta"\ntarget = "x"\ncolumns = {"shop.orders" = {key = "id"}}': "must be tables",
        'source = "a"\nkind = "catalog"\ntarget = "x"': "must be the name of a receiver, or the store of a site",
        'source = "a"\nkind = "delta"\ntarget = "x"\nshards = 0': "from 1 to 4096",
    }.items():
        assert any(says in problem for problem in problems(written, f"{sink}[sinks.other]\n{line}\n")), line
