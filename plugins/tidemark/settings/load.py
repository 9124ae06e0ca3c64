"""The reading of `tidemark.toml` and `TIDEMARK__SECTION__KEY` into frozen `Settings` (CONTRACT §2)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemark.settings.document import Problems, read_document, suggest_nearest
from tidemark.settings.model import FRESH_UUID, NAMED, REQUIRED, SECTIONS, Settings, list_settings, make_start
from tidemark.settings.references import check_references
from tidemark.settings.values import reader_below

DEFAULT = "tidemark.toml"


def find_settings(path: Path | str | None, environ: Mapping[str, str]) -> tuple[Path, str]:
    """Return the settings file, absolute, and the name that the user gives it.

    It is the file that `path` names, else the one of $TIDEMARK_CONFIG, else ./tidemark.toml.
    """
    label = str(path or environ.get("TIDEMARK_CONFIG") or DEFAULT)
    return Path(label).expanduser().absolute(), label


def load_settings(path: Path | str | None, environ: Mapping[str, str]) -> Settings:
    """Read the settings once. Raise one UsageError that names every bad key, its line and what is allowed there."""
    file, label = find_settings(path, environ)
    problems = Problems(read_document(file, label, environ))
    for section in problems.document.tree:
        if section not in SECTIONS:
            problems.add_problem(f"no such section{suggest_nearest(section, SECTIONS)}", section)
    tables = {section: _read_section(section, file.parent, problems) for section in SECTIONS}
    check_references(tables, problems)
    problems.raise_if_any()
    found: dict[str, Any] = {}
    for section, kind in SECTIONS.items():
        if section in NAMED:
            found[section] = {name: kind(name=name, **table) for name, table in tables[section].items()}
        elif tables[section]:
            found[section] = kind(**tables[section][""])
    return Settings(path=file, **found)


def _read_section(section: str, root: Path, problems: Problems) -> dict[str, dict[str, Any]]:
    """Return the sound values of each table of the section. A section without names is one table, and "" its name."""
    tables = problems.document.tree.get(section, {} if section in NAMED else None)
    if tables is None:
        return {}
    if section not in NAMED:
        return {"": _read_table((section,), tables, root, problems)}
    if not isinstance(tables, dict):
        problems.add_problem(f"must be tables: [{section}.NAME]", section)
        return {}
    found = {}
    for name, table in tables.items():
        if not isinstance(table, dict):
            problems.add_problem(f"must stand in a table of its own: [{section}.NAME]", section, name)
        elif not _is_name(name):
            problems.add_problem("a name has letters, digits, _ - and . only, at most 100", section, name)
        else:
            found[name] = _read_table((section, name), table, root, problems)
    return found


def _read_table(path: tuple[str, ...], table: Any, root: Path, problems: Problems) -> dict[str, Any]:
    """Return the sound values of one table, with defaults where a key is absent."""
    if not isinstance(table, dict):
        problems.add_problem("must be a table", *path)
        return {}
    known = list_settings(path[0])
    found = {key: setting.default for key, setting in known.items() if setting.default is not REQUIRED}
    for key, value in table.items():
        if key not in known:
            problems.add_problem(f"no such key{suggest_nearest(key, known)}", *path, key)
            continue
        try:
            found[key] = reader_below(root, known[key].read)(value)
        except ValueError as wrong:
            found.pop(key, None)
            problems.add_problem(str(wrong), *path, key, value=value)
    for key, setting in known.items():
        if setting.default is REQUIRED and key not in table:
            fresh = f'; here is a fresh one: "{make_start(setting)}"' if setting.start == FRESH_UUID else ""
            problems.add_problem(f"needs the key {key}{fresh}", *path)
    return found


def _is_name(name: str) -> bool:
    return 0 < len(name) <= 100 and name.isascii() and all(letter.isalnum() or letter in "_-." for letter in name)
