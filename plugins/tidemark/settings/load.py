"""Reads `tidemark.toml` and `TIDEMARK__SECTION__KEY` into frozen `Settings` (CONTRACT §2).

load(path, environ) -> Settings      every problem in one UsageError, each with file and line and what is allowed
find(path, environ) -> (Path, label) which file: the one named, else $TIDEMARK_CONFIG, else ./tidemark.toml
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from tidemark.settings import document as settings_document
from tidemark.settings import keys, references
from tidemark.settings.document import NAMED, Document
from tidemark.settings.keys import Problems
from tidemark.settings.model import (
    ClusterSettings,
    LedgerSettings,
    LinkSettings,
    NodeSettings,
    ReceiverSettings,
    Settings,
    SiteSettings,
    SparkSettings,
)
from tidemark.settings.values import Reader

DEFAULT = "tidemark.toml"


def find_settings(path: Path | str | None, environ: Mapping[str, str]) -> tuple[Path, str]:
    """The settings file, absolute, and how the user calls it."""
    label = str(path or environ.get("TIDEMARK_CONFIG") or DEFAULT)
    return Path(label).expanduser().absolute(), label


def load_settings(path: Path | str | None, environ: Mapping[str, str]) -> Settings:
    """Read the settings once. Raises UsageError that names every bad key, its line and what is allowed there."""
    file, label = find_settings(path, environ)
    document = settings_document.read_document(file, label, environ)
    problems = Problems(document)
    known = keys.value_readers(file.parent)
    _check_sections(document, known, problems)
    single = {name: _read_table(document, known[name], (name,), problems) for name in known if name not in NAMED}
    named = {name: _read_named(document, known[name], name, problems) for name in NAMED}
    references.check_references(
        document, named, {name: table for name, table in single.items() if name in document.tree}, problems
    )
    problems.raise_if_any()
    return Settings(
        path=file,
        ledger=LedgerSettings(**single["ledger"]),
        spark=SparkSettings(**single["spark"]),
        receivers={name: ReceiverSettings(name=name, **table) for name, table in named["receivers"].items()},
        sites={name: SiteSettings(name=name, **table) for name, table in named["sites"].items()},
        links={name: LinkSettings(name=name, **table) for name, table in named["links"].items()},
        cluster=ClusterSettings(**single["cluster"]) if "cluster" in document.tree else None,
        nodes={name: NodeSettings(name=name, **table) for name, table in named["nodes"].items()},
    )


def _check_sections(document: Document, known: Mapping[str, Any], problems: Problems) -> None:
    for section in document.tree:
        if section not in known:
            problems.add_problem(f"no such section{keys.suggest_nearest(section, known)}", section)


def _read_named(
    document: Document, readers: Mapping[str, Reader], section: str, problems: Problems
) -> dict[str, dict[str, Any]]:
    tables = document.tree.get(section, {})
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
            found[name] = _read_table(document, readers, (section, name), problems)
    return found


def _read_table(
    document: Document, readers: Mapping[str, Reader], path: tuple[str, ...], problems: Problems
) -> dict[str, Any]:
    """The sound values of one table, defaults where a key is absent."""
    table: Any = document.tree
    for part in path:
        table = table.get(part, {})
    if not isinstance(table, dict):
        problems.add_problem("must be a table", *path)
        return {}
    found = dict(_section_defaults(path[0], readers))
    for key, value in table.items():
        if key not in readers:
            problems.add_problem(f"no such key{keys.suggest_nearest(key, readers)}", *path, key)
            continue
        try:
            found[key] = readers[key](value)
        except ValueError as wrong:
            found.pop(key, None)
            problems.add_problem(str(wrong), *path, key, value=value)
    for key in keys.required_keys(path[0]):
        if key not in table and (len(path) > 1 or path[0] in document.tree):
            fresh = f'; here is a fresh one: "{uuid4()}"' if key == "id" else ""
            problems.add_problem(f"needs the key {key}{fresh}", *path)
    return found


def _section_defaults(section: str, readers: Mapping[str, Reader]) -> Mapping[str, Any]:
    fields = {field.name: field.default for field in dataclasses.fields(keys.SECTIONS[section])}
    return {key: fields[key] for key in readers if fields[key] is not dataclasses.MISSING}


def _is_name(name: str) -> bool:
    return 0 < len(name) <= 100 and name.isascii() and all(letter.isalnum() or letter in "_-." for letter in name)
