"""The settings as they were written, and everything that is wrong with them.

A `Document` holds the values, and the place of each: a line of the file, or an environment variable. `Problems` gathers
what is wrong, so that one error mends all of it. A problem names its key, its place and what is allowed.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemark.errors import SettingsError, UsageError
from tidemark.settings.model import NAMED
from tidemark.settings.values import FromEnvironment, format_value
from tidemark.visible import escape_invisible

PREFIX = "TIDEMARK__"
_HEADER = re.compile(r"^\s*\[\[?\s*(?P<name>[^\]#]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""^\s*(?P<name>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")

_ABSENT = object()

KeyPath = tuple[str, ...]


@dataclass
class Document:
    """The values as the file and the environment write them."""

    label: str  # the file as the user named it
    tree: dict[str, Any]  # the TOML tables, with the environment's values put in
    places: dict[KeyPath, str] = field(default_factory=dict)  # where each key stands

    def locate_key(self, *path: str) -> str:
        """Return `tidemark.toml:12`, the place of the key or of the nearest table around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return self.label


@dataclass
class Problems:
    """What is wrong with the settings of `document`, in the order in which it was found."""

    document: Document
    found: list[tuple[str, str]] = field(default_factory=list)  # (place, text)

    def add_problem(self, message: str, *path: str, value: Any = _ABSENT) -> None:
        """Add what is wrong with the key that `path` names. `value` is what stands there."""
        key = ".".join(path)
        said = "" if value is _ABSENT else f" = {format_value(value)}"
        self.found.append((self.document.locate_key(*path), f"{key}{said}: {message}"))

    def raise_if_any(self) -> None:
        """Raise one SettingsError with all problems, in the order of the file."""
        if not self.found:
            return
        lines = [escape_invisible(f"{place}: {text}") for place, text in sorted(self.found, key=_order_problem)]
        head = "" if len(lines) == 1 else f"{len(lines)} problems in the settings:\n"
        raise SettingsError(
            head + "\n".join(lines), hint=f"mend {self.document.label}, then ./tidemark doctor", subject=self.document.label
        )


def _order_problem(problem: tuple[str, str]) -> tuple[str, int, str]:
    place, text = problem
    match = re.fullmatch(r"(.*):(\d+)", place)
    return (match[1], int(match[2]), text) if match else (place, 0, text)


def suggest_nearest(wrong: str, known: Iterable[str]) -> str:
    """Return `; did you mean "store"?`, or the whole list where nothing is near."""
    choices = sorted(known)
    near = difflib.get_close_matches(wrong, choices, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{near[0]}"?'
    return f"; there are: {', '.join(choices)}" if choices else "; there are none"


def read_document(path: Path, label: str, environ: Mapping[str, str]) -> Document:
    """Parse the file and put `TIDEMARK__SECTION__KEY` over it. Raise UsageError where it cannot be read or is not TOML."""
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
    """Yield each table and key of a sound TOML text with the number of its line, counted from 1."""
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
    """Return the quotes that end a text of several lines. Return '' where no such text begins in `value`."""
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


def _environment_path(tree: Mapping[str, Any], parts: list[str]) -> KeyPath:
    """Turn `SITES`, `PLANT_1`, `STORE` into ("sites", "plant-1", "store"), with names as the file writes them."""
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
