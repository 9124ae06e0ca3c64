"""Whatever stands in `tidemark.toml` or the environment: settings, or one UsageError that names a place. Never a crash."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import UsageError
from tidemark.settings import template
from tidemark.settings.load import load_settings
from tidemark.settings.model import SECTIONS, Settings, list_settings

LINES = template.render_template().splitlines()
VALUES = st.one_of(
    st.sampled_from(
        ['""', "0", "-1", "1.5", "true", "[]", "{}", '["a", 1]', "1979-05-27", '"sftp://"', '"file:"', '"\\u0000"', '"[::1"']
    ),
    st.text(max_size=20).map(lambda text: '"' + text.encode("unicode_escape").decode().replace('"', "") + '"'),
    st.integers().map(str),
)
KEYS = sorted((section, key) for section in SECTIONS for key in list_settings(section))


def outcome(text: str, environ: dict[str, str]) -> Settings | str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tidemark.toml"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            return load_settings(path, environ)
        except UsageError as wrong:
            return wrong.message.replace(folder, "")


@given(st.lists(st.tuples(st.integers(0, len(LINES) - 1), st.sampled_from(["drop", "twice", "cut"])), max_size=5))
def test_lines_lost_doubled_or_cut(edits: list[tuple[int, str]]) -> None:
    lines = list(LINES)
    for at, kind in edits:
        line = lines[at]
        lines[at] = {"drop": "", "twice": f"{line}\n{line}", "cut": line[: len(line) // 3]}[kind]
    found = outcome("\n".join(lines), {})
    assert isinstance(found, Settings) or "tidemark.toml" in found


@given(st.sampled_from(KEYS), VALUES)
def test_any_value_for_any_key_is_taken_or_named_with_its_line(key: tuple[str, str], value: str) -> None:
    section, name = key
    head = f"[{section}]" if section in ("ledger", "spark", "cluster") else f"[{section}.x]"
    found = outcome(f"{head}\n{name} = {value}\n", {})
    assert isinstance(found, Settings) or "tidemark.toml:1" in found or "tidemark.toml:2" in found or "not TOML" in found


@given(
    st.sampled_from(sorted(SECTIONS)),
    st.lists(st.sampled_from(["X", "STORE", "URL", "ID", "", "DATA"]), max_size=4),
    st.text("a[:1/.,", max_size=8),
)
def test_any_variable_is_taken_or_named(section: str, parts: list[str], value: str) -> None:
    variable = "__".join(["TIDEMARK", section.upper(), *parts])
    found = outcome("\n".join(LINES), {variable: value})
    assert isinstance(found, Settings) or "TIDEMARK__" in found
