"""The settings as they were written, and everything that is wrong with them.

A `Document` holds the values of the file and of those that it includes, and the place of each: a line of a file, or an
environment variable. `Problems` gathers what is wrong, so that one error mends all of it. A problem names its key, its
place and what is allowed.
"""

from __future__ import annotations

import difflib
import os.path
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from tidemark.errors import SettingsError, UsageError
from tidemark.settings.model import INCLUDE, NAMED
from tidemark.settings.values import FromEnvironment, format_value
from tidemark.visible import escape_invisible

PREFIX = "TIDEMARK__"
_HEADER = re.compile(r"^\s*\[\[?\s*(?P<name>[^\]#]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""^\s*(?P<name>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")

_ABSENT = object()
_SINKS = UUID("0d9c3f0e-6c1f-4f5b-9f0a-4b8a7e1d2c35")
"""Ids of sites that sinks make are UUIDs of version 5 in this namespace: of source and sink."""

KeyPath = tuple[str, ...]


@dataclass
class Document:
    """The values as the file and the environment write them."""

    label: str  # the file as the user named it
    tree: dict[str, Any] = field(default_factory=dict)  # the TOML tables, with the environment's values put in
    places: dict[KeyPath, str] = field(default_factory=dict)  # where each key stands
    patterns: dict[str, Any] = field(default_factory=dict)  # the tables `[links."PATTERN"]`
    made: dict[str, str] = field(default_factory=dict)  # each link that a pattern made, and the pattern

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
        self.add_problem_at(self.document.locate_key(*path), f"{key}{said}: {message}")

    def add_problem_at(self, place: str, text: str) -> None:
        if (place, text) not in self.found:  # a pattern's mistake is one, however many links it makes
            self.found.append((place, text))

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


def read_document(path: Path, label: str, environ: Mapping[str, str], seen: dict[Path, float] | None = None) -> Problems:
    """Read the file and those that it includes, make the links of patterns, put `TIDEMARK__SECTION__KEY` over it, make the
    sites of catalog sinks.

    `seen` gets each file with its mtime before it was read. Raises UsageError for a file that cannot be read or is not TOML.
    """
    problems = Problems(Document(label))
    known: dict[str, str] = {}
    waiting: list[tuple[Path, str, tuple[str, ...]]] = [(path, label, ())]
    while waiting:
        file, name, within = waiting.pop(0)
        known[os.path.realpath(file)] = name
        tree, places = _parse_file(file, name, {} if seen is None else seen)
        patterns = tree.pop("include", [])
        _add_tables(tree, places, name, problems)
        where, chain = places.get(("include",), name), (*within, name)
        for included in _match_files(patterns, path.parent, where, problems):
            shown = str(Path(label).parent / included)
            again = known.get(os.path.realpath(path.parent / included))
            if again is None:
                known[os.path.realpath(path.parent / included)] = shown
                waiting.append((path.parent / included, shown, chain))
            elif again in chain:
                loop = " includes ".join((*chain[chain.index(again) :], again))
                problems.add_problem_at(where, f"include: a loop: {loop}")
            else:
                problems.add_problem_at(where, f"include: {shown} is included already: name each file once")
    _make_links(problems)
    _put_environment(problems.document, environ)
    _make_sites(problems.document)
    return problems


def _parse_file(path: Path, label: str, seen: dict[Path, float]) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """Return the tables of one file and the place of each key."""
    try:
        seen[path] = 0.0
        seen[path] = path.stat().st_mtime
        text = path.read_text(encoding="utf-8-sig")  # editors of Windows write a mark in front
    except FileNotFoundError:
        raise UsageError(
            f"no settings: {label} does not exist",
            hint="./tidemark init writes one; --config FILE names another",
            subject=label,
        ) from None
    except OSError as broken:
        raise UsageError(f"{label} cannot be read: {broken}", subject=label) from broken
    except UnicodeDecodeError as other:
        raise UsageError(f"{label} cannot be read: {other}", hint=f"save {label} as UTF-8", subject=label) from other
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as broken:
        raise UsageError(f"{label}: not TOML: {broken}", hint=f"mend {label} at that line", subject=label) from broken
    except RecursionError as deep:
        raise UsageError(f"{label}: lists or tables nested too deep", hint=f"mend {label}", subject=label) from deep
    places: dict[KeyPath, str] = {}
    for key, line in iterate_keys(text):
        if len(key) > 100:  # each of its beginnings gets a place
            raise UsageError(f"{label}:{line}: tables nested too deep", hint=f"mend {label} at that line", subject=label)
        for length in range(len(key), 0, -1):
            places.setdefault(key[:length], f"{label}:{line}")
    return tree, places


def _match_files(patterns: Any, root: Path, where: str, problems: Problems) -> Iterator[str]:
    """Yield the files that `include` names, in order. A pattern without a file is refused: its sites would vanish unseen."""
    try:
        wanted = INCLUDE.read(patterns)
    except ValueError as wrong:
        problems.add_problem_at(where, f"include = {format_value(patterns)}: {wrong}")
        return
    for pattern in wanted:
        # not Path.glob: that refuses absolute patterns, and takes an editor's hidden files
        found = sorted(glob(str(Path(pattern).expanduser()), root_dir=root, recursive=True))  # noqa: PTH207
        if not found:
            problems.add_problem_at(where, f'include: "{pattern}" matches no file below {root}')
        yield from found


def _add_tables(tree: dict[str, Any], places: dict[KeyPath, str], label: str, problems: Problems) -> None:
    """Add one file's tables to the document. Refuse a table that another file has."""
    document = problems.document
    for section, tables in tree.items():
        mine = document.tree.setdefault(section, tables)
        if mine is tables:
            continue
        several = isinstance(mine, dict) and isinstance(tables, dict) and section in (*NAMED, "defaults")
        for name in tables if several else ():
            if mine.setdefault(name, tables[name]) is not tables[name]:
                _refuse_twice((section, name), places, label, problems)
        if not several:
            _refuse_twice((section,), places, label, problems)
    for key, place in places.items():
        document.places.setdefault(key, place)


def _refuse_twice(path: KeyPath, places: dict[KeyPath, str], label: str, problems: Problems) -> None:
    text = f"[{'.'.join(path)}] stands in {problems.document.locate_key(*path)} too: keep one"
    problems.add_problem_at(places.get(path, label), text)


def _make_links(problems: Problems) -> None:
    """Make a link for each site that a `[links."PATTERN"]` matches, by the site's name. Keep a link that has that name."""
    document = problems.document
    links, sites = document.tree.get("links"), document.tree.get("sites", {})
    if not isinstance(links, dict) or not isinstance(sites, dict):
        return
    document.patterns = {name: links.pop(name) for name in list(links) if is_pattern(name)}
    for pattern in document.patterns:
        matched = [site for site in sites if fnmatchcase(site, pattern)]
        if not matched:
            problems.add_problem(f"matches no site{suggest_nearest(pattern, sites)}", "links", pattern)
        for site in matched:
            if other := document.made.get(site):
                where = document.locate_key("links", other)
                text = f'matches site {site}, as "{other}" does ({where}): write a [links.{site}] for it'
                problems.add_problem(text, "links", pattern)
            elif site not in links:
                links[site], document.made[site] = {"site": site}, pattern
                document.places["links", site] = document.locate_key("links", pattern)


def _make_sites(document: Document) -> None:
    """Make a site and a link for each catalog sink whose target is a receiver, by the sink's name: its files are the site's.
    What stands in tables of that name counts."""
    tree = document.tree
    sinks, receivers = tree.get("sinks"), tree.get("receivers")
    if not isinstance(sinks, dict) or not isinstance(receivers, dict):
        return
    for name, sink in sinks.items():
        if not isinstance(sink, dict) or sink.get("kind") != "catalog" or sink.get("target") not in receivers:
            continue
        receiver = str(sink["target"])
        fresh = {"id": str(uuid5(_SINKS, f"{sink.get('source')}/{name}")), "store": f"var/sinks/{name}"}
        site = _fill_table(document, ("sites", name), fresh)
        _fill_table(document, ("links", name), {"site": name, "receiver": receiver})
        sink["target"] = site.get("store", receiver)


def _fill_table(document: Document, path: tuple[str, str], values: Mapping[str, str]) -> Mapping[str, Any]:
    """Put values into a table where it has none of that key; the table. An empty one: what stands there is no table."""
    section = document.tree.setdefault(path[0], {})
    table = section.setdefault(path[1], {}) if isinstance(section, dict) else None
    if not isinstance(table, dict):
        return {}
    table.update({key: value for key, value in values.items() if key not in table})
    document.places.setdefault(path, document.locate_key("sinks", path[1], "target"))
    return table


def is_pattern(name: str) -> bool:
    """Whether a name stands for all that it matches: `*` any letters, `?` one."""
    return "*" in name or "?" in name


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
