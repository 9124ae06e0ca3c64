"""The settings as they were written: values with the place each came from (file and line, or environment variable)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemark.errors import UsageError

PREFIX = "TIDEMARK__"
NAMED = ("receivers", "sites", "links", "nodes")  # sections with a table per name
_HEADER = re.compile(r"^\s*\[\[?\s*(?P<name>[^\]#]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""^\s*(?P<name>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")

KeyPath = tuple[str, ...]


class FromEnvironment(str):
    """The text of an environment variable: numbers and lists are written without TOML's signs there."""


@dataclass
class Document:
    """`tree`: the TOML tables with the environment's values put in. `places`: where each key stands."""

    label: str  # the file as the user named it
    tree: dict[str, Any]
    places: dict[KeyPath, str] = field(default_factory=dict)
    from_environment: set[KeyPath] = field(default_factory=set)

    def locate_key(self, *path: str) -> str:
        """`tidemark.toml:12` of the key, or of the nearest table around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return self.label


def read_document(path: Path, label: str, environ: Mapping[str, str]) -> Document:
    """Parse the file and put `TIDEMARK__SECTION__KEY` over it. UsageError where it cannot be read or is not TOML."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"no settings: {label} does not exist",
            hint="./tidemark init writes one; --config FILE names another",
            subject=label,
        ) from None
    except (OSError, UnicodeDecodeError) as broken:
        raise UsageError(f"{label} cannot be read: {broken}", subject=label) from broken
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as broken:
        raise UsageError(f"{label}: not TOML: {broken}", hint=f"mend {label} at that line", subject=label) from broken
    except RecursionError as deep:
        raise UsageError(f"{label}: lists or tables nested too deep", hint=f"mend {label}", subject=label) from deep
    document = Document(label, tree)
    for key, line in iterate_keys(text):
        if len(key) > 100:  # each of its beginnings gets a place
            raise UsageError(f"{label}:{line}: tables nested too deep", hint=f"mend {label} at that line", subject=label)
        for length in range(len(key), 0, -1):
            document.places.setdefault(key[:length], f"{label}:{line}")
    _put_environment(document, environ)
    return document


def iterate_keys(text: str) -> Iterator[tuple[KeyPath, int]]:
    """Each table and key of a TOML text with the number of its line, counted from 1. The text is known to be sound."""
    table: KeyPath = ()
    closing = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if closing:
            closing = "" if closing in line else closing
            continue
        if header := _HEADER.match(line):
            table = _split_key(header["name"])
            yield table, number
        elif key := _KEY.match(line):
            yield (*table, *_split_key(key["name"])), number
            closing = _opening_quotes(line[key.end() :])


def _opening_quotes(value: str) -> str:
    """The quotes that end a multi-line string which begins in `value`, or ''."""
    return next((quotes for quotes in ('"""', "'''") if value.count(quotes) == 1), "")


def _split_key(dotted: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def _put_environment(document: Document, environ: Mapping[str, str]) -> None:
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        path = _environment_path(document.tree, variable.removeprefix(PREFIX).split("__"))
        table: Any = document.tree
        for part in path[:-1]:
            table = table.setdefault(part, {}) if isinstance(table, dict) else {}
        if isinstance(table, dict):
            table[path[-1]] = FromEnvironment(environ[variable])
        document.places[path] = variable
        for length in range(1, len(path)):
            document.places.setdefault(path[:length], variable)
        document.from_environment.add(path)


def _environment_path(tree: Mapping[str, Any], parts: list[str]) -> KeyPath:
    """`SITES`, `PLANT_1`, `STORE` → ("sites", "plant-1", "store"): names as the file writes them, where it has them."""
    section = parts[0].lower()
    if section not in NAMED or len(parts) < 3:
        return (section, *(part.lower() for part in parts[1:]))
    known = tree.get(section)
    names = list(known) if isinstance(known, dict) else []
    wanted = _fold_name(parts[1])
    name = next((name for name in names if _fold_name(name) == wanted), parts[1].lower())
    return (section, name, *(part.lower() for part in parts[2:]))


def _fold_name(name: str) -> str:
    return re.sub(r"[-.]", "_", name).lower()
