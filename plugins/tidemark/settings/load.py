"""The reading of `tidemark.toml` and `TIDEMARK__SECTION__KEY` into frozen `Settings` (CONTRACT §2).

At the end `check_references` compares the sections: names that must exist, UUIDs that must differ, host keys that sftp
needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tidemark.settings.document import Problems, read_document, suggest_nearest
from tidemark.settings.model import DEFAULTS, FRESH_UUID, NAMED, REQUIRED, SECTIONS, Settings, list_settings, make_start
from tidemark.settings.values import reader_below, scan_command

RECEIVERS_OWN = ("landing", "data", "quarantine", "refused", "schema", "staging", "decided", "settled", "answered", "taken")
"""What a receiver keeps below its store (CONTRACT §3, docs/formats)."""

Sections = Mapping[str, Mapping[str, dict[str, Any]]]


def check_references(sections: Sections, problems: Problems) -> None:
    """Add what is wrong between sections to `problems`. Fill in the receiver of links where there is only one.

    `sections` holds the values that are sound by themselves, by section and table. Names are looked up in the document:
    a site with one bad key is not also called unknown.
    """
    for name, link in sections["links"].items():
        _check_link(name, link, problems)
    _check_ids(sections["sites"], problems)
    _check_pairs(sections["links"], problems)
    _check_receivers(sections["receivers"], problems)
    _check_ends(sections["sites"], sections["receivers"], problems)
    _check_nodes(sections["nodes"], sections["receivers"], problems)
    _check_sources(sections, problems)
    _check_sinks(sections, problems)
    for section in ("receivers", "sites", "nodes"):
        for name, table in sections[section].items():
            _check_login(section, name, table, problems)
    for cluster in sections["cluster"].values():
        _check_cluster(cluster, sections["nodes"], problems)


def _check_link(name: str, link: dict[str, Any], problems: Problems) -> None:
    sites, receivers = _section_names(problems, "sites"), _section_names(problems, "receivers")
    if "site" in link:
        _check_name(("links", name, "site"), link["site"], sites, problems)
    name = problems.document.made.get(name, name)  # the table that says it
    if link.get("receiver"):
        _check_name(("links", name, "receiver"), link["receiver"], receivers, problems)
    elif len(receivers) == 1:
        link["receiver"] = receivers[0]
    else:
        message = (
            f'needs receiver = "…"{suggest_nearest("", receivers)}'
            if receivers
            else "there is no [receivers.NAME] to send to"
        )
        problems.add_problem(message, "links", name)


def _check_name(path: tuple[str, ...], name: str, known: list[str], problems: Problems) -> None:
    if name not in known:
        problems.add_problem(f"no {path[-1]} of that name{suggest_nearest(name, known)}", *path, value=name)


def _check_ids(sites: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    first: dict[str, str] = {}
    for name, site in sites.items():
        if "id" not in site:
            continue
        other = first.setdefault(site["id"], name)
        if other != name:
            where = problems.document.locate_key("sites", other, "id")
            problems.add_problem(
                f"is the id of site {other} too ({where}): every site needs its own", "sites", name, "id", value=site["id"]
            )


def _check_pairs(links: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    """Refuse a second link of one site and receiver. A receiver keeps one sequence of landings for each site."""
    first: dict[tuple[str, str], str] = {}
    for name, link in links.items():
        site, receiver = link.get("site"), link.get("receiver")
        if not site or not receiver:
            continue
        other = first.setdefault((site, receiver), name)
        if other != name:
            where = problems.document.locate_key("links", other)
            message = f"sends site {site} to {receiver} as link {other} does ({where}): keep one, with the patterns of both"
            problems.add_problem(message, "links", name)


def _check_receivers(receivers: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    """Refuse a receiver in another's folder. Each takes what lies below its store for its own."""
    stores = {name: table["store"].rstrip("/") for name, table in receivers.items() if table.get("store")}
    for (one, first), (other, second) in combinations(stores.items(), 2):
        if f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/"):
            _add_shared_folders(("receivers", other), second, ("receivers", one), problems)


def _check_ends(sites: Mapping[str, dict[str, Any]], receivers: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    """Refuse a data folder of a site among a receiver's own folders, and a receiver in a data folder.

    Files of the one would pass for files of the other. One machine, one disk, one parent folder may serve both.
    """
    for name, site in sites.items():
        folders = [_folder_address(site["store"], folder) for folder in site.get("data", ())] if site.get("store") else []
        for receiver, table in receivers.items():
            store = table.get("store", "")
            own = [_folder_address(store, folder) for folder in RECEIVERS_OWN] if store else []
            among = any(folder.startswith(mine) or mine.startswith(folder) for folder in folders for mine in own)
            if among:
                _add_shared_folders(("sites", name), site["store"], ("receivers", receiver), problems)


def _check_nodes(nodes: Mapping[str, dict[str, Any]], receivers: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    """Refuse a node in another's folder or among a receiver's own. What one gives up would go from the other."""
    owned = [
        ("receivers", name, _folder_address(table["store"], folder))
        for name, table in receivers.items()
        if table.get("store")
        for folder in RECEIVERS_OWN
    ]
    for name, table in nodes.items():
        if not table.get("store"):
            continue
        mine = _folder_address(table["store"], "")
        data = _folder_address(table["store"], "data")
        for section, other, folder in owned:
            if folder.startswith(mine if section == "nodes" else data) or mine.startswith(folder):
                _add_shared_folders(("nodes", name), table["store"], (section, other), problems)
                break
        owned.append(("nodes", name, mine))


def _check_sources(sections: Sections, problems: Problems) -> None:
    """Refuse a source's store in another folder of the settings, or around one: retention removes what lies in it. It may
    lie in `changes` below a receiver's folder."""
    others = ("receivers", "nodes", "sources")
    owned = [
        (section, name, table["store"])
        for section in others
        for name, table in sections[section].items()
        if "store" in table
    ]
    for name, table in sections["sources"].items():
        if table.get("password_file") and table.get("connection"):
            message = "password_file and connection exclude each other: give one"
            problems.add_problem(message, "sources", name, "connection")
        mine = _folder_address(table["store"], "") if "store" in table else ""
        for section, other, store in owned:
            folder = _folder_address(store, "")
            if section == "receivers" and mine.startswith(f"{folder}changes/"):
                continue  # nothing of a receiver lies there (formats.layout)
            if mine and (section, other) != ("sources", name) and (folder.startswith(mine) or mine.startswith(folder)):
                _add_shared_folders(("sources", name), table["store"], (section, other), problems)
                break


def _check_sinks(sections: Sections, problems: Problems) -> None:
    """Refuse a sink of no source, and a target in another folder of the settings, or around one."""
    sources = _section_names(problems, "sources")
    owned = [
        (section, name, table[key])
        for section, key in (("receivers", "store"), ("nodes", "store"), ("sources", "store"), ("sinks", "target"))
        for name, table in sections[section].items()
        if key in table
    ]
    for name, table in sections["sinks"].items():
        if "source" in table:
            _check_name(("sinks", name, "source"), table["source"], sources, problems)
        mine = _folder_address(table["target"], "") if "target" in table else ""
        of_sites = [_folder_address(site["store"], "") for site in sections["sites"].values() if "store" in site]
        if table.get("kind") == "catalog" and mine and mine not in of_sites:
            message = (
                f"must be the name of a receiver, or the store of a site: [sites.{name}] with the same folder, and an id"
            )
            problems.add_problem(message, "sinks", name, "target", value=table["target"])
        for section, other, store in owned:
            folder = _folder_address(store, "")
            if mine and (section, other) != ("sinks", name) and (folder.startswith(mine) or mine.startswith(folder)):
                _add_shared_folders(("sinks", name), table["target"], (section, other), problems)
                break


def _add_shared_folders(table: tuple[str, str], store: str, other: tuple[str, str], problems: Problems) -> None:
    key, others = ("target" if section == "sinks" else "store" for section in (table[0], other[0]))
    where = problems.document.locate_key(*other, others)
    message = f"shares folders with the {others} of {other[0].removesuffix('s')} {other[1]} ({where}): give each its own"
    problems.add_problem(message, *table, key, value=store)


def _folder_address(store: str, folder: str) -> str:
    """Write a folder of a store, relative or absolute, as an address that ends in a slash."""
    scheme, _, rest = store.partition("://")
    host, root = ("", rest) if scheme == "file" else (urlsplit(store).netloc, urlsplit(store).path)
    path = folder if folder.startswith("/") else f"{root.rstrip('/')}/{folder}"
    return f"{scheme}://{host}{path.rstrip('/')}/"


def _check_login(section: str, name: str, table: dict[str, Any], problems: Problems) -> None:
    if table.get("store", "").startswith("sftp://") and not any(
        table.get(key) for key in ("host_key", "known_hosts", "connection")
    ):
        shown = scan_command(table["store"])
        message = f'needs host_key = "SHA256:…" because its store is sftp; {shown} shows it'
        problems.add_problem(message, section, name, "store")
    if table.get("store", "").startswith("file://") and table.get("tier", "auto") != "auto":
        message = "is for sftp:// stores, where it says what may be run at the far end: leave it out"
        problems.add_problem(message, section, name, "tier", value=table["tier"])
    if table.get("host_key") and table.get("known_hosts"):
        problems.add_problem("host_key and known_hosts exclude each other: give one", section, name, "known_hosts")
    if table.get("key") and table.get("connection"):
        problems.add_problem("key and connection exclude each other: give one", section, name, "connection")
    if table.get("login") == "agent" and (other := table.get("key") or table.get("connection")):
        message = f"log in by the agent, or by {'key' if other == table.get('key') else 'connection'}: give one"
        problems.add_problem(message, section, name, "login", value="agent")
    if table.get("iotdb_password_file") and table.get("iotdb_connection"):
        message = "iotdb_password_file and iotdb_connection exclude each other: give one"
        problems.add_problem(message, section, name, "iotdb_connection")


def _check_cluster(cluster: dict[str, Any], nodes: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    receivers = _section_names(problems, "receivers")
    if cluster.get("receiver"):
        _check_name(("cluster", "receiver"), cluster["receiver"], receivers, problems)
    elif len(receivers) > 1:
        problems.add_problem(f'needs receiver = "…"{suggest_nearest("", receivers)}', "cluster")
    replicas, quorum = cluster.get("replicas", 0), cluster.get("quorum", 0)
    if quorum > replicas:
        problems.add_problem(f"cannot be more than replicas ({replicas})", "cluster", "quorum", value=quorum)
    if nodes and replicas > len(nodes):
        problems.add_problem(f"needs as many [nodes.NAME]; there are {len(nodes)}", "cluster", "replicas", value=replicas)


def _section_names(problems: Problems, section: str) -> list[str]:
    tables = problems.document.tree.get(section)
    return list(tables) if isinstance(tables, dict) else []


DEFAULT = "tidemark.toml"


def find_settings(path: Path | str | None, environ: Mapping[str, str]) -> tuple[Path, str]:
    """Return the settings file, absolute, and the name that the user gives it.

    It is the file that `path` names, else the one of $TIDEMARK_CONFIG, else ./tidemark.toml.
    """
    label = str(path or environ.get("TIDEMARK_CONFIG") or DEFAULT)
    return Path(label).expanduser().absolute(), label


def load_settings(path: Path | str | None, environ: Mapping[str, str], seen: dict[Path, float] | None = None) -> Settings:
    """Read the settings once. Raise one UsageError that names every bad key, its line and what is allowed there.

    `seen` gets each file that was read, with its mtime before that.
    """
    file, label = find_settings(path, environ)
    problems = read_document(file, label, environ, seen)
    for section in problems.document.tree:
        if section not in SECTIONS and section != "defaults":
            problems.add_problem(f"no such section{suggest_nearest(section, SECTIONS)}", section)
    defaults = _read_defaults(file.parent, problems)
    tables = {section: _read_section(section, file.parent, problems, defaults.get(section, {})) for section in SECTIONS}
    check_references(tables, problems)
    problems.raise_if_any()
    found: dict[str, Any] = {}
    for section, kind in SECTIONS.items():
        if section in NAMED:
            found[section] = {name: kind(name=name, **table) for name, table in tables[section].items()}
        elif tables[section]:
            found[section] = kind(**tables[section][""])
    return Settings(path=file, **found)


def _read_defaults(root: Path, problems: Problems) -> dict[str, dict[str, Any]]:
    """Return the sound values of `[defaults.site]` and `[defaults.link]`, by the section that they are for."""
    tables = problems.document.tree.get("defaults", {})
    if not isinstance(tables, dict):
        problems.add_problem("must be tables: [defaults.site], [defaults.link]", "defaults")
        return {}
    found = {}
    for name, table in tables.items():
        if name not in DEFAULTS:
            problems.add_problem(f"no such defaults{suggest_nearest(name, DEFAULTS)}", "defaults", name)
        else:
            section = DEFAULTS[name]
            found[section] = _read_shared(("defaults", name), table, section, root, problems)
    return found


def _read_section(section: str, root: Path, problems: Problems, defaults: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the sound values of each table of the section. A section without names is one table, and "" its name."""
    document = problems.document
    tables = document.tree.get(section, {} if section in NAMED else None)
    if tables is None:
        return {}
    if section not in NAMED:
        return {"": _read_table((section,), tables, {}, root, problems)}
    if not isinstance(tables, dict):
        problems.add_problem(f"must be tables: [{section}.NAME]", section)
        return {}
    shared = {}
    for pattern, table in document.patterns.items() if section == "links" else ():
        shared[pattern] = defaults | _read_shared((section, pattern), table, section, root, problems)
    found = {}
    for name, table in tables.items():
        if not isinstance(table, dict):
            problems.add_problem(f"must stand in a table of its own: [{section}.NAME]", section, name)
        elif not _is_name(name):
            problems.add_problem("a name has letters, digits, _ - and . only, at most 100", section, name)
        else:
            base = shared.get(document.made.get(name, ""), defaults) if section == "links" else defaults
            found[name] = _read_table((section, name), table, base, root, problems)
    return found


def _read_shared(path: tuple[str, ...], table: Any, section: str, root: Path, problems: Problems) -> dict[str, Any]:
    """Return the sound values of a table that stands for several of the section. None of them is one's own."""
    if not isinstance(table, dict):
        problems.add_problem("must be a table", *path)
        return {}
    found = _read_values(path, table, section, root, problems)
    for key in [key for key in found if list_settings(section)[key].default is REQUIRED]:
        problems.add_problem(f"is of one of the {section} alone: write it in [{section}.NAME]", *path, key)
    return found


def _read_table(path: tuple[str, ...], table: Any, base: dict[str, Any], root: Path, problems: Problems) -> dict[str, Any]:
    """Return the sound values of one table. An absent key has its value from `base`, else its default."""
    if not isinstance(table, dict):
        problems.add_problem("must be a table", *path)
        return {}
    known = list_settings(path[0])
    for key, setting in known.items():
        if setting.default is REQUIRED and key not in table:
            fresh = f'; here is a fresh one: "{make_start(setting)}"' if setting.start == FRESH_UUID else ""
            problems.add_problem(f"needs the key {key}{fresh}", *path)
    found = {key: setting.default for key, setting in known.items() if setting.default is not REQUIRED}
    found |= base
    for key in table:
        found.pop(key, None)
    return found | _read_values(path, table, path[0], root, problems)


def _read_values(
    path: tuple[str, ...], table: dict[str, Any], section: str, root: Path, problems: Problems
) -> dict[str, Any]:
    """Return the sound values among those that the table holds."""
    known, found = list_settings(section), {}
    for key, value in table.items():
        if key not in known:
            problems.add_problem(f"no such key{suggest_nearest(key, known)}", *path, key)
            continue
        try:
            found[key] = reader_below(root, known[key].read)(value)
        except ValueError as wrong:
            problems.add_problem(str(wrong), *path, key, value=value)
    return found


def _is_name(name: str) -> bool:
    return 0 < len(name) <= 100 and name.isascii() and all(letter.isalnum() or letter in "_-." for letter in name)
